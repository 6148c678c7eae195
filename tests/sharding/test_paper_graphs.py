"""The six graphs of the paper, exactly: their counts, shapes, partitions, kinds and costs.

`paper_graphs.json` holds the name, kind, join axes, rank and cut of every operation of each graph
but the formations, as in the authors' files.
"""

import json
from collections import Counter, defaultdict
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import pytest

from doppler.graph import Graph
from doppler.graph.levels import depths, widths
from doppler.graph.ops import OpKind
from doppler.programs import Program, chainmm, ffnn, llama_block, llama_layer
from doppler.sharding import partition, shard

BUILD = {
    "ChainMM": chainmm,
    "FFNN": ffnn,
    "Llama-block": llama_block,
    "Llama-layer": llama_layer,
}
PAPER = json.loads((Path(__file__).parent / "paper_graphs.json").read_text())
COUNTS = {  # all vertices, inputs, assigned, edges between assigned, depth, roots, sinks
    "ChainMM / 16": (112, 36, 76, 80, 5, 32, 8),
    "FFNN / 16": (192, 12, 180, 208, 12, 16, 16),
    "Llama-block / 4": (215, 33, 182, 234, 49, 4, 1),
    "Llama-layer / 4": (261, 32, 229, 284, 63, 7, 5),
    "Llama-block / 8": (356, 54, 302, 398, 49, 8, 2),
    "Llama-layer / 8": (417, 50, 367, 470, 63, 13, 9),
}
WIDTHS = {  # vertices on each level, "a×k": a on each of k levels
    "ChainMM / 16": "32 12 16 8 8",
    "FFNN / 16": "16×4 4 16×7",
    "Llama-block / 4": "4×3 2×3 4×3 12 10 6×5 4×5 2 4×3 2 4×3 2 4 2×5 1×6 8 8 4×3 1 1",
    "Llama-layer / 4": "7 4 4 2×3 4×3 12 8 6×5 4×16 2×11 8 8 4×3 2×11 1 1 4 4",
    "Llama-block / 8": "8×3 2×3 4×3 24 12 8×10 4 8×3 4 8×3 4 8 4×5 2×6 16 8 4 4 8 2 2",
    "Llama-layer / 8": ("13 8 8 2×3 4×3 24 12 8×11 4 8×3 4 8×3 4 8 4×5 2×6 16 16 8×3 2×11 1 1 8 8"),
}
IN_BOTH_LLAMAS = {
    ("einsum", 4096 * 4096 * 11008): 12,
    ("einsum", 2**36): 24,
    ("formation", 2**29): 4,
    ("formation", 4096 * 11008): 8,
    ("einsum", 4096 * 11008): 8,
    ("complexer", 2**24): 6,
    ("complexer", 2**23): 6,
    ("einsum", 2**23): 6,
}
KINDS = {  # (the authors' kind, cost of the unsharded operation): assigned vertices
    "ChainMM / 16": {
        ("einsum", 10**12): 48,
        ("formation", 10**8): 20,
        ("einsum", 10**8): 8,
    },
    "FFNN / 16": {
        ("einsum", 2**36): 32,
        ("formation", 2**31): 16,
        ("einsum", 2**31): 16,
        ("formation", 2**20): 4,
        ("einsum", 2**20): 80,
        ("formation", 2**15): 32,
    },
    "Llama-block / 4": IN_BOTH_LLAMAS
    | {
        ("einsum", 2**29): 32,
        ("einsum", 2**24): 48,
        ("formation", 2**24): 15,
        ("formation", 2**17): 4,
        ("formation", 4096): 3,
        ("einsum", 4096): 6,
    },
    "Llama-layer / 4": IN_BOTH_LLAMAS
    | {
        ("einsum", 2**29): 36,
        ("einsum", 2**24): 64,
        ("formation", 2**24): 16,
        ("fill", 2**24): 2,
        ("formation", 2**17): 8,
        ("formation", 4096): 6,
        ("einsum", 4096): 12,
        ("select", 4096): 1,
        ("squeezer", 4096): 1,
        ("einsum", 32000 * 4096): 4,
        ("formation", 32000): 4,
        ("select", 2**18): 1,
    },
}

each_graph = pytest.mark.parametrize("name", PAPER)


@cache
def program_of(name: str) -> Program:
    return BUILD[name.split(" / ")[0]]()


def parts_of(name: str) -> int:
    return int(name.split(" / ")[1])


@cache
def graph_of(name: str) -> Graph:
    return shard(program_of(name), parts_of(name), abstract_costs=True)


