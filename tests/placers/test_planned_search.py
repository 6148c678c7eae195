"""Placing where memory is short: plans instead of errors, and a search with them."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tight import tight_problem

from doppler.assignment import Assignment
from doppler.errors import ConfigError, OutOfMemoryError
from doppler.graph import Graph, GraphBuilder
from doppler.placers import bounds_of, make_placer, place, placer_names, portfolio, solve
from doppler.placers.auto import AutoPlacer
from doppler.placers.planned_search import (
    PlannedSearchConfig,
    can_plan,
    planned,
    search_planned,
    without_limits,
)
from doppler.placers.search.annealing import SearchResult, search
from doppler.problem import Problem
from doppler.sim import SimConfig, Simulator
from doppler.topology import Topology


def streaming(count: int = 12, size: float = 10.0, exec_s: float = 1.0) -> Graph:
    """A chain of vertices, each of which reads a weight of its own."""
    builder = GraphBuilder("streaming")
    last = builder.input("x", output_bytes=1.0, kind="streamed")
    for i in range(count):
        weight = builder.input(f"w{i}", output_bytes=size, kind="resident")
        last = builder.op(f"v{i}", "matmul", reads=[last, weight], output_bytes=1.0, exec_s=exec_s)
    return builder.build()


def machine(devices: int, memory_bytes: float, bandwidth: float | None = 10.0) -> Topology:
    return Topology.uniform(
        devices,
        bandwidth_bytes_per_s=100.0,
        memory_bytes=memory_bytes,
        host_bandwidth_bytes_per_s=bandwidth,
    )


@pytest.mark.parametrize("name", ["single", "heft", "m-etf", "m-sct", "round-robin"])
def test_a_model_larger_than_all_devices_gets_a_plan(name: str) -> None:
    problem = Problem(streaming(), machine(2, 32.0))
    assert can_plan(problem)
    solution = solve(make_placer(name), problem)
    found = solution.assignment
    assert found.memory is not None
    assert "with a memory plan" in repr(solution)
    assert found.placer == name
    makespan_s = Simulator(problem).run(problem.graph, found).makespan_s
    assert bounds_of(problem).best_s <= makespan_s <= 1.3 * 12


def test_auto_searches_over_assignments_with_plans() -> None:
    problem = Problem(streaming(exec_s=0.5), machine(2, 32.0))
    placer = AutoPlacer(evaluations=40, instant=("single",))
    found = placer.solve(problem)
    again = placer.solve(problem)
    assert found.assignment == again.assignment
    assert found.won == "memory-plans"
    assert [m.name for m in found.members][-1] == "memory-plans"
    makespan_s = Simulator(problem).run(problem.graph, found.assignment).makespan_s
    single_s = Simulator(problem).run(
        problem.graph, solve(make_placer("single"), problem).assignment
    )
    assert makespan_s < 0.8 * single_s.makespan_s  # both links to the host have work
    found.assignment.check(problem.graph, problem.topology)


def test_auto_plans_for_the_best_heuristics_first_however_short_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plans take longer than heuristics: those that promise most must not come too late."""
    problem = Problem(streaming(count=24), machine(2, 32.0))
    planned_for: list[bytes] = []

    def watched(problem: Problem, assignment: Assignment, **options: Any) -> Any:
        planned_for.append(assignment.devices.tobytes())
        return planned(problem, assignment, **options)

    monkeypatch.setattr(portfolio, "planned", watched)
    instant = ("round-robin", "single", "critical-path")
    solution = AutoPlacer(instant=instant, learned=None).solve(problem, budget_s=1e-9)
    starts = [make_placer(name).place(problem).devices for name in instant]
    relaxed_s = Simulator(without_limits(problem)).makespans(problem.graph, np.array(starts))
    assert planned_for[0] == starts[int(relaxed_s.argmin())].tobytes()
    assert solution.assignment.memory is not None


