import itertools
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import graphs, topologies

from doppler.cost import DefaultCostModel
from doppler.errors import ConfigError, MissingExtraError
from doppler.graph import Graph, GraphBuilder
from doppler.placers import lower_bounds
from doppler.placers.exact.model import alike, whole_units
from doppler.placers.exact.placer import MAX_VERTICES, ExactPlacer, solve_exactly
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.scheduler.choose import STRATEGIES
from doppler.sim import SimConfig, Simulator, simulate
from doppler.topology import Device, Host, Link, Topology

pytest.importorskip("ortools")
slow = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


strategies_without_order = st.sampled_from(sorted(STRATEGIES.keys() - {"order"}))


@st.composite
def problems(draw: st.DrawFn, max_vertices: int, max_devices: int) -> tuple[Graph, Topology]:
    topology = draw(topologies(max_devices=max_devices))
    return draw(graphs(max_vertices=max_vertices, num_devices=topology.num_devices)), topology


def all_assignments(graph: Graph, topology: Topology) -> np.ndarray:
    choices = [range(-1, 0) if i else range(topology.num_devices) for i in graph.is_input]
    return np.array(list(itertools.product(*choices)), np.int64).reshape(-1, graph.num_vertices)


@slow
@given(
    problem=problems(max_vertices=5, max_devices=3),
    strategy=strategies_without_order,
)
def test_no_run_of_any_assignment_is_shorter_than_the_bound(
    problem: tuple[Graph, Topology], strategy: str
) -> None:
    graph, topology = problem
    result = solve_exactly(Problem(graph, topology), seconds=20, workers=1)
    table = all_assignments(graph, topology)
    config = SimConfig(strategy=strategy, limit_memory=False)
    best = Simulator(topology, config).makespans(graph, table).min()
    assert result.bound_s <= best  # exactly: no error of floating point is allowed for
    assert result.bound_s <= result.static_s
    # A task that takes no time needs no slot in the solver's eyes, but one in the simulator's.
    rooms = [d.slots for d in topology.devices] + [link.lanes for link in topology.links]
    if max(rooms) == 1:
        assert result.proven


@slow
@given(problem=problems(max_vertices=10, max_devices=4), seed=st.integers(0, 2**32))
def test_no_run_is_shorter_than_the_bound_of_an_unfinished_search(
    problem: tuple[Graph, Topology], seed: int
) -> None:
    graph, topology = problem
    result = solve_exactly(Problem(graph, topology), seconds=0.05, workers=1)
    rng = np.random.default_rng(seed)
    table = rng.integers(topology.num_devices, size=(200, graph.num_vertices))
    table[:, graph.is_input] = -1
    makespans = Simulator(topology, SimConfig(limit_memory=False)).makespans(graph, table)
    assert result.bound_s <= makespans.min()
    assert result.bound_s <= result.static_s


def chain_and_one(transfer_s: float) -> Graph:
    """a(2) → b(3), a → c(3): together 8, apart 5 and a transfer."""
    g = GraphBuilder("chain and one")
    a = g.op("a", "matmul", reads=[], output_bytes=1, exec_s=2, transfer_s=transfer_s)
    for name in "bc":
        g.op(name, "matmul", reads=[a], output_bytes=1, exec_s=3, transfer_s=1)
    return g.build()


@pytest.mark.parametrize(("transfer_s", "optimum"), [(0.5, 5.5), (2, 7), (3.5, 8)])
def test_by_hand(transfer_s: float, optimum: float) -> None:
    result = solve_exactly(Problem(chain_and_one(transfer_s), Topology.preset("reference:2")))
    assert (result.static_s, result.makespan_s, result.bound_s) == (optimum,) * 3
    assert result.proven
    assert result.order[0] == 0


def test_a_transfer_is_made_once_and_waits_for_its_lane() -> None:
    """p(1) → r0..r2 on the other device wait for one transfer; q's queues behind it."""
    g = GraphBuilder("lanes")
    p = g.op("p", "matmul", reads=[], output_bytes=1, exec_s=[1, 100], transfer_s=4)
    q = g.op("q", "matmul", reads=[], output_bytes=1, exec_s=[1, 100], transfer_s=4)
    for i in range(3):
        g.op(f"r{i}", "matmul", reads=[p], output_bytes=1, exec_s=[100, 1], transfer_s=4)
    g.op("s", "matmul", reads=[q], output_bytes=1, exec_s=[100, 1], transfer_s=4)
    graph = g.build()
    # p ends at 1, q at 2, or the other way round. On one lane they arrive at 5 and 9, and the last
    # of their four readers ends at 10; else they arrive at 5 and 6, and it ends at 9.
    for lanes, optimum in ((1, 10), (2, 9), (0, 9)):
        route = np.array([[-1, 0], [0, -1]])
        topology = Topology("two", (Device("a"), Device("b")), (Link("l", lanes=lanes),), route)
        result = solve_exactly(Problem(graph, topology))
        assert result.proven
        assert result.static_s == result.bound_s == optimum


