"""The portfolio: never worse than its members, and what it knows about its solution."""

import importlib.util
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import devices_for, graphs, topologies

from doppler.assignment import Assignment
from doppler.errors import ConfigError, Interrupted
from doppler.graph import Graph, GraphBuilder
from doppler.placers import auto, is_optimal, lower_bounds, make_placer, portfolio, solve
from doppler.placers.auto import AutoPlacer
from doppler.placers.bounds.lower import bounds_of
from doppler.placers.exact.placer import ExactPlacer
from doppler.placers.learned.policy_repair import PolicyRepair
from doppler.placers.search import annealing
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.sim import SimConfig, Simulator, simulate
from doppler.topology import preset

has_solver = pytest.mark.skipif(importlib.util.find_spec("ortools") is None, reason="needs ortools")


def test_auto_is_never_worse_than_its_members_and_says_who_won() -> None:
    graph, topology = random_dag(seed=4), preset("p100x4")
    result = AutoPlacer(evaluations=3000).solve(Problem(graph, topology))
    makespan = Simulator(topology).run(graph, result.assignment).makespan_s
    assert makespan == min(member.makespan_s for member in result.members)
    assert result.won in [member.name for member in result.members]
    assert {"enumerative", "critical-path", "annealing"} <= {m.name for m in result.members}


def test_auto_stops_at_the_lower_bound() -> None:
    g = GraphBuilder("one")
    g.op("v", "matmul", reads=[], output_bytes=1, exec_s=1, transfer_s=1)
    result = AutoPlacer().solve(Problem(g.build(), preset("reference:2")))
    assert "annealing" not in [member.name for member in result.members]


def test_auto_goes_on_where_a_member_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from doppler.placers.lists.enumerative import EnumerativePlacer

    def fail(*_: object, **__: object) -> None:
        raise ConfigError("not today")

    monkeypatch.setattr(EnumerativePlacer, "place", fail)
    graph, topology = random_dag(vertices=20, depth=4, seed=0), preset("p100x4")
    placer = AutoPlacer(1.0, evaluations=100, instant=("enumerative", "round-robin"))
    result = placer.solve(Problem(graph, topology))
    assert {m.name: m.error for m in result.members}["enumerative"] == "not today"
    result.assignment.check(graph, topology)


def slow_heuristics(
    monkeypatch: pytest.MonkeyPatch, graph: Graph, seconds: float, makespan_s: float
) -> list[str]:
    """Each heuristic takes some seconds, by this clock; the names of those that run."""
    clock, names = [0.0], list[str]()

    def run(
        self: portfolio.Portfolio, placer: portfolio.Placer, budget_s: float | None = None
    ) -> None:
        clock[0] += seconds
        names.append(placer.name)
        devices = np.where(graph.is_input, -1, 0)
        member = portfolio.Member(placer.name, makespan_s, 0.1)
        self.found.append(portfolio.Found(member, Assignment(devices)))

    monkeypatch.setattr(portfolio, "monotonic", lambda: clock[0])
    monkeypatch.setattr(annealing, "monotonic", lambda: clock[0])
    monkeypatch.setattr(portfolio.Portfolio, "run", run)
    monkeypatch.setattr(auto, "has_shipped_policy", lambda: False)
    monkeypatch.setattr(portfolio.Portfolio, "take_turns", lambda _: None)
    return names


@pytest.mark.parametrize(("runs", "count"), [(True, 6), (False, 13)])
def test_without_a_policy_auto_leaves_a_fifth_of_its_time_to_search(
    monkeypatch: pytest.MonkeyPatch, runs: bool, count: int
) -> None:
    """Each heuristic takes an eighth of the time; without one that runs, all do."""
    graph, topology = random_dag(seed=4), preset("p100x4")
    names = slow_heuristics(monkeypatch, graph, 0.125, 1e9 if runs else inf)
    AutoPlacer(1.0).solve(Problem(graph, topology))
    lists = [name for name in auto._instant(topology) if name != "metis"][:count]
    assert names == (lists if not runs else [*lists, "metis"])  # which takes what is left


