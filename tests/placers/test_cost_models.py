"""Whatever the cost model, bounds, placers and simulators reckon with the same seconds."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import devices_for, graphs, topologies

import doppler as dp
from doppler.base.arrays import FloatArray
from doppler.cost import Costs, GivenCosts
from doppler.errors import ConfigError
from doppler.graph import Graph, GraphBuilder
from doppler.mdp.parts import on_part
from doppler.placers import Placer, bounds_of, is_optimal, placer_names, solve
from doppler.placers.exact.placer import ExactPlacer, solve_exactly
from doppler.problem import Problem
from doppler.sim import ReferenceSimulator, Simulator
from doppler.topology import KERNEL_FAMILIES, Topology

BELOW = 1 - 1e-9  # sums of seconds are rounded in another order


def random_model(graph: Graph, topology: Topology, seed: int) -> GivenCosts:
    """Costs that have nothing to do with flops, bytes or rates."""
    rng = np.random.default_rng(seed)

    def seconds(*shape: int) -> FloatArray:
        return rng.choice([0.0, 1.0, 1e-3], shape) + rng.exponential(size=shape)

    exec_s = 3 * seconds(graph.num_vertices, topology.num_devices)
    exec_s[graph.is_input] = 0.0
    links = topology.num_links
    return GivenCosts(Costs(exec_s, seconds(graph.num_tensors), seconds(links), seconds(links)))


@st.composite
def problems(draw: st.DrawFn, *, max_vertices: int = 8, max_devices: int = 4) -> Problem:
    topology = draw(topologies(max_devices=max_devices))
    graph = draw(graphs(max_vertices=max_vertices, num_devices=topology.num_devices))
    return Problem(graph, topology, random_model(graph, topology, draw(st.integers(0, 2**32))))


@pytest.mark.parametrize("name", placer_names())
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(problem=problems())
def test_no_placer_goes_below_the_bound(
    quick: Callable[[str], Placer], name: str, problem: Problem
) -> None:
    solution = solve(quick(name), problem)
    makespan_s = Simulator(problem).run(problem.graph, solution.assignment).makespan_s
    assert makespan_s >= bounds_of(problem).best_s * BELOW
    assert makespan_s >= solution.bound_s * BELOW


@pytest.mark.parametrize("name", placer_names())
@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(factors=st.tuples(*[st.floats(1, 3)] * len(KERNEL_FAMILIES)))
def test_no_placer_goes_below_the_bound_of_the_loaded_machine(
    quick: Callable[[str], Placer], name: str, factors: tuple[float, ...]
) -> None:
    contention = dict(zip(KERNEL_FAMILIES, factors, strict=True))
    topology = dp.Topology.uniform(2, flops_per_s=1e9, bandwidth_bytes_per_s=1e9)
    graph = dp.shard(dp.programs.ffnn(batch=64, features=16, hidden=64, classes=16), parts=2)
    problem = Problem(graph, replace(topology, contention=contention))
    answer = solve(quick(name), problem)
    for simulator in (Simulator(problem), ReferenceSimulator(problem)):
        makespan_s = simulator.run(graph, answer.assignment).makespan_s
        assert makespan_s >= max(bounds_of(problem).best_s, answer.bound_s) * BELOW


@settings(max_examples=60, deadline=None)
@given(problem=problems(max_vertices=5, max_devices=3))
def test_the_bound_is_below_every_assignment(problem: Problem) -> None:
    assert all_makespans(problem).min() >= bounds_of(problem).best_s * BELOW


@settings(max_examples=12, deadline=None)
@given(problem=problems(max_vertices=4, max_devices=3))
def test_the_exact_bound_holds_and_its_placer_finds_the_best(problem: Problem) -> None:
    pytest.importorskip("ortools")
    makespans = all_makespans(problem)
    solution = ExactPlacer(seconds=2.0).solve(problem)
    found_s = float(Simulator(problem).makespans(problem.graph, [solution.assignment])[0])
    assert makespans.min() <= found_s
    assert solution.bound_s <= makespans.min() / BELOW
    if is_optimal(found_s, solution.bound_s):
        assert found_s == pytest.approx(makespans.min())


@settings(max_examples=20, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_exact_equals_brute_force_without_contention(data: st.DataObject, seed: int) -> None:
    """Where every vertex may run at any time, the best static schedule is the best assignment."""
    pytest.importorskip("ortools")
    graph = data.draw(graphs(max_vertices=4))
    topology = wide(3)
    problem = Problem(graph, topology, random_model(graph, topology, seed))
    result = solve_exactly(problem, seconds=10, workers=1)
    assert result.proven
    assert result.makespan_s == pytest.approx(all_makespans(problem).min(), rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), problem=problems())
def test_both_simulators_take_the_costs_of_the_problem(
    data: st.DataObject, problem: Problem
) -> None:
    graph, topology = problem.graph, problem.topology
    assignment = dp.Assignment(data.draw(devices_for(graph, topology)))
    trace = Simulator(problem).run(graph, assignment)
    readable = ReferenceSimulator(topology, cost_model=problem.cost_model).run(graph, assignment)
    assert trace.makespan_s == readable.makespan_s
    execs = ~trace.is_transfer
    took = (trace.end_s - trace.begin_s)[execs]
    exec_s = problem.costs.exec_s[trace.vertex[execs], trace.device[execs]]
    np.testing.assert_allclose(took, exec_s, atol=1e-12 * trace.makespan_s)


def test_the_public_functions_take_a_cost_model() -> None:
    graph, topology = dp.programs.random_dag(vertices=12, depth=4, seed=0), "p100x4"
    machine = dp.Topology.preset(topology)
    model = random_model(graph, machine, 1)
    placed = dp.place(graph, topology, "cp-sat", cost_model=model)
    makespan_s = dp.simulate(graph, topology, placed, cost_model=model).makespan_s
    assert placed.problem == Problem(graph, machine, model).digest()
    assert placed.problem != Problem(graph, machine).digest()
    assert makespan_s >= dp.lower_bounds(graph, topology, cost_model=model).best_s
    assert dp.lower_bounds(graph, topology, cost_model=model) != dp.lower_bounds(graph, topology)
    (row,) = dp.compare(graph, topology, ["cp-sat"], seeds=1, budget_s=1.0, cost_model=model)
    assert row.gap >= -1e-9
    assert row.makespan_s >= row.lower_bound_s > 100 * dp.lower_bounds(graph, topology).best_s


def test_a_problem_brings_its_own_cost_model() -> None:
    problem = Problem(GraphBuilder("empty").build(), wide(1))
    with pytest.raises(ConfigError, match="has a cost model already"):
        Simulator(problem, cost_model=problem.cost_model)


def test_a_part_of_the_machine_keeps_the_costs() -> None:
    graph, topology = dp.programs.random_dag(vertices=12, depth=4, seed=0), wide(3)
    problem = Problem(graph, topology, random_model(graph, topology, 3))
    part = on_part(problem, np.array([2, 0]))
    np.testing.assert_array_equal(part.costs.exec_s, problem.costs.exec_s[:, [2, 0]])
    assert part.latency_s[0, 1] == problem.latency_s[2, 0]


def all_makespans(problem: Problem) -> FloatArray:
    """Of every assignment."""
    graph, size = problem.graph, problem.topology.num_devices
    table = np.full((size ** len(graph.assigned), graph.num_vertices), -1)
    table[:, graph.assigned] = list(product(range(size), repeat=len(graph.assigned)))
    return Simulator(problem).makespans(graph, table)


def wide(count: int) -> Topology:
    """Devices with a slot for every vertex, and links without limits."""
    devices = tuple(dp.Device(f"d{i}", slots=16) for i in range(count))
    links = tuple(dp.Link(f"l{i}", lanes=0) for i in range(count * count))
    route = np.arange(count * count).reshape(count, count)
    np.fill_diagonal(route, -1)
    return Topology("wide", devices, links, route)
