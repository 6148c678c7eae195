"""Placer `fewer-devices`: list schedules on nested parts of a machine."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples, graphs, topologies

from doppler.datasets import problems
from doppler.errors import ConfigError
from doppler.graph import Graph, GraphBuilder
from doppler.mdp.parts import nested_parts, on_part
from doppler.placers import make_placer
from doppler.placers.lists.fewer_devices import SCHEDULERS, FewerDevicesPlacer, schedulers_for
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.sim import Simulator
from doppler.topology import Device, Topology

LISTS = ("heft", "cpop", "peft", "etf", "min-min", "max-min", "m-etf", "m-sct")


def slow_links(num_devices: int = 8) -> Topology:
    """To move a mean tensor takes fourteen times as long as the mean vertex."""
    return Topology.uniform(
        num_devices, flops_per_s=1e13, bandwidth_bytes_per_s=1.5e9, latency_s=1e-5
    )


def wide() -> Graph:
    return random_dag(vertices=60, depth=6, seed=3)


def makespan_s(problem: Problem, devices: np.ndarray) -> float:
    return float(Simulator(problem).makespans(problem.graph, devices[None])[0])


def test_it_is_the_best_of_the_list_schedules_on_all_parts_but_the_whole() -> None:
    problem = Problem(wide(), slow_links())
    made = []
    for part in nested_parts(problem)[1:]:
        assert len(part) in (4, 2, 1)
        for name in LISTS:
            devices = make_placer(name).place(on_part(problem, part)).devices
            made.append(makespan_s(problem, np.where(devices >= 0, part[devices], -1)))
    assert len(made) == 24
    found = FewerDevicesPlacer().place(problem)
    found.check(problem.graph, problem.topology)
    assert makespan_s(problem, found.devices) == min(made)


def test_with_slow_links_parts_are_better_than_the_whole_machine_and_than_one_device() -> None:
    problem = Problem(wide(), slow_links())
    found = FewerDevicesPlacer().place(problem)
    found_s = makespan_s(problem, found.devices)
    for name in (*LISTS, "single"):
        other_s = makespan_s(problem, make_placer(name).place(problem).devices)
        assert found_s < 0.9 * other_s, name
    assert 1 < len(np.unique(found.devices[found.devices >= 0])) <= 4


def test_the_devices_of_a_part_are_the_quick_ones() -> None:
    """Devices 1 and 3 are twice as fast as the others."""
    topology = Topology.uniform(4, flops_per_s=[1e13, 2e13, 1e13, 2e13], bandwidth_bytes_per_s=1e9)
    found = FewerDevicesPlacer().place(Problem(wide(), topology)).devices
    assert set(found[found >= 0].tolist()) <= {1, 3}


def test_the_order_is_that_of_the_schedule() -> None:
    """It begins with vertices that read nothing, and keeps producers before their readers."""
    graph = wide()
    order = FewerDevicesPlacer().place(Problem(graph, slow_links())).order
    assert order is not None
    assert sorted(order.tolist()) == graph.assigned.tolist()
    turn = {int(v): i for i, v in enumerate(order)}
    producers = graph.tensor_producer[graph.edge_tensor]
    for producer, reader in zip(producers.tolist(), graph.edge_reader.tolist(), strict=True):
        assert turn.get(producer, -1) < turn[reader]


def test_one_device_has_no_smaller_part() -> None:
    graph = wide()
    found = FewerDevicesPlacer().place(Problem(graph, slow_links(1)))
    assert found.devices.tolist() == np.where(graph.is_input, -1, 0).tolist()


@pytest.mark.parametrize("inputs", [0, 2])
def test_graphs_with_nothing_to_place(inputs: int) -> None:
    builder = GraphBuilder("nothing")
    for i in range(inputs):
        builder.input(f"x{i}", output_bytes=1.0)
    found = FewerDevicesPlacer().place(Problem(builder.build(), slow_links()))
    assert found.devices.tolist() == [-1] * inputs


def test_what_runs_out_of_memory_on_one_device_is_placed_on_more() -> None:
    """Three results of 4 bytes stay, and a device holds 8: of four devices two are enough."""
    builder = GraphBuilder("results")
    for name in "abc":
        builder.op(name, "matmul", reads=[], output_bytes=4.0, exec_s=1.0)
    devices = tuple(Device(f"d{i}", memory_bytes=8.0) for i in range(4))
    uniform = Topology.uniform(4, bandwidth_bytes_per_s=1.0)
    topology = Topology("small", devices, uniform.links, uniform.route)
    problem = Problem(builder.build(), topology)
    assert makespan_s(problem, FewerDevicesPlacer().place(problem).devices) == 2.0


def test_it_takes_no_budget() -> None:
    with pytest.raises(ConfigError, match="fewer-devices"):
        FewerDevicesPlacer().place(Problem(wide(), slow_links()), budget_s=1.0)


def assert_the_first_of_all_schedules(problem: Problem) -> None:
    """All schedulers on all parts, each simulated to its end: the first of the shortest.

    Where none fits in memory, the first of those that lack least.
    """
    devices, orders = [], []
    parts = nested_parts(problem)
    for part in parts[1:] or parts:
        for kind in SCHEDULERS:
            schedule = kind().schedule(on_part(problem, part))
            devices.append(np.where(problem.graph.is_input, -1, part[schedule.devices]))
            orders.append(schedule.order)
    table, simulator = np.stack(devices), Simulator(problem)
    makespans = simulator.makespans(problem.graph, table)
    lent = simulator.lent_shares(problem.graph, table)
    best = int(np.argmin(makespans if np.isfinite(makespans).any() else lent))
    found = FewerDevicesPlacer().place(problem)
    assert found.devices.tolist() == devices[best].tolist()
    assert found.order is not None
    assert found.order.tolist() == orders[best].tolist()


memories = st.sampled_from([math.inf, 2.0, 5.0, 2e9]) | st.integers(1, 10**9).map(float)


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_what_is_left_out_changes_nothing_on_small_graphs(data: st.DataObject) -> None:
    topology = data.draw(topologies(max_devices=6, memory_bytes=memories))
    graph = data.draw(graphs(max_vertices=10, num_devices=topology.num_devices))
    assert_the_first_of_all_schedules(Problem(graph, topology))


def test_what_is_left_out_changes_nothing_on_larger_graphs() -> None:
    sizes = {"min_vertices": 200, "max_vertices": 400, "max_devices": 32}
    for drawn in problems("train", 12, 5, **sizes, ratios=(0.01, 100)):
        assert_the_first_of_all_schedules(drawn.problem)


def test_schedulers_that_would_use_the_same_devices_are_left_out() -> None:
    graph = wide()
    assert len(schedulers_for(Problem(graph, slow_links(1)))) == 1
    assert [kind.name for kind in schedulers_for(Problem(graph, slow_links()))] == [
        kind.name for kind in SCHEDULERS if kind.name != "m-etf"
    ]
    small = Topology.uniform(
        2, flops_per_s=1e13, bandwidth_bytes_per_s=1e9, memory_bytes=graph.tensor_bytes.max()
    )
    assert schedulers_for(Problem(graph, small)) == SCHEDULERS
