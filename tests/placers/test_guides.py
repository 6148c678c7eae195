"""Guides: the best list schedule, on all devices or some of them."""

import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from doppler.datasets import draw_problem
from doppler.graph import GraphBuilder
from doppler.mdp.guide import Guide
from doppler.mdp.instance import make_instance
from doppler.mdp.parts import islands, nested_parts, on_part
from doppler.placers import make_placer
from doppler.placers.lists.fewer_devices import listed_on
from doppler.placers.lists.guides import (
    instance_for,
    instance_on,
    listed_best,
    make_guide,
    simulated_times,
    with_guide,
)
from doppler.placers.lists.rules import ListSchedule
from doppler.placers.lists.schedulers import ListPlacer
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.configs import GdpConfig
from doppler.problem import Problem
from doppler.sim import Simulator
from doppler.topology import read_topology


@pytest.fixture(scope="module")
def problem() -> Problem:
    return draw_problem("train", 5, max_vertices=60, ratios=(10, 100)).problem


def without_memory(problem: Problem) -> Problem:
    devices = tuple(replace(one, memory_bytes=1.0) for one in problem.topology.devices)
    return Problem(problem.graph, replace(problem.topology, devices=devices))


def test_no_list_schedule_is_better(problem: Problem) -> None:
    listed = list(chain.from_iterable(listed_on(problem, each) for each in nested_parts(problem)))
    every = np.stack([*(one.devices for one in listed), listed_best(problem)])
    makespans = Simulator(problem).makespans(problem.graph, every)
    assert makespans[-1] == makespans.min() < np.inf


def test_where_nothing_fits_it_is_what_lacks_least_memory(problem: Problem) -> None:
    full = without_memory(problem)
    listed = list(chain.from_iterable(listed_on(full, each) for each in nested_parts(full)))
    table = np.stack([one.devices for one in listed])
    lent = Simulator(full).lent_shares(full.graph, table)
    assert lent.min() > 0
    assert listed_best(full).tolist() == table[np.argmin(lent)].tolist()


@pytest.mark.parametrize("memory", [math.inf, 1.0])
def test_on_each_part_it_is_the_best_there(problem: Problem, memory: float) -> None:
    problem = problem if memory == math.inf else without_memory(problem)
    shared = problem.keeping()
    others = [part for part in islands(problem) if len(part) < len(nested_parts(problem)[0])]
    for part in (*nested_parts(problem), *others[:2]):
        alone = listed_best(on_part(problem, part))
        expected = np.where(problem.graph.is_input, -1, part[alone])
        for one in (problem, shared):
            assert listed_best(one, part).tolist() == expected.tolist()


def test_a_keeping_problem_makes_each_schedule_once(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int]] = []
    plan = ListPlacer.schedule

    def counted(placer: ListPlacer, on: Problem) -> ListSchedule:
        made.append((placer.name, on.topology.num_devices))
        return plan(placer, on)

    monkeypatch.setattr(ListPlacer, "schedule", counted)
    shared = problem.keeping()
    assert shared.keeping() is shared
    for _ in range(2):
        make_placer("heft").place(shared)
        make_placer("fewer-devices").place(shared)
        for part in nested_parts(shared):
            instance_on(PolicyConfig(), shared, part)
    assert len(made) == len(set(made))
    made.clear()
    for _ in range(2):
        make_placer("heft").place(problem)
    assert made == [("heft", problem.topology.num_devices)] * 2


def test_only_policies_that_read_a_guide_get_one(problem: Problem) -> None:
    guide = instance_for(PolicyConfig(), problem).guide
    assert guide.devices[0].tolist() == listed_best(problem)[problem.graph.assigned].tolist()
    for config in (PolicyConfig(features="paper"), GdpConfig(devices=2)):
        assert len(instance_for(config, problem).guide.devices) == 0


def test_a_guide_that_is_there_is_kept(problem: Problem) -> None:
    bare = make_instance(problem)
    own = replace(bare, guide=Guide(np.zeros((1, bare.num_vertices), np.int64)))
    assert with_guide(PolicyConfig(), own) is own
    assert len(with_guide(PolicyConfig(), bare).guide.devices) == 1
    assert with_guide(PolicyConfig(features="paper"), bare) is bare


def test_where_nothing_is_assigned_there_is_no_guide() -> None:
    builder = GraphBuilder("inputs")
    builder.input("x", output_bytes=1)
    instance = instance_for(PolicyConfig(), Problem(builder.build(), read_topology("p100x4")))
    assert instance.num_vertices == len(instance.guide.devices) == 0


def test_times_are_those_of_the_simulation(problem: Problem) -> None:
    instance = instance_for(PolicyConfig(), problem)
    simulator, devices = Simulator(problem), instance.guide.devices[0]
    times = simulated_times(instance, devices, simulator)
    assert times is not None
    begin_s, end_s, slack_s = times
    trace = simulator.run(problem.graph, instance.assignment(devices, np.arange(len(devices)), ""))
    assert end_s.max() == trace.makespan_s
    exec_s = instance.tables.exec_s[range(len(devices)), devices]
    np.testing.assert_allclose(end_s - begin_s, exec_s)
    assert (end_s + slack_s <= end_s.max() * (1 + 1e-12)).all()
    assert slack_s[np.argmax(end_s)] == 0
    np.testing.assert_array_equal(instance.guide.times[0], times[1:])


def test_what_does_not_fit_has_no_times(problem: Problem) -> None:
    instance = instance_for(PolicyConfig(), without_memory(problem))
    assert len(instance.guide.devices) == 1
    assert len(instance.guide.times) == 0
    assert len(make_guide(instance, instance.guide.devices[0]).times) == 0
