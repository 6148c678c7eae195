"""The compiled list schedulers equal the readable ones, vertex for vertex."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples, graphs, topologies

from doppler.cost import DefaultCostModel
from doppler.graph import Graph
from doppler.placers import make_placer
from doppler.placers.lists import reference
from doppler.placers.lists.critical_path import draw as draw_ties
from doppler.placers.lists.critical_path import random_ties, urgency
from doppler.placers.lists.rules import GreedyRule, ListSchedule, PlanArrays, RankRule, flatten, run
from doppler.placers.lists.schedulers import ListPlacer, MaxMinPlacer, favourites, greedy
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import Topology

NAMES = ("heft", "cpop", "peft", "etf", "min-min", "max-min", "m-etf", "m-sct")
memories = st.sampled_from([math.inf, 2.0, 5.0, 2e9]) | st.integers(1, 10**9).map(float)


def readable(problem: PlanArrays, rule: RankRule | GreedyRule) -> ListSchedule:
    if isinstance(rule, RankRule):
        return reference.place_by_rank(problem, rule)
    return reference.place_greedily(problem, rule)


def assert_equal(problem: PlanArrays, rule: RankRule | GreedyRule) -> None:
    fast, slow = run(problem, rule), readable(problem, rule)
    for column in ("order", "devices", "begin_s", "end_s"):
        assert getattr(fast, column).tolist() == getattr(slow, column).tolist(), column


def rule_of(
    name: str, graph: Graph, topology: Topology
) -> tuple[PlanArrays, RankRule | GreedyRule]:
    placer = make_placer(name)
    assert isinstance(placer, ListPlacer)
    problem = Problem(graph, topology)
    return flatten(problem), placer.rule(problem)


@settings(max_examples=examples(400), deadline=None)
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_small_graphs(data: st.DataObject, name: str) -> None:
    topology = data.draw(topologies(memory_bytes=memories))
    graph = data.draw(graphs(max_vertices=10, num_devices=topology.num_devices))
    assert_equal(*rule_of(name, graph, topology))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("machine", ["p100x4-8gb", "a100x2-t4x2", "cpu2"])
def test_larger_graphs(name: str, machine: str) -> None:
    for seed in range(3):
        # Transfers from nothing to most of the time; outputs that fill an 8 GB device or not.
        graph = random_dag(
            vertices=70, depth=3 + 5 * seed, bytes_per_flop=[1e-4, 5e-3, 2e-2][seed], seed=seed
        )
        assert_equal(*rule_of(name, graph, Topology.preset(machine)))


@settings(max_examples=100, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99))
def test_few_gaps_small_windows_and_random_ties(data: st.DataObject, seed: int) -> None:
    topology = data.draw(topologies())
    graph = data.draw(graphs(max_vertices=12, num_devices=topology.num_devices))
    costs = DefaultCostModel().costs(graph, topology)
    problem, rng = flatten(Problem(graph, topology)), np.random.default_rng(seed)
    rank, drawn = urgency(Problem(graph, topology)), draw_ties(rng, graph.num_vertices)
    assert_equal(problem, random_ties(rank, np.zeros(costs.exec_s.shape), drawn))
    rule = random_ties(rank, costs.exec_s, drawn)
    length_s = Problem(graph, topology).bottom_levels.length_s[drawn.order]
    by_length = drawn.order[np.argsort(-length_s, kind="stable")]
    assert rule.sequence.tolist() == by_length.tolist()
    gaps, window = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 3))
    assert_equal(problem, replace(rule, max_gaps=gaps, window=window))


def test_few_gaps_and_small_windows_on_larger_graphs() -> None:
    for seed in range(6):
        graph, topology = (
            random_dag(vertices=60, depth=6, seed=seed),
            Topology.preset("a100x2-t4x2"),
        )
        problem, rule = rule_of("heft", graph, topology)
        assert isinstance(rule, RankRule)
        for gaps, window in ((1, 1), (2, 4), (3, 60)):
            assert_equal(problem, replace(rule, max_gaps=gaps, window=window))


@settings(max_examples=100, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99))
def test_any_favourites_and_ties(data: st.DataObject, seed: int) -> None:
    topology = data.draw(topologies(memory_bytes=memories))
    graph = data.draw(graphs(max_vertices=10, num_devices=topology.num_devices))
    costs = DefaultCostModel().costs(graph, topology)
    problem, rng = flatten(Problem(graph, topology)), np.random.default_rng(seed)
    favourite = np.full(graph.num_vertices, -1)
    for v in graph.assigned:
        readers = problem.edge_reader[problem.edge_ptr[v] : problem.edge_ptr[v + 1]]
        favourite[v] = rng.choice([-1, *readers])
    rule = greedy(
        rng.integers(0, 3, costs.exec_s.shape).astype(np.float64),
        memory_bytes=np.array([d.memory_bytes for d in topology.devices]),
        favourite=favourite,
        awake_s=rng.integers(0, 3, graph.num_vertices).astype(np.float64),
    )
    assert_equal(problem, rule)


def test_max_min_compares_no_more_than_its_window() -> None:
    graph, topology = random_dag(vertices=60, depth=4, seed=1), Topology.preset("p100x4")
    problem = Problem(graph, topology)
    for window in (1, 5, 60):
        assert_equal(flatten(problem), MaxMinPlacer(window).rule(problem))


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_favourites(data: st.DataObject) -> None:
    """Edges by falling length of the longest path that begins with them, then by number."""
    topology = data.draw(topologies())
    problem = Problem(data.draw(graphs(num_devices=topology.num_devices)), topology)
    graph, move_s = problem.graph, problem.mean_transfer_s
    length_s, edges = problem.bottom_levels.length_s, []
    for e, (t, r) in enumerate(zip(graph.edge_tensor, graph.edge_reader, strict=True)):
        v = graph.tensor_producer[t]
        if not graph.is_input[v]:
            edges.append((-(problem.mean_exec_s[v] + move_s[t] + length_s[r]), e, v, r, move_s[t]))
    edges.sort()
    expected = reference.choose_favourites([(v, r) for _, _, v, r, _ in edges])
    favourite, awake_s = favourites(problem)
    assert {v: r for v, r in enumerate(favourite.tolist()) if r >= 0} == expected
    for v in range(graph.num_vertices):
        moved_s = (s for _, _, p, r, s in edges if (p, r) == (v, favourite[v]))
        assert awake_s[v] == next(moved_s, 0.0)
