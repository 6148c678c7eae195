"""Any program, however it is cut, computes what it computes uncut; blocks read what they need."""

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharding.random_programs import cut_programs, programs, whole_inputs
from strategies import examples

from doppler.graph import Graph, Kernel
from doppler.graph.ops import OpKind
from doppler.programs import Axis, Op, Program, ProgramBuilder, evaluate_program, relu
from doppler.sharding import METHODS, shard
from doppler.sharding.evaluate import evaluate_graph

seeds = st.integers(0, 2**32 - 1)
preaggregations = st.sampled_from([0, 2, 3])


def assert_same_results(graph: Graph, program: Program, inputs: dict[str, np.ndarray]) -> None:
    expected = evaluate_program(program, inputs)
    found = evaluate_graph(graph, inputs)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert np.array_equal(found[name], value), name


@settings(max_examples=examples(250))
@given(cut_programs(), st.sampled_from(sorted(METHODS)), preaggregations, seeds)
def test_a_program_cut_by_hand_computes_the_same(cut_program, method, preaggregate, seed):
    program, cuts = cut_program
    graph = shard(program, 1, method=method, partitions=cuts, preaggregate=preaggregate)
    assert_same_results(graph, program, whole_inputs(program, seed))


@settings(max_examples=120)
@given(st.data(), st.sampled_from([1, 2, 4]), st.sampled_from(sorted(METHODS)), seeds)
def test_a_program_cut_by_a_partitioner_computes_the_same(data, parts, method, seed):
    program = data.draw(programs(parts=parts, method=method))
    assert_same_results(shard(program, parts, method=method), program, whole_inputs(program, seed))


@given(cut_programs(), preaggregations)
def test_an_operation_has_a_shard_for_every_combination_of_pieces(cut_program, preaggregate):
    program, cuts = cut_program
    graph = shard(program, 1, partitions=cuts, preaggregate=preaggregate)
    for op in program.ops:
        cut, rank = cuts[op.name], len(op.shape)
        own = [v for v, meta_op in enumerate(graph.meta_ops) if meta_op == op.name]
        names = [graph.vertex_names[v] for v in own]
        indices = [",".join(map(str, index)) for index in np.ndindex(*cut)]
        assert [n for n in names if n.startswith(f"{op.name}[")] == [
            f"{op.name}[{index}]" for index in indices
        ]
        formations = [n for n in names if ".form[" in n]
        assert len(formations) == (prod(cut[:rank]) if op.is_aggregated else 0)
        assert len(own) == prod(cut) + len(formations) + sum(".pre[" in n for n in names)


@given(cut_programs(), preaggregations)
def test_the_last_vertices_of_every_output_name_it_as_their_result(cut_program, preaggregate):
    program, cuts = cut_program
    graph = shard(program, 1, partitions=cuts, preaggregate=preaggregate)
    named = {
        name: kernel.attributes["result"]
        for name, kernel in zip(graph.vertex_names, graph.kernels, strict=True)
        if "result" in kernel.attributes
    }
    expected = {}
    for op in (program.ops[i] for i in program.outputs):
        form = ".form" if op.is_aggregated else ""
        for index in np.ndindex(*cuts[op.name][: len(op.shape)]):
            expected[f"{op.name}{form}[{','.join(map(str, index))}]"] = op.name
    assert named == expected


@pytest.mark.parametrize("preaggregate", [0, 2])
def test_operations_named_like_the_formations_of_another_keep_their_names(preaggregate):
    b = ProgramBuilder("clash")
    x = b.input("x", (4, 4))
    a = (x @ b.input("w", (4, 4))).named("a")
    own = ["a.form", "a.pre", "a.form.2"]
    program = b.build(a, *(relu(a, name=name) for name in own))
    graph = shard(program, 1, partitions={"a": (1, 1, 4)}, preaggregate=preaggregate)
    meta_op = dict(zip(graph.vertex_names, graph.meta_ops, strict=True))
    assert all(meta_op[f"{name}[0,0]"] == name for name in own)
    assert meta_op["a.form.3[0,0]"] == "a"
    assert ("a.pre.2[0,0,1]" in meta_op) == (preaggregate > 0)
    assert_same_results(graph, program, whole_inputs(program, 0))


# Every element of every tensor gets a number of its own, to follow where it is read.


def numbered(program: Program) -> list[np.ndarray]:
    start, numbers = 0, []
    for op in program.ops:
        numbers.append(start + np.arange(prod(op.shape)).reshape(op.shape))
        start += prod(op.shape)
    return numbers


