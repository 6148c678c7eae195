import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import graphs, topologies

from doppler.errors import ConfigError, MissingExtraError
from doppler.graph import Graph, GraphBuilder
from doppler.placers import Placer
from doppler.placers.partition.assigning import Cut, device_speeds, lay_out, weigh
from doppler.placers.partition.hypergraph import HypergraphPlacer, cut_hypergraph
from doppler.placers.partition.kernel import trade
from doppler.placers.partition.metis import MetisPlacer, cut_graph
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.sim import Simulator, simulate
from doppler.topology import Topology

pytest.importorskip("pymetis")
pytest.importorskip("mtkahypar")
PLACERS = [MetisPlacer, HypergraphPlacer]
both = pytest.mark.parametrize("kind", PLACERS)
cuts = pytest.mark.parametrize("cut", [cut_graph, cut_hypergraph])


def chains(count: int, length: int, transfer_s: float = 10.0) -> Graph:
    """Chains of 1 s vertices that belong on a device each."""
    g = GraphBuilder("chains")
    for c in range(count):
        reads: list[int] = []
        for i in range(length):
            name = f"c{c}.{i}"
            reads = [
                g.op(name, "matmul", reads=reads, output_bytes=1, exec_s=1, transfer_s=transfer_s)
            ]
    return g.build()


@both
def test_keeps_chains_together(kind: type[MetisPlacer | HypergraphPlacer]) -> None:
    graph, topology = chains(4, 5), Topology.preset("reference:4")
    assert simulate(graph, topology, kind().place(Problem(graph, topology))).makespan_s == 5


@both
def test_stays_on_one_device_where_moving_costs_more(
    kind: type[MetisPlacer | HypergraphPlacer],
) -> None:
    graph, topology = chains(1, 6), Topology.preset("reference:4")
    assert len(set(kind().place(Problem(graph, topology)).devices.tolist())) == 1


@both
def test_beats_random_on_unequal_devices(kind: type[MetisPlacer | HypergraphPlacer]) -> None:
    graph, topology = random_dag(seed=4), Topology.preset("a100x2-t4x2")
    random = np.random.default_rng(0).integers(4, size=(20, graph.num_vertices))
    random[:, graph.is_input] = -1
    found = simulate(graph, topology, kind().place(Problem(graph, topology))).makespan_s
    assert found < Simulator(topology).makespans(graph, random).min()


@cuts
def test_parts_have_the_shares_asked_for(cut: Cut) -> None:
    graph, topology = random_dag(vertices=400, depth=20), Topology.preset("p100x4")
    weighted = weigh(Problem(graph, topology))
    share = np.array([0.4, 0.3, 0.2, 0.1])
    parts = cut(weighted, share, 0.03, 0)
    weight = np.bincount(parts, weighted.vertex_weight, 4) / weighted.vertex_weight.sum()
    assert weight == pytest.approx(share, abs=0.03)


def test_weights_are_seconds_and_pins_are_makers_and_readers() -> None:
    g = GraphBuilder("broadcast")
    root = g.op("root", "matmul", reads=[], output_bytes=1, exec_s=1, transfer_s=4)
    near = [
        g.op(f"n{i}", "matmul", reads=[root], output_bytes=1, exec_s=1, transfer_s=1)
        for i in range(3)
    ]
    g.op("end", "matmul", reads=near, output_bytes=1, exec_s=3, transfer_s=1)
    graph, topology = g.build(), Topology.preset("reference:2")
    weighted = weigh(Problem(graph, topology))
    assert weighted.tensor_weight[0] == pytest.approx(4 * weighted.tensor_weight[1], abs=4)
    assert len(weighted.tensor_weight) == 4  # nobody reads what `end` makes
    assert len(weighted.tensor) == 4 + 6


def test_faster_devices_get_larger_shares() -> None:
    graph, topology = random_dag(seed=1), Topology.preset("a100x2-t4x2")
    speed = device_speeds(Problem(graph, topology))
    assert speed[0] == speed[1] == 1
    assert speed[2] == speed[3] < 0.3


def test_parts_that_talk_are_laid_onto_devices_with_a_fast_link() -> None:
    graph, topology = random_dag(vertices=200, depth=20, seed=3), Topology.preset("a100x2-t4x2")
    on_fast = np.where(graph.is_input, -1, np.arange(graph.num_vertices) % 2)
    laid = lay_out(Problem(graph, topology), on_fast, np.array([2, 3, 0, 1]))
    assert sorted(set(laid[graph.assigned].tolist())) == [0, 1]  # the pair of A100, over NVLink


def test_parts_trade_places_as_a_plain_loop_would() -> None:
    rng, size = np.random.default_rng(0), 5
    load, fixed, moved, latency, slope = rng.random((5, size, size))
    moves = rng.integers(3, size=(size, size)) * 1.0
    fixed, moved = fixed * (moves > 0), moved * (moves > 0)

    def estimate(on: np.ndarray) -> float:
        pairs = np.ix_(on, on)
        transfer_s = (fixed + moves * latency[pairs] + moved * slope[pairs]).sum()
        return float(load[np.arange(size), on].max() + transfer_s / size)

    expected, better = np.arange(size), True
    while better:
        better = False
        for i, j in np.argwhere(np.tri(size, k=-1)).tolist():
            swapped = expected.copy()
            swapped[[i, j]] = swapped[[j, i]]
            if estimate(swapped) < estimate(expected):
                expected, better = swapped, True
    on = np.arange(size)
    trade(on, load, fixed, moves, moved, latency, slope, 5000)
    assert on.tolist() == expected.tolist()
    assert estimate(on) < estimate(np.arange(size))


@both
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_takes_any_graph_and_machine(
    kind: type[MetisPlacer | HypergraphPlacer], data: st.DataObject
) -> None:
    topology = data.draw(topologies(max_devices=6))
    graph = data.draw(graphs(max_vertices=9, num_devices=topology.num_devices))
    placer: Placer = kind(tries=1)
    first = placer.place(Problem(graph, topology), seed=3)
    first.check(graph, topology)
    assert first == kind(tries=1).place(Problem(graph, topology), seed=3)


@both
def test_prints_nothing(
    kind: type[MetisPlacer | HypergraphPlacer], capfd: pytest.CaptureFixture[str]
) -> None:
    for size in range(1, 20):
        graph = random_dag(vertices=size, depth=1 + size // 4, seed=size)
        kind(tries=1).place(Problem(graph, Topology.preset("v100x8")))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("kind", "library"), [(MetisPlacer, "pymetis"), (HypergraphPlacer, "mtkahypar")]
)
def test_says_which_extra_is_missing(
    kind: type[MetisPlacer | HypergraphPlacer], library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=r"pip install doppler-placement\[solvers\]"):
        kind().place(Problem(chains(1, 2), Topology.preset("reference:2")))


@both
def test_needs_a_try(kind: type[MetisPlacer | HypergraphPlacer]) -> None:
    with pytest.raises(ConfigError, match="tries is 0"):
        kind(tries=0)
