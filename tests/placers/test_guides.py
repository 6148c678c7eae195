"""Guides: the best list schedule, on all devices or some of them."""

from dataclasses import replace

import numpy as np
import pytest

from doppler.datasets import draw_problem
from doppler.mdp.parts import nested_parts
from doppler.placers.lists.fewer_devices import SCHEDULERS
from doppler.placers.lists.guides import best_of, instance_for, listed_best, listed_on
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.configs import GdpConfig
from doppler.problem import Problem
from doppler.sim import Simulator


@pytest.fixture(scope="module")
def problem() -> Problem:
    return draw_problem("train", 5, max_vertices=60, ratios=(10, 100)).problem


def test_no_list_schedule_is_better(problem: Problem) -> None:
    devices, orders = listed_on(problem, nested_parts(problem))
    assert len(devices) == len(orders) == len(SCHEDULERS) * len(nested_parts(problem))
    every = np.stack([*devices, listed_best(problem)])
    makespans = Simulator(problem).makespans(problem.graph, every)
    assert makespans[-1] == makespans.min() < np.inf


def test_where_nothing_fits_it_is_what_gets_furthest(problem: Problem) -> None:
    devices = tuple(replace(one, memory_bytes=1.0) for one in problem.topology.devices)
    full = Problem(problem.graph, replace(problem.topology, devices=devices))
    listed, _ = listed_on(full, nested_parts(full))
    left = Simulator(full).unfinished(full.graph, listed)
    assert left.min() > 0
    assert best_of(full, listed) == np.argmin(left)


def test_only_policies_that_read_a_guide_get_one(problem: Problem) -> None:
    guided = instance_for(PolicyConfig(), problem)
    assert guided.guide.devices[0].tolist() == listed_best(problem)[problem.graph.assigned].tolist()
    for config in (PolicyConfig(features="paper"), GdpConfig(devices=2)):
        assert len(instance_for(config, problem).guide.devices) == 0