def test_a_heuristic_that_takes_too_long_does_not_stop_those_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They have 0.8 s for all of them, and `fewer-devices` takes as long as many others."""
    graph = random_dag(seed=4)
    names = slow_heuristics(monkeypatch, graph, 0.1, 1e9)
    instant = ("single", "heft", "fewer-devices", "etf", "cpop", "peft", "max-min")
    AutoPlacer(1.0, instant=instant).solve(Problem(graph, preset("p100x4")))
    assert names == ["single", "heft", "etf", "cpop", "peft", "max-min"]


@pytest.mark.parametrize(("memory_bytes", "included"), [(inf, False), (16e9, True)])
def test_auto_includes_memory_aware_placers_where_memory_is_limited(
    memory_bytes: float, included: bool
) -> None:
    graph, topology = random_dag(vertices=40, depth=4, seed=0), preset("p100x4")
    devices = tuple(replace(device, memory_bytes=memory_bytes) for device in topology.devices)
    result = AutoPlacer(1.0, evaluations=20).solve(
        Problem(graph, replace(topology, devices=devices))
    )
    assert ("m-etf" in [member.name for member in result.members]) == included


def fork() -> Graph:
    """a(2) → b(3), a → c(3), transfers of 1 s: 6 s, where the bounds without transfers say 5."""
    g = GraphBuilder("fork")
    a = g.op("a", "matmul", reads=[], output_bytes=1, exec_s=2, transfer_s=1)
    for name in "bc":
        g.op(name, "matmul", reads=[a], output_bytes=1, exec_s=3, transfer_s=1)
    return g.build()


@has_solver
def test_auto_proves_small_solutions_optimal() -> None:
    graph, topology = fork(), preset("reference:2")
    assert lower_bounds(graph, topology).best_s == 5
    result = AutoPlacer().solve(Problem(graph, topology))
    assert result.bound_s == simulate(graph, topology, result.assignment).makespan_s == 6
    names = [member.name for member in result.members]
    assert names[-1] == "cp-sat"  # nothing is left to search for


@has_solver
def test_auto_searches_on_where_the_static_optimum_is_out_of_reach() -> None:
    """The solver lets a device idle for `urgent`; the runtime cannot, and 14 s are never met."""
    g = GraphBuilder("patience")
    first = g.op("first", "matmul", reads=[], output_bytes=1, exec_s=[1, 99], transfer_s=1)
    g.op("long", "matmul", reads=[], output_bytes=1, exec_s=[99, 10], transfer_s=1)
    urgent = g.op("urgent", "matmul", reads=[first], output_bytes=1, exec_s=[99, 1], transfer_s=1)
    g.op("tail", "matmul", reads=[urgent], output_bytes=1, exec_s=[10, 99], transfer_s=1)
    graph, topology = g.build(), preset("reference:2")
    result = AutoPlacer(evaluations=500).solve(Problem(graph, topology))
    makespan = simulate(graph, topology, result.assignment).makespan_s
    assert result.bound_s == 14 < makespan == min(m.makespan_s for m in result.members)
    assert not is_optimal(makespan, result.bound_s)
    assert [member.name for member in result.members][-2:] == ["cp-sat", "annealing"]


@pytest.mark.parametrize("vertices", [auto.AutoConfig().exact_vertices + 1, 10])
def test_auto_does_without_the_solver(vertices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the graph is large, or the solver is not installed."""
    if vertices <= auto.AutoConfig().exact_vertices:
        monkeypatch.setattr(portfolio, "find_spec", lambda _: None)
    graph, topology = random_dag(vertices=vertices, depth=4, seed=0), preset("p100x4")
    result = AutoPlacer(evaluations=50).solve(Problem(graph, topology))
    assert "cp-sat" not in [member.name for member in result.members]
    assert result.bound_s == lower_bounds(graph, topology).best_s


