"""Signatures: the same for vertices that run the same code on the same shapes, and short."""

import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from sharding.random_programs import cut_programs
from strategies import examples

from doppler.errors import GraphError
from doppler.graph import Graph, GraphBuilder, Kernel, build_graph, graph_from_json, graph_to_json
from doppler.graph.signatures import LONGEST, first_diagonal_above, signature, signatures
from doppler.programs import (
    ProgramBuilder,
    chainmm,
    cholesky,
    concat,
    einsum,
    llama_layer,
    random_dag,
    relu,
    unary,
)
from doppler.sharding import shard

F32 = "float32"


def tensors(*shapes: tuple[int, ...], dtype: str = F32) -> list[tuple[tuple[int, ...], str]]:
    return [(shape, dtype) for shape in shapes]


def matmul(**attributes: Any) -> Kernel:
    plain = {"operands": [0, 1], "axes": [[0, 2], [2, 1]], "block": [[0, 8], [0, 4]]}
    return Kernel("matmul", (5, 6), ((8, 4),), (F32,), plain | attributes)


def by_name(graph: Graph) -> dict[str, str]:
    return dict(zip(graph.vertex_names, signatures(graph), strict=True))


@pytest.mark.parametrize(
    ("kernel", "inputs", "text"),
    [
        (matmul(), tensors((8, 2), (2, 4)), "matmul 8x2 2x4 -> 8x4 float32"),
        (
            Kernel("input-elemwise", (0,), ((8,),), (F32,), {"fn": "cast", "axes": [[0]]}),
            tensors((8,), dtype="float16"),
            "input-elemwise cast 8:float16 -> 8 float32",
        ),
        (
            Kernel("formation", (0, 1, 2), ((),), (F32,), {"fn": "max", "operands": [0, 1, 2]}),
            tensors((), (), ()),
            "formation max 3*scalar -> scalar float32",
        ),
        (Kernel("fill", (), ((2, 3),), (F32,), {"value": "-inf"}), [], "fill -> 2x3 float32"),
        (
            Kernel("gemm", (0, 1, 2), ((4, 4),), (F32,), {"operands": [0, 1, 2]}),
            tensors((4, 4), (4, 4), (4, 4)),
            "gemm 3*4x4 -> 4x4 float32",
        ),
        (
            Kernel("split", (0,), ((2,), (3,)), (F32, "int32")),
            tensors((5,)),
            "split 5 -> 2 3:int32 float32",
        ),
        (Kernel("sink", (0,), (), ()), tensors((5,)), "sink 5:float32 ->"),
        (
            matmul(axes=[[0, 2], [1, 2]]),
            tensors((8, 2), (4, 2)),
            "matmul 8x2 4x2 -> 8x4 float32 #a46e9bed82d3",
        ),
    ],
)
def test_a_signature_is_spelled_out(kernel, inputs, text):
    assert signature(kernel, inputs) == text


PIECES = {"shape": [8, 2], "pieces": [[0, [[0, 4], [0, 2]], [0, 0]], [1, [[2, 6], [0, 2]], [4, 0]]]}
OTHER_PLACES = [[0, [[0, 8], [0, 1]], [0, 0]], [1, [[0, 8], [0, 1]], [0, 1]]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"axes": [[2, 0], [2, 1]]}),
        ({}, {"operands": [1, 0]}),
        ({}, {"fn": "sum"}),
        ({}, {"precision": "high"}),
        ({"precision": {"a": [1]}}, {"precision": {"a": [2]}}),
        ({}, {"operands": [PIECES, 2]}),
        ({"operands": [PIECES, 2]}, {"operands": [PIECES | {"pieces": OTHER_PLACES}, 2]}),
    ],
    ids=["axes", "slots", "function", "another attribute", "its value", "pieces", "places"],
)
def test_what_is_run_matters(first, second):
    inputs = tensors((8, 8), (8, 8), (8, 8))
    assert signature(matmul(**first), inputs) != signature(matmul(**second), inputs)


MOVED = PIECES | {"pieces": [[0, [[4, 8], [1, 3]], [0, 0]], [1, [[0, 4], [0, 2]], [4, 0]]]}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"block": [[8, 16], [4, 8]]}),
        ({}, {"result": "y"}),
        ({"scale": 1.0, "shift": 2.0}, {"scale": "inf", "shift": 0.0}),
        ({"operands": [PIECES, 2]}, {"operands": [MOVED, 2]}),
    ],
    ids=["block", "result", "numbers", "where pieces are taken from"],
)
def test_where_it_lies_and_the_values_of_numbers_do_not_matter(first, second):
    inputs = tensors((8, 8), (8, 8), (8, 8))
    assert signature(matmul(**first), inputs) == signature(matmul(**second), inputs)


