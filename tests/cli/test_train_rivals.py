"""`dop train --policy` and `dop compare` with the rivals."""

import json
from pathlib import Path

import pytest
from command_line import Dop, compare_in_this_process

pytest.importorskip("torch")

from training.tiny import graph

from doppler.graph import write_graph
from doppler.runs import comparison

BASELINES = ("placeto", "placeto-pretrain", "gdp", "seq2seq")
TOML = """
threads = 1
[policy]
width = 4
[sim]
episodes = 8
batch = 4
"""


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is had without training is found in no time."""
    monkeypatch.setattr(comparison, "MAX_S", 0.02)
    compare_in_this_process(monkeypatch)


def test_the_command_line(dop: Dop, tmp_path: Path) -> None:
    write_graph(graph(), tmp_path / "graph.json")
    (tmp_path / "quick.toml").write_text(TOML)
    for name in BASELINES:
        options = ("--config", "quick.toml", "--policy", name, "--stages", "sim")
        result = dop("train", "graph.json", *options, "-o", f"runs/{name}")
        assert result.code == 0, result.err
        kind = name.removesuffix("-pretrain")
        assert f"no policy of kind `{kind}` comes with doppler" in result.err
        assert f"trained policy: placer {kind}:runs/{name}; shipped policy" in result.out
        assert f"--placer {kind}:runs/{name}" in result.out
    placers = ",".join(f"{name}:runs/{name}" for name in BASELINES)
    compared = dop("compare", "graph.json", "--placers", f"single,{placers}", "--json").json()
    assert {row["placer"] for row in compared} == {"single", *placers.split(",")}
    assert not any(row["error"] for row in compared)
    more = ("train", "graph.json", "--config", "quick.toml", "--from", "runs/gdp")
    assert dop(*more, "-o", "runs/more").code == 0
    assert dop("train", "--resume", "-o", "runs/more").code == 0
    wrong = dop(*more, "--policy", "seq2seq", "-o", "runs/wrong")
    assert wrong.code == 2
    assert "holds a policy of kind `gdp`, not `seq2seq`" in wrong.err
    unknown = dop("train", "graph.json", "--policy", "placetoo", "-o", "runs/unknown")
    assert unknown.code == 2
    assert "did you mean `placeto`" in unknown.err
    (tmp_path / "kind.toml").write_text(TOML.replace("width", 'kind = "gdp"\nwidth'))
    assert dop("train", "graph.json", "--config", "kind.toml", "-o", "runs/kind").code == 0
    document = json.loads((tmp_path / "runs/kind/config.json").read_text())
    assert document["config"]["policy"]["kind"] == "gdp"
    assert document["config"]["policy"]["devices"] == 4
    without = dop("place", "graph.json", "--placer", "gdp")
    assert without.code == 2
    assert "placer `gdp` needs a policy" in without.err
    listed = dop("list", "placers").out
    assert "seq2seq:RUN" in listed