def behind(axis: Axis, low: int, high: int) -> list[int]:
    """Positions of a tensor's axis that lie behind positions `low` … `high` of a join axis."""
    if axis.join is None:
        return [0]
    inside = [p - axis.begin for p in range(low, high) if axis.begin <= p < axis.end]
    if axis.numerator == 2:
        return [axis.offset + 2 * p + half for p in inside for half in (0, 1)]
    return sorted({axis.offset + p // axis.denominator for p in inside})


def needed(op: Op, numbers: list[np.ndarray], ranges: list[tuple[int, int]]) -> list[np.ndarray]:
    """The part of each operand that a block with these join ranges needs."""
    return [
        numbers[read.op][
            np.ix_(
                *(behind(a, *(ranges[a.join] if a.join is not None else (0, 1))) for a in read.axes)
            )
        ]
        if read.axes
        else numbers[read.op]
        for read in op.reads
    ]


def selected(op: Op, numbers: list[np.ndarray]) -> np.ndarray:
    result = np.full(op.shape, -1)
    for read in op.reads:
        target = tuple(slice(a.begin, a.end) for a in read.axes)
        source = tuple(slice(a.offset, a.offset + a.end - a.begin) for a in read.axes)
        result[target] = numbers[read.op][source]
    return result


def put_together(shape: tuple[int, ...], pieces: list, tensors: list[np.ndarray]) -> np.ndarray:
    """An operand made of pieces that must not be empty, nor overlap, nor leave a gap."""
    result = np.full(shape, -1)
    for slot, part, place in pieces:
        assert all(low < high for low, high in part)
        source = tuple(slice(low, high) for low, high in part)
        target = tuple(slice(p, p + high - low) for p, (low, high) in zip(place, part, strict=True))
        assert result[target].shape == tensors[slot][source].shape
        assert (result[target] == -1).all()
        result[target] = tensors[slot][source]
    assert (result >= 0).all()
    return result


def operands(kernel: Kernel, tensors: list[np.ndarray]) -> list[np.ndarray]:
    found = []
    for operand in kernel.attributes.get("operands", []):
        if isinstance(operand, int):
            found.append(tensors[operand])
        else:
            found.append(put_together(tuple(operand["shape"]), operand["pieces"], tensors))
    return found


def blocks_by_tensor(graph: Graph, program: Program) -> dict[int, np.ndarray]:
    """The numbers in every tensor that others than its own formation read."""
    numbers = dict(zip((op.name for op in program.ops), numbered(program), strict=True))
    blocks = {}
    for tensor, v in enumerate(graph.tensor_producer.tolist()):
        slices = tuple(slice(*r) for r in graph.kernels[v].attributes["block"])
        blocks[tensor] = numbers[graph.meta_ops[v]][slices]
    return blocks


@settings(max_examples=120)
@given(cut_programs())
def test_every_operand_is_covered_exactly_once_by_the_blocks_that_overlap_it(cut_program):
    program, cuts = cut_program
    graph = shard(program, 1, partitions=cuts)
    numbers, blocks = numbered(program), blocks_by_tensor(graph, program)
    for op in program.ops:
        sizes = [n // c for n, c in zip(op.join, cuts[op.name], strict=True)]
        for index in product(*map(range, cuts[op.name])):
            ranges = [(i * n, (i + 1) * n) for i, n in zip(index, sizes, strict=True)]
            v = graph.vertex_names.index(f"{op.name}[{','.join(map(str, index))}]")
            kernel = graph.kernels[v]
            tensors = [blocks[t] for t in kernel.inputs]
            block = ranges[: len(op.shape)]
            assert kernel.attributes["block"] == [list(r) for r in block]
            assert kernel.shapes == (tuple(high - low for low, high in block),)
            if op.kind == OpKind.SELECT:
                pieces = [p for o in kernel.attributes["operands"] for p in o["pieces"]]
                expected = selected(op, numbers)[tuple(slice(*r) for r in block)]
                assert np.array_equal(put_together(kernel.shapes[0], pieces, tensors), expected)
                continue
            found = operands(kernel, tensors)
            expected = needed(op, numbers, ranges)
            assert len(found) == len(expected)
            assert all(np.array_equal(f, e) for f, e in zip(found, expected, strict=True))


@settings(max_examples=120)
@given(cut_programs())
def test_a_vertex_reads_exactly_the_blocks_it_uses_a_piece_of(cut_program):
    program, cuts = cut_program
    graph = shard(program, 1, partitions=cuts)
    for v, kernel in enumerate(graph.kernels):
        used = []
        for operand in kernel.attributes.get("operands", []):
            used += [operand] if isinstance(operand, int) else [p[0] for p in operand["pieces"]]
        assert sorted(used) == list(range(len(kernel.inputs)))
        read = graph.read_tensor[graph.read_ptr[v] : graph.read_ptr[v + 1]].tolist()
        assert read == sorted(set(kernel.inputs))
