"""What compilation takes is counted once, and no placer is charged with it."""

import pytest
from fake_time import Time, slow_to_compile

from doppler.base import compiling
from doppler.base.compiling import clock, on_compile, preparing, report_compilation
from doppler.placers import comparison
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import Topology


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def test_preparations_within_each_other_count_once(time: Time) -> None:
    with preparing():
        time.now_s += 1
        with preparing():
            time.now_s += 2
            assert compiling.seconds_spent() == 3  # so far
        time.now_s += 4
    time.now_s += 8
    assert compiling.seconds_spent() == 7


def test_the_clock_stands_still_meanwhile(time: Time) -> None:
    began = clock()
    time.now_s += 1
    with preparing():
        time.now_s += 2
        assert clock() - began == 1
    time.now_s += 4
    assert clock() - began == 5


def test_listeners_are_told_of_the_outermost_compilation() -> None:
    told: list[bool] = []
    with on_compile(told.append):
        for begins in (True, True, False, True, False, False):
            report_compilation(begins)
        assert told == [True, False]
    report_compilation(True)
    report_compilation(False)
    assert told == [True, False]


def test_a_row_of_a_comparison_is_not_charged_with_it(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        comparison, "solve_in_mode", slow_to_compile(time, comparison.solve_in_mode)
    )
    problem = Problem(random_dag(vertices=6, depth=2), Topology.preset("p100x4"))
    row = comparison._row(problem, "critical-path", comparison.CompareConfig(seeds=1), 0.0)
    assert row.seconds == 1