@pytest.mark.parametrize("seed", range(3))
def test_auto_is_never_slower_than_what_search_finds_with_more_memory(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also where assignments that need no plan are found: those with one may be faster."""
    problem, _ = tight_problem(seed)
    starts = list[SearchResult]()

    def watched(searched: Problem, *args: Any, **options: Any) -> Any:
        result = search(searched, *args, **options)
        if searched is not problem:
            starts.append(result)
        return result

    monkeypatch.setattr(portfolio, "search", watched)
    config = portfolio.AutoConfig(exact_vertices=0)
    placer = AutoPlacer(evaluations=60, instant=("round-robin",), config=config)
    solution = placer.solve(problem, seed=seed)
    assert starts
    found_s = Simulator(problem).run(problem.graph, solution.assignment, seed).makespan_s
    for start in starts:  # a plan may be faster than the rule without limits: that is left out
        with suppress(OutOfMemoryError):
            start_s = planned(problem, Assignment(start.devices), seed=seed)[1]
            assert found_s <= max(start_s, start.cost_s) * (1 + 1e-9)


def test_search_continues_from_a_plan() -> None:
    problem = Problem(streaming(exec_s=0.5), machine(2, 32.0))
    first, first_s = planned(problem, make_placer("heft").place(problem))
    result = search_planned(problem, [], PlannedSearchConfig(evaluations=20), first=first)
    assert result.makespan_s <= first_s
    enough = PlannedSearchConfig(evaluations=20, enough_s=first_s)
    assert search_planned(problem, [], enough, first=first).assignment is first


def test_a_plan_in_mode_fixed_keeps_its_order() -> None:
    problem = Problem(streaming(), machine(2, 32.0))
    found = place(problem.graph, problem.topology, "heft", mode="fixed")
    assert found.memory is not None
    assert found.schedule is not None
    trace = Simulator(problem, SimConfig(mode="fixed")).run(problem.graph, found)
    assert np.isfinite(trace.makespan_s)


def test_what_no_plan_helps_is_said() -> None:
    with pytest.raises(
        OutOfMemoryError, match="no assignment can run: vertex `v0` reads and makes"
    ):
        place(streaming(), machine(2, 11.0), "heft")
    with pytest.raises(OutOfMemoryError, match="over links to the host, of which"):
        place(streaming(), machine(2, 45.0, None), "single")
    problem = Problem(streaming(), machine(2, 11.0))
    with pytest.raises(OutOfMemoryError, match="even if all else goes to the host"):
        search_planned(problem, [np.where(problem.graph.is_input, -1, 0)])


def test_what_fits_has_no_plan() -> None:
    graph = streaming()
    assert place(graph, machine(2, 200.0), "heft").memory is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31))
def test_no_plan_is_below_the_bounds(seed: int) -> None:
    problem, assignment = tight_problem(seed)
    try:
        _, makespan_s = planned(problem, assignment)
    except OutOfMemoryError:
        return
    assert makespan_s >= bounds_of(problem).best_s * (1 - 1e-9)


def test_search_takes_any_start() -> None:
    problem = Problem(streaming(), machine(2, 32.0))
    start = np.where(problem.graph.is_input, -1, 0)
    config = PlannedSearchConfig(evaluations=15)
    result = search_planned(problem, [start], config, seed=1)
    assert result.plans >= 15
    relaxed = Simulator(without_limits(problem)).makespans(problem.graph, start[None])
    assert result.makespan_s >= relaxed.min() * (1 - 1e-9)
    assert result.assignment.memory is not None
    with pytest.raises(ConfigError):
        PlannedSearchConfig(evaluations=0)


def test_every_placer_answers_with_a_plan_or_an_assignment() -> None:
    problem = Problem(streaming(count=6), machine(2, 32.0))
    for name in placer_names():
        if name in ("annealing", "auto", "cp-sat", "doppler", "genetic", "local-search", "metis"):
            continue
        found: Assignment = place(problem.graph, problem.topology, name)
        assert np.isfinite(Simulator(problem).makespans(problem.graph, [found])[0])
