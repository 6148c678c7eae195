"""Flops of a shard, and the bytes it reads and writes."""

from math import prod

import numpy as np

from doppler.graph.ops import OpKind
from doppler.programs.program import Op

FREE = (OpKind.INPUT, OpKind.COMPLEXER, OpKind.SQUEEZER)
TRANSFER_FACTOR = 4  # App. E: communication per element against computation


def item_bytes(dtype: str) -> int:
    """Bytes of one element."""
    return int(np.dtype(dtype).itemsize)


def exec_cost(op: Op, join: tuple[int, ...], operand_bytes: float) -> tuple[float, float]:
    """(flops, bytes touched) of a shard whose join axes have these sizes.

    Views and conversions of layout are free. A multiplication of complex numbers counts as four.
    """
    if op.kind in FREE:
        return 0.0, 0.0
    complex_factor = 4 if "complex" in op.dtype else 1
    written = prod(join[: len(op.shape)]) * item_bytes(op.dtype)
    if op.kind in (OpKind.FILL, OpKind.SELECT):
        return 0.0, float(written + operand_bytes)
    flops = prod(join) * (2 if op.is_contraction else 1) * complex_factor
    return float(flops), float(written + operand_bytes)


def formation_cost(elements: int, dtype: str, partials: int) -> tuple[float, float]:
    """(flops, bytes touched) to aggregate partials one after the other; one alone is free."""
    steps = partials - 1
    return float(steps * elements), float(3 * steps * elements * item_bytes(dtype))


def abstract_cost(op: Op, *, formed: bool) -> float:
    """The authors' cost of a vertex: elements of the whole operation's join, or of its output."""
    return float(prod(op.shape if formed else op.join))
