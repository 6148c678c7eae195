"""The workloads compute what their formulas say, written out in numpy."""

from typing import Any

import numpy as np
import pytest

from doppler.errors import ConfigError, ProgramError
from doppler.graph.levels import widths
from doppler.programs import (
    Program,
    ProgramBuilder,
    attention,
    chainmm,
    cholesky,
    evaluate_program,
    ffnn,
    llama_block,
    llama_layer,
    mlp,
    moe_layer,
    random_dag,
    random_inputs,
    transformer,
)
from doppler.programs.llama import rms_norm, rotate

Array = Any


def run(program: Program) -> tuple[Array, dict[str, Array]]:
    """The only output, and the inputs it is computed from."""
    inputs = random_inputs(program, seed=3)
    (output,) = evaluate_program(program, inputs).values()
    return output, inputs


def assert_close(found: Array, expected: Array) -> None:
    assert found.shape == expected.shape
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-6)


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def test_chainmm() -> None:
    output, i = run(chainmm(size=8, dtype="float32"))
    assert_close(output, i["A"] @ i["B"] + i["C"] @ (i["D"] @ i["E"]))


def test_chainmm_multiplies_de_then_c_then_ab() -> None:
    assert [op.name for op in chainmm(size=8).ops] == [*"ABCDE", "DE", "CDE", "AB", "add"]


def test_ffnn_without_biases() -> None:
    output, i = run(ffnn(batch=8, features=4, hidden=16, classes=4, dtype="float32"))
    assert set(i) == {"X", "W1", "W2"}
    assert_close(output, softmax(np.maximum(i["X"] @ i["W1"], 0) @ i["W2"]))


def test_ffnn_with_biases() -> None:
    output, i = run(ffnn(batch=8, features=4, hidden=16, classes=4, bias=True, dtype="float32"))
    assert_close(output, softmax(np.maximum(i["X"] @ i["W1"] + i["b1"], 0) @ i["W2"] + i["b2"]))


def test_mlp_has_relu_between_layers_and_not_after_them() -> None:
    output, i = run(mlp(batch=4, width=8, layers=3, dtype="float32"))
    h = np.maximum(i["x"] @ i["w0"] + i["b0"], 0)
    h = np.maximum(h @ i["w1"] + i["b1"], 0)
    assert_close(output, h @ i["w2"] + i["b2"])
    assert (output < 0).any()


# Transformers, with the model's width kept as (heads, head_dim).


def attend(q: Array, k: Array, v: Array, mask: Array = 0.0) -> Array:
    """(batch, sequence, heads, head_dim), one head at a time."""
    result = np.empty_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            scores = q[b, :, h] @ k[b, :, h].T / np.sqrt(q.shape[-1])
            result[b, :, h] = softmax(scores + mask) @ v[b, :, h]
    return result


def project(x: Array, w: Array) -> Array:
    """x (batch, sequence, heads, head_dim) times a weight (out…, heads, head_dim)."""
    width = x.shape[2] * x.shape[3]
    flat = x.reshape(*x.shape[:2], width) @ w.reshape(-1, width).T
    return flat.reshape(*x.shape[:2], *w.shape[:-2])


def norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x**2).mean((-2, -1), keepdims=True) + 1e-5) * weight


def turn(x: Array, freqs: Array) -> Array:
    """Each pair of the last axis turned by the angle of its position."""
    angle = np.angle(freqs)[:, None]
    even, odd = x[..., ::2], x[..., 1::2]
    pairs = [even * np.cos(angle) - odd * np.sin(angle), even * np.sin(angle) + odd * np.cos(angle)]
    return np.stack(pairs, -1).reshape(x.shape)


def block(
    x: Array, i: dict[str, Array], freqs: Array, mask: Array = 0.0, prefix: str = ""
) -> Array:
    w = {name.removeprefix(prefix): value for name, value in i.items() if name.startswith(prefix)}
    h = norm(x, w["an"])
    q, k, v = (project(h, w[name]) for name in ("wq", "wk", "wv"))
    x = x + project(attend(turn(q, freqs), turn(k, freqs), v, mask), w["wo"])
    h = norm(x, w["fn"])
    hidden = silu(project(h, w["w1"])) * project(h, w["w3"])
    return x + np.einsum("bsf,def->bsde", hidden, w["w2"])


SMALL = {"sequence": 6, "heads": 2, "head_dim": 4, "batch": 2, "dtype": "float32"}


def test_attention_is_softmax_attention_by_head_between_projections() -> None:
    output, i = run(attention(**SMALL))
    q, k, v = (project(i["x"], i[name]) for name in ("wq", "wk", "wv"))
    assert_close(output, project(attend(q, k, v), i["wo"]))


