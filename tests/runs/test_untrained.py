"""Placers that need no training, beside a run."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

pytest.importorskip("torch")

from training.tiny import CONFIG, LABEL, graph, started, take

import doppler as dp
from doppler.report.curves import read_curves, read_untrained
from doppler.runs.comparison import Comparison, keep
from doppler.runs.run import resume_run
from doppler.runs.untrained import UntrainedConfig, place_untrained, write_untrained
from doppler.topology import Topology
from doppler.training.exercise import Exercise
from doppler.training.exercise_record import ExerciseRecord


def test_a_run_has_them_from_its_start(tmp_path: Path) -> None:
    with started(tmp_path / "run") as run:
        before = (tmp_path / "run" / "untrained.json").read_bytes()
        take(run, 2)
    found = read_untrained(tmp_path / "run")[LABEL]
    assert list(found) == ["single", "critical-path", "enumerative", "annealing"]
    for name in ("single", "critical-path", "enumerative"):
        assignment = dp.place(graph(), "p100x4", name)
        assert found[name] == dp.simulate(graph(), "p100x4", assignment).makespan_s
    assert found["annealing"] <= min(found.values())
    with resume_run(tmp_path / "run") as run:
        take(run, 99)
    assert (tmp_path / "run" / "untrained.json").read_bytes() == before
    curve = read_curves(tmp_path / "run")[-1]
    assert dict(curve.untrained_s) == found


def test_they_repeat_and_failures_are_left_out(tmp_path: Path) -> None:
    small = replace(
        Topology.preset("p100x4"),
        devices=tuple(
            replace(device, memory_bytes=1.0) for device in Topology.preset("p100x4").devices
        ),
    )
    records = [
        ExerciseRecord(Exercise(graph(), topology, CONFIG))
        for topology in (Topology.preset("p100x4"), replace(small, name="small"))
    ]
    config = UntrainedConfig(("single",), evaluations=20)
    found = place_untrained(records, config)
    assert found == place_untrained(records, config)
    assert found[records[1].label].get("single", inf) == inf
    write_untrained(tmp_path, found)
    kept = read_untrained(tmp_path)
    assert kept == {LABEL: found[LABEL], records[1].label: {}}


def test_what_a_comparison_found_is_added(tmp_path: Path) -> None:
    with started(tmp_path / "run") as run:
        pass
    heuristics = dict(read_untrained(tmp_path / "run")[LABEL])
    for shipped_s, added in ((None, {"auto": 2.0}), (3.0, {"auto": 2.0, "doppler": 3.0})):
        keep(run, [Comparison(1.0, 1.0, shipped_s, 2.0, budget_s=1.0)])
        assert read_untrained(tmp_path / "run")[LABEL] == heuristics | added
    run.trainer.records[0].recalibrated = lambda: run.trainer.records[0].exercise.topology
    keep(run, [Comparison(1.0, 1.0, 9.0, 9.0, budget_s=1.0)])
    assert read_untrained(tmp_path / "run")[LABEL] == heuristics | added
