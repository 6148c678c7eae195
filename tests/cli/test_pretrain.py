"""`dop pretrain`, end to end on a handful of small problems."""

import json
from pathlib import Path

import pytest
from command_line import Dop, Result

pytest.importorskip("torch")

from doppler.cli.training_view import TrainingView, gaps_table
from doppler.graph import write_graph
from doppler.policies.arrays import checkpoint
from doppler.programs import random_dag
from doppler.runs import comparison
from doppler.runs.validation_set import FamilyGap
from doppler.training.trainer import TrainingProgress

QUICK = """
threads = 1
seconds = false
[policy]
width = 4
rounds = 1
[imitation]
episodes = 4
batch = 4
[sim]
episodes = 8
batch = 4
[sim.expert]
samples = 2
lessons = 2
pool = 4
moves = 10
"""
TINY = ("--problems", "2", "--max-vertices", "40", "--validation", "1", "--evaluations", "40")


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is had without training is found in no time."""
    monkeypatch.setattr(comparison, "MAX_S", 0.02)


@pytest.fixture
def quick(tmp_path: Path) -> tuple[str, ...]:
    """Options of a pretraining of six updates."""
    (tmp_path / "quick.toml").write_text(QUICK)
    return ("--config", "quick.toml", *TINY)


def refused(result: Result, *words: str) -> None:
    assert result.code == 2
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err


def test_from_problems_to_an_assignment(
    dop: Dop, tmp_path: Path, quick: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = dop("pretrain", *quick, "-o", "runs/p", "--without", "mlp", "--json")
    assert result.code == 0, result.err
    document = result.json()
    assert document["problems"] == 2
    assert document["episodes"] == 6 * 4
    assert document["validation"][-1]["family"] == "all"
    assert document["digest"].startswith("sha256:")
    recipe = json.loads((tmp_path / "runs/p/config.json").read_text())["recipe"]
    assert recipe["without"] == ["mlp"]
    assert json.loads((tmp_path / "runs/p/config.json").read_text())["parent"] is None
    again = dop("pretrain", "--resume", "-o", "runs/p", "--json").json()
    assert again["validation"] == document["validation"]
    longer = dop("pretrain", "--resume", "-o", "runs/p", "--seconds", "0.01", "--json").json()
    assert longer["episodes"] > document["episodes"]
    (note,) = json.loads((tmp_path / "runs/p/config.json").read_text())["extensions"]
    assert note["before"] == {"seconds": None, "episodes": 8}
    shown = dop("pretrain", "--resume", "-o", "runs/p")
    assert "mean gap" in shown.out
    assert "doppler:runs/p" in shown.out
    write_graph(random_dag(vertices=12, depth=4, seed=0), tmp_path / "graph.json")
    assert dop("place", "graph.json", "--placer", "doppler:runs/p").code == 0

    data = tmp_path / "package" / "data"
    data.mkdir(parents=True)
    (data / "policy.safetensors").write_bytes((tmp_path / "runs/p/policy.safetensors").read_bytes())
    monkeypatch.setattr(checkpoint, "files", lambda _: tmp_path / "package")
    assert dop("place", "graph.json", "--placer", "doppler").code == 0
    tuned = dop("train", "graph.json", "--from", "pretrained", "--episodes", "32", "-o", "runs/t")
    assert tuned.code == 0, tuned.err
    parent = json.loads((tmp_path / "runs/t/config.json").read_text())["parent"]
    assert parent["path"] == "pretrained"
    assert "doppler " in dop("list", "placers").out


def test_mistakes(dop: Dop, tmp_path: Path, quick: tuple[str, ...]) -> None:
    refused(dop("pretrain", *quick, "-o", "x", "--without", "mpl"), "did you mean `mlp`?")
    refused(dop("pretrain", *quick, "-o", "x", "--seconds", "0"), "must be positive")
    refused(dop("pretrain", *quick, "-o", "x", "--max-vertices", "20"), "vertices")
    refused(dop("pretrain", *quick, "-o", "x", "--device", "nowhere"), "nowhere")
    refused(dop("pretrain", "--resume", "-o", "x"), "not a training run")
    refused(dop("pretrain", *quick, "-o", "x", "--from", "nowhere"), "nowhere")
    (tmp_path / "real.toml").write_text('stages = ["real"]')
    refused(dop("pretrain", "--config", "real.toml", *TINY, "-o", "x"), "no stage `real`")
    (tmp_path / "gdp.toml").write_text('[policy]\nkind = "gdp"')
    refused(dop("pretrain", "--config", "gdp.toml", *TINY, "-o", "x"), "no training preset")
    (tmp_path / "gdp.toml").write_text('preset = "default"\n[policy]\nkind = "gdp"')
    refused(dop("pretrain", "--config", "gdp.toml", *TINY, "-o", "x"), "cannot be pretrained")
    assert not (tmp_path / "x").exists()
    assert dop("pretrain", *quick, "-o", "x").code == 0
    refused(dop("pretrain", *quick, "-o", "x"), "dop pretrain --resume -o x")
    refused(dop("pretrain", "--resume", "-o", "x", "--seed", "1"), "leave out --seed")
    refused(dop("train", "--resume", "-o", "x"), "dop pretrain --resume -o x")


def test_problems_of_a_split(dop: Dop, tmp_path: Path, quick: tuple[str, ...]) -> None:
    shown = " ".join(dop("pretrain", "--help").out.replace("│", " ").split())
    assert "--split NAME Of families and machines: train, validation, test, all." in shown
    refused(
        dop("pretrain", *quick, "-o", "x", "--split", "trian"),
        "no split named `trian`",
        "hint: did you mean `train`? known: all, test, train, validation",
    )
    assert not (tmp_path / "x").exists()
    digests = {}
    for split in ("train", "all"):
        run = tmp_path / "runs" / split
        options = () if split == "train" else ("--split", split)
        result = dop("pretrain", *quick, "-o", str(run), *options, "--json")
        assert result.code == 0, result.err
        digests[split] = result.json()["digest"]
        assert json.loads((run / "config.json").read_text())["recipe"]["split"] == split
    assert digests["train"] != digests["all"]
    refused(dop("pretrain", "--resume", "-o", "runs/all", "--split", "all"), "leave out --split")


def test_a_run_of_graphs_is_no_pretraining(
    dop: Dop, tmp_path: Path, quick: tuple[str, ...]
) -> None:
    write_graph(random_dag(vertices=12, depth=4, seed=0), tmp_path / "graph.json")
    assert dop("train", "graph.json", "--config", "quick.toml", "-o", "t").code == 0
    refused(dop("pretrain", "--resume", "-o", "t"), "is no pretraining", "dop train --resume -o t")


def test_without_a_shipped_policy_there_is_none_to_go_on_from(
    dop: Dop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "files", lambda _: tmp_path)
    write_graph(random_dag(vertices=12, depth=4, seed=0), tmp_path / "graph.json")
    words = "no policy comes with this installation"
    refused(dop("train", "graph.json", "--from", "pretrained", "-o", "t"), words)
    refused(dop("place", "graph.json", "--placer", "doppler"), words)


def test_the_view_shows_the_last_validation() -> None:
    gaps = (FamilyGap("all", 24, 1, 0.021, 0.083, 0.15, 0.75),)
    progress = TrainingProgress(
        *("sim", 3, 96, 0.5, 12.0, "a@b"),
        mean_s=2.0,
        least_s=1.5,
        best_s=1.2,
        bound_s=1.0,
        loss=0.1,
        lr=1e-3,
    )
    view = TrainingView([], 24.0, live=False)
    view.show(progress, gaps)
    line = view.line(progress)
    assert "gap 2.1 % on average, 8.3 % at 95 %, beats list schedulers on 75.0 %" in line
    assert "out of memory on 1 of 24" in line
    assert len(gaps_table(gaps).rows) == 1
