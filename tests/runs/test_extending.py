"""Runs that are trained for longer than they were started for."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from training.tiny import CONFIG, assert_same, graph, manifest, resumed, rows, take, trained

from doppler.errors import ConfigError
from doppler.policies.checkpoint import read_provenance
from doppler.runs.manifest import read_manifest
from doppler.runs.run import resume_run
from doppler.topology import Topology
from doppler.training.api import resume, train
from doppler.training.trainer import Trainer


def extended(path: Path, *, updates: int = 99, **longer: Any) -> Path:
    with resume_run(path, command="longer", **longer) as run:
        take(run, updates)
    return path


def test_a_run_that_ended_goes_on_for_some_episodes(tmp_path: Path) -> None:
    run = extended(trained(tmp_path / "run"), episodes=8)
    stages = [(row["stage"], row["update"]) for row in rows(run)]
    assert stages[3:] == [("sim", number) for number in range(1, 6)]
    document = read_manifest(run)
    assert document.config == replace(CONFIG, sim=replace(CONFIG.sim, episodes=20))
    before = {"seconds": None, "episodes": 12}
    note = {"command": "longer", "steps": 6, "before": before}
    assert document.extensions == (note,)
    assert read_provenance(run / "policy.safetensors")["extensions"] == [note]
    assert len(rows(resumed(run))) == 8


def test_an_extension_that_is_stopped_ends_the_same(tmp_path: Path) -> None:
    straight = extended(trained(tmp_path / "straight"), episodes=12)
    stopped = extended(trained(tmp_path / "stopped"), episodes=12, updates=1)
    assert len(rows(stopped)) == 7
    assert_same(resumed(stopped), straight)


def test_a_run_that_is_extended_before_it_began_is_a_longer_run(tmp_path: Path) -> None:
    short = trained(tmp_path / "short", updates=2)  # in the first stage
    longer = replace(CONFIG, sim=replace(CONFIG.sim, episodes=20))
    assert_same(extended(short, episodes=20), trained(tmp_path / "long", longer))


def test_more_counts_from_where_it_was_saved(tmp_path: Path) -> None:
    """Whatever was left to do: so a run can also be cut short."""
    run = extended(trained(tmp_path / "run", updates=4), episodes=4)
    assert len(rows(run)) == 5


def test_by_seconds(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    with resume_run(run, seconds=1e-9) as again:
        before_s = again.trainer.seconds
        assert again.trainer.share() == pytest.approx(1.0, abs=1e-3)
        assert len(list(again)) == 1
    assert read_manifest(run).config.seconds == before_s + 1e-9
    with resume_run(run, episodes=4) as again:
        assert again.manifest.config.seconds is None
        assert len(list(again)) == 1


def test_schedules_are_stretched(tmp_path: Path) -> None:
    last = extended(trained(tmp_path / "run"), episodes=12)
    begin, end = CONFIG.sim.lr
    rates = [row["lr"] for row in rows(last)][3:]
    assert rates == pytest.approx(
        [begin + (end - begin) * share for share in (0, 1 / 3, 2 / 3, 3 / 6, 4 / 6, 5 / 6)]
    )


def test_several_graphs_have_as_many_more_each() -> None:
    machine = Topology.preset("p100x4")
    trainer = Trainer([(graph(), machine), (graph(1), machine)], CONFIG)
    assert len(list(trainer.run())) == 12
    trainer.extend(episodes=4)
    assert len(list(trainer.run())) == 2


def test_a_last_stage_of_which_no_end_is_told_begins_anew() -> None:
    trainer = Trainer([(graph(), Topology.preset("p100x4"))], CONFIG)
    trainer.stage = 2  # past the last, as checkpoints once had it
    assert list(trainer.run()) == []
    trainer.extend(episodes=4)
    assert [progress.stage for progress in trainer.run()] == ["sim"]


def test_from_python(tmp_path: Path) -> None:
    machine = Topology.preset("p100x4")
    train(graph(), machine, CONFIG, out=tmp_path / "run")
    resume(tmp_path / "run", episodes=4)
    assert len(rows(tmp_path / "run")) == 7


def test_mistakes(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    before = (run / "config.json").read_bytes()
    for longer, message in (
        ({"seconds": 1.0, "episodes": 1}, "by seconds or by episodes"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"seconds": -1.0}, "must be positive"),
        ({"episodes": 0}, "by 0 episodes"),
    ):
        with pytest.raises(ConfigError, match=message):
            resume_run(run, **longer)
    assert (run / "config.json").read_bytes() == before
    document = json.loads(before) | {"extensions": 3}
    (run / "config.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="must be a list of objects"):
        resume_run(run)


def test_manifests_that_were_never_extended_do_not_say_so() -> None:
    assert "extensions" not in manifest().provenance()
