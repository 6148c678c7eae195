"""The search over orders, and placers in mode `fixed`."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import devices_for, graphs, topologies

from doppler import compare, place
from doppler.assignment import Assignment
from doppler.errors import ConfigError, OutOfMemoryError, UnknownNameError
from doppler.graph import Graph, GraphBuilder
from doppler.placers import bounds_of, make_placer, proven_bound_s
from doppler.placers.modes import FixedConfig, solve_in_mode
from doppler.placers.search.annealing import SearchConfig
from doppler.placers.search.orders import OrderConfig, improve_order
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.scheduler.list_scheduling import list_schedule, without_host
from doppler.sim import SimConfig, Simulator
from doppler.topology import Device, Host, Link, Topology

FIXED = SimConfig(mode="fixed")


def box(devices: int = 4, *, memory: float = float("inf")) -> Topology:
    """Equal devices behind one link with two lanes, and a host that takes its time."""
    route = np.zeros((devices, devices), int)
    np.fill_diagonal(route, -1)
    return Topology(
        "box",
        tuple(
            Device(f"d{i}", {"float16": 1e13}, 1e12, memory_bytes=memory) for i in range(devices)
        ),
        (Link("shared", 4e10, latency_s=5e-5, lanes=2),),
        route,
        Host(1e-5, 1e-4, ahead=1),
    )


def makespan_s(problem: Problem, assignment: Assignment) -> float:
    return Simulator(problem, FIXED).run(problem.graph, assignment).makespan_s


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_never_slower_than_any_start_and_what_it_says(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    graph = data.draw(graphs(max_vertices=10, num_devices=topology.num_devices))
    order = np.array(data.draw(st.permutations(graph.assigned.tolist())), np.int64)
    assignment = Assignment(data.draw(devices_for(graph, topology)), order)
    problem = Problem(graph, topology)
    found = improve_order(problem, assignment, OrderConfig(evaluations=50))
    scheduled = replace(assignment, schedule=found.schedule)
    scheduled.check(graph, topology)
    assert makespan_s(problem, scheduled) == found.makespan_s <= found.first_s
    for strategy in ("fifo", "critical-path", "order"):
        listed = replace(assignment, schedule=list_schedule(problem, assignment, strategy))
        assert found.first_s <= makespan_s(problem, listed)
    again = improve_order(problem, scheduled, OrderConfig(evaluations=0))
    assert again.makespan_s <= found.makespan_s


def urgent() -> Graph:
    """On one device, a long chain of others waits for what comes last by number."""
    g = GraphBuilder("urgent")
    for i in range(4):
        g.op(f"v{i}", "matmul", reads=[], output_bytes=0, exec_s=1, transfer_s=0)
    first = g.op("first", "matmul", reads=[], output_bytes=0, exec_s=1, transfer_s=0)
    g.op("last", "matmul", reads=[first], output_bytes=0, exec_s=4, transfer_s=0)
    return g.build()


def test_it_finds_the_order_that_a_poor_strategy_misses() -> None:
    problem = Problem(urgent(), Topology.preset("reference:2"))
    assignment = Assignment([0, 0, 0, 0, 0, 1])
    config = OrderConfig(evaluations=400, strategies=("fifo",))
    found = improve_order(problem, assignment, config)
    assert (found.first_s, found.makespan_s) == (9, 5)
    assert found.schedule.tasks[0] == 4


def test_the_same_seed_gives_the_same_schedule() -> None:
    problem = Problem(random_dag(vertices=60, depth=8, seed=1), box())
    assignment = make_placer("heft").place(problem)
    config = OrderConfig(evaluations=300)
    first, again, other = (
        improve_order(problem, assignment, config, seed=seed) for seed in (3, 3, 4)
    )
    assert first == again
    assert first.evaluations == other.evaluations == 300


def test_it_stops_where_nothing_can_be_better() -> None:
    problem = Problem(urgent(), Topology.preset("reference:2"))
    found = improve_order(problem, Assignment([0] * 6), OrderConfig(evaluations=99, enough_s=9))
    assert (found.makespan_s, found.evaluations) == (9, 0)
    timed = improve_order(problem, Assignment([0] * 6), OrderConfig(seconds=0.01))
    assert timed.makespan_s == 9


@pytest.mark.parametrize("options", [{"seconds": 0}, {"evaluations": -1}, {"batch": 0}, {"far": 0}])
def test_budgets_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        OrderConfig(**options)


def test_a_lack_of_memory_is_told() -> None:
    g = GraphBuilder("large")
    g.op("p", "matmul", reads=[], output_bytes=6, exec_s=1, transfer_s=1)
    problem = Problem(g.build(), box(2, memory=5))
    with pytest.raises(OutOfMemoryError, match="vertex `p` needs 6 bytes"):
        improve_order(problem, Assignment([0]))


@pytest.mark.parametrize("placer", ["heft", "critical-path", "single"])
def test_placers_in_mode_fixed(placer: str) -> None:
    problem = Problem(random_dag(vertices=40, depth=6, seed=0), box())
    solution = solve_in_mode(make_placer(placer), problem, "fixed")
    again = solve_in_mode(make_placer(placer), problem, "fixed")
    assert solution.assignment == again.assignment
    solution.assignment.check(problem.graph, problem.topology)
    quick = solve_in_mode(
        make_placer(placer), problem, "fixed", config=FixedConfig(evaluations=0)
    ).assignment
    assert makespan_s(problem, solution.assignment) <= makespan_s(problem, quick)
    assert solve_in_mode(make_placer(placer), problem).assignment.schedule is None


def test_a_bound_that_was_proven_without_a_host_holds_in_mode_fixed() -> None:
    problem = Problem(random_dag(vertices=40, depth=6, seed=0), box())
    bound_s = 2 * bounds_of(problem, "fixed").best_s
    assignment = make_placer("heft").place(problem)
    for digest, mode, counts in (
        (without_host(problem).digest(), "fixed", True),
        (without_host(problem).digest(), "dynamic", False),
        (problem.digest(), "fixed", False),
    ):
        proven = replace(assignment, bound_s=bound_s, problem=digest)
        assert (proven_bound_s(problem, proven, mode) == bound_s) == counts
    assert bounds_of(problem, "fixed").path_s < bounds_of(problem).path_s
    assert bounds_of(problem, "fixed").host_s == bounds_of(problem).host_s


def test_from_python() -> None:
    graph = random_dag(vertices=40, depth=6, seed=0)
    scheduled = place(graph, box(), "auto", budget_s=0.2, mode="fixed")
    assert scheduled.schedule is not None
    (row,) = compare(graph, box(), ["heft"], seeds=2, mode="fixed")
    assert row.lower_bound_s <= row.makespan_s
    assert row.makespan_s == makespan_s(
        Problem(graph, box()), place(graph, box(), "heft", mode="fixed")
    )
    with pytest.raises(UnknownNameError, match="did you mean `fixed`"):
        place(graph, box(), "heft", mode="fixd")
    with pytest.raises(ConfigError, match="simulates in mode `dynamic`"):
        SearchConfig(sim=FIXED)
