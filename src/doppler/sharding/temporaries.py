"""Temporaries: bytes that a kernel needs beside its inputs and outputs while it runs.

They follow from shapes, dtypes and the order of axes alone. The engine makes room for exactly
these tensors when it binds a kernel, each aligned; a test holds the two equal.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from doppler.graph.graph import Kernel
from doppler.graph.ops import OpKind
from doppler.graph.signatures import Described, first_diagonal_above

ALIGNMENT = 256  # bytes: what CUDA promises of an allocation, and more than a CPU asks for


def aligned_bytes(size: float) -> int:
    """Bytes up to where the next tensor may begin."""
    return -(-int(size) // ALIGNMENT) * ALIGNMENT


def temporary_bytes(kernel: Kernel, inputs: Sequence[Described]) -> int:
    """Bytes of all intermediate tensors of a kernel that reads tensors of these kinds.

    >>> kernel = Kernel("formation", (0, 1, 2), ((8, 64),), ("float32",), {"operands": [0, 1, 2]})
    >>> temporary_bytes(kernel, [((8, 64), "float32")] * 3)
    6144
    """
    count = _COUNTS.get(kernel.op)
    return sum(map(aligned_bytes, count(kernel, inputs))) if count else 0


class _Operand(NamedTuple):
    """An operand as the kernel sees it: a whole input, a part of one, or put together."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: str
    copied: bool  # from several pieces, into a temporary

    @property
    def bytes(self) -> int:
        return _bytes(self.shape, self.dtype)


def _operands(kernel: Kernel, inputs: Sequence[Described]) -> list[_Operand]:
    found = []
    for row in kernel.attributes.get("operands", ()):
        pieces = [] if isinstance(row, int) else row["pieces"]
        slot = row if isinstance(row, int) else pieces[0][0]
        shape, dtype = inputs[slot]
        assert shape is not None
        strides = _strides(shape)
        if len(pieces) == 1:
            shape = tuple(high - low for low, high in pieces[0][1])
        elif pieces:
            shape = tuple(row["shape"])
            strides = _strides(shape)
        found.append(_Operand(tuple(shape), strides, dtype, copied=len(pieces) > 1))
    return found


def _put_together(operands: Sequence[_Operand]) -> list[int]:
    return [operand.bytes for operand in operands if operand.copied]


def _matmul(kernel: Kernel, inputs: Sequence[Described]) -> list[int]:
    """Operands and outputs whose axes do not merge without a copy."""
    shape, dtype = kernel.shapes[0], kernel.dtypes[0]
    left_axes, right_axes = kernel.attributes["axes"]
    left, right = _operands(kernel, inputs)
    kept = range(len(shape))
    batch = [j for j in kept if j in left_axes and j in right_axes]
    rows = [j for j in kept if j in left_axes and j not in right_axes]
    columns = [j for j in kept if j in right_axes and j not in left_axes]
    summed = [j for j in left_axes if j is not None and j not in kept and j in right_axes]
    if prod(shape[j] for j in batch) == 1:
        groups = ([batch + rows, summed], [batch + summed, columns])
        written = [batch + rows, columns]
    else:
        groups = ([batch, rows, summed], [batch, summed, columns])
        written = [batch, rows, columns]
    found = _put_together([left, right])
    for operand, axes, parts in zip((left, right), (left_axes, right_axes), groups, strict=True):
        found += _merged(operand, list(axes), parts)
    if not all(_merge(shape, _strides(shape), group) for group in written):
        found.append(_bytes(shape, dtype))
    return found


def _merged(x: _Operand, axes: list[int | None], groups: list[list[int]]) -> list[int]:
    """Bytes of the sum over axes that only this operand has, and of a copy in another order."""
    joins = [join for group in groups for join in group]
    lonely = [d for d, axis in enumerate(axes) if axis is not None and axis not in joins]
    found = []
    if lonely:
        shape = tuple(1 if d in lonely else n for d, n in enumerate(x.shape))
        x = x._replace(shape=shape, strides=_strides(shape))
        found.append(x.bytes)
    places = [[axes.index(join) for join in group] for group in groups]
    if not all(_merge(x.shape, x.strides, group) for group in places):
        found.append(x.bytes)
    return found


def _merge(shape: Sequence[int], strides: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether axes in this order are one axis of a view."""
    long = [axis for axis in axes if shape[axis] > 1]
    return all(strides[outer] == strides[i] * shape[i] for outer, i in pairwise(long))


def _unary(kernel: Kernel, inputs: Sequence[Described]) -> list[int]:
    """What is not computed in the dtype of both the operand and the output."""
    (x,) = operands = _operands(kernel, inputs)
    found = _put_together(operands)
    if kernel.attributes["fn"] == "cast" or x.dtype == kernel.dtypes[0]:
        return found
    wide = str(np.promote_types(x.dtype, kernel.dtypes[0]))
    return found + [_bytes(x.shape, wide) for dtype in (x.dtype, kernel.dtypes[0]) if dtype != wide]


def _binary(kernel: Kernel, inputs: Sequence[Described]) -> list[int]:
    found = _put_together(_operands(kernel, inputs))
    if str(kernel.attributes["fn"]).startswith("keep_if"):
        found.append(prod(kernel.shapes[0]))  # a mask
    return found


def _formation(kernel: Kernel, inputs: Sequence[Described]) -> list[int]:
    partials = _operands(kernel, inputs)
    return [len(partials) * partials[0].bytes] if len(partials) > 2 else []  # a stack of them


def _fill(kernel: Kernel, inputs: Sequence[Described]) -> list[int]:
    """A mask, where the diagonal crosses the block and no value below it is zero."""
    if "above" not in kernel.attributes or float(kernel.attributes["value"]) == 0:
        return []
    *_, rows, columns = (1, 1, *kernel.shapes[0])
    return [rows * columns] if 1 - rows < first_diagonal_above(kernel) < columns else []


def _views(kernel: Kernel, inputs: Sequence[Described]) -> list[int]:
    return _put_together(_operands(kernel, inputs))


_COUNTS: dict[str, Callable[[Kernel, Sequence[Described]], list[int]]] = {
    OpKind.MATMUL: _matmul,
    OpKind.INPUT_ELEMWISE: _unary,
    OpKind.STRAIGHT_ELEMWISE: _binary,
    OpKind.BCAST_ELEMWISE: _binary,
    OpKind.MAX_REDUCTION: _views,
    OpKind.MIN_REDUCTION: _views,
    OpKind.SUM_REDUCTION: _views,
    OpKind.PRODUCT_REDUCTION: _views,
    OpKind.FORMATION: _formation,
    OpKind.COMPLEXER: _views,
    OpKind.SQUEEZER: _views,
    OpKind.FILL: _fill,
}


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _bytes(shape: Sequence[int], dtype: Any) -> int:
    return prod(shape) * int(np.dtype(dtype).itemsize)
