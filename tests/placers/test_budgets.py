"""Budgets hold where single steps are long: what would not end in time is left out."""

from itertools import count
from typing import Any

import numpy as np
import pytest

from doppler.placers.exact import placer as exact
from doppler.placers.partition import assigning
from doppler.placers.registry import make_placer
from doppler.placers.search import annealing, genetic
from doppler.placers.search.annealing import INSTANT, starting_points
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import preset


@pytest.fixture
def problem() -> Problem:
    return Problem(random_dag(vertices=20, depth=4, seed=0), preset("p100x4"))


def ticking(monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
    """A clock in which every look takes a tenth of a second."""
    ticks = count()
    for module in modules:
        monkeypatch.setattr(module, "monotonic", lambda: 0.1 * next(ticks))


def test_a_partitioner_makes_as_many_cuts_as_there_is_time_for(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts: list[int] = []

    def cut(weighted: Any, share: np.ndarray, imbalance: float, seed: int) -> np.ndarray:
        cuts.append(len(share))
        return np.arange(len(weighted.vertex_weight)) % len(share)

    placer = make_placer("single")
    assigning.place_parts(placer, problem, cut, tries=1, seed=0, budget_s=None)
    every = cuts.copy()
    cuts.clear()
    ticking(monkeypatch, assigning)
    assigning.place_parts(placer, problem, cut, tries=1, seed=0, budget_s=1.0)
    assert 0 < len(cuts) < len(every)
    assert cuts[0] == min(every)  # few parts first


def test_a_partitioner_begins_no_cut_that_is_estimated_to_last_too_long(
    problem: Problem, caplog: pytest.LogCaptureFixture
) -> None:
    cuts: list[int] = []

    def cut(weighted: Any, share: np.ndarray, imbalance: float, seed: int) -> np.ndarray:
        cuts.append(len(share))
        return np.zeros(len(weighted.vertex_weight), np.int64)

    options = {"tries": 1, "seed": 0, "pin_s": 1.0}
    single = make_placer("single")
    found = assigning.place_parts(single, problem, cut, budget_s=0.5, **options)
    assert not cuts
    assert len(set(found.devices[problem.graph.assigned])) == 1
    assert "has no time for a cut in 0.5 s" in caplog.text
    caplog.clear()
    assigning.place_parts(single, problem, cut, budget_s=0.5, warns=False, **options)
    assert not caplog.text
    assigning.place_parts(single, problem, cut, budget_s=None, **options)
    assert cuts


@pytest.mark.parametrize("name", ["auto", "annealing"])
def test_a_portfolio_says_nothing_of_members_that_have_no_time(
    problem: Problem, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    make_placer(name).place(problem, budget_s=1e-4)
    assert not caplog.text


def test_heuristics_to_begin_with_are_left_out_where_time_is_short(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = starting_points(problem, 0)
    ticking(monkeypatch, annealing)
    some = starting_points(problem, 0, seconds=1.0)
    assert 1 <= len(some) < len(every) <= len(INSTANT)
    assert len(starting_points(problem, 0, seconds=1e-9)) == 1


def test_nothing_is_bred_where_a_generation_takes_too_long(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(genetic, "GENE_S", 1e3)
    found = make_placer("genetic").place(problem, budget_s=0.2).devices
    assert any(np.array_equal(found, start) for start in starting_points(problem, 0))


def test_an_exact_solver_that_repeats_ends_by_the_wall_clock_too() -> None:
    limits = exact._repeatable_limits(2.0, seed=0)
    assert limits["max_time_in_seconds"] == 2.0 * exact.OVERTIME
    assert limits["max_deterministic_time"] < limits["max_time_in_seconds"]
