"""Turns: who is next, and members that continue."""

from math import inf

import numpy as np
import pytest

from doppler.base.arrays import IntArray
from doppler.placers.search.annealing import Annealer, SearchConfig
from doppler.placers.turns import SearchTurns, TurnTaker, whose_turn
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.sim import Simulator
from doppler.topology import preset


class Fake(TurnTaker):
    devices, cost_s = None, inf  # type: ignore[assignment]
    needs_s = 0.0

    def has_time(self, left_s: float) -> bool:
        return left_s > self.needs_s

    def turn(self, seconds: float, left_s: float) -> None: ...

    def take(self, devices: IntArray, cost_s: float) -> None: ...


@pytest.fixture
def pair() -> tuple[Fake, Fake]:
    return Fake("a"), Fake("b")


def test_everyone_has_a_turn_before_anyone_has_another(pair: tuple[Fake, Fake]) -> None:
    a, b = pair
    assert whose_turn(pair, 1.0) is a
    a.reward(2.0, 1.0, 0.1)
    assert whose_turn(pair, 1.0) is b


def test_the_one_that_brings_more_in_a_second_is_next(pair: tuple[Fake, Fake]) -> None:
    a, b = pair
    a.reward(10.0, 9.9, 0.1)
    b.reward(10.0, 9.8, 0.4)  # twice as much, in four times the time
    assert whose_turn(pair, 1.0) is a
    a.reward(9.8, 9.8, 0.1)
    assert whose_turn(pair, 1.0) is b  # half of the rate is gone
    assert a.gain == pytest.approx(np.log(10.0 / 9.9))


def test_those_that_bring_next_to_nothing_take_turns(pair: tuple[Fake, Fake]) -> None:
    a, b = pair
    a.reward(1.0, 1.0 - 1e-9, 0.1)
    b.reward(1.0, 1.0, 0.05)
    assert whose_turn(pair, 1.0) is a
    assert whose_turn(pair, 1.0, least_rate=1e-3) is b  # it had less time


def test_who_has_no_time_or_has_failed_is_left_out(pair: tuple[Fake, Fake]) -> None:
    a, b = pair
    a.needs_s, b.has_failed = 0.5, True
    assert whose_turn(pair, 1.0) is a
    assert whose_turn(pair, 0.4) is None


def test_the_first_assignment_that_fits_is_a_finite_gain() -> None:
    one = Fake("a")
    one.reward(inf, 3.0, 1.0)
    assert 0 < one.rate < inf


def dag() -> Problem:
    return Problem(random_dag(vertices=60, depth=6, seed=0), preset("p100x4"))


def test_search_continues_and_never_forgets_its_best() -> None:
    problem = dag()
    start = np.where(problem.graph.is_input, -1, 0)
    search = SearchTurns("annealing", problem, 0, begin_s=0.5)
    search.begin([start], 0.0)
    assert search.devices is None
    assert not search.has_time(0.4)
    costs = []
    for left_s in (3.0, 2.0, 1.0):
        search.turn(1e-3, left_s)
        costs.append(search.cost_s)
    assert search.has_time(0.4)
    assert costs == sorted(costs, reverse=True)
    assert Simulator(problem).makespans(problem.graph, search.devices[None])[0] == costs[-1]


def test_the_worst_chain_takes_what_others_found() -> None:
    problem = dag()
    start = np.where(problem.graph.is_input, -1, 0)
    spread = np.where(problem.graph.is_input, -1, np.arange(problem.graph.num_vertices) % 4)
    makespans = Simulator(problem).makespans(problem.graph, np.stack([start, spread]))
    worse, better = (start, spread) if makespans[0] > makespans[1] else (spread, start)
    annealer = Annealer(problem, [worse], SearchConfig(chains=2), 0)
    annealer.take(better)
    assert sorted(float(chain.cost[1]) for chain in annealer.chains) == sorted(makespans)
    assert float(annealer.best.cost[1]) == min(makespans)
    annealer.take(worse)
    assert sorted(float(chain.cost[1]) for chain in annealer.chains) == sorted(makespans)