@has_solver
@pytest.mark.parametrize("name", ["reference:3", "p100x4", "a100x2-t4x2", "v100x8", "cpu2"])
def test_no_run_is_below_the_bound_that_comes_with_a_solution(name: str) -> None:
    """Host costs, unequal devices, shared links: whatever the assignment and the strategy."""
    topology, rng = preset(name), np.random.default_rng(0)
    for seed in range(2):
        graph = random_dag(vertices=9, depth=4, bytes_per_flop=1e-4, seed=seed)
        if name.startswith("reference"):
            graph = explicit(graph, rng)
        for placer in (AutoPlacer(0.4, evaluations=100), ExactPlacer(0.4)):
            result = solve(placer, Problem(graph, topology))
            assert result.bound_s >= lower_bounds(graph, topology).best_s
            table = rng.integers(topology.num_devices, size=(500, graph.num_vertices))
            table = np.vstack([np.where(graph.is_input, -1, table), result.assignment.devices])
            for strategy in ("fifo", "critical-path", "random"):
                simulator = Simulator(topology, SimConfig(strategy=strategy))
                assert result.bound_s <= simulator.makespans(graph, table).min() * (1 + 1e-12)


def explicit(graph: Graph, rng: np.random.Generator) -> Graph:
    from doppler.graph import build_graph

    columns = graph.columns()
    columns["exec_s"] = rng.integers(1, 9, size=graph.num_vertices).tolist()
    columns["transfer_s"] = rng.integers(0, 5, size=graph.num_tensors).tolist()
    return build_graph(**columns)


@has_solver
@settings(max_examples=25)
@given(data=st.data())
def test_no_run_is_below_the_solvers_bound_where_memory_is_short(data: st.DataObject) -> None:
    memory = st.sampled_from([2.0, 5.0, 1e9, float("inf")])
    topology = data.draw(topologies(max_devices=3, memory_bytes=memory))
    graph = data.draw(graphs(max_vertices=6, num_devices=topology.num_devices))
    solution = ExactPlacer(0.05).solve(Problem(graph, topology))
    table = np.array([data.draw(devices_for(graph, topology)) for _ in range(5)])
    makespans = Simulator(topology).makespans(graph, table)
    assert (makespans >= solution.bound_s * (1 - 1e-9)).all()


@has_solver
def test_small_graphs_repeat_where_the_search_is_by_evaluations() -> None:
    graph, topology = random_dag(vertices=14, depth=4, seed=3), preset("a100x2-t4x2")
    first, second = (
        AutoPlacer(1.0, evaluations=60).solve(Problem(graph, topology)) for _ in range(2)
    )
    assert (first.assignment, first.bound_s) == (second.assignment, second.bound_s)
    assert first.won == second.won


@has_solver
def test_ctrl_c_in_the_solver_ends_the_portfolio_with_the_best_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "has_shipped_policy", lambda: False)  # nothing slow before the solver
    graph, topology = random_dag(vertices=60, depth=6, seed=0), preset("v100x8")
    config = auto.AutoConfig(exact_vertices=60)  # so that the solver is at it for long
    placer = AutoPlacer(1000.0, instant=("single", "round-robin"), config=config)
    placer.solve(Problem(fork(), preset("reference:2")))  # everything compiled and imported

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGINT, interrupt)
    timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        result = placer.solve(Problem(graph, topology))
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert result.interrupted
    assert "annealing" not in [member.name for member in result.members]
    result.assignment.check(graph, topology)


