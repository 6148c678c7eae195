"""The torch code of every kernel: all that can be is decided once, what is left only launches.

The meaning of each is that of `doppler.programs.numpy_ops`. A kernel is bound to its tensors; what
comes of that is a few launches with all their arguments, which write into the output and change
nothing else but intermediate tensors. No launch waits for a device, so that on a GPU it returns as
soon as its work is queued; there are few of them, since each costs more than small work.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

from doppler.engine.operands import Axes, Binding, Empty, Launch
from doppler.errors import EngineError
from doppler.graph.graph import Kernel
from doppler.graph.ops import OpKind
from doppler.graph.signatures import first_diagonal_above
from doppler.sharding.temporaries import aligned_bytes

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128, torch.bool, torch.uint8),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
    )
}


def bind_kernel(
    kernel: Kernel, inputs: Sequence[torch.Tensor], output: torch.Tensor, empty: Empty | None = None
) -> tuple[Launch, ...]:
    """What to launch, one after the other, to run a kernel on these tensors.

    The inputs are contiguous; the output is, too, with the shape and dtype of `output_like`.
    `empty` makes room for intermediate tensors, which is used again in every run.
    """
    check_kernel(kernel)
    if empty is None:
        empty = partial(_new, output)
    binding = Binding(kernel, inputs, output, empty)
    try:
        _KERNELS[kernel.op](binding)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise EngineError(
            f"kernel `{kernel.op}` has attributes that make no sense: {error!r}"
        ) from error
    return tuple(binding.launches)


def scratch_bytes(kernel: Kernel, inputs: Sequence[Kernel]) -> int:
    """Bytes of all intermediate tensors of a kernel that reads the outputs of those kernels."""
    total = 0

    def count(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        nonlocal total
        room = torch.empty(tuple(shape), dtype=dtype, device="meta")
        total += aligned_bytes(room.nbytes)
        return room

    def like(kernel: Kernel) -> torch.Tensor:
        shape, dtype = output_like(kernel)
        try:
            return torch.empty(shape, dtype=dtype, device="meta")
        except RuntimeError as error:  # more bytes than can be counted
            raise EngineError(f"a tensor of shape {shape}: {error}") from None

    bind_kernel(kernel, [like(each) for each in inputs], like(kernel), count)
    return total


def _new(like: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return like.new_empty(tuple(shape), dtype=dtype)


def check_kernel(kernel: Kernel) -> None:
    """Raise an `EngineError` unless there is code for a kernel and a dtype for its output."""
    if len(kernel.shapes) != 1:
        raise EngineError(f"kernel `{kernel.op}` has {len(kernel.shapes)} outputs, must have one")
    if kernel.op not in _KERNELS:
        known = ", ".join(sorted(_KERNELS))
        raise EngineError(f"no code for a kernel `{kernel.op}`", hint=f"known: {known}")
    torch_dtype(kernel.dtypes[0])


def output_like(kernel: Kernel) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of a kernel's output."""
    return kernel.shapes[0], torch_dtype(kernel.dtypes[0])


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of that name."""
    if name not in DTYPES:
        raise EngineError(f"no dtype `{name}` in torch", hint=f"known: {', '.join(DTYPES)}")
    return DTYPES[name]


# Contractions.


def _matmul(b: Binding) -> None:
    """One product of matrices, or of batches of them, on views; axes in an odd order are copied."""
    shape, (left_axes, right_axes) = b.kernel.shapes[0], b.kernel.attributes["axes"]
    left, right = b.operands()
    kept = range(len(shape))
    batch = [j for j in kept if j in left_axes and j in right_axes]
    rows = [j for j in kept if j in left_axes and j not in right_axes]
    columns = [j for j in kept if j in right_axes and j not in left_axes]
    new = [j for j in kept if j not in left_axes and j not in right_axes]  # of size 1
    summed = [j for j in left_axes if j is not None and j not in kept and j in right_axes]
    batches, height, width = (prod(shape[j] for j in group) for group in (batch, rows, columns))
    if batches == 1:
        multiply: Any = torch.mm
        x = _merged(b, left, left_axes, [batch + rows, summed], (height, -1))
        y = _merged(b, right, right_axes, [batch + summed, columns], (-1, width))
    else:
        multiply = torch.bmm
        x = _merged(b, left, left_axes, [batch, rows, summed], (batches, height, -1))
        y = _merged(b, right, right_axes, [batch, summed, columns], (batches, -1, width))
    target = b.output.permute([*batch, *rows, *columns, *new])
    size = (batches, height, width)[batches == 1 :]
    try:
        b.launch(multiply, x, y, out=target.view(size))
    except RuntimeError:  # no view has that shape
        product = b.empty(size, b.output.dtype)
        b.launch(multiply, x, y, out=product)
        b.copy(product.view(target.shape), target)


def _merged(
    b: Binding, x: torch.Tensor, axes: Axes, groups: list[list[int]], size: tuple[int, ...]
) -> torch.Tensor:
    """An operand whose join axes are in this order, each group merged into one of this size.

    An axis that is in no group, since only this operand has it, is summed over before.
    """
    joins = [join for group in groups for join in group]
    rest = [d for d, axis in enumerate(axes) if axis not in joins]
    lonely = [d for d in rest if axes[d] is not None]
    if lonely:
        shape = [1 if d in lonely else length for d, length in enumerate(x.shape)]
        total = b.empty(shape, x.dtype)
        b.launch(torch.sum, x, lonely, keepdim=True, out=total)
        x = total
    x = x.permute([*(list(axes).index(join) for join in joins), *rest])
    try:
        return x.view(size)
    except RuntimeError:  # no view has that shape
        return b.copied(x).view(size)


# Functions of elements.

UNARY: dict[str, Callable[..., Any]] = {
    "relu": lambda x, out: torch.clamp_min(x, 0, out=out),
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "silu": torch.ops.aten.silu.out,
    "gelu": lambda x, out: torch.ops.aten.gelu.out(x, approximate="tanh", out=out),
    "square": lambda x, out: torch.mul(x, x, out=out),
    "tanh": torch.tanh,
}
BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
KEEP: dict[str, tuple[Callable[..., Any], float]] = {  # where this holds, else the number
    "keep_if_at_least": (torch.ge, 0.0),
    "keep_if_below": (torch.lt, -torch.inf),
}


def _unary(b: Binding) -> None:
    (x,) = b.aligned()
    fn = b.kernel.attributes["fn"]
    if fn == "cast":
        b.copy(x, b.output)
        return
    apply = _affine if fn == "affine" else _plain(UNARY[fn])
    wide = torch.promote_types(x.dtype, b.output.dtype)
    if x.dtype == b.output.dtype:
        apply(b, x, b.output)
        return
    if x.dtype != wide:
        x = b.copied(x, wide)
    if wide == b.output.dtype:
        apply(b, x, b.output)
        return
    result = b.empty(x.shape, wide)  # to round only once
    apply(b, x, result)
    b.copy(result, b.output)


def _plain(function: Callable[..., Any]) -> Callable[[Binding, torch.Tensor, torch.Tensor], None]:
    return lambda b, x, out: b.launch(function, x, out=out)


def _affine(b: Binding, x: torch.Tensor, out: torch.Tensor) -> None:
    """`scale * x + shift`, in one launch unless the scale is huge."""
    scale, shift = (float(b.kernel.attributes[name]) for name in ("scale", "shift"))
    fits = abs(scale) <= torch.finfo(torch.float16).max  # an `alpha` beyond is refused
    if shift and fits:
        constant = torch.tensor(shift, dtype=torch.float64)  # of no axes: the host reads it
        b.launch(torch.add, constant, x, alpha=scale, out=out)
        return
    b.launch(torch.mul, x, scale, out=out)
    if shift:
        b.launch(out.add_, shift)


def _binary(b: Binding) -> None:
    x, y = b.aligned()
    fn = b.kernel.attributes["fn"]
    if fn in BINARY:
        b.launch(BINARY[fn], x, y, out=b.output)
        return
    compare, otherwise = KEEP[fn]
    mask = b.empty(b.output.shape, torch.bool)
    constant = b.output.new_full((), otherwise)  # where it is used: a plain number would be moved
    b.launch(compare, x, y, out=mask)
    b.launch(torch.where, mask, x, constant, out=b.output)


# Aggregates.


def _product(x: torch.Tensor, axes: Sequence[int], out: torch.Tensor) -> None:
    torch.prod(x.flatten(axes[0], axes[-1]), axes[0], out=out)


REDUCE: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
    "product": _product,
}
COMBINE = {"sum": "add", "max": "maximum", "min": "minimum", "product": "mul"}


def _reduction(b: Binding) -> None:
    """An aggregate over the last axes of the join."""
    rank = len(b.kernel.shapes[0])
    joins = [axis for axis in b.kernel.attributes["axes"][0] if axis is not None]
    full = max([rank, *(1 + join for join in joins)])
    (x,), gone = b.aligned(full), tuple(range(rank, full))
    reduce = REDUCE[b.kernel.attributes["fn"]]
    if gone:
        b.launch(reduce, x, gone, out=b.output)
    else:
        b.copy(x, b.output)


def _formation(b: Binding) -> None:
    """The aggregate of partials: in one launch of two, in two of more, rounded once."""
    partials, fn = b.operands(), b.kernel.attributes["fn"]
    reduce, combine = REDUCE[fn], BINARY[COMBINE[fn]]
    if len(partials) == 1:
        b.copy(partials[0], b.output)
    elif len(partials) == 2:
        b.launch(combine, *partials, out=b.output)
    else:
        stack = b.empty((len(partials), *partials[0].shape), partials[0].dtype)
        b.launch(torch.stack, partials, out=stack)
        b.launch(reduce, stack, (0,), out=b.output)


# Copies: nothing is computed.


def _complexer(b: Binding) -> None:
    """Pairs as complex numbers, or complex numbers as pairs: one copy, whichever it is."""
    (x,) = b.aligned()
    b.copy(x, b.output.view(x.dtype))


def _squeezer(b: Binding) -> None:
    (x,) = b.aligned()
    b.copy(x, b.output)


def _select(b: Binding) -> None:
    pieces = [p for operand in b.kernel.attributes["operands"] for p in b.pieces_of(operand)]
    b.put(pieces, b.output)


def _fill(b: Binding) -> None:
    """One value, or another above the diagonal of the tensor that the block is of."""
    kernel, out = b.kernel, b.output
    value, (*_, rows, columns) = float(kernel.attributes["value"]), (1, 1, *kernel.shapes[0])
    above = float(kernel.attributes.get("above", value))
    first = first_diagonal_above(kernel) if "above" in kernel.attributes else columns
    if not 1 - rows < first < columns:
        b.launch(out.fill_, value if first >= columns else above)
    elif value == 0:
        b.launch(out.fill_, above)
        b.launch(out.triu_, first)
    else:
        mask = b.empty((rows, columns), torch.bool)
        b.launch(mask.fill_, value=True)
        b.launch(mask.triu_, first)
        b.launch(out.fill_, value)
        b.launch(out.masked_fill_, mask, above)


# Tiles of the Cholesky factorisation. Libraries store columns: in and out are seen transposed.


def _potrf(b: Binding) -> None:
    (a,) = b.operands()
    info = b.output.new_empty((), dtype=torch.int32)  # to read it would wait for the device
    b.launch(torch.linalg.cholesky_ex, a.mT, upper=True, out=(b.output.mT, info))


def _trsm(b: Binding) -> None:
    a, lower = b.operands()
    b.launch(torch.linalg.solve_triangular, lower, a.mT, upper=False, out=b.output.mT)


def _syrk(b: Binding) -> None:
    c, a = b.operands()
    b.launch(torch.addmm, c, a, a.mT, alpha=-1, out=b.output)


def _gemm(b: Binding) -> None:
    c, left, right = b.operands()
    b.launch(torch.addmm, c, left, right.mT, alpha=-1, out=b.output)


_KERNELS: dict[str, Callable[[Binding], None]] = {
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