def test_rms_norm_is_over_heads_and_head_dim() -> None:
    b = ProgramBuilder("norm")
    x, weight = b.input("x", (2, 3, 4, 8)), b.input("weight", (4, 8))
    output, i = run(b.build(rms_norm(x, weight, "n")))
    assert_close(output, norm(i["x"], i["weight"]))


def test_rms_norm_of_float16_is_computed_in_float32() -> None:
    b = ProgramBuilder("norm", dtype="float16")
    program = b.build(rms_norm(b.input("x", (2, 3, 4, 8)), b.input("weight", (4, 8)), "n"))
    dtypes = {op.name: op.dtype for op in program.ops}
    assert dtypes["n.mul"] == "float32"
    assert dtypes["n.cast"] == dtypes["n.w"] == "float16"
    x = np.full((2, 3, 4, 8), 300, np.float16)  # its square is no float16
    weight = np.ones((4, 8), np.float16)
    assert np.allclose(evaluate_program(program, {"x": x, "weight": weight})["n.w"], 1)


def test_rotation_turns_pairs_by_their_positions_angle() -> None:
    b = ProgramBuilder("rope")
    x, freqs = b.input("x", (2, 6, 3, 8)), b.input("freqs", (6, 4), dtype="complex64")
    output, i = run(b.build(rotate(x, freqs, "r")))
    assert_close(output, turn(i["x"], i["freqs"]))
    assert_close((output**2).sum(-1), (i["x"] ** 2).sum(-1))


def test_llama_block() -> None:
    output, i = run(llama_block(hidden=10, **SMALL))
    assert_close(output, block(i["x"], i, i["freqs"]))


def test_llama_layer_is_causal_and_ends_in_the_last_tokens_logits() -> None:
    output, i = run(llama_layer(hidden=10, vocabulary=7, table=9, **SMALL))
    mask = np.triu(np.full((6, 6), -np.inf), 1)
    y = norm(block(i["x"], i, i["full_freqs"][:6], mask), i["norm"])
    assert_close(output, project(y[:, -1:], i["vocab"])[:, 0])


def test_a_frequency_table_is_never_shorter_than_the_sequence() -> None:
    program = llama_layer(**SMALL | {"sequence": 12}, table=4)
    assert next(op.shape for op in program.ops if op.name == "full_freqs") == (12, 2)


def test_a_transformer_is_blocks_with_weights_of_their_own() -> None:
    output, i = run(transformer(layers=2, hidden=10, **SMALL))
    h = block(i["x"], i, i["freqs"], prefix="l0.")
    assert_close(output, block(h, i, i["freqs"], prefix="l1."))


# Mixture of experts.


def gates_of(program: Program, inputs: dict[str, Array]) -> Array:
    gates = next(i for i, op in enumerate(program.ops) if op.name == "gates")
    return evaluate_program(Program("gates", program.ops, (gates,)), inputs)["gates"]


@pytest.mark.parametrize("top_k", [1, 2, 3, 5])
def test_exactly_k_gates_of_every_token_are_open_and_sum_to_one(top_k: int) -> None:
    program = moe_layer(tokens=32, width=8, hidden=4, experts=5, top_k=top_k, dtype="float32")
    inputs = random_inputs(program, seed=3)
    gates = gates_of(program, inputs)
    assert ((gates > 0).sum(1) == top_k).all()
    assert np.allclose(gates.sum(1), 1)
    # They are those of the largest logits.
    order = np.argsort(inputs["x"] @ inputs["wg"], axis=1)
    assert np.array_equal(
        np.sort(np.argsort(gates, axis=1)[:, -top_k:]), np.sort(order[:, -top_k:])
    )


TIES = [  # a token's logits, how many distinct gates to keep, and which experts that opens
    ([3.0, 2.0, 1.0, 0.0], 2, [True, True, False, False]),
    ([3.0, 3.0, 1.0, 0.0], 1, [True, True, False, False]),
    ([3.0, 3.0, 1.0, 0.0], 2, [True, True, True, False]),
    ([3.0, 2.0, 2.0, 2.0], 2, [True, True, True, True]),
    ([1.0, 1.0, 1.0, 1.0], 2, [True, True, True, True]),
]


@pytest.mark.parametrize(("logits", "top_k", "is_open"), TIES)
def test_equal_gates_count_once_so_that_ties_open_more_experts(
    logits: list[float], top_k: int, is_open: list[bool]
) -> None:
    program = moe_layer(tokens=1, width=1, hidden=1, experts=4, top_k=top_k, dtype="float32")
    inputs = random_inputs(program)
    inputs["x"][:], inputs["wg"][:] = 1, logits
    gates = gates_of(program, inputs)[0]
    assert (gates > 0).tolist() == is_open
    assert np.isclose(gates.sum(), 1)