def after(calls: int, kind: type[BaseException], function: Callable[..., Any]) -> Any:
    """The function, which is interrupted after that number of calls."""
    made = []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if len(made) == calls:
            raise kind
        made.append(arguments)
        return function(*arguments, **options)

    return interrupted


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Interrupted])
def test_ctrl_c_in_the_policy_ends_the_portfolio_with_the_best_so_far(
    monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    problem = Problem(random_dag(vertices=60, depth=6, seed=0), preset("p100x4"))
    repair = after(5, kind, PolicyRepair.repair_with_policy)
    monkeypatch.setattr(PolicyRepair, "repair_with_policy", repair)
    result = AutoPlacer(1000.0, instant=("single",)).solve(problem)
    assert result.interrupted
    assert [member.name for member in result.members] == ["single", "doppler"]
    assert result.won == "doppler"
    result.assignment.check(problem.graph, problem.topology)


def test_ctrl_c_before_the_policy_has_made_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    repair = after(0, KeyboardInterrupt, PolicyRepair.repair_with_policy)
    monkeypatch.setattr(PolicyRepair, "repair_with_policy", repair)
    problem = Problem(fork(), preset("reference:2"))
    result = AutoPlacer(1000.0, instant=("single",)).solve(problem)
    assert result.interrupted
    assert result.won == "single"
    with pytest.raises(KeyboardInterrupt):
        AutoPlacer(1000.0, instant=()).solve(problem)


def test_shares_that_cannot_be() -> None:
    wrongs = (
        *({"instant_share": 1.5}, {"learned_share": 0.6}, {"relaxed": ()}, {"turn_share": 0.0}),
        {"learned_samples": -1},
    )
    for wrong in wrongs:
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            auto.AutoConfig(**wrong)  # type: ignore[arg-type]


def test_quick_heuristics_run_however_long_the_policy_takes() -> None:
    problem = Problem(random_dag(vertices=60, depth=6, seed=0), preset("p100x4"))
    names = [member.name for member in AutoPlacer().solve(problem, budget_s=0.01).members]
    assert names[0] == "single"


@pytest.mark.parametrize(
    ("vertex_s", "expected"),
    [
        (1e-9, ["single", "doppler", "annealing"]),
        (2e-3, ["single", "annealing", "doppler"]),
        (1.0, ["single", "annealing"]),
    ],
)
def test_a_slow_policy_has_no_time_by_itself_and_a_very_slow_one_none(
    vertex_s: float, expected: list[str]
) -> None:
    problem = Problem(random_dag(vertices=60, depth=6, seed=0), preset("p100x4"))
    config = auto.AutoConfig(learned_vertex_s=vertex_s)
    result = AutoPlacer(instant=("single",), config=config).solve(problem, budget_s=0.5)
    assert [member.name for member in result.members] == expected


def test_every_member_has_one_row_and_the_winner_the_fastest() -> None:
    problem = Problem(random_dag(vertices=60, depth=6, seed=0), preset("p100x4"))
    result = AutoPlacer(instant=("single", "heft")).solve(problem, budget_s=1.0)
    names = [member.name for member in result.members]
    assert sorted(names) == ["annealing", "doppler", "heft", "single"]
    made = {member.name: member.makespan_s for member in result.members}
    assert made[result.won] == min(made.values()) <= made["heft"]
    assert simulate(problem.graph, problem.topology, result.assignment).makespan_s == min(
        made.values()
    )


def test_a_policy_that_fails_in_its_turn_has_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConfigError("not today")

    monkeypatch.setattr(PolicyRepair, "repair_with_policy", fail)
    problem = Problem(random_dag(vertices=60, depth=6, seed=0), preset("p100x4"))
    result = AutoPlacer(instant=("single",)).solve(problem, budget_s=0.1)
    assert [member.error for member in result.members if member.name == "doppler"] == ["not today"]
    assert result.won in ("single", "annealing")


def test_bounds_that_take_long_are_left_out_where_the_budget_is_short() -> None:
    problem = Problem(random_dag(vertices=60, depth=6, seed=0), preset("p100x4"))
    config = auto.AutoConfig(bound_vertex_s=1.0)
    is_short = portfolio.Portfolio(problem, 0, config, 1.0).bound_s
    assert is_short == bounds_of(problem, quick=True).best_s
    assert portfolio.Portfolio(problem, 0, config).bound_s == bounds_of(problem).best_s


def test_ctrl_c_in_the_search_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "has_shipped_policy", lambda: False)
    auto.warm_up_search()  # which searches too
    advance = after(2, KeyboardInterrupt, annealing.Annealer._advance)
    monkeypatch.setattr(annealing.Annealer, "_advance", advance)
    problem = Problem(random_dag(vertices=60, depth=6, seed=0), preset("p100x4"))
    result = AutoPlacer(1000.0, instant=("single",)).solve(problem)
    assert result.interrupted
    assert [member.name for member in result.members] == ["single", "annealing"]


def test_the_solution_of_a_plain_placer() -> None:
    graph, topology = random_dag(vertices=12, depth=3, seed=0), preset("p100x4")
    result = solve(make_placer("heft"), Problem(graph, topology))
    assert result.assignment == make_placer("heft").place(Problem(graph, topology))
    assert (result.won, result.bound_s, result.members) == ("heft", 0.0, ())