def authors_kind(kind: str) -> str:
    own = ("input", "formation", "complexer", "fill", "squeezer", "select")
    return kind if kind in own else "einsum"


def edges_between_assigned(graph: Graph) -> np.ndarray:
    """(E, 2) producer and reader of the edges that do not come from an input."""
    edges = np.stack([graph.tensor_producer[graph.edge_tensor], graph.edge_reader], axis=1)
    return edges[~graph.is_input[edges[:, 0]]]


def expand(text: str) -> list[int]:
    """`4×2 1` is 4 4 1."""
    counts = [item.partition("×") for item in text.split()]
    return [int(a) for a, _, k in counts for _ in range(int(k or 1))]


@each_graph
def test_the_operations_are_the_authors(name: str) -> None:
    ours = [
        [op.name, authors_kind(op.kind), list(op.join), len(op.shape)]
        for op in program_of(name).ops
    ]
    assert ours == [row[:4] for row in PAPER[name]]


@each_graph
def test_every_operation_and_input_is_cut_like_the_authors(name: str) -> None:
    cuts = partition(program_of(name), parts_of(name))
    names = [op.name for op in program_of(name).ops]
    assert dict(zip(names, cuts, strict=True)) == {row[0]: tuple(row[4]) for row in PAPER[name]}


@each_graph
def test_vertices_edges_depth_roots_and_sinks_are_counted_like_the_authors(name: str) -> None:
    graph = graph_of(name)
    edges, assigned = edges_between_assigned(graph), graph.assigned
    counts = (
        graph.num_vertices,
        int(graph.is_input.sum()),
        len(assigned),
        len(edges),
        int(depths(graph).max()) + 1,
        len(np.setdiff1d(assigned, edges[:, 1])),
        len(np.setdiff1d(assigned, edges[:, 0])),
    )
    assert counts == COUNTS[name]


@each_graph
def test_levels_are_as_wide_as_the_authors(name: str) -> None:
    assert widths(graph_of(name)).tolist() == expand(WIDTHS[name])


def kinds_by_cost(graph: Graph) -> dict[tuple[str, int], int]:
    assert graph.exec_s is not None
    costs = graph.exec_s[:, 0].tolist()
    return dict(
        Counter((authors_kind(graph.kinds[v]), int(costs[v])) for v in graph.assigned.tolist())
    )


@pytest.mark.parametrize("name", KINDS)
def test_kinds_by_abstract_cost_are_those_listed(name: str) -> None:
    assert kinds_by_cost(graph_of(name)) == KINDS[name]


@each_graph
def test_every_vertex_of_an_operation_has_its_whole_cost(name: str) -> None:
    expected: Counter[tuple[str, int]] = Counter()
    for op, (_, kind, join, rank, cut) in zip(program_of(name).ops, PAPER[name], strict=True):
        if kind != "input":
            expected[kind, prod(join)] += prod(cut)
        if op.is_aggregated:
            expected["formation", prod(join[:rank])] += prod(cut[:rank])
    assert kinds_by_cost(graph_of(name)) == dict(expected)


@each_graph
def test_an_abstract_transfer_costs_four_times_what_makes_its_tensor(name: str) -> None:
    graph = graph_of(name)
    assert graph.exec_s is not None
    assert np.array_equal(graph.transfer_s, 4 * graph.exec_s[graph.tensor_producer, 0])


def test_without_abstract_costs_there_are_no_explicit_seconds() -> None:
    graph = shard(chainmm(size=64), 4)
    assert graph.exec_s is None
    assert graph.transfer_s is None


@each_graph
def test_vertices_come_operation_by_operation_as_shards_then_formations(name: str) -> None:
    graph = graph_of(name)
    expected = []
    for op, (_, _, _, rank, cut) in zip(program_of(name).ops, PAPER[name], strict=True):
        role = "" if op.kind == OpKind.INPUT else "shard"
        expected += [(op.name, str(op.kind), role)] * prod(cut)
        if op.is_aggregated:
            expected += [(op.name, "formation", "reduce")] * prod(cut[:rank])
    assert list(zip(graph.meta_ops, graph.kinds, graph.roles, strict=True)) == expected


@each_graph
def test_a_formation_reads_every_partial_of_its_block_and_nothing_else(name: str) -> None:
    graph = graph_of(name)
    blocks = [kernel.attributes["block"] for kernel in graph.kernels]
    partials = defaultdict(list)
    for v, (meta_op, role) in enumerate(zip(graph.meta_ops, graph.roles, strict=True)):
        if role == "shard":
            partials[meta_op, str(blocks[v])].append(v)
    for v, kind in enumerate(graph.kinds):
        if kind == OpKind.FORMATION:
            tensors = graph.read_tensor[graph.read_ptr[v] : graph.read_ptr[v + 1]]
            producers = graph.tensor_producer[tensors].tolist()
            assert producers == partials[graph.meta_ops[v], str(blocks[v])]


