"""What is had without training, beside what a run came to."""

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from training.tiny import CONFIG, graph, started, take

from doppler.assignment import Assignment
from doppler.placers import lower_bounds
from doppler.policies.arrays import checkpoint
from doppler.problem import Problem
from doppler.runs import comparison
from doppler.runs.comparison import compare
from doppler.runs.run import Run
from doppler.sim import Noise, SimConfig, Simulator
from doppler.topology import Topology


class OnOne:
    """A placer that puts everything on one device."""

    def __init__(self, name: str, device: int, asked: list[tuple[str, float]]) -> None:
        self.name, self.device, self.asked = name, device, asked

    def place(self, problem: Problem, *, seed: int, budget_s: float) -> Assignment:
        self.asked.append((self.name, budget_s))
        return Assignment(np.where(problem.graph.is_input, -1, self.device))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """The placers that were asked, and their budgets; all make the same."""
    found: list[tuple[str, float]] = []

    monkeypatch.setattr(comparison, "make_placer", lambda name: OnOne(name, 0, found))
    return found


def trained(path: Path, config: Any = CONFIG) -> Run:
    with started(path, config) as run:
        take(run, 99)
    return run


def test_placers_are_asked_as_on_the_command_line(
    tmp_path: Path, asked: list[tuple[str, float]]
) -> None:
    run = trained(tmp_path / "run")
    (one,) = compare(run)
    assert sorted(asked) == [("auto", 2.0), ("doppler", 2.0), (f"doppler:{tmp_path / 'run'}", 2.0)]
    assert (one.best_s, one.budget_s) == (run.results()[0].makespan_s, 2.0)
    single = Assignment(np.where(graph().is_input, -1, 0))
    single_s = Simulator(Topology.preset("p100x4")).run(graph(), single).makespan_s
    assert one.policy_s == one.shipped_s == one.auto_s == pytest.approx(single_s)


def test_all_are_simulated_as_the_run_does(tmp_path: Path, asked: Any) -> None:
    noisy = replace(CONFIG, noise=Noise(exec_sigma=0.5), seed=7)
    (one,) = compare(trained(tmp_path / "run", noisy))
    simulator = Simulator(Topology.preset("p100x4"), SimConfig(noise=noisy.noise))
    row = np.where(graph().is_input, -1, 0).reshape(1, -1)
    draws = [simulator.makespans(graph(), row, seed=seed)[0] for seed in (7, 8, 9, 10)]
    assert one.auto_s == pytest.approx(np.mean(draws))


def test_many_exercises_share_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, float]]
) -> None:
    monkeypatch.setattr(comparison, "ALL_S", 3.0)
    (one,) = compare(trained(tmp_path / "run"))
    assert one.budget_s == 1.0
    assert {budget for _, budget in asked} == {1.0}


def test_without_a_shipped_policy_and_without_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Any
) -> None:
    monkeypatch.setattr(checkpoint, "files", lambda _: tmp_path)
    with started(tmp_path / "run") as run:
        pass
    (one,) = compare(run)
    assert one.shipped_s is None
    assert one.best_s == inf


def test_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MAX_S", 0.02)
    (one,) = compare(trained(tmp_path / "run"))
    bound_s = lower_bounds(graph(), Topology.preset("p100x4")).best_s
    for found_s in (one.best_s, one.policy_s, one.shipped_s, one.auto_s):
        assert found_s is not None
        assert bound_s * (1 - 1e-6) <= found_s < inf
