import importlib.util
from pathlib import Path

import pytest
from command_line import Dop, Result

from doppler.errors import Interrupted
from doppler.topology import read_topology

pytest.importorskip("torch")

HERE = ("--devices", "1", "--seconds", "0.5")


@pytest.fixture
def sharded(dop: Dop) -> str:
    sizes = [f"--size={size}" for size in ("sequence=16", "heads=2", "head_dim=8", "hidden=32")]
    result = dop("shard", "llama-block", "--parts", "2", *sizes, "-o", "graph.json")
    assert result.code == 0, result.err
    return "graph.json"


def test_probe_writes_a_topology_and_its_samples(dop: Dop, tmp_path: Path) -> None:
    result = dop("probe", *HERE, "-o", "here.json")
    assert result.code == 0, result.err
    assert "cpu0" in result.out
    assert "wrote here.json\nwrote here.samples.json" in result.out
    assert read_topology(tmp_path / "here.json").devices[0].address
    assert (tmp_path / "here.samples.json").exists()
    assert dop("show", "here.json").code == 0


def test_probe_and_validate_a_graph(dop: Dop, sharded: str, tmp_path: Path) -> None:
    result = dop("probe", *HERE, "--graph", sharded, "-o", "here.json", "--json")
    assert result.code == 0, result.err
    report = result.json()
    assert report["kernels"] > 5
    assert report["errors"]["held_out"]["all"] >= 0
    assert report["files"] == ["here.json", "here.samples.json"]
    on_here = ("validate", sharded, "-t", "here.json", "--assignments", "4", "--repeats", "1")
    assert "Pearson" in dop(*on_here, "-o", "scatter.json").out
    assert (tmp_path / "scatter.json").exists()
    rows = dop(*on_here, "--json").json()["assignments"]
    assert len(rows["measured_s"]) == len(rows["predicted_s"]) >= 1


def test_an_interrupted_probe_leaves_nothing(
    dop: Dop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    monkeypatch.setattr("doppler.machine.probe.measure_host", interrupt)
    assert dop("probe", *HERE, "-o", "here.json").code == 130
    assert list(tmp_path.iterdir()) == []


def test_a_picture_needs_matplotlib(dop: Dop, sharded: str) -> None:
    result = dop("validate", sharded, "-t", "cpu2", "--assignments", "3", "-o", "scatter.png")
    if importlib.util.find_spec("matplotlib"):
        assert result.code == 0
    else:
        assert_refused(result, "needs `matplotlib`")


def test_mistakes(dop: Dop, sharded: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    assert_refused(dop("probe", "--backend", "gpu"), "no backend named `gpu`")
    assert_refused(dop("probe", "--partitions", "2"), "has no partitions")
    assert_refused(dop("probe", "--links", "both"), "`both`")
    assert_refused(dop("probe", "-o", "nowhere/here.json"), "no folder `nowhere`")
    assert_refused(dop("probe", "--graph", "none.json"), "no file `none.json`")
    on_cpu = ("validate", sharded, "-t", "cpu2")
    assert_refused(dop(*on_cpu, "-o", "scatter.txt"), "no name for a scatter")
    assert_refused(dop(*on_cpu, "-o", "nowhere/scatter.json"), "no folder `nowhere`")
    assert sorted(tmp_path.iterdir()) == before


def assert_refused(result: Result, reason: str) -> None:
    assert (result.code, result.out) == (2, ""), result
    assert reason in result.err
