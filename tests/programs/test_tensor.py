"""The builder of programs: what each expression becomes, what it means, and what it refuses."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from doppler.errors import ProgramError, UnknownNameError
from doppler.graph.ops import OpKind
from doppler.programs import (
    Axis,
    Op,
    ProgramBuilder,
    Read,
    Tensor,
    binary,
    concat,
    einsum,
    evaluate_program,
    exp,
    random_inputs,
    reduce,
    relu,
    softmax,
    to_complex,
    to_real,
    unary,
)

WHOLE_2_3 = (Axis(0, 0, 2), Axis(1, 0, 3))


class Inputs:
    """A builder with tensors to choose from; every element has a value of its own."""

    def __init__(self) -> None:
        self.b = ProgramBuilder("p")
        self.x = self.b.input("x", (2, 3))
        self.y = self.b.input("y", (2, 3))
        self.w = self.b.input("w", (3, 4))
        self.v = self.b.input("v", (3,))
        self.cube = self.b.input("cube", (2, 3, 4))
        self.one = self.b.input("one", (2, 1, 3))
        self.c = self.b.input("c", (2, 2), dtype="complex64")
        self.half = self.b.input("half", (2, 3), dtype="float16")

    def op(self, tensor: Tensor) -> Op:
        return self.b.ops[tensor.op]

    def values(self) -> dict[str, Any]:
        given = [op for op in self.b.ops if op.kind == OpKind.INPUT]
        rng = np.random.default_rng(0)
        values = {op.name: rng.standard_normal(op.shape).astype(op.dtype) for op in given}
        values["c"] = (values["c"] + 1j * rng.standard_normal((2, 2))).astype(np.complex64)
        return values

    def value(self, tensor: Tensor) -> Any:
        result = evaluate_program(self.b.build(tensor), self.values())[tensor.name]
        assert result.shape == tensor.shape
        assert result.dtype == tensor.dtype
        return result


@pytest.fixture
def t() -> Inputs:
    return Inputs()


# Kinds, shapes, join axes and values of every expression.

EXPRESSIONS = {  # expression, in numpy, kind, shape, join axes
    "matmul": (lambda t: t.x @ t.w, lambda x, w, **_: x @ w, "matmul", (2, 4), (2, 4, 3)),
    "matmul of a transpose": (
        lambda t: t.x @ t.y.T, lambda x, y, **_: x @ y.T, "matmul", (2, 2), (2, 2, 3)
    ),
    "einsum": (
        lambda t: einsum("abc,dcb->da", t.cube, t.b.input("k", (5, 4, 3))),
        lambda cube, k, **_: np.einsum("abc,dcb->da", cube, k),
        "matmul", (5, 2), (5, 2, 3, 4),
    ),
    "einsum with spaces": (
        lambda t: einsum("ij, jk -> ki", t.x, t.w), lambda x, w, **_: (x @ w).T,
        "matmul", (4, 2), (4, 2, 3),
    ),
    "einsum down to a number": (
        lambda t: einsum("ij,ij->", t.x, t.y), lambda x, y, **_: (x * y).sum(),
        "matmul", (), (2, 3),
    ),
    "einsum of a vector as a row": (
        lambda t: t.v[None] @ t.w, lambda v, w, **_: v[None] @ w, "matmul", (1, 4), (1, 4, 3)
    ),
    "einsum of a vector as a column": (
        lambda t: t.v[:, None] @ t.v[None], lambda v, **_: np.outer(v, v),
        "matmul", (3, 3), (3, 3, 1),
    ),
    "relu": (
        lambda t: relu(t.x), lambda x, **_: x.clip(0), "input-elemwise", (2, 3), (2, 3)
    ),
    "exp": (lambda t: exp(t.x), lambda x, **_: np.exp(x), "input-elemwise", (2, 3), (2, 3)),
    "square of a transpose": (
        lambda t: unary("square", t.x.T), lambda x, **_: x.T**2, "input-elemwise", (3, 2), (3, 2)
    ),
    "affine": (
        lambda t: t.x.affine(2, -1), lambda x, **_: 2 * x - 1, "input-elemwise", (2, 3), (2, 3)
    ),
    "minus": (lambda t: -t.x, lambda x, **_: -x, "input-elemwise", (2, 3), (2, 3)),
    "a number on the left": (
        lambda t: 3 + 2 * t.x, lambda x, **_: 3 + 2 * x, "input-elemwise", (2, 3), (2, 3)
    ),
    "a number on the right": (
        lambda t: (t.x - 3) / 2, lambda x, **_: (x - 3) / 2, "input-elemwise", (2, 3), (2, 3)
    ),
    "add": (
        lambda t: t.x + t.y, lambda x, y, **_: x + y, "straight-elemwise", (2, 3), (2, 3)
    ),
    "sub of itself transposed": (
        lambda t: t.x - (t.y.T).transpose(1, 0), lambda x, y, **_: x - y,
        "straight-elemwise", (2, 3), (2, 3),
    ),
    "mul by a vector": (
        lambda t: t.x * t.v, lambda x, v, **_: x * v, "bcast-elemwise", (2, 3), (2, 3)
    ),
    "div both ways broadcast": (
        lambda t: t.one / t.x[:, :, None], lambda one, x, **_: one / x[:, :, None],
        "bcast-elemwise", (2, 3, 3), (2, 3, 3),
    ),
    "a vector and a number of one element": (
        lambda t: t.v + t.x.sum(0, 1), lambda v, x, **_: v + x.sum(),
        "bcast-elemwise", (3,), (3,),
    ),
    "maximum with a column": (
        lambda t: binary("maximum", t.x, t.y.max(1)[:, None]),
        lambda x, y, **_: np.maximum(x, y.max(1, keepdims=True)),
        "bcast-elemwise", (2, 3), (2, 3),
    ),
    "max": (lambda t: t.x.max(1), lambda x, **_: x.max(1), "max-reduction", (2,), (2, 3)),
    "min": (lambda t: t.x.min(0), lambda x, **_: x.min(0), "min-reduction", (3,), (3, 2)),
    "sum of two axes": (
        lambda t: t.cube.sum(0, -1), lambda cube, **_: cube.sum((0, 2)),
        "sum-reduction", (3,), (3, 2, 4),
    ),
    "product": (
        lambda t: t.cube.product(1), lambda cube, **_: cube.prod(1),
        "product-reduction", (2, 4), (2, 4, 3),
    ),
    "sum of a transpose": (
        lambda t: t.cube.transpose(2, 0, 1).sum(1), lambda cube, **_: cube.sum(0).T,
        "sum-reduction", (4, 3), (4, 3, 2),
    ),
    "sum past a new axis": (
        lambda t: t.x[:, None].sum(2), lambda x, **_: x.sum(1)[:, None],
        "sum-reduction", (2, 1), (2, 1, 3),
    ),
    "sum of a new axis": (
        lambda t: t.v[None].sum(0), lambda v, **_: v, "sum-reduction", (3,), (3, 1)
    ),
    "pairs to complex": (
        lambda t: to_complex(t.cube), lambda cube, **_: cube[..., ::2] + 1j * cube[..., 1::2],
        "complexer", (2, 3, 2), (2, 3, 2),
    ),
    "pairs of a transpose to complex": (
        lambda t: to_complex(t.x.T), lambda x, **_: (x[0] + 1j * x[1])[:, None],
        "complexer", (3, 1), (3, 1),
    ),
    "complex to pairs": (
        lambda t: to_real(t.c), lambda c, **_: np.stack([c.real, c.imag], -1).reshape(2, 4),
        "complexer", (2, 4), (2, 4),
    ),
    "complex product": (
        lambda t: t.c @ t.c.T, lambda c, **_: c @ c.T, "matmul", (2, 2), (2, 2, 2)
    ),
    "fill": (
        lambda t: t.b.fill((2, 3), 7.0), lambda **_: np.full((2, 3), 7), "fill", (2, 3), (2, 3)
    ),
    "fill above the diagonal": (
        lambda t: t.b.fill((2, 3, 3), 1.0, above=-2.0),
        lambda **_: np.stack([np.triu(np.full((3, 3), -2.0), 1) + np.tril(np.ones((3, 3)))] * 2),
        "fill", (2, 3, 3), (2, 3, 3),
    ),
    "fill with infinity": (
        lambda t: t.b.fill((2, 2), 0, above=-np.inf),
        lambda **_: np.array([[0, -np.inf], [0, 0]]), "fill", (2, 2), (2, 2),
    ),
    "numbers of numpy": (
        lambda t: t.x * np.float32(2), lambda x, **_: 2 * x, "input-elemwise", (2, 3), (2, 3)
    ),
    "infinity added": (
        lambda t: t.x + np.inf, lambda x, **_: x + np.inf, "input-elemwise", (2, 3), (2, 3)
    ),
    "slice": (
        lambda t: t.cube[:, 1:, -2:], lambda cube, **_: cube[:, 1:, -2:],
        "select", (2, 2, 2), (2, 2, 2),
    ),
    "slice after an ellipsis": (
        lambda t: t.cube[..., 1:2], lambda cube, **_: cube[..., 1:2],
        "select", (2, 3, 1), (2, 3, 1),
    ),
    "concat": (
        lambda t: concat([t.x, t.y, t.x], 0), lambda x, y, **_: np.concatenate([x, y, x]),
        "select", (6, 3), (6, 3),
    ),
    "concat along the last axis": (
        lambda t: concat([t.x, t.b.input("z", (2, 1))], -1),
        lambda x, z, **_: np.concatenate([x, z], -1),
        "select", (2, 4), (2, 4),
    ),
    "squeeze": (
        lambda t: t.one.squeeze(1), lambda one, **_: one[:, 0], "squeezer", (2, 3), (2, 3)
    ),
    "squeeze of a transpose": (
        lambda t: t.one.transpose(2, 1, 0).squeeze(-2), lambda one, **_: one[:, 0].T,
        "squeezer", (3, 2), (3, 2),
    ),
    "unsqueeze": (
        lambda t: t.x.unsqueeze(1), lambda x, **_: x[:, None], "squeezer", (2, 1, 3), (2, 1, 3)
    ),
    "unsqueeze at the end": (
        lambda t: t.x.unsqueeze(-1), lambda x, **_: x[..., None],
        "squeezer", (2, 3, 1), (2, 3, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_becomes_one_operation_with_its_value(t: Inputs, name: str) -> None:
    write, numpy, kind, shape, join = EXPRESSIONS[name]
    tensor = write(t)
    op = t.op(tensor)
    assert (str(op.kind), op.shape, op.join) == (kind, shape, join)
    assert tensor.shape == shape
    expected = numpy(**t.values())
    assert np.allclose(t.value(tensor), expected, rtol=1e-5, atol=1e-6)


def test_every_kind_of_the_paper_can_be_written_but_the_formation_that_sharding_adds() -> None:
    written = {kind for _, _, kind, _, _ in EXPRESSIONS.values()} | {"input"}
    assert written == set(OpKind) - {OpKind.FORMATION}


FUNCTIONS = {
    "relu": lambda x: np.where(x > 0, x, 0),
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "square": lambda x: x**2,
    "tanh": np.tanh,
    "cast": lambda x: x,
}


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_a_function_of_every_element(t: Inputs, fn: str) -> None:
    positive = unary("square", t.x)
    expected = FUNCTIONS[fn](t.values()["x"] ** 2)
    assert np.allclose(t.value(unary(fn, positive)), expected, rtol=1e-5)


def test_gelu_is_the_tanh_approximation(t: Inputs) -> None:
    x = t.values()["x"]
    inner = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    assert np.allclose(t.value(unary("gelu", t.x)), x / 2 * (1 + inner), rtol=1e-5)


PAIRS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "keep_if_at_least": lambda x, y: np.where(x >= y, x, 0),
    "keep_if_below": lambda x, y: np.where(x < y, x, -np.inf),
}


@pytest.mark.parametrize("fn", PAIRS)
def test_a_function_of_pairs_of_elements(t: Inputs, fn: str) -> None:
    values = t.values()
    expected = PAIRS[fn](values["x"], values["y"])
    assert np.allclose(t.value(binary(fn, t.x, t.y)), expected, rtol=1e-5)


def test_softmax_is_five_operations_over_the_last_axis(t: Inputs) -> None:
    before = len(t.b.ops)
    tensor = softmax(t.x)
    assert [op.name for op in t.b.ops[before:]] == ["max", "sub", "exp", "sum", "div"]
    powers = np.exp(t.values()["x"])
    assert np.allclose(t.value(tensor), powers / powers.sum(1, keepdims=True), rtol=1e-5)


# Views.


def test_views_add_no_operation(t: Inputs) -> None:
    before = len(t.b.ops)
    views = [t.cube.T, t.cube.transpose(2, 0, 1), t.cube[:, None], t.cube[..., None], t.cube[:]]
    assert [v.shape for v in views] == [
        (2, 4, 3), (4, 2, 3), (2, 1, 3, 4), (2, 3, 4, 1), (2, 3, 4)
    ]  # fmt: skip
    assert t.cube[None, ..., None].T.shape == (1, 2, 3, 1, 4)
    assert len(t.b.ops) == before


def test_a_read_says_where_each_axis_of_the_tensor_lies(t: Inputs) -> None:
    assert t.op(t.x + t.y).reads == (Read(0, WHOLE_2_3), Read(1, WHOLE_2_3))
    assert t.op(t.x.T + 0).reads == (Read(0, (Axis(1, 0, 2), Axis(0, 0, 3))),)
    by_row = t.op(t.one + t.x[:, :, None])
    assert by_row.reads[0].axes == (Axis(0, 0, 2), Axis(None), Axis(2, 0, 3))
    assert by_row.reads[1].axes == (Axis(0, 0, 2), Axis(1, 0, 3))
    assert t.op(t.x @ t.w).reads[1].axes == (Axis(2, 0, 3), Axis(1, 0, 4))
    assert t.op(t.x[1:, :2]).reads[0].axes == (Axis(0, 0, 1, 1), Axis(1, 0, 2, 0))
    second = t.op(concat([t.x, t.y], 1)).reads[1]
    assert second == Read(1, (Axis(0, 0, 2), Axis(1, 3, 6)))
    assert t.op(to_complex(t.cube)).reads[0].axes[2] == Axis(2, 0, 2, 0, 2, 1)
    assert t.op(to_real(t.c)).reads[0].axes[1] == Axis(1, 0, 4, 0, 1, 2)


@pytest.mark.parametrize(
    ("axis", "low", "high", "region"),
    [
        (Axis(None), 3, 5, (0, 1)),
        (Axis(0, 0, 8), 2, 4, (2, 4)),
        (Axis(0, 0, 8, offset=5), 2, 4, (7, 9)),
        (Axis(0, 3, 6), 0, 4, (0, 1)),
        (Axis(0, 3, 6), 4, 9, (1, 3)),
        (Axis(0, 3, 6), 0, 3, None),
        (Axis(0, 3, 6), 6, 9, None),
        (Axis(0, 0, 4, 0, 2, 1), 1, 3, (2, 6)),
        (Axis(0, 0, 8, 0, 1, 2), 2, 6, (1, 3)),
    ],
)
def test_the_region_behind_a_range_of_a_join_axis(axis, low, high, region) -> None:
    assert axis.region(low, high) == region


# Dtypes.


def test_dtypes_follow_the_operands(t: Inputs) -> None:
    assert relu(t.half).dtype == "float16"
    assert (t.half @ t.half.T).dtype == "float16"
    assert t.half.astype("float64").dtype == "float64"
    assert to_complex(t.cube).dtype == "complex64"
    assert to_complex(t.cube.astype("float64")).dtype == "complex128"
    assert to_real(t.c).dtype == "float32"
    assert t.b.fill((2,), 1.0, dtype="float16").dtype == "float16"
    assert ProgramBuilder("p", dtype="float16").input("x", (2,)).dtype == "float16"


def test_float16_is_computed_in_float32_and_rounded_once() -> None:
    b = ProgramBuilder("p", dtype="float16")
    x = b.input("x", (5,))
    sums = [x.sum(0), einsum("i,i->", x, b.fill((5,), 1.0))]
    x_values = np.array([2048, 1, 1, 1, 1], np.float16)  # in float16, 2048 + 1 is 2048
    results = evaluate_program(b.build(*sums), {"x": x_values})
    assert [float(value) for value in results.values()] == [2052, 2052]
    large = evaluate_program(b.build(x.affine(32, -65_000)), {"x": x_values})  # 65536 is inf
    assert float(large["affine"][0]) == 536


# Names.


def test_names_are_made_unique_by_a_number(t: Inputs) -> None:
    assert [relu(t.x).name for _ in range(3)] == ["relu", "relu.2", "relu.3"]
    assert t.b.input("x", (2,)).name == "x.2"


def test_a_name_can_be_given_and_is_free_again_afterwards(t: Inputs) -> None:
    tensor = relu(t.x).named("h")
    assert tensor.name == "h"
    assert relu(t.x).name == "relu"
    assert relu(t.x).named("h").name == "h.2"
    assert tensor.named("h").name == "h"


def test_a_view_names_its_operation(t: Inputs) -> None:
    h = relu(t.x)
    assert h.T.named("h").name == h.name == "h"


def test_a_program_and_a_tensor_say_what_they_are(t: Inputs) -> None:
    program = t.b.build(relu(t.x))
    assert repr(program) == "<Program 'p': 9 ops (8 inputs)>"
    assert repr(t.x[:, None]) == "<Tensor 'x' (2, 1, 3) float32>"
    assert program.outputs == (8,)
    assert [c for c, _ in program.consumers()[0]] == [8]


def test_operations_read_only_earlier_ones(t: Inputs) -> None:
    program = t.b.build(softmax(t.x @ t.w))
    assert all(read.op < i for i, op in enumerate(program.ops) for read in op.reads)
    assert all(a.name != b.name for a, b in pairwise(program.ops))


# What is refused, with the name of the operation and what is wrong with it.

MISTAKES = {
    "input of size 0": (lambda t: t.b.input("z", (2, 0)), r"`z`: shape \(2, 0\)"),
    "input of half a row": (lambda t: t.b.input("z", (2.5,)), r"`z`: shape \(2.5,\)"),
    "input dtype": (lambda t: t.b.input("z", (2,), dtype="int8"), "`z`: no dtype `int8`"),
    "program dtype": (lambda t: ProgramBuilder("q", dtype="bf16"), "`program`: no dtype `bf16`"),
    "cast": (lambda t: t.x.astype("int8", name="small"), "`small`: no dtype `int8`"),
    "cast to complex": (lambda t: t.x.astype("complex64"), "`x`: cannot cast float32 to complex64"),
    "cast to real": (lambda t: t.c.astype("float32"), "`c`: cannot cast complex64 to float32"),
    "matmul sizes": (lambda t: t.x @ t.y, r"`matmul`: axis `j` is 3 in `x` \(2, 3\) and 2 in `y`"),
    "matmul of a vector": (lambda t: t.x @ t.v, r"`@` takes two matrices, not .*'x' .* and .*'v'"),
    "matmul dtypes": (lambda t: t.x @ t.half.T, "`matmul`: `x` is float32, `half` is float16"),
    "matmul of a number": (lambda t: t.x @ 3, "`matmul` of 3, .*\nhint: .* input of the program"),
    "einsum of a number": (lambda t: einsum("ij,j->i", t.x, 3), "`einsum` of 3, which is not a"),
    "concat of a number": (lambda t: concat([t.x, 3], 0), "`concat` of 3, which is not a tensor"),
    "concat of numbers": (lambda t: concat([3, 4], 0), "`concat` of 3, which is not a tensor"),
    "add of an array": (lambda t: t.x + np.ones(3), r"`add` of array\(.*\), which is not a tensor"),
    "mul of a complex number": (lambda t: t.x * 1j, "`mul` of 1j, which is not a tensor"),
    "relu of a number": (lambda t: relu(3), "`relu` of 3, which is not a tensor"),
    "fill with a text": (lambda t: t.b.fill((2,), "one"), "`fill`: 'one' is not a real number"),
    "einsum form": (lambda t: einsum("ij,jk", t.x, t.w, name="e"), "`e`: `ij,jk` is not of the"),
    "einsum of three": (lambda t: einsum("i,j,k->", t.v, t.v), "`einsum`: `i,j,k->` is not of the"),
    "einsum output twice": (lambda t: einsum("ij,jk->ii", t.x, t.w), "`einsum`: .* is not of the"),
    "einsum axes": (lambda t: einsum("ijk,jk->i", t.x, t.w, name="e"), "`e`: `ijk` does not name"),
    "einsum diagonal": (lambda t: einsum("ii,ij->j", t.x, t.w), "`einsum`: `ii` does not name"),
    "einsum unknown": (lambda t: einsum("ij,jk->iz", t.x, t.w), "`einsum`: output axis `z` is in"),
    "einsum of no sum": (lambda t: einsum("ij,ij->ij", t.x, t.y), "`einsum`: .* sums over no axis"),
    "einsum dtypes": (
        lambda t: einsum("ij,ij->i", t.x, t.half, name="e"),
        "`e`: `x` is float32, `half` is float16\nhint: cast one with .astype",
    ),
    "add shapes": (lambda t: t.x + t.w, r"`add`: shapes \(2, 3\) of `x` and \(3, 4\) of `w`"),
    "add dtypes": (lambda t: t.x + t.half, "`add`: `x` is float32, `half` is float16"),
    "named": (lambda t: binary("mul", t.x, t.w, name="scaled"), "`scaled`: shapes"),
    "div by 0": (lambda t: t.x / 0, "`div` of `x` and the number 0"),
    "maximum of a number": (lambda t: binary("maximum", t.x, 1.0), "`maximum` of `x` and the num"),
    "reduce axis": (lambda t: t.x.sum(2), "`x` has 2 axes, and no axis 2"),
    "reduce negative axis": (lambda t: t.x.max(-3), "`x` has 2 axes, and no axis -3"),
    "reduce nothing": (lambda t: t.x.sum(name="total"), "`total` of `x` names no axis to reduce"),
    "concat of nothing": (lambda t: concat([], 0, name="all"), "`all` of no tensors"),
    "concat shapes": (lambda t: concat([t.x, t.w], 0), "`concat`: .*'w' .* does not fit .*'x'"),
    "concat ranks": (lambda t: concat([t.x, t.v], 0), "`concat`: .*'v' .* does not fit"),
    "concat dtypes": (lambda t: concat([t.x, t.half], 0), "`concat`: `x` is float32, `half` is"),
    "concat axis": (lambda t: concat([t.x, t.y], 2), "`x` has 2 axes, and no axis 2"),
    "concat of a view": (lambda t: concat([t.x, t.y.T], 0), "`concat`: `y` is a transposed"),
    "transpose": (lambda t: t.x.transpose(0, 0), r"`x`: \(0, 0\) is no order of its 2 axes"),
    "transpose of one axis": (lambda t: t.v.T, "`v` has 1 axes, `.T` needs two"),
    "index": (lambda t: t.x[0], "`x`: select takes slices without a step, not 0"),
    "step": (lambda t: t.x[::2], "`x`: select takes slices without a step"),
    "empty slice": (lambda t: t.x[:, 2:2], "`x`: .* of axis 1, which has size 3, is empty"),
    "too many axes": (lambda t: t.x[:, :, :], "`x` has 2 axes, not those of"),
    "two ellipses": (lambda t: t.x[..., ...], "`x` has 2 axes, not those of"),
    "slice with a new axis": (lambda t: t.x[:1, None], "`x`: take a part first, then add axes"),
    "slice of a view": (lambda t: t.x.T[:1], "`select`: `x` is a transposed or broadcast view"),
    "squeeze": (lambda t: t.x.squeeze(0, name="flat"), "`flat`: axis 0 of `x` has size 2"),
    "squeeze axis": (lambda t: t.x.squeeze(2), "`x` has 2 axes, and no axis 2"),
    "unsqueeze": (lambda t: t.x.unsqueeze(4, name="u"), "`u`: `x` has no place for axis 4"),
    "odd pairs": (lambda t: to_complex(t.x, name="z"), "`z`: .*'x' .* has no pairs"),
    "half pairs": (lambda t: to_complex(t.half.T), "`to_complex`: .*'half' .* has no pairs of"),
    "no pairs": (lambda t: to_complex(t.x.sum(0, 1)), "`to_complex`: .*'sum' .* has no pairs"),
    "not complex": (lambda t: to_real(t.x, name="r"), "`r`: .*'x' .* has no complex numbers"),
    "complex new axis": (lambda t: to_real(t.c[..., None]), "`to_real`: .*'c' .* has no complex"),
    "triangle of a vector": (
        lambda t: t.b.fill((3,), 0.0, above=1.0, name="mask"), r"`mask`: shape \(3,\) has no diag"
    ),
    "no outputs": (lambda t: t.b.build(), "program `p` has no outputs"),
    "output that is a view": (lambda t: t.b.build(t.x.T), "an output .* not a view of `x`"),
    "output of another program": (
        lambda t: t.b.build(Inputs().v), "`v` is of another program than `p`"
    ),
    "two programs": (lambda t: t.x + Inputs().y, "`add`: `x` and `y` are of different programs"),
    "einsum of two programs": (
        lambda t: t.x @ Inputs().w, "`matmul`: `x` and `w` are of different programs"
    ),
    "concat of two programs": (
        lambda t: concat([t.x, Inputs().y], 0), "`concat`: `x` and `y` are of different programs"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("write", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_refused_at_once_and_named(t: Inputs, write: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        write(t)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda t: unary("rleu", t.x), "no function named `rleu`\nhint: did you mean `relu`?"),
        (lambda t: binary("plus", t.x, t.y), "no function named `plus`\nhint: known: add, div,"),
        (lambda t: binary("plus", t.x, 1.0), "no function named `plus`"),
        (lambda t: reduce("mean", t.x, [0]), "no reduction named `mean`"),
    ],
)
def test_an_unknown_function_gets_a_suggestion(t: Inputs, write: Any, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        write(t)


# Inputs of an evaluation.


def test_random_inputs_have_the_declared_shapes_and_dtypes_and_follow_the_seed(t: Inputs) -> None:
    scale = t.b.input("scale", ())
    program = t.b.build(t.x * scale)
    first, again, other = (random_inputs(program, seed) for seed in (1, 1, 2))
    for op in program.ops[:-1]:
        assert first[op.name].shape == op.shape
        assert first[op.name].dtype == op.dtype
        assert np.array_equal(first[op.name], again[op.name])
        assert not np.array_equal(first[op.name], other[op.name])
    assert np.allclose(np.abs(first["c"]), 1)  # rotations
    assert evaluate_program(program, first)["mul"].shape == (2, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": ...}, "input `x` is missing\nhint: given: y, "),
        (dict.fromkeys(vars(Inputs()), ...), "input `x` is missing\nhint: given: none"),
        ({"x": np.zeros((3, 2), np.float32)}, r"`x` is float32 \(3, 2\), expected float32 \(2, 3"),
        ({"x": np.zeros((2, 3))}, r"`x` is float64 \(2, 3\), expected float32"),
    ],
)
def test_an_input_that_does_not_fit_is_named(t: Inputs, change: Any, message: str) -> None:
    given = {name: value for name, value in (t.values() | change).items() if value is not ...}
    with pytest.raises(ProgramError, match=message):
        evaluate_program(t.b.build(relu(t.x)), given)