@pytest.mark.parametrize("top_k", [1, 2])
def test_moe_layer_is_the_gated_sum_of_the_chosen_experts(top_k: int) -> None:
    output, i = run(moe_layer(tokens=8, width=8, hidden=4, experts=3, top_k=top_k, dtype="float32"))
    probabilities = softmax(i["x"] @ i["wg"])
    expected = np.zeros((8, 8), np.float32)
    for token in range(8):
        chosen = np.argsort(probabilities[token])[-top_k:]
        for e in chosen:
            gate = probabilities[token, e] / probabilities[token, chosen].sum()
            hidden = np.maximum(i["x"][token] @ i[f"e{e}.w1"], 0)
            expected[token] += gate * (hidden @ i[f"e{e}.w2"])
    assert_close(output, expected)


# Graphs.


def test_cholesky_has_the_tasks_of_the_right_looking_algorithm() -> None:
    graph = cholesky(size=64, parts=4)
    counts = {kind: graph.kinds.count(kind) for kind in dict.fromkeys(graph.kinds)}
    assert counts == {"input": 10, "potrf": 4, "trsm": 6, "syrk": 6, "gemm": 4}
    tile = 16
    per_tile = {"input": 0, "potrf": 1 / 3, "trsm": 1, "syrk": 1, "gemm": 2}
    assert graph.flops.tolist() == [per_tile[kind] * tile**3 for kind in graph.kinds]
    assert set(graph.tensor_bytes.tolist()) == {4.0 * tile**2}
    assert [r == "" for r in graph.roles] == graph.is_input.tolist()


def test_random_dags_have_that_many_vertices_on_that_many_levels_and_follow_the_seed() -> None:
    graph = random_dag(vertices=50, depth=7, inputs=3, seed=5)
    assert (len(graph.assigned), int(graph.is_input.sum())) == (50, 3)
    assert {name.partition(".")[0] for name in graph.vertex_names[3:]} == {
        f"l{level}" for level in range(7)
    }
    assert len(widths(graph)) <= 7
    assert graph == random_dag(vertices=50, depth=7, inputs=3, seed=5)
    assert graph != random_dag(vertices=50, depth=7, inputs=3, seed=6)


def test_the_bytes_of_random_dags_follow_their_flops() -> None:
    graph = random_dag(flops=1e9, bytes_per_flop=0.5)
    work = graph.flops[graph.tensor_producer]
    made = ~graph.is_input[graph.tensor_producer]
    assert np.allclose(graph.tensor_bytes[made], work[made] * 0.5, rtol=1e-6)
    assert 0.8e9 < graph.flops[graph.assigned].mean() < 1.2e9


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: mlp(layers=0), "layers is 0"),
        (lambda: transformer(layers=0), "layers is 0"),
        (lambda: moe_layer(top_k=0), "top_k is 0, must be between 1 and the 8 experts"),
        (lambda: moe_layer(top_k=9), "top_k is 9"),
        (lambda: cholesky(size=10, parts=3), "size 10 does not divide into 3 tiles"),
        (lambda: cholesky(size=0, parts=1), "size 0 does not divide"),
        (lambda: cholesky(size=8, parts=0), "into 0 tiles"),
        (lambda: cholesky(dtype="float16"), "dtype is float16, must be float32 or float64"),
        (lambda: random_dag(depth=0), "depth is 0"),
        (lambda: random_dag(vertices=3, depth=4), "depth is 4, must be between 1 and the 3"),
        (lambda: random_dag(inputs=0), "inputs and flops must be positive"),
        (lambda: random_dag(flops=0), "inputs and flops must be positive"),
        (lambda: random_dag(bytes_per_flop=-1), "bytes_per_flop not negative"),
        (lambda: random_dag(seed=-1), "seed is -1, must not be negative"),
    ],
)
def test_a_size_a_workload_cannot_have_is_a_config_error(build: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: chainmm(size=0), r"`A`: shape \(0, 0\)"),
        (lambda: ffnn(hidden=-1), r"`W1`: shape \(32, -1\)"),
        (lambda: llama_block(head_dim=3), "`q.to_complex`: .* has no pairs"),
        (lambda: chainmm(dtype="int8"), "no dtype `int8`"),
    ],
)
def test_a_size_that_gives_no_tensor_is_a_program_error(build: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        build()
