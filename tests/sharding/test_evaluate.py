"""Every workload computes the same sharded as unsharded, whatever the cuts, and after a file."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from strategies import changed

from doppler.errors import GraphError
from doppler.graph import GraphBuilder, Kernel, build_graph, graph_from_json, graph_to_json
from doppler.graph.graph import Graph
from doppler.programs import (
    Program,
    ProgramBuilder,
    chainmm,
    cholesky,
    evaluate_program,
    exp,
    random_dag,
    random_inputs,
    relu,
)
from doppler.programs.registry import WORKLOADS
from doppler.sharding import METHODS, shard
from doppler.sharding.evaluate import evaluate_graph

SIZES: dict[str, dict[str, Any]] = {
    "attention": {"sequence": 8, "heads": 4, "head_dim": 8, "batch": 2},
    "chainmm": {"size": 16},
    "ffnn": {"batch": 16, "features": 8, "hidden": 32, "classes": 8, "bias": True},
    "llama-block": {"sequence": 8, "heads": 4, "head_dim": 8, "hidden": 24},
    "llama-layer": {
        "sequence": 8, "heads": 4, "head_dim": 8, "hidden": 24, "vocabulary": 32, "table": 16
    },
    "mlp": {"batch": 8, "width": 16, "layers": 3},
    "moe-layer": {"tokens": 8, "width": 8, "hidden": 16, "experts": 4, "top_k": 2},
    "transformer": {"layers": 2, "sequence": 8, "heads": 4, "head_dim": 8, "hidden": 16},
}  # fmt: skip
GRAPHS = {"cholesky", "random-dag"}  # workloads that are graphs already


@cache
def small_program(name: str, dtype: str) -> tuple[Program, dict[str, Any], dict[str, Any]]:
    """A small one of its kind, inputs, and what it makes of them."""
    program = WORKLOADS[name].build(**SIZES[name], dtype=dtype)
    assert isinstance(program, Program)
    inputs = random_inputs(program, seed=1)
    return program, inputs, evaluate_program(program, inputs)


def tolerance(program: Program) -> float:
    """What rounding can do: some units in the last place of the coarsest dtype used."""
    return 16 * max(float(np.finfo(op.dtype).eps) for op in program.ops)


def assert_close(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        error = np.abs(found[name].astype(float) - value.astype(float)).max()
        assert error <= tolerance * np.abs(value).max(), name


def test_every_workload_is_evaluated_here() -> None:
    assert set(SIZES) | GRAPHS == set(WORKLOADS)


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", SIZES)
def test_a_sharded_workload_computes_what_it_computes_whole(
    name: str, dtype: str, method: str, parts: int
) -> None:
    program, inputs, expected = small_program(name, dtype)
    for preaggregate in (0, 2):
        graph = shard(program, parts, method=method, preaggregate=preaggregate)
        assert_close(evaluate_graph(graph, inputs), expected, tolerance(program))


@pytest.mark.parametrize("name", SIZES)
def test_the_results_are_not_all_the_same_number(name: str) -> None:
    _, _, expected = small_program(name, "float32")
    assert all(np.isfinite(value).all() and value.std() > 0 for value in expected.values())


@pytest.mark.parametrize("name", SIZES)
def test_a_graph_with_kernels_survives_its_file_and_computes_the_same(name: str) -> None:
    program, inputs, _ = small_program(name, "float32")
    graph = shard(program, 4, preaggregate=2, abstract_costs=True)
    again = graph_from_json(graph_to_json(graph))
    assert again == graph
    assert again.kernels == graph.kernels
    before, after = evaluate_graph(graph, inputs), evaluate_graph(again, inputs)
    assert before.keys() == after.keys()
    assert all(np.array_equal(after[name], value) for name, value in before.items())


def test_infinity_survives_lowering_and_the_file() -> None:
    b = ProgramBuilder("masked")
    x = b.input("x", (4, 4))
    mask = b.fill((4, 4), 0.0, above=-np.inf, name="mask")
    program = b.build(exp(x + mask), x + np.inf)
    inputs = random_inputs(program)
    expected = evaluate_program(program, inputs)
    assert np.array_equal(expected["exp"] > 0, np.tril(np.ones((4, 4), np.bool_)))
    assert np.isposinf(expected["add.2"]).all()
    graph = shard(program, 4)
    again = graph_from_json(graph_to_json(graph))
    assert again == graph
    for results in (evaluate_graph(graph, inputs), evaluate_graph(again, inputs)):
        assert results.keys() == expected.keys()
        for name, value in expected.items():
            assert np.array_equal(results[name], value)


# Cholesky: tasks on tiles.


def positive_definite(size: int, dtype: str) -> Any:
    root = np.random.default_rng(0).standard_normal((size, size))
    return (root @ root.T / size + np.eye(size)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_cholesky_factor_times_its_transpose_is_the_matrix(parts: int, dtype: str) -> None:
    matrix = positive_definite(16, dtype)
    results = evaluate_graph(cholesky(size=16, parts=parts, dtype=dtype), {"A": matrix})
    assert list(results) == ["L"]
    factor = results["L"]
    assert factor.dtype == dtype
    assert np.array_equal(factor, np.tril(factor))
    assert np.allclose(factor @ factor.T, matrix, rtol=0, atol=100 * np.finfo(dtype).eps)


def test_a_cholesky_graph_survives_its_file() -> None:
    graph = cholesky(size=16, parts=4)
    again = graph_from_json(graph_to_json(graph))
    assert again == graph
    inputs = {"A": positive_definite(16, "float32")}
    assert np.array_equal(evaluate_graph(again, inputs)["L"], evaluate_graph(graph, inputs)["L"])


# What counts as a result.


def both_outputs() -> Graph:
    b = ProgramBuilder("both")
    h = relu(b.input("x", (8,)))
    unread = exp(h, name="unread")
    assert unread.shape == (8,)
    return shard(b.build(h, h[:2].named("part")), 4)


def test_the_results_are_the_outputs_of_the_program_read_or_not() -> None:
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    results = evaluate_graph(both_outputs(), {"x": x})
    assert set(results) == {"relu", "part"}
    assert np.array_equal(results["relu"], np.maximum(x, 0))
    assert np.array_equal(results["part"], np.maximum(x[:2], 0))


def test_without_named_results_they_are_the_tensors_that_nobody_reads() -> None:
    g = GraphBuilder("by hand")
    halves = [
        g.op(
            f"x{i}", "input", reads=[], output_bytes=4, meta_op="x",
            kernel=Kernel("input", (), ((1,),), ("float32",), {"block": [[i, i + 1]]}),
        )
        for i in range(2)
    ]  # fmt: skip
    for i, half in enumerate(halves):
        attributes = {"fn": "relu", "block": [[i, i + 1]], "operands": [0], "axes": [[0]]}
        kernel = Kernel("input-elemwise", (half,), ((1,),), ("float32",), attributes)
        g.op(
            f"y{i}", "input-elemwise", reads=[half], output_bytes=4, meta_op="y", kernel=kernel
        )  # fmt: skip
    results = evaluate_graph(g.build(), {"x": np.array([-1, 2], np.float32)})
    assert {name: value.tolist() for name, value in results.items()} == {"y": [0, 2]}


def test_a_graph_without_kernels_cannot_be_evaluated() -> None:
    with pytest.raises(GraphError, match="graph `random-dag-120` has no kernels to evaluate"):
        evaluate_graph(random_dag(), {})


def test_a_vertex_without_a_kernel_is_named() -> None:
    graph = shard(chainmm(size=4), 1)
    columns = graph.columns()
    kernels = list(columns["kernels"])
    kernels[graph.vertex_names.index("DE[0,0,0]")] = None
    partial = build_graph(**columns | {"kernels": kernels})
    with pytest.raises(GraphError, match=r"vertex `DE\[0,0,0\]` has no kernel to evaluate"):
        evaluate_graph(partial, random_inputs(chainmm(size=4)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"D": ...}, "input `D` is missing\nhint: given: A, B, C, E"),
        (dict.fromkeys("ABCDE", ...), "input `A` is missing\nhint: given: none"),
        ({"D": np.zeros((4, 8), np.float32)}, r"`D` is float32 \(4, 8\), expected float16 \(4, 4"),
        ({"D": np.zeros((4, 4))}, r"`D` is float64 \(4, 4\), expected float16"),
    ],
)
def test_an_input_that_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    program = chainmm(size=4)
    given = random_inputs(program) | change
    with pytest.raises(GraphError, match=message):
        evaluate_graph(
            shard(program, 4), {name: value for name, value in given.items() if value is not ...}
        )


BLOCK = r"has the block .*, which does not fit its shape \(2, 4\)"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block", ..., BLOCK),
        ("block", None, BLOCK),
        ("block", [[0, 2]], BLOCK),
        ("block", [[0, 2], 3], BLOCK),
        ("block", [[0, 2], [0, 1, 4]], BLOCK),
        ("block", [[0, 2], [0.0, 4.0]], BLOCK),
        ("block", [[0, 2], [0, 5]], BLOCK),
        ("block", [[-2, 0], [0, 4]], BLOCK),
        ("block", [[2**62, 2**62 + 2], [0, 4]], "result `add` of shape"),
        ("result", ["add"], r"has the result \['add'\]"),
    ],
)
def test_a_result_that_cannot_be_put_together(key: str, value: Any, message: str) -> None:
    document = json.loads(graph_to_json(shard(chainmm(size=4), 2)))
    document = changed(document, {f"vertices.kernel.20.attributes.{key}": value})
    graph = graph_from_json(json.dumps(document))
    with pytest.raises(GraphError, match=message):
        evaluate_graph(graph, random_inputs(chainmm(size=4)))


def test_blocks_of_one_result_are_alike() -> None:
    document = json.loads(graph_to_json(shard(chainmm(size=4), 2)))
    graph = graph_from_json(
        json.dumps(changed(document, {"vertices.kernel.20.dtypes": ["float32"]}))
    )
    with pytest.raises(GraphError, match="blocks of several dtypes: float16, float32"):
        evaluate_graph(graph, random_inputs(chainmm(size=4)))


def test_an_input_with_two_outputs_is_refused() -> None:
    document = json.loads(graph_to_json(shard(chainmm(size=4), 2)))
    changes = {
        "tensors.producer": [*document["tensors"]["producer"], 0],
        "tensors.bytes": [*document["tensors"]["bytes"], 1],
        "vertices.kernel.0.shapes": [[2, 4], [1]],
        "vertices.kernel.0.dtypes": ["float16", "float16"],
    }
    graph = graph_from_json(json.dumps(changed(document, changes)))
    with pytest.raises(GraphError, match=r"vertex `A\[0,0\]` has 2 outputs, must have one"):
        evaluate_graph(graph, random_inputs(chainmm(size=4)))
