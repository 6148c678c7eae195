"""What every operation computes, in numpy: the meaning of a program, written to be read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from doppler.graph.ops import OpKind
from doppler.programs.program import REDUCTIONS

Array = npt.NDArray[Any]

UNARY: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "exp": np.exp,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "square": lambda x: x * x,
    "tanh": np.tanh,
    "cast": lambda x: x,
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "keep_if_at_least": lambda x, least: np.where(x >= least, x, 0),
    "keep_if_below": lambda x, limit: np.where(x < limit, x, -np.inf),
}
TILES: dict[str, Callable[..., Array]] = {  # of the tiled Cholesky factorisation
    "potrf": np.linalg.cholesky,
    "trsm": lambda a, lower: np.linalg.solve(lower, a.T).T,
    "syrk": lambda c, a: c - a @ a.T,
    "gemm": lambda c, a, b: c - a @ b.T,
}
AGGREGATE: dict[str, Any] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "product": np.multiply,
}


LARGE = 1 << 16  # numbers from which on a product is worth the time to choose a fast way


def compute(
    kind: str,
    attributes: Mapping[str, Any],
    operands: Sequence[Array],
    axes: Sequence[Sequence[int | None]],
    shape: tuple[int, ...],
    dtype: str,
) -> Array:
    """The output of one operation, or of one block of it.

    `axes` says which join axis each axis of each operand lies on (None: broadcast or dropped).
    Sums and products of float16 are accumulated in float32, as the hardware does.
    """
    wide = [_widened(operand) for operand in operands]
    if kind == OpKind.MATMUL:
        terms: list[Any] = [part for pair in zip(wide, axes, strict=True) for part in pair]
        present = [i for i in range(len(shape)) if any(i in term for term in axes)]
        is_large = sum(each.size for each in wide) > LARGE
        result = np.einsum(*terms, present, optimize=is_large)
        result = result.reshape(shape)  # axes that no operand has are new ones
    elif kind == OpKind.INPUT_ELEMWISE:
        (x,) = (_aligned(w, a, len(shape)) for w, a in zip(wide, axes, strict=True))
        if attributes["fn"] == "affine":
            result = x * float(attributes["scale"]) + float(attributes["shift"])
        else:
            result = UNARY[attributes["fn"]](x)
    elif kind in (OpKind.STRAIGHT_ELEMWISE, OpKind.BCAST_ELEMWISE):
        x, y = (_aligned(w, a, len(shape)) for w, a in zip(wide, axes, strict=True))
        result = BINARY[attributes["fn"]](x, y)
    elif kind in REDUCTIONS.values():
        rank = max([len(shape), *(1 + axis for axis in axes[0] if axis is not None)])
        joined = _aligned(wide[0], axes[0], rank)
        result = AGGREGATE[attributes["fn"]].reduce(joined, axis=tuple(range(len(shape), rank)))
    elif kind == OpKind.FORMATION:
        result = AGGREGATE[attributes["fn"]].reduce(wide, axis=0)
    elif kind == OpKind.COMPLEXER:
        x = np.ascontiguousarray(_aligned(operands[0], axes[0], len(shape)))
        result = x.view(dtype)
    elif kind == OpKind.SQUEEZER:
        result = _aligned(operands[0], axes[0], len(shape))
    elif kind == OpKind.SELECT:
        result = operands[0]
    elif kind == OpKind.FILL:
        result = _filled(attributes, shape)
    else:
        result = TILES[kind](*operands)
    return np.broadcast_to(result, shape).astype(dtype)


def _widened(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _aligned(x: Array, axes: Sequence[int | None], rank: int) -> Array:
    """An operand with its axes in the order of the output's, of size 1 where it has none."""
    kept = [i for i, axis in enumerate(axes) if axis is not None]
    x = x.reshape([x.shape[i] for i in kept])
    places = [axis for axis in axes if axis is not None]
    x = x.transpose(np.argsort(places))
    shape = [1] * rank
    for size, place in zip(x.shape, sorted(places), strict=True):
        shape[place] = size
    return x.reshape(shape)


def _filled(attributes: Mapping[str, Any], shape: tuple[int, ...]) -> Array:
    """One value everywhere, or another above the diagonal; `block` says where the block lies."""
    value = float(attributes["value"])  # may be a text such as `-inf`
    if "above" not in attributes:
        return np.full(shape, value)
    block = attributes.get("block") or [[0, n] for n in shape]
    row = np.arange(block[-2][0], block[-2][1])[:, None]
    column = np.arange(block[-1][0], block[-1][1])[None, :]
    values = np.where(column > row, float(attributes["above"]), value)
    return np.broadcast_to(values, shape)
