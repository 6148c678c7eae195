"""List schedulers on examples from the literature, or computed by hand where none is at hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples, graphs, topologies

from doppler.cost import DefaultCostModel
from doppler.errors import ConfigError
from doppler.graph import Graph, GraphBuilder
from doppler.placers import make_placer
from doppler.placers.lists.rules import ListSchedule
from doppler.placers.lists.schedulers import (
    ListPlacer,
    MaxMinPlacer,
    favourites,
    optimistic_s,
)
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import Device, Link, Topology

NAMES = ("heft", "cpop", "peft", "etf", "min-min", "max-min", "m-etf", "m-sct")
Edges = dict[tuple[int, int], float]


def task_graph(exec_s: list[tuple[float, ...]], transfer_s: Edges) -> Graph:
    """Tasks numbered from 1 as in the papers; every edge a tensor of its own."""
    g = GraphBuilder("tasks")
    tasks = [g.vertex(f"n{i}", "task", exec_s=row) for i, row in enumerate(exec_s, start=1)]
    for (source, target), seconds in transfer_s.items():
        g.edge(g.tensor(tasks[source - 1], 1, transfer_s=seconds), tasks[target - 1])
    return g.build()


def topcuoglu() -> Graph:
    """Topcuoglu et al. (2002), Fig. 2."""
    return task_graph(
        [
            (14, 16, 9),
            (13, 19, 18),
            (11, 13, 19),
            (13, 8, 17),
            (12, 13, 10),
            (13, 16, 9),
            (7, 15, 11),
            (5, 11, 14),
            (18, 12, 20),
            (21, 7, 16),
        ],
        {(1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14}
        | {(2, 8): 19, (2, 9): 16, (3, 7): 23, (4, 8): 27, (4, 9): 23, (5, 9): 13}
        | {(6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13},
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cpop"])  # has a fixed device
def test_what_comes_from_the_host_takes_its_time(name: str) -> None:
    g = GraphBuilder("streamed")
    x = g.input("x", output_bytes=12, kind="streamed")
    g.op("v", "task", reads=[x], output_bytes=1, exec_s=(1.0, 2.0))
    slow, fast = Link("slow", 1.0), Link("fast", 12.0)
    route = np.array([[-1, 0], [0, -1]])
    devices = (Device("near"), Device("far"))
    topology = Topology("two", devices, (slow, fast), route, host_links=(0, 1))
    placer = make_placer(name)
    assert isinstance(placer, ListPlacer)
    found = placer.schedule(Problem(g.build(), topology))  # 12 + 1 s on the first device
    assert (found.devices.tolist(), found.begin_s.tolist()) == ([-1, 1], [0.0, 1.0])


def arabnejad() -> Graph:
    """Arabnejad & Barbosa (2014), Fig. 1."""
    return task_graph(
        [
            (22, 21, 36),
            (22, 18, 18),
            (32, 27, 43),
            (7, 10, 4),
            (29, 27, 35),
            (26, 17, 24),
            (14, 25, 30),
            (29, 23, 36),
            (15, 21, 8),
            (13, 16, 33),
        ],
        {(1, 2): 17, (1, 3): 31, (1, 4): 29, (1, 5): 13, (1, 6): 7}
        | {(2, 8): 3, (2, 9): 30, (3, 7): 16, (4, 8): 11, (4, 9): 7, (5, 9): 57}
        | {(6, 8): 5, (7, 10): 9, (8, 10): 42, (9, 10): 7},
    )


def schedule(name: str, graph: Graph, topology: Topology | None = None) -> ListSchedule:
    placer = make_placer(name)
    assert isinstance(placer, ListPlacer)
    return placer.schedule(Problem(graph, topology or Topology.preset("reference:3")))


def rows(plan: ListSchedule) -> dict[int, list[tuple[int, float, float]]]:
    """(task from 1, begin, end) on each device, by time."""
    tasks = sorted(plan.order.tolist(), key=lambda v: plan.begin_s[v])
    return {
        d: [(v + 1, plan.begin_s[v], plan.end_s[v]) for v in tasks if plan.devices[v] == d]
        for d in sorted(set(plan.devices.tolist()))
    }


def test_heft_on_its_published_example() -> None:
    plan = schedule("heft", topcuoglu())
    assert plan.makespan_s == 80
    assert [v + 1 for v in plan.order] == [1, 4, 3, 2, 5, 6, 9, 7, 8, 10]  # by upward rank
    assert rows(plan) == {
        0: [(2, 27, 40), (8, 57, 62)],
        1: [(4, 18, 26), (6, 26, 42), (9, 56, 68), (10, 73, 80)],
        2: [(1, 0, 9), (3, 9, 28), (5, 28, 38), (7, 38, 49)],
    }


def test_cpop_on_its_published_example() -> None:
    plan = schedule("cpop", topcuoglu())
    assert plan.makespan_s == 86
    # The critical path n1, n2, n9, n10 takes 54 on the second processor, 66 and 63 on the others.
    assert [plan.devices[n - 1] for n in (1, 2, 9, 10)] == [1, 1, 1, 1]


def test_peft_on_its_published_example() -> None:
    graph, topology = arabnejad(), Topology.preset("reference:3")
    table = optimistic_s(Problem(graph, topology))
    assert table.tolist() == [
        [64, 68, 86],
        [42, 39, 42],
        [27, 41, 43],
        [42, 39, 50],
        [28, 37, 28],
        [42, 39, 44],
        [13, 16, 22],
        [13, 16, 33],
        [13, 16, 20],
        [0, 0, 0],
    ]
    assert schedule("peft", graph).makespan_s == 122
    assert schedule("heft", graph).makespan_s == 133


def diamond() -> Graph:
    """a(2) → b(3), c(1) → d(1); any transfer takes 1. Static levels: a 6, b 4, c 2, d 1."""
    return task_graph([(2,), (3,), (1,), (1,)], {(1, 2): 1, (1, 3): 1, (2, 4): 1, (3, 4): 1})


@pytest.mark.parametrize(
    ("name", "order", "expected"),
    [
        # b and c can begin at 2 next to a: b has the longer way. c at 3 elsewhere beats 5.
        ("etf", [1, 2, 3, 4], {0: [(1, 0, 2), (2, 2, 5), (4, 5, 6)], 1: [(3, 3, 4)]}),
        # c ends at 3 at best, b at 5: c first. Then b ends at 6 on either device.
        ("min-min", [1, 3, 2, 4], {0: [(1, 0, 2), (3, 2, 3), (2, 3, 6), (4, 6, 7)]}),
        # The other way round: b first, c ends at 4 on the other device.
        ("max-min", [1, 2, 3, 4], {0: [(1, 0, 2), (2, 2, 5), (4, 5, 6)], 1: [(3, 3, 4)]}),
    ],
)
def test_greedy_rules_by_hand(
    name: str, order: list[int], expected: dict[int, list[tuple[int, float, float]]]
) -> None:
    plan = schedule(name, diamond(), Topology.preset("reference:2"))
    assert [v + 1 for v in plan.order] == order
    assert rows(plan) == expected


def test_insertion_fills_a_gap() -> None:
    graph = task_graph([(1, 9), (20, 1), (9, 2)], {(1, 2): 4})
    plan = schedule("heft", graph, Topology.preset("reference:2"))
    # n2 waits on the second device until 5; n3, placed last, fits before it.
    assert plan.order.tolist() == [0, 1, 2]
    assert rows(plan) == {0: [(1, 0, 1)], 1: [(3, 0, 2), (2, 5, 6)]}


def machine(*memory_bytes: float, slots: int = 1) -> Topology:
    devices = tuple(
        Device(f"d{i}", memory_bytes=size, slots=slots) for i, size in enumerate(memory_bytes)
    )
    route = np.where(np.eye(len(devices)), -1, 0).astype(np.int64)
    return Topology("small", devices, (Link("l", lanes=0),), route)


def independent(count: int) -> Graph:
    g = GraphBuilder("independent")
    for i in range(count):
        g.op(f"v{i}", "task", reads=[], output_bytes=4, exec_s=1, transfer_s=1)
    return g.build()


def test_slots_are_timelines() -> None:
    assert schedule("heft", independent(4), machine(8, 8, slots=2)).makespan_s == 1
    assert schedule("etf", independent(4), machine(8, 8, slots=2)).makespan_s == 1


@pytest.mark.parametrize("name", ["m-etf", "m-sct"])
def test_memory_aware_rules_by_hand(name: str) -> None:
    graph = independent(5)
    assert schedule("etf", graph, machine(8, 100)).devices.tolist() == [0, 1, 0, 1, 0]
    # The first device is full with two.
    assert schedule(name, graph, machine(8, 100)).devices.tolist() == [0, 1, 0, 1, 1]
    # Both are full with one; then the third leaves -4 or -2, the fourth -4 or -6, …
    assert schedule(name, graph, machine(4, 6)).devices.tolist() == [0, 1, 1, 0, 1]


def test_copies_take_memory_once() -> None:
    g = GraphBuilder("copies")
    a = g.op("a", "task", reads=[], output_bytes=4, exec_s=1, transfer_s=1)
    for name in ("b", "c"):
        g.op(name, "task", reads=[a], output_bytes=1, exec_s=1, transfer_s=1)
    graph = g.build()
    # The first device is full with a; the second takes the copy of 4 bytes and both outputs.
    assert schedule("m-etf", graph, machine(4, 6)).devices.tolist() == [0, 1, 1]
    # One byte less: c fits nowhere, and leaves -1 on either.
    assert schedule("m-etf", graph, machine(4, 5)).devices.tolist() == [0, 1, 0]


def test_a_device_stays_awake_for_the_favourite() -> None:
    g = GraphBuilder("favourite")
    x = g.op("x", "task", reads=[], output_bytes=1, exec_s=2, transfer_s=1)
    a = g.op("a", "task", reads=[], output_bytes=1, exec_s=1, transfer_s=3)
    g.op("f", "task", reads=[x, a], output_bytes=1, exec_s=5, transfer_s=0)
    g.op("g", "task", reads=[a], output_bytes=1, exec_s=4, transfer_s=0)
    graph, topology = g.build(), machine(math.inf, math.inf)
    favourite, awake_s = favourites(Problem(graph, topology))
    # Ways to the exit: a → f 9, x → f 8, a → g 8; a's reader f is taken before x's turn.
    assert favourite.tolist() == [-1, 2, -1, -1]
    assert awake_s.tolist() == [0, 3, 0, 0]
    # Without favourites g begins next to a at 1, and f has to go elsewhere at 4.
    assert rows(schedule("m-etf", graph, topology)) == {
        0: [(1, 0, 2), (3, 4, 9)],
        1: [(2, 0, 1), (4, 1, 5)],
    }
    assert rows(schedule("m-sct", graph, topology)) == {
        0: [(1, 0, 2), (4, 4, 8)],
        1: [(2, 0, 1), (3, 3, 8)],
    }


def test_room_for_everything_is_as_good_as_no_limit() -> None:
    for seed in range(5):
        graph = random_dag(vertices=40, depth=6, seed=seed)
        topology = Topology.preset("p100x4-8gb")
        assert graph.tensor_bytes.sum() <= 8e9
        plain, aware = (
            make_placer(name).place(Problem(graph, topology)) for name in ("etf", "m-etf")
        )
        assert plain.devices.tolist() == aware.devices.tolist()


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_every_plan_can_be_carried_out(data: st.DataObject, name: str) -> None:
    memory = st.sampled_from([math.inf, 2.0, 5.0, 2e9])
    topology = data.draw(topologies(memory_bytes=memory))
    graph = data.draw(graphs(max_vertices=10, num_devices=topology.num_devices))
    make_placer(name).place(Problem(graph, topology)).check(graph, topology)
    plan, costs = schedule(name, graph, topology), DefaultCostModel().costs(graph, topology)
    for t, r in zip(graph.edge_tensor, graph.edge_reader, strict=True):
        p = graph.tensor_producer[t]
        if not graph.is_input[p]:
            link = topology.route[plan.devices[p], plan.devices[r]]
            moved_s = costs.transfer_s(graph, t, link) if link >= 0 else 0.0
            assert plan.begin_s[r] >= plan.end_s[p] + moved_s
    for d, device in enumerate(topology.devices):
        here = [v for v in graph.assigned if plan.devices[v] == d]
        for v in here:
            at = plan.begin_s[v]
            running = [u for u in here if plan.begin_s[u] <= at < plan.end_s[u]]
            assert len(running) <= device.slots


def test_max_min_needs_a_window() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        MaxMinPlacer(window=0)
