"""The torch code of every kernel: all that can be is decided once, what is left only launches.

The meaning of each is that of `doppler.programs.numpy_ops`. A compiled kernel writes into an output
that it is given and changes nothing else. It never waits for a device, so that on a GPU it returns
as soon as its work is queued; it takes few launches, since each costs more than small work.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from doppler.engine.operands import (
    Axes,
    Compiled,
    Fetch,
    Tensors,
    aligned,
    operands,
    pieces_of,
    put,
)
from doppler.errors import EngineError
from doppler.graph.graph import Kernel
from doppler.graph.ops import OpKind
from doppler.graph.signatures import first_diagonal_above

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128, torch.bool, torch.uint8),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
    )
}


def compile_kernel(kernel: Kernel) -> Compiled:
    """A function of (inputs, output) that runs a kernel on any device.

    The inputs are contiguous; the output is, too, with the shape and dtype of `output_like`.
    """
    if len(kernel.shapes) != 1:
        raise EngineError(f"kernel `{kernel.op}` has {len(kernel.shapes)} outputs, must have one")
    if kernel.op not in _KERNELS:
        known = ", ".join(sorted(_KERNELS))
        raise EngineError(f"no code for a kernel `{kernel.op}`", hint=f"known: {known}")
    torch_dtype(kernel.dtypes[0])
    try:
        return _KERNELS[kernel.op](kernel)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise EngineError(
            f"kernel `{kernel.op}` has attributes that make no sense: {error!r}"
        ) from error


def output_like(kernel: Kernel) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of a kernel's output."""
    return kernel.shapes[0], torch_dtype(kernel.dtypes[0])


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name."""
    if name not in DTYPES:
        raise EngineError(f"no dtype `{name}` in torch", hint=f"known: {', '.join(DTYPES)}")
    return DTYPES[name]


# Contractions.


def _matmul(kernel: Kernel) -> Compiled:
    """One product of matrices, or of batches of them, on views; axes in an odd order are copied."""
    shape, (a_axes, b_axes) = kernel.shapes[0], kernel.attributes["axes"]
    a_fetch, b_fetch = operands(kernel)
    kept = range(len(shape))
    batch = [j for j in kept if j in a_axes and j in b_axes]
    rows = [j for j in kept if j in a_axes and j not in b_axes]
    columns = [j for j in kept if j in b_axes and j not in a_axes]
    new = [j for j in kept if j not in a_axes and j not in b_axes]  # of size 1
    summed = [j for j in a_axes if j is not None and j not in kept and j in b_axes]
    batches, height, width = (prod(shape[j] for j in group) for group in (batch, rows, columns))
    if batches == 1:
        multiply: Any = torch.mm
        a = _merged(a_fetch, a_axes, [batch + rows, summed], (height, -1))
        b = _merged(b_fetch, b_axes, [batch + summed, columns], (-1, width))
    else:
        multiply = torch.bmm
        a = _merged(a_fetch, a_axes, [batch, rows, summed], (batches, height, -1))
        b = _merged(b_fetch, b_axes, [batch, summed, columns], (batches, -1, width))
    order, size = [*batch, *rows, *columns, *new], (batches, height, width)[batches == 1 :]

    def straight(inputs: Tensors, out: torch.Tensor) -> None:
        multiply(a(inputs), b(inputs), out=out)

    def viewed(inputs: Tensors, out: torch.Tensor) -> None:
        multiply(a(inputs), b(inputs), out=out.permute(order).view(size))

    def copied(inputs: Tensors, out: torch.Tensor) -> None:
        target = out.permute(order)
        target.copy_(multiply(a(inputs), b(inputs)).view(target.shape))

    if order == list(kept) and size == shape:
        return straight
    return viewed if _can_view(shape, order, size) else copied


def _merged(fetch: Fetch, axes: Axes, groups: list[list[int]], size: tuple[int, ...]) -> Fetch:
    """An operand whose join axes are in this order, each group merged into one of this size.

    An axis that is in no group, since only this operand has it, is summed over before.
    """
    joins = [join for group in groups for join in group]
    rest = [d for d, axis in enumerate(axes) if axis not in joins]
    lonely = [d for d in rest if axes[d] is not None]
    order = [*(list(axes).index(join) for join in joins), *rest]
    if order == list(range(len(size))) and not rest and all(len(group) == 1 for group in groups):
        return fetch

    def merged(inputs: Tensors) -> torch.Tensor:
        x = fetch(inputs)
        x = x.sum(lonely, keepdim=True) if lonely else x
        return x.permute(order).reshape(size)

    return merged


def _can_view(shape: tuple[int, ...], order: list[int], size: tuple[int, ...]) -> bool:
    """Whether a contiguous tensor, its axes in another order, can be seen with another shape."""
    try:
        torch.empty(shape, device="meta").permute(order).view(size)
    except RuntimeError:
        return False
    return True


# Functions of elements.


def _copy(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x)


UNARY: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "relu": lambda x, out: torch.clamp_min(x, 0, out=out),
    "exp": lambda x, out: torch.exp(x, out=out),
    "sqrt": lambda x, out: torch.sqrt(x, out=out),
    "rsqrt": lambda x, out: torch.rsqrt(x, out=out),
    "silu": lambda x, out: torch.ops.aten.silu.out(x, out=out),
    "gelu": lambda x, out: torch.ops.aten.gelu.out(x, approximate="tanh", out=out),
    "square": lambda x, out: torch.mul(x, x, out=out),
    "tanh": lambda x, out: torch.tanh(x, out=out),
    "cast": _copy,
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "add": lambda x, y, out: torch.add(x, y, out=out),
    "sub": lambda x, y, out: torch.sub(x, y, out=out),
    "mul": lambda x, y, out: torch.mul(x, y, out=out),
    "div": lambda x, y, out: torch.div(x, y, out=out),
    "maximum": lambda x, y, out: torch.maximum(x, y, out=out),
    "minimum": lambda x, y, out: torch.minimum(x, y, out=out),
    "keep_if_at_least": lambda x, y, out: _keep(x >= y, x, 0.0, out),
    "keep_if_below": lambda x, y, out: _keep(x < y, x, -torch.inf, out),
}


def _keep(mask: torch.Tensor, x: torch.Tensor, otherwise: float, out: torch.Tensor) -> None:
    constant = out.new_full((), otherwise)  # made where it is used: a plain number would be moved
    torch.where(mask, x, constant, out=out)


def _unary(kernel: Kernel) -> Compiled:
    (x,) = aligned(kernel)
    fn = kernel.attributes["fn"]
    apply = _affine(kernel) if fn == "affine" else UNARY[fn]

    def run(inputs: Tensors, out: torch.Tensor) -> None:
        value = x(inputs)
        if value.dtype == out.dtype or fn == "cast":
            apply(value, out)
            return
        value = value.to(torch.promote_types(value.dtype, out.dtype))  # to round only once
        result = torch.empty_like(value)
        apply(value, result)
        out.copy_(result)

    return run


def _affine(kernel: Kernel) -> Callable[[torch.Tensor, torch.Tensor], Any]:
    """`scale * x + shift`, in one launch unless the scale is huge."""
    scale, shift = (float(kernel.attributes[name]) for name in ("scale", "shift"))
    constant = torch.tensor(shift, dtype=torch.float64)  # of no axes: the host reads it

    def in_one(x: torch.Tensor, out: torch.Tensor) -> None:
        torch.add(constant, x, alpha=scale, out=out)

    def in_steps(x: torch.Tensor, out: torch.Tensor) -> None:
        torch.mul(x, scale, out=out)
        if shift:
            out.add_(shift)

    fits = abs(scale) <= torch.finfo(torch.float16).max  # an `alpha` beyond is refused
    return in_one if shift and fits else in_steps


def _binary(kernel: Kernel) -> Compiled:
    x, y = aligned(kernel)
    apply = BINARY[kernel.attributes["fn"]]
    return lambda inputs, out: apply(x(inputs), y(inputs), out)


# Aggregates.

REDUCE: dict[str, Callable[[torch.Tensor, tuple[int, ...], torch.Tensor], Any]] = {
    "sum": lambda x, axes, out: torch.sum(x, axes, out=out),
    "max": lambda x, axes, out: torch.amax(x, axes, out=out),
    "min": lambda x, axes, out: torch.amin(x, axes, out=out),
    "product": lambda x, axes, out: torch.prod(x.flatten(axes[0], axes[-1]), axes[0], out=out),
}
COMBINE = {"sum": "add", "max": "maximum", "min": "minimum", "product": "mul"}


def _reduction(kernel: Kernel) -> Compiled:
    """An aggregate over the last axes of the join."""
    rank = len(kernel.shapes[0])
    joins = [axis for axis in kernel.attributes["axes"][0] if axis is not None]
    full = max([rank, *(1 + join for join in joins)])
    (x,), gone = aligned(kernel, full), tuple(range(rank, full))
    reduce = REDUCE[kernel.attributes["fn"]]
    if not gone:
        return lambda inputs, out: _copy(x(inputs), out)
    return lambda inputs, out: reduce(x(inputs), gone, out)


def _formation(kernel: Kernel) -> Compiled:
    """The aggregate of partials: in one launch of two, in two of more, rounded once."""
    partials, fn = operands(kernel), kernel.attributes["fn"]
    reduce, combine = REDUCE[fn], BINARY[COMBINE[fn]]

    def one(inputs: Tensors, out: torch.Tensor) -> None:
        out.copy_(partials[0](inputs))

    def two(inputs: Tensors, out: torch.Tensor) -> None:
        combine(partials[0](inputs), partials[1](inputs), out)

    def more(inputs: Tensors, out: torch.Tensor) -> None:
        reduce(torch.stack([partial(inputs) for partial in partials]), (0,), out)

    return (one, two, more)[min(len(partials), 3) - 1]


# Copies: nothing is computed.


def _complexer(kernel: Kernel) -> Compiled:
    """Pairs as complex numbers, or complex numbers as pairs: one copy, whichever it is."""
    (x,) = aligned(kernel)

    def run(inputs: Tensors, out: torch.Tensor) -> None:
        value = x(inputs)
        out.view(value.dtype).copy_(value)

    return run


def _squeezer(kernel: Kernel) -> Compiled:
    (x,) = aligned(kernel)
    return lambda inputs, out: _copy(x(inputs), out)


def _select(kernel: Kernel) -> Compiled:
    pieces = [p for operand in kernel.attributes["operands"] for p in pieces_of(operand)]
    return put(pieces, kernel.shapes[0])


def _fill(kernel: Kernel) -> Compiled:
    """One value, or another above the diagonal of the tensor that the block is of."""
    value, (*_, rows, columns) = float(kernel.attributes["value"]), (1, 1, *kernel.shapes[0])
    above = float(kernel.attributes.get("above", value))
    first = first_diagonal_above(kernel) if "above" in kernel.attributes else columns

    def even(_: Tensors, out: torch.Tensor) -> None:
        out.fill_(value if first >= columns else above)

    def over_zeros(_: Tensors, out: torch.Tensor) -> None:
        out.fill_(above).triu_(first)

    def both(_: Tensors, out: torch.Tensor) -> None:
        mask = out.new_ones((rows, columns), dtype=torch.bool).triu_(first)
        out.fill_(value).masked_fill_(mask, above)

    if not 1 - rows < first < columns:
        return even
    return over_zeros if value == 0 else both


# Tiles of the Cholesky factorisation. Libraries store columns: in and out are seen transposed.


def _potrf(kernel: Kernel) -> Compiled:
    (a,) = operands(kernel)

    def run(inputs: Tensors, out: torch.Tensor) -> None:
        info = out.new_empty((), dtype=torch.int32)  # to read it would wait for the device
        torch.linalg.cholesky_ex(a(inputs).mT, upper=True, out=(out.mT, info))

    return run


def _trsm(kernel: Kernel) -> Compiled:
    a, lower = operands(kernel)

    def run(inputs: Tensors, out: torch.Tensor) -> None:
        torch.linalg.solve_triangular(lower(inputs), a(inputs).mT, upper=False, out=out.mT)

    return run


def _syrk(kernel: Kernel) -> Compiled:
    c, a = operands(kernel)

    def run(inputs: Tensors, out: torch.Tensor) -> None:
        torch.addmm(c(inputs), a(inputs), a(inputs).mT, alpha=-1, out=out)

    return run


def _gemm(kernel: Kernel) -> Compiled:
    c, a, b = operands(kernel)

    def run(inputs: Tensors, out: torch.Tensor) -> None:
        torch.addmm(c(inputs), a(inputs), b(inputs).mT, alpha=-1, out=out)

    return run


_KERNELS: dict[str, Callable[[Kernel], Compiled]] = {
    OpKind.MATMUL: _matmul,
    OpKind.INPUT_ELEMWISE: _unary,
    OpKind.STRAIGHT_ELEMWISE: _binary,
    OpKind.BCAST_ELEMWISE: _binary,
    OpKind.MAX_REDUCTION: _reduction,
    OpKind.MIN_REDUCTION: _reduction,
    OpKind.SUM_REDUCTION: _reduction,
    OpKind.PRODUCT_REDUCTION: _reduction,
    OpKind.FORMATION: _formation,
    OpKind.COMPLEXER: _complexer,
    OpKind.SQUEEZER: _squeezer,
    OpKind.SELECT: _select,
    OpKind.FILL: _fill,
    "potrf": _potrf,
    "trsm": _trsm,
    "syrk": _syrk,
    "gemm": _gemm,
}