@pytest.mark.parametrize(
    "inputs",
    [
        tensors((8, 3), (3, 4)),
        tensors((8, 2), (2, 4), dtype="float64"),
        tensors((2, 8), (2, 4)),
        tensors((8, 2), (4, 2)),
    ],
)
def test_shapes_and_dtypes_of_inputs_matter(inputs):
    assert signature(matmul(), inputs) != signature(matmul(), tensors((8, 2), (2, 4)))


@pytest.mark.parametrize("fields", [{"shapes": ((4, 8),)}, {"dtypes": ("float64",)}, {"op": "mm"}])
def test_shapes_and_dtypes_of_outputs_and_the_operation_matter(fields):
    inputs = tensors((8, 2), (2, 4))
    assert signature(replace(matmul(), **fields), inputs) != signature(matmul(), inputs)


def fill(value: float, corner: tuple[int, int], *, above: float = -1.0) -> str:
    block = [[at, at + n] for at, n in zip(corner, (3, 4), strict=True)]
    attributes = {"value": value, "above": above, "block": block}
    return signature(Kernel("fill", (), ((3, 4),), (F32,), attributes), [])


def test_a_fill_that_the_diagonal_crosses_is_another_one():
    plain = signature(Kernel("fill", (), ((3, 4),), (F32,), {"value": 1.0}), [])
    assert fill(0.0, (0, 9)) == fill(0.0, (9, 0)) == fill(1.0, (9, 0)) == plain
    assert fill(0.0, (0, 0)) == fill(0.0, (3, 3)) == fill(0.0, (1, 2), above=5.0)
    assert len({plain, fill(0.0, (0, 0)), fill(1.0, (0, 0))}) == 3


@pytest.mark.parametrize(("corner", "first"), [((0, 0), 1), ((6, 2), 5), ((2, 6), -3)])
def test_the_first_diagonal_above_is_counted_in_the_block(corner, first):
    attributes = {"value": 0, "above": 1, "block": [[0, 2], *([at, at + 3] for at in corner)]}
    assert first_diagonal_above(Kernel("fill", (), ((2, 3, 3),), (F32,), attributes)) == first


def test_long_signatures_are_cut_and_told_apart_by_their_hash():
    shapes = [(i, 1000 + i) for i in range(1, 200)]
    kernel = Kernel("stack", tuple(range(199)), ((1,),), (F32,), {"fn": "sum"})
    one = signature(kernel, tensors(*shapes))
    two = signature(kernel, tensors(*shapes[:-1], (7, 7)))
    assert one.partition("…")[0] == two.partition("…")[0]
    assert one != two
    assert one.startswith("stack sum 1x1001 2x1002 ")
    assert len(one) == len(two) <= LONGEST + 14


# Graphs.


def test_the_shards_of_a_meta_op_share_a_signature_wherever_they_lie():
    graph = shard(chainmm(size=16), 16)
    texts = defaultdict(set)
    for meta_op, role, text in zip(graph.meta_ops, graph.roles, signatures(graph), strict=True):
        texts[meta_op, role].add(text)
    assert all(len(each) == 1 for each in texts.values())
    assert texts["A", ""] == {""}
    assert texts["AB", "shard"] == {"matmul 4x8 8x8 -> 4x8 float16"}


def test_a_cholesky_factorisation_has_one_signature_for_each_kind_of_task():
    assert set(signatures(cholesky(size=32, parts=4))) == {
        "", "potrf 8x8 -> 8x8 float32", "trsm 2*8x8 -> 8x8 float32",
        "syrk 2*8x8 -> 8x8 float32", "gemm 3*8x8 -> 8x8 float32",
    }  # fmt: skip


def test_selects_of_other_parts_of_equal_tensors_are_alike():
    b = ProgramBuilder("select")
    x, y = b.input("x", (4, 8)), b.input("y", (4, 8))
    parts = [x[:, i : i + 2].named(f"part{i}") for i in range(0, 6, 2)]
    both = concat([x, y], 0).named("both")
    found = by_name(shard(b.build(*parts, both), 1, partitions={"both": (2, 1)}))
    assert found["part0[0,0]"] == found["part2[0,0]"] == found["part4[0,0]"]
    assert found["both[0,0]"] == found["both[1,0]"] != found["part0[0,0]"]


