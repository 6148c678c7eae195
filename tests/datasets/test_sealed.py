"""Sealed problems: valid, repeatable, apart from the splits, with the ratio that was asked for."""

import pytest

from doppler.datasets import FAMILIES, MACHINES, RATIOS, communication_ratio
from doppler.datasets.families import SEALED_FAMILIES
from doppler.datasets.machines import SEALED_MACHINES
from doppler.datasets.sealed import SEALED_RATIOS, sealed_problem
from doppler.datasets.sketch import with_ratio
from doppler.errors import ConfigError
from doppler.placers.lists.schedulers import HeftPlacer, MemoryEtfPlacer
from doppler.placers.lists.trivial import RoundRobinPlacer
from doppler.sim.simulator import Simulator

EVERY = [sealed_problem(number) for number in range(30)]


def test_no_split_has_them() -> None:
    assert not SEALED_FAMILIES.keys() & FAMILIES.keys()
    assert not SEALED_MACHINES.keys() & MACHINES.keys()
    kinds = [*SEALED_FAMILIES.values(), *SEALED_MACHINES.values()]
    assert {kind.split for kind in kinds} == {"sealed"}


def test_families_and_machines_take_turns() -> None:
    pairs = {(problem.family, problem.machine) for problem in EVERY}
    assert pairs == {(family, machine) for family in SEALED_FAMILIES for machine in SEALED_MACHINES}


def test_they_are_drawn_again_by_their_number() -> None:
    for number in (0, 7, 23):
        assert sealed_problem(number).digest() == EVERY[number].digest()
    assert len({problem.digest() for problem in EVERY}) == len(EVERY)


def test_they_reach_further_than_the_splits() -> None:
    ratios = [communication_ratio(problem.graph, problem.topology) for problem in EVERY]
    assert min(ratios) < RATIOS[0] / 2
    assert max(ratios) > 2 * RATIOS[1]
    assert all(0.9 * SEALED_RATIOS[0] < ratio < 1.1 * SEALED_RATIOS[1] for ratio in ratios)
    assert max(problem.topology.num_devices for problem in EVERY) > 32
    assert all(30 <= problem.graph.num_vertices <= 1000 for problem in EVERY)


def test_something_runs_on_each() -> None:
    for drawn in EVERY:
        problem, simulator = drawn.problem, Simulator(drawn.problem)
        placers = (RoundRobinPlacer(), HeftPlacer(), MemoryEtfPlacer())
        made = [placer.place(problem) for placer in placers]
        assert min(simulator.makespans(problem.graph, made)) < float("inf")


@pytest.mark.parametrize("family", range(len(SEALED_FAMILIES)))
def test_sizes(family: int) -> None:
    drawn = sealed_problem(family, min_vertices=1600, max_vertices=2000)
    assert 1600 <= drawn.graph.num_vertices <= 2000


@pytest.mark.parametrize("ratio", [0.01, 0.3, 4.0, 100.0])
def test_links_have_the_speed_that_a_ratio_needs(ratio: float) -> None:
    for drawn in EVERY[:6]:
        topology = with_ratio(drawn.graph, drawn.topology, ratio)
        assert communication_ratio(drawn.graph, topology) == pytest.approx(ratio, rel=0.02)


def test_numbers_and_sizes_out_of_range() -> None:
    with pytest.raises(ConfigError, match="must not be negative"):
        sealed_problem(-1)
    with pytest.raises(ConfigError, match="30 to 20000"):
        sealed_problem(0, max_vertices=50_000)