def test_host_seconds_are_part_of_the_bound() -> None:
    graph = chain_and_one(100)
    reference = Topology.preset("reference:2")
    topology = Topology(
        "host", reference.devices, reference.links, reference.route, Host(0.5, 0.25)
    )
    # dispatch, a, seen, dispatch, b; c runs while nothing else does.
    assert solve_exactly(Problem(graph, topology)).static_s == 0.5 + 2 + 0.25 + 0.5 + 3 + 3


def test_slots_run_at_the_same_time() -> None:
    device = Device("two slots", slots=2)
    topology = Topology("one", (device,), (), np.array([[-1]]))
    assert solve_exactly(Problem(chain_and_one(1), topology)).static_s == 5


def test_a_static_schedule_may_idle_where_the_runtime_does_not() -> None:
    """The slot that takes long(10) at once keeps urgent(1) → tail(10), ready at 1, waiting."""
    g = GraphBuilder("patience")
    first = g.op("first", "matmul", reads=[], output_bytes=1, exec_s=[1, 99], transfer_s=1)
    g.op("long", "matmul", reads=[], output_bytes=1, exec_s=[99, 10], transfer_s=1)
    urgent = g.op("urgent", "matmul", reads=[first], output_bytes=1, exec_s=[99, 1], transfer_s=1)
    g.op("tail", "matmul", reads=[urgent], output_bytes=1, exec_s=[10, 99], transfer_s=1)
    result = solve_exactly(Problem(g.build(), Topology.preset("reference:2")))
    # Wait for urgent: 1 + 1 + 1 + 1 + 10 = 14 for tail, 3 + 10 = 13 for long.
    assert (result.static_s, result.makespan_s) == (14, 22)
    assert result.bound_s == 14


def test_finds_what_the_critical_path_misses() -> None:
    graph, topology = random_dag(vertices=20, depth=4, seed=1), Topology.preset("p100x4")
    result = solve_exactly(Problem(graph, topology), seconds=20)
    assignment = ExactPlacer(seconds=2).place(Problem(graph, topology))
    assert result.static_s < simulate(graph, topology, assignment).makespan_s * (1 + 1e-9)
    assert result.bound_s <= result.static_s
    assert simulate(graph, topology, assignment).makespan_s >= lower_bounds(graph, topology).best_s


def test_units_round_down_and_keep_whole_seconds_whole() -> None:
    graph, topology = chain_and_one(6), Topology.preset("reference:2")
    units = whole_units(Problem(graph, topology), 8.0)
    assert units.unit_s == 1
    assert units.exec[:, 0].tolist() == [2, 3, 3]
    assert units.transfer[0].tolist() == [6]
    odd = chain_and_one(0.1)
    units = whole_units(Problem(odd, topology), 8.0)
    assert 0 <= 0.1 - units.transfer[0, 0] * units.unit_s < units.unit_s <= 8 / 2**28


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("reference:3", [[0, 1, 2]]),
        ("p100x4", [[0, 1, 2, 3]]),
        ("a100x2-t4x2", [[0, 1], [2, 3]]),
        ("v100x8", [[d] for d in range(8)]),
    ],
)
def test_which_devices_are_alike(name: str, classes: list[list[int]]) -> None:
    graph, topology = random_dag(vertices=5, depth=2), Topology.preset(name)
    if name.startswith("reference"):
        graph = chain_and_one(1)
    assert alike(topology, DefaultCostModel().costs(graph, topology)) == classes


def test_graphs_without_work() -> None:
    g = GraphBuilder("free")
    a = g.op("a", "matmul", reads=[], output_bytes=0, exec_s=0, transfer_s=0)
    g.op("b", "matmul", reads=[a], output_bytes=0, exec_s=0, transfer_s=0)
    result = solve_exactly(Problem(g.build(), Topology.preset("reference:2")))
    assert (result.static_s, result.bound_s, result.proven) == (0, 0, True)


def test_mistakes() -> None:
    graph, topology = chain_and_one(1), Topology.preset("reference:2")
    with pytest.raises(ConfigError, match="seconds is 0"):
        ExactPlacer(seconds=0)
    with pytest.raises(ConfigError, match="seconds is nan"):
        solve_exactly(Problem(graph, topology), seconds=float("nan"))
    with pytest.raises(ConfigError, match="workers is 0"):
        solve_exactly(Problem(graph, topology), workers=0)
    large = random_dag(vertices=MAX_VERTICES + 1)
    with pytest.raises(ConfigError, match="too many for an exact solution"):
        ExactPlacer().place(Problem(large, Topology.preset("p100x4")))


def test_says_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(MissingExtraError, match=r"pip install doppler-placement\[solvers\]"):
        solve_exactly(Problem(chain_and_one(1), Topology.preset("reference:2")))