# What the shards cost in flops and bytes.


def vertices(graph: Graph, meta_op: str, role: str = "shard") -> list[int]:
    pairs = zip(graph.meta_ops, graph.roles, strict=True)
    return [v for v, pair in enumerate(pairs) if pair == (meta_op, role)]


def test_a_2_2_4_cut_of_a_cubic_contraction_is_a_sixteenth_each() -> None:
    graph = graph_of("ChainMM / 16")
    shards = vertices(graph, "DE")
    assert len(shards) == 16
    assert graph.flops[shards].tolist() == [2 * 10_000**3 / 16] * 16
    elements = 5000 * 2500 + 2500 * 5000 + 5000 * 5000  # read of D, of E, and the partial result
    assert graph.touched_bytes[shards].tolist() == [2 * elements] * 16


def test_four_partials_are_formed_in_three_steps_that_touch_three_blocks_each() -> None:
    graph = graph_of("ChainMM / 16")
    formations = vertices(graph, "DE", "reduce")
    block = 5000 * 5000
    assert graph.flops[formations].tolist() == [3 * block] * 4
    assert graph.touched_bytes[formations].tolist() == [3 * 3 * block * 2] * 4


def test_formations_of_one_partial_are_free() -> None:
    graph = graph_of("FFNN / 16")
    formations = vertices(graph, "xw1", "reduce")
    assert len(formations) == 16
    assert not graph.flops[formations].any()
    assert not graph.touched_bytes[formations].any()


@each_graph
def test_inputs_complexers_and_squeezers_are_free(name: str) -> None:
    graph = graph_of(name)
    free = [v for v, k in enumerate(graph.kinds) if k in ("input", "complexer", "squeezer")]
    assert free
    assert not graph.flops[free].any()
    assert not graph.touched_bytes[free].any()


@each_graph
def test_fills_and_selects_move_bytes_and_compute_nothing(name: str) -> None:
    graph = graph_of(name)
    moves = [v for v, kind in enumerate(graph.kinds) if kind in ("fill", "select")]
    assert bool(moves) == name.startswith("Llama-layer")
    assert not graph.flops[moves].any()
    assert (graph.touched_bytes[moves] > 0).all()


@each_graph
def test_the_flops_of_the_shards_add_up_to_the_unsharded_operation(name: str) -> None:
    program, graph = program_of(name), graph_of(name)
    whole = shard(program, 1)
    for op in program.ops:
        total = graph.flops[vertices(graph, op.name)].sum()
        assert total == whole.flops[vertices(whole, op.name)].sum(), op.name


@each_graph
def test_the_blocks_of_an_operation_have_the_bytes_of_its_output(name: str) -> None:
    program, graph = program_of(name), graph_of(name)
    produced: Counter[str] = Counter()
    for v, size in zip(graph.tensor_producer.tolist(), graph.tensor_bytes.tolist(), strict=True):
        is_partial = graph.kinds[v] in ("matmul", "sum-reduction", "max-reduction")
        produced[graph.meta_ops[v]] += 0 if is_partial else int(size)
    for op in program.ops:
        assert produced[op.name] == prod(op.shape) * np.dtype(op.dtype).itemsize, op.name


@pytest.mark.parametrize("preaggregate", [2, 3])
def test_preaggregation_sums_groups_of_partials_first(preaggregate: int) -> None:
    graph = shard(chainmm(size=64), 16, preaggregate=preaggregate)
    reads = {
        graph.vertex_names[v]: int(graph.read_ptr[v + 1] - graph.read_ptr[v])
        for v in vertices(graph, "DE", "reduce")
    }
    groups = {2: [2, 2], 3: [3, 1]}[preaggregate]  # of the four partials of a block of DE
    for i in range(2):
        for j in range(2):
            assert [reads[f"DE.pre[{i},{j},{k}]"] for k in range(2)] == groups
            assert reads[f"DE.form[{i},{j}]"] == 2
    assert len(reads) == 4 * 3


def test_no_more_partials_than_a_group_are_formed_at_once() -> None:
    graph = shard(chainmm(size=64), 16, preaggregate=4)
    assert graph == shard(chainmm(size=64), 16)
