"""Parts of a machine, and a graph on them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mdp.playing import graph_of, uniform
from strategies import devices_for, examples, graphs, topologies

from doppler.cost import GivenCosts
from doppler.mdp.parts import islands, nested_parts, on_part
from doppler.problem import Problem
from doppler.programs.random_dag import random_dag
from doppler.sim import Simulator
from doppler.topology import Device, Link, Topology, read_topology


def archipelago() -> Topology:
    """Devices 0 and 2 are close, 1 and 3 too, which are twice as fast."""
    links = (Link("near", 10.0), Link("far", 1.0))
    speeds = (1.0, 2.0, 1.0, 2.0)
    devices = tuple(Device(f"d{i}", {"float32": s}) for i, s in enumerate(speeds))
    route = np.array([[-1, 1, 0, 1], [1, -1, 1, 0], [0, 1, -1, 1], [1, 0, 1, -1]])
    return Topology("islands", devices, links, route)


def test_parts_grow_from_the_fastest_device_to_those_that_are_close() -> None:
    graph = replace(graph_of([1.0, 1.0], {(0, 1): 1.0}), exec_s=None, flops=np.ones(2))
    parts = nested_parts(Problem(graph, archipelago()))
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [1, 3], [1]]


def test_islands_are_devices_that_are_close() -> None:
    graph = graph_of([1.0, 1.0], {(0, 1): 1.0})
    found = islands(Problem(graph, archipelago()))
    assert [island.tolist() for island in found] == [[0, 2], [1, 3]]
    assert islands(Problem(graph, uniform(4))) == []
    assert islands(Problem(graph, uniform(1))) == []


def test_islands_of_islands() -> None:
    """A pair at 9 bytes a second, with a third at 3: the larger comes first, the rest are far."""
    speed = np.ones((5, 5))
    speed[0, 1] = speed[1, 0] = 9.0
    speed[1, 4] = speed[4, 1] = 3.0
    values = np.unique(speed)
    route = np.searchsorted(values, speed)
    np.fill_diagonal(route, -1)
    links = tuple(Link(f"l{value}", value) for value in values)
    devices = tuple(Device(f"d{i}") for i in range(5))
    problem = Problem(graph_of([1.0, 1.0], {(0, 1): 1.0}), Topology("far", devices, links, route))
    assert [island.tolist() for island in islands(problem)] == [[0, 1, 4], [0, 1]]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_parts_are_halves_down_to_one_device(size: int) -> None:
    parts = nested_parts(Problem(graph_of([1.0, 1.0], {(0, 1): 1.0}), uniform(size)))
    assert parts[0].tolist() == list(range(size))
    assert len(parts[-1]) == 1
    for larger, smaller in pairwise(parts):
        assert len(smaller) == (len(larger) + 1) // 2
        assert np.isin(smaller, larger).all()


def test_a_graph_of_one_vertex_has_parts() -> None:
    parts = nested_parts(Problem(graph_of([1.0]), uniform(2)))
    assert [len(part) for part in parts] == [2, 1]


def test_a_part_prices_its_devices_as_the_whole_does() -> None:
    whole = Problem(random_dag(vertices=20, depth=4, seed=0), read_topology("a100x2-t4x2"))
    part = on_part(whole, np.array([1, 3]))
    assert part.topology.num_devices == 2
    np.testing.assert_array_equal(part.costs.exec_s, whole.costs.exec_s[:, [1, 3]])
    np.testing.assert_array_equal(part.s_per_byte, whole.s_per_byte[np.ix_([1, 3], [1, 3])])


def test_seconds_that_come_with_the_graph_or_were_measured() -> None:
    graph = graph_of([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], {(0, 1): 1.0})
    part = on_part(Problem(graph, uniform(3)), np.array([2, 0]))
    assert part.costs.exec_s.tolist() == [[3.0, 1.0], [6.0, 4.0]]
    measured = replace(uniform(3), exec_s={"some kernel": (1.0, 2.0, 3.0)})
    part = on_part(Problem(graph, measured), np.array([1]))
    assert part.topology.exec_s == {"some kernel": (2.0,)}


def with_all_links(problem: Problem, kept: list[int]) -> Problem:
    """The same graph on some of the devices of a machine that keeps its other links."""
    topology, costs = problem.topology, problem.costs
    part = replace(
        topology,
        devices=tuple(topology.devices[d] for d in kept),
        route=topology.route[np.ix_(kept, kept)],
        host_links=tuple(topology.host_links[d] for d in kept) if topology.host_links else (),
    )
    given_costs = replace(costs, exec_s=costs.exec_s[:, kept])
    return Problem(problem.graph, part, GivenCosts(given_costs))


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_links_that_a_part_has_no_use_for_make_no_difference(data: st.DataObject) -> None:
    topology = data.draw(topologies(max_devices=5))
    graph = data.draw(graphs(num_devices=topology.num_devices))
    problem, numbers = Problem(graph, topology), st.integers(0, topology.num_devices - 1)
    kept = data.draw(st.lists(numbers, min_size=1, unique=True))
    part, same = on_part(problem, np.array(kept)), with_all_links(problem, kept)
    used = {*part.topology.route[part.topology.route >= 0].tolist(), *part.topology.host_links}
    assert used == set(range(part.topology.num_links))
    for name in ("latency_s", "s_per_byte", "mean_transfer_s", "mean_exec_s"):
        assert getattr(part, name).tolist() == getattr(same, name).tolist(), name
    devices = data.draw(devices_for(graph, part.topology))[None]
    found_s, same_s = (Simulator(p).makespans(graph, devices) for p in (part, same))
    assert found_s.tolist() == same_s.tolist()