def test_transposed_operands_and_pieces_are_told_apart():
    b = ProgramBuilder("views")
    x, w = b.input("x", (8, 8)), b.input("w", (8, 8))
    program = b.build(
        (x @ w).named("plain"), (x @ w.T).named("turned"), (w @ x).named("other"),
        einsum("ij,jk->ki", x, w, name="flipped"), relu(x), unary("exp", x),
    )  # fmt: skip
    found = by_name(shard(program, 1, partitions={}))
    del found["x[0,0]"], found["w[0,0]"]
    assert found.pop("other[0,0,0]") == found["plain[0,0,0]"] == "matmul 2*8x8 -> 8x8 float32"
    forms = [found.pop(f"{name}.form[0,0]") for name in ("plain", "turned", "other", "flipped")]
    assert set(forms) == {"formation sum 8x8 -> 8x8 float32"}
    assert len(set(found.values())) == len(found) == 5
    cut = by_name(shard(program, 1, partitions={"x": (2, 1)}))
    assert cut["plain[0,0,0]"] not in found.values()


def test_signatures_survive_the_file_of_the_graph():
    program = llama_layer(sequence=8, heads=4, head_dim=8, hidden=24, vocabulary=32, table=16)
    graph = shard(program, 8, preaggregate=2)
    assert signatures(graph_from_json(graph_to_json(graph))) == signatures(graph)


def test_signatures_are_the_same_in_every_process():
    code = (
        "from doppler.programs import ffnn; from doppler.sharding import shard;"
        "from doppler.graph.signatures import signatures;"
        "print('|'.join(signatures(shard(ffnn(), 4))))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True,
            text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(texts) == 1
    assert "#" in texts.pop()


def test_vertices_without_a_kernel_have_none():
    graph = random_dag(vertices=5, depth=2)
    assert signatures(graph) == ("",) * graph.num_vertices
    whole = shard(chainmm(size=4), 1)
    at = whole.vertex_names.index("DE[0,0,0]")
    kernels = [None if v == at else k for v, k in enumerate(whole.kernels)]
    partial = signatures(build_graph(**whole.columns() | {"kernels": kernels}))
    assert partial[at] == ""
    reader = whole.vertex_names.index("DE.form[0,0]")
    assert partial[reader] == "formation sum 32B -> 4x4 float16"
    rest = set(range(whole.num_vertices)) - {at, reader}
    assert all(partial[v] == signatures(whole)[v] for v in rest)


@pytest.mark.parametrize(
    "attributes",
    [
        {"axes": 3},
        {"axes": [[[0]]]},
        {"operands": ["x"]},
        {"operands": [{"shape": []}]},
        {"fn": []},
    ],
    ids=str,
)
def test_a_kernel_that_makes_no_sense_is_named(attributes):
    b = GraphBuilder()
    kernel = Kernel("relu", (), ((2,),), (F32,), attributes)
    b.op("v", "relu", reads=[], output_bytes=8, kernel=kernel)
    with pytest.raises(GraphError, match="the kernel of `v` has attributes that make no sense"):
        signatures(b.build())


def in_full(graph: Graph, v: int) -> str:
    """All that a vertex runs, in JSON: an independent account of what matters."""
    kernel = graph.kernels[v]
    attributes = dict(kernel.attributes)
    for name in ("block", "result", "scale", "shift"):
        attributes.pop(name, None)
    if kernel.op == "fill":
        first, (rows, columns) = first_diagonal_above(kernel), kernel.shapes[0][-2:]
        crossed = "above" in attributes and any(
            j - i >= first for i in range(rows) for j in range(columns)
        ) and any(j - i < first for i in range(rows) for j in range(columns))  # fmt: skip
        attributes = {"crossed": crossed}  # the value is never 0 in these programs
    for operand in attributes.get("operands", []):
        if not isinstance(operand, int):
            pieces = [[s, [b - a for a, b in part], at] for s, part, at in operand["pieces"]]
            attributes["operands"] = [
                {"shape": operand["shape"], "pieces": pieces} if o is operand else o
                for o in attributes["operands"]
            ]
    if kernel.op == "select":
        pieces = [p for operand in attributes["operands"] for p in operand["pieces"]]
        attributes = {"pieces": pieces}
    makers = [graph.kernels[graph.tensor_producer[t]] for t in kernel.inputs]
    read = [(maker.shapes, maker.dtypes) for maker in makers]
    return json.dumps([kernel.op, attributes, kernel.shapes, kernel.dtypes, read], sort_keys=True)


@settings(max_examples=examples(150))
@given(cut_programs())
def test_signatures_are_equal_exactly_where_all_that_is_run_is(cut_program):
    program, cuts = cut_program
    graph = shard(program, 1, partitions=cuts, preaggregate=2)
    found = signatures(graph)
    pairs = {(found[v], in_full(graph, v)) for v in graph.assigned.tolist()}
    assert len({text for text, _ in pairs}) == len({full for _, full in pairs}) == len(pairs)
    assert all(len(text) <= LONGEST + 14 for text in found)
