import numpy as np
import pytest

from doppler.errors import ConfigError, UnknownNameError
from doppler.graph import Graph, GraphBuilder
from doppler.placers import gap, lower_bounds, make_placer, place, placer_names
from doppler.placers.lists.critical_path import BlindCriticalPathPlacer, CriticalPathPlacer
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.sim import Simulator, simulate
from doppler.topology import Topology


def two_chains() -> Graph:
    """a(4) → b(4) and c(3) → d(3), transfers of 10 s: each chain belongs on a device of its own."""
    g = GraphBuilder("two chains")
    for first, second, seconds in (("a", "b", 4), ("c", "d", 3)):
        t = g.op(first, "matmul", reads=[], output_bytes=1, exec_s=seconds, transfer_s=10)
        g.op(second, "matmul", reads=[t], output_bytes=1, exec_s=seconds, transfer_s=10)
    return g.build()


def test_critical_path_keeps_chains_together() -> None:
    graph, topology = two_chains(), Topology.preset("reference:2")
    assignment = CriticalPathPlacer(runs=1).place(Problem(graph, topology))
    a, b, c, d = assignment.devices.tolist()
    assert (a, c) == (b, d)
    assert a != c
    assert simulate(graph, topology, assignment).makespan_s == 8


def test_critical_path_takes_the_longest_path_to_an_exit_first() -> None:
    graph = two_chains()
    order = CriticalPathPlacer(runs=1).place(Problem(graph, Topology.preset("reference:1"))).order
    assert order is not None
    # To an exit, with no links to cross: a 8, c 6, b 4, d 3.
    assert [graph.vertex_names[v] for v in order] == ["a", "c", "b", "d"]


def test_critical_path_keeps_the_best_of_its_runs() -> None:
    graph, topology = random_dag(seed=3), Topology.preset("p100x4")
    makespans = [
        simulate(
            graph, topology, CriticalPathPlacer(runs=runs).place(Problem(graph, topology))
        ).makespan_s
        for runs in (1, 10, 50)
    ]
    assert makespans == sorted(makespans, reverse=True)
    assert makespans[2] < makespans[0]


def test_the_blind_critical_path_takes_whichever_device_is_free() -> None:
    """b is ready when a ends, and c's device is free by then: it goes there as well as stays."""
    problem = Problem(two_chains(), Topology.preset("reference:2"))
    placer = make_placer("critical-path:blind")
    placed = [placer.place(problem, seed=seed) for seed in range(8)]
    assert {a.placer for a in placed} == {"critical-path:blind"}
    one_run = BlindCriticalPathPlacer(runs=1)
    apart = [one_run.place(problem, seed=seed).devices.tolist() for seed in range(8)]
    assert any(a != b for a, b, _, _ in apart)  # where a transfer takes longer than all the rest
    assert all(a != c for a, _, c, _ in apart)
    with pytest.raises(ConfigError, match="takes no run"):
        make_placer("critical-path:deaf")


def test_critical_path_needs_a_run() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        CriticalPathPlacer(runs=0)


def test_single_takes_the_fastest_device() -> None:
    g = GraphBuilder("unequal")
    g.op("v", "matmul", reads=[], output_bytes=1, exec_s=[3, 1, 2], transfer_s=1)
    assert place(g.build(), Topology.preset("reference:3"), "single").devices.tolist() == [1]


def test_round_robin_deals_in_topological_order() -> None:
    assignment = place(two_chains(), Topology.preset("reference:3"), "round-robin")
    assert assignment.devices.tolist() == [0, 2, 1, 0]


def test_random_uses_all_devices_and_its_seed() -> None:
    graph, topology = random_dag(seed=0), Topology.preset("v100x8")
    first, second = (place(graph, topology, "random", seed=seed) for seed in (0, 1))
    assert set(first.devices[graph.assigned].tolist()) == set(range(8))
    assert first != second


def test_names() -> None:
    assert {"auto", "critical-path", "enumerative", "single"} <= set(placer_names())
    with pytest.raises(UnknownNameError, match="did you mean `critical-path`"):
        make_placer("critical_path")


def test_bounds_by_hand() -> None:
    graph, topology = two_chains(), Topology.preset("reference:2")
    bounds = lower_bounds(graph, topology)
    assert (bounds.path_s, bounds.work_s, bounds.window_s, bounds.host_s) == (8, 7, 7, 3)
    assert bounds.best_s == 8
    assert gap(10, 8) == 0.25
    assert gap(0, 0) == 0


def test_work_bound_is_exact_for_devices_that_differ_by_a_factor() -> None:
    g = GraphBuilder("related")
    for i in range(3):
        g.op(f"v{i}", "matmul", reads=[], output_bytes=1, exec_s=[6.0, 3.0], transfer_s=1)
    graph, topology = g.build(), Topology.preset("reference:2")
    assert lower_bounds(graph, topology).work_s == pytest.approx(6.0)
    assert Simulator(topology).makespans(graph, np.array([[0, 1, 1]])).tolist() == [6.0]
