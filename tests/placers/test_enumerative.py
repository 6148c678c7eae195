from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs

from doppler.graph import Graph, GraphBuilder
from doppler.placers.lists.enumerative import (
    EnumerativePlacer,
    NetworkTimes,
    best_assignment,
    groups,
)
from doppler.problem import Problem
from doppler.programs import chainmm, cholesky, random_dag
from doppler.sharding import shard
from doppler.topology import Topology, preset


@settings(max_examples=100)
@given(st.data())
def test_the_assignment_is_as_cheap_as_the_best_permutation(data: st.DataObject) -> None:
    """Alg. 4 as printed: as many vertices as devices, every permutation tried."""
    size = data.draw(st.integers(1, 5))
    entries = st.floats(0, 10, allow_nan=False)
    table = np.array(
        data.draw(
            st.lists(st.lists(entries, min_size=size, max_size=size), min_size=size, max_size=size)
        )
    )
    best = min(sum(table[v, d] for v, d in enumerate(p)) for p in permutations(range(size)))
    devices = best_assignment(table)
    assert sorted(devices.tolist()) == list(range(size))
    assert np.isclose(table[np.arange(size), devices].sum(), best)


def test_more_vertices_than_devices_are_shared_out_evenly() -> None:
    devices = best_assignment(np.random.default_rng(0).random((10, 4)))
    assert sorted(np.bincount(devices, minlength=4).tolist()) == [2, 2, 3, 3]


def test_shards_before_reductions_in_topological_order() -> None:
    graph = shard(chainmm(), 16)
    found = [(graph.meta_ops[g[0]], graph.roles[g[0]], len(g)) for g in groups(graph)]
    assert found == [
        ("DE", "shard", 16),
        ("DE", "reduce", 4),
        ("CDE", "shard", 16),
        ("CDE", "reduce", 8),
        ("AB", "shard", 16),
        ("AB", "reduce", 8),
        ("add", "shard", 8),
    ]


def two_stages() -> Graph:
    """a and b, then c reads a and d reads b: each belongs where its input is."""
    g = GraphBuilder("two stages")
    a = g.op(
        "a", "matmul", reads=[], output_bytes=8, exec_s=1, transfer_s=5, meta_op="x", role="shard"
    )
    b = g.op(
        "b", "matmul", reads=[], output_bytes=8, exec_s=1, transfer_s=5, meta_op="x", role="shard"
    )
    g.op(
        "d", "matmul", reads=[b], output_bytes=8, exec_s=1, transfer_s=5, meta_op="y", role="shard"
    )
    g.op(
        "c", "matmul", reads=[a], output_bytes=8, exec_s=1, transfer_s=5, meta_op="y", role="shard"
    )
    return g.build()


def test_vertices_go_where_their_inputs_are() -> None:
    assignment = EnumerativePlacer().place(Problem(two_stages(), preset("reference:2")))
    a, b, d, c = assignment.devices.tolist()
    assert (a, b) == (c, d)
    assert a != b


def test_network_times_are_zero_at_home_and_for_inputs() -> None:
    graph, topology = random_dag(seed=0), preset("v100x8")
    problem = Problem(graph, topology)
    devices = np.where(graph.is_input, -1, 3)
    table = NetworkTimes(problem).table(graph.assigned, devices)
    assert (table[:, 3] == 0).all()
    v = int(graph.assigned[-1])
    expected = sum(
        problem.transfer_s(t, topology.route[3, 5])
        for t in graph.read_tensor[graph.read_ptr[v] : graph.read_ptr[v + 1]]
        if not graph.is_input[graph.tensor_producer[t]]
    )
    assert np.isclose(table[-1, 5], expected)


def test_groups_cover_every_vertex_once() -> None:
    for graph in (random_dag(seed=1), cholesky(size=64, parts=4), shard(chainmm(size=64), 4)):
        members = np.concatenate(groups(graph))
        assert sorted(members.tolist()) == graph.assigned.tolist()


@settings(max_examples=50)
@given(graph=graphs())
def test_producers_are_grouped_before_their_readers(graph: Graph) -> None:
    position = np.full(graph.num_vertices, -1)
    for i, group in enumerate(groups(graph)):
        position[group] = i
    producers = graph.tensor_producer[graph.edge_tensor]
    assert (position[producers] < position[graph.edge_reader]).all()


def test_any_number_of_devices() -> None:
    graph = shard(chainmm(size=64), 8)
    for name in ("reference:1", "reference:3", "reference:7"):
        topology = preset(name)
        explicit = shard(chainmm(size=64), 8, abstract_costs=True)
        devices = EnumerativePlacer().place(Problem(explicit, topology)).devices[explicit.assigned]
        assert set(devices.tolist()) == set(range(topology.num_devices))
    devices = EnumerativePlacer().place(Problem(graph, Topology.preset("a100x2-t4x2"))).devices
    assert set(devices[graph.assigned].tolist()) == {0, 1, 2, 3}
