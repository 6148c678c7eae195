"""Tensor: an operand of a program, and the operations on it: `x @ w1 + b1`."""

from collections.abc import Sequence
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.errors import ProgramError, UnknownNameError
from doppler.graph.ops import OpKind
from doppler.programs.program import REDUCTIONS, Axis, Read

if TYPE_CHECKING:
    from doppler.programs.program_builder import ProgramBuilder


Shape = tuple[int, ...]


class Tensor:
    """The result of an operation, or a transposed or broadcast view of it."""

    def __init__(self, builder: "ProgramBuilder", op: int, dims: tuple[int | None, ...]) -> None:
        self.builder = builder
        self.op = op
        self.dims = dims  # axis of the operation's output behind each axis; None: a new one

    @property
    def shape(self) -> Shape:
        """Sizes of the axes."""
        base = self.builder.ops[self.op].shape
        return tuple(1 if d is None else base[d] for d in self.dims)

    @property
    def dtype(self) -> str:
        """Its dtype."""
        return self.builder.ops[self.op].dtype

    @property
    def name(self) -> str:
        """Name of the operation."""
        return self.builder.ops[self.op].name

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.shape} {self.dtype}>"

    def named(self, name: str) -> "Tensor":
        """Itself, after giving its operation another name."""
        self.builder.rename(self.op, name)
        return self

    # Views: free.

    def transpose(self, *axes: int) -> "Tensor":
        """A view with the axes in another order."""
        if sorted(axes) != list(range(len(self.dims))):
            raise ProgramError(f"`{self.name}`: {axes} is no order of its {len(self.dims)} axes")
        return Tensor(self.builder, self.op, tuple(self.dims[a] for a in axes))

    @property
    def T(self) -> "Tensor":  # noqa: N802
        """A view with the last two axes exchanged."""
        rank = len(self.dims)
        if rank < 2:
            raise ProgramError(f"`{self.name}` has {rank} axes, `.T` needs two")
        return self.transpose(*range(rank - 2), rank - 1, rank - 2)

    def __getitem__(self, key: Any) -> "Tensor":
        """A view with new axes (`x[:, None]`), or a part of the tensor (`x[:, 2:5]`)."""
        items = list(key) if isinstance(key, tuple) else [key]
        rank = sum(item is not None and item is not Ellipsis for item in items)
        if Ellipsis in items:
            at = items.index(Ellipsis)
            items[at : at + 1] = [slice(None)] * (len(self.dims) - rank)
        else:
            items += [slice(None)] * (len(self.dims) - rank)
        if sum(item is not None for item in items) != len(self.dims):
            raise ProgramError(f"`{self.name}` has {len(self.dims)} axes, not those of {key!r}")
        kept = iter(self.dims)
        dims = tuple(None if item is None else next(kept) for item in items)
        parts = [item for item in items if item is not None]
        if all(item == slice(None) for item in parts):
            return Tensor(self.builder, self.op, dims)
        if None in items:
            raise ProgramError(f"`{self.name}`: take a part first, then add axes")
        return _select(self, parts)

    # Elementwise.

    def __add__(self, other: "Tensor | float") -> "Tensor":
        return binary("add", self, other)

    def __sub__(self, other: "Tensor | float") -> "Tensor":
        return binary("sub", self, other)

    def __mul__(self, other: "Tensor | float") -> "Tensor":
        return binary("mul", self, other)

    def __truediv__(self, other: "Tensor | float") -> "Tensor":
        return binary("div", self, other)

    def __radd__(self, other: float) -> "Tensor":
        return self + other

    def __rmul__(self, other: float) -> "Tensor":
        return self * other

    def __neg__(self) -> "Tensor":
        return self * -1.0

    def affine(self, scale: float, shift: float = 0.0, *, name: str = "affine") -> "Tensor":
        """`scale * x + shift`, in one operation."""
        return unary("affine", self, name=name, scale=scale, shift=shift)

    def astype(self, dtype: str, *, name: str = "cast") -> "Tensor":
        """Every element in another dtype."""
        if ("complex" in dtype) != ("complex" in self.dtype):
            raise ProgramError(
                f"`{self.name}`: cannot cast {self.dtype} to {dtype}",
                hint="use to_complex or to_real",
            )
        return unary("cast", self, name=name, dtype=dtype)

    # Contractions and reductions.

    def __matmul__(self, other: "Tensor") -> "Tensor":
        check_tensor(other, "matmul")
        if len(self.dims) != 2 or len(other.dims) != 2:
            raise ProgramError(
                f"`@` takes two matrices, not {self!r} and {other!r}",
                hint="use einsum for more axes",
            )
        return einsum("ij,jk->ik", self, other, name="matmul")

    def sum(self, *axes: int, name: str = "sum") -> "Tensor":
        """The sum over some axes."""
        return reduce("sum", self, axes, name=name)

    def max(self, *axes: int, name: str = "max") -> "Tensor":
        """The maximum over some axes."""
        return reduce("max", self, axes, name=name)

    def min(self, *axes: int, name: str = "min") -> "Tensor":
        """The minimum over some axes."""
        return reduce("min", self, axes, name=name)

    def product(self, *axes: int, name: str = "product") -> "Tensor":
        """The product over some axes."""
        return reduce("product", self, axes, name=name)

    def squeeze(self, axis: int, *, name: str = "squeeze") -> "Tensor":
        """Without an axis of size 1."""
        axis = axis_of(self, axis)
        if self.shape[axis] != 1:
            raise ProgramError(
                f"`{name}`: axis {axis} of `{self.name}` has size {self.shape[axis]}"
            )
        left = [a for a in range(len(self.dims)) if a != axis]
        return _squeezer(self, tuple(self.dims[a] for a in left), name)

    def unsqueeze(self, axis: int, *, name: str = "unsqueeze") -> "Tensor":
        """With a new axis of size 1."""
        axis = axis if axis >= 0 else axis + len(self.dims) + 1
        if not 0 <= axis <= len(self.dims):
            raise ProgramError(f"`{name}`: `{self.name}` has no place for axis {axis}")
        return _squeezer(self, (*self.dims[:axis], None, *self.dims[axis:]), name)


UNARY = ("relu", "exp", "sqrt", "rsqrt", "silu", "gelu", "square", "tanh", "affine", "cast")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "keep_if_at_least", "keep_if_below")


def unary(
    fn: str, x: Tensor, *, name: str | None = None, dtype: str | None = None, **options: float
) -> Tensor:
    """A function of every element."""
    if fn not in UNARY:
        raise UnknownNameError("function", fn, UNARY)
    check_tensor(x, name or fn)
    numbers = {key: json_number(value, name or fn) for key, value in options.items()}
    return x.builder.add(
        OpKind.INPUT_ELEMWISE,
        x.shape,
        dtype or x.dtype,
        [read_of(x, range(len(x.dims)))],
        name=name or fn,
        attributes={"fn": fn, **numbers},
    )


def binary(fn: str, a: Tensor, b: Tensor | float, *, name: str | None = None) -> Tensor:
    """A function of two tensors, element by element, with numpy's broadcasting."""
    if fn not in BINARY:
        raise UnknownNameError("function", fn, BINARY)
    if not isinstance(b, Tensor):
        return _with_number(fn, a, b, name or fn)
    check_pair(a, b, name or fn)
    try:
        shape = tuple(int(n) for n in np.broadcast_shapes(a.shape, b.shape))
    except ValueError:
        raise ProgramError(
            f"`{name or fn}`: shapes {a.shape} of `{a.name}` and {b.shape} of `{b.name}` do not fit"
        ) from None
    straight = a.shape == b.shape
    reads = [read_of(t, range(len(shape) - len(t.dims), len(shape)), shape) for t in (a, b)]
    kind = OpKind.STRAIGHT_ELEMWISE if straight else OpKind.BCAST_ELEMWISE
    return a.builder.add(kind, shape, a.dtype, reads, name=name or fn, attributes={"fn": fn})


def _with_number(fn: str, a: Tensor, b: float, name: str) -> Tensor:
    """A function of a tensor and a number, as one affine operation."""
    check_tensor(a, name)
    if not isinstance(b, Real):
        check_tensor(b, name)
    scale = {"add": 1.0, "sub": 1.0, "mul": b, "div": 1.0 / b if b else 0.0}
    if fn not in scale or (fn == "div" and not b):
        raise ProgramError(f"`{fn}` of `{a.name}` and the number {b}")
    shift = {"add": b, "sub": -b}.get(fn, 0.0)
    return a.affine(scale[fn], shift, name=name)


def einsum(subscripts: str, a: Tensor, b: Tensor, *, name: str = "einsum") -> Tensor:
    """The contraction of two tensors, such as `einsum("bsd,df->bsf", x, w)`."""
    inputs, arrow, output = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if not arrow or len(terms) != 2 or len(set(output)) != len(output):
        raise ProgramError(f"`{name}`: `{subscripts}` is not of the form ij,jk->ik")
    check_pair(a, b, name)
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, (a, b), strict=True):
        if len(term) != len(tensor.shape) or len(set(term)) != len(term):
            raise ProgramError(f"`{name}`: `{term}` does not name the axes of {tensor!r} once each")
        for letter, size in zip(term, tensor.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ProgramError(
                    f"`{name}`: axis `{letter}` is {sizes[letter]} in `{a.name}` {a.shape} "
                    f"and {size} in `{b.name}` {b.shape}"
                )
    if missing := [letter for letter in output if letter not in sizes]:
        raise ProgramError(f"`{name}`: output axis `{missing[0]}` is in no operand")
    aggregated = [letter for letter in sizes if letter not in output]
    position = {letter: i for i, letter in enumerate([*output, *aggregated])}
    if not aggregated:
        raise ProgramError(
            f"`{name}`: `{subscripts}` sums over no axis", hint="use * with broadcasting"
        )
    reads = [
        read_of(tensor, [position[letter] for letter in term])
        for term, tensor in zip(terms, (a, b), strict=True)
    ]
    return a.builder.add(
        OpKind.MATMUL,
        tuple(sizes[letter] for letter in output),
        a.dtype,
        reads,
        name=name,
        aggregated=tuple(sizes[letter] for letter in aggregated),
    )


def reduce(fn: str, x: Tensor, axes: Sequence[int], *, name: str | None = None) -> Tensor:
    """The maximum, minimum, sum or product over some axes."""
    if fn not in REDUCTIONS:
        raise UnknownNameError("reduction", fn, REDUCTIONS)
    gone = sorted({axis_of(x, axis) for axis in axes})
    if not gone:
        raise ProgramError(f"`{name or fn}` of `{x.name}` names no axis to reduce")
    left = [a for a in range(len(x.dims)) if a not in gone]
    position = {a: i for i, a in enumerate(left + gone)}
    return x.builder.add(
        REDUCTIONS[fn],
        tuple(x.shape[a] for a in left),
        x.dtype,
        [read_of(x, [position[a] for a in range(len(x.dims))])],
        name=name or fn,
        aggregated=tuple(x.shape[a] for a in gone),
        attributes={"fn": fn},
    )


def read_of(
    tensor: Tensor,
    joins: Sequence[int],
    shape: Shape | None = None,
    *,
    windows: dict[int, tuple[int, int, int]] | None = None,
    scale: tuple[int, int] = (1, 1),
) -> Read:
    """How an operation reads a tensor whose view axis i lies on join axis `joins[i]`.

    `shape` is the output's, where it broadcasts; `windows` gives (begin, end, offset) of view
    axes of which only a part is read or written; `scale` is that of the last axis.
    """
    base = tensor.builder.ops[tensor.op].shape
    axes = [Axis(None)] * len(base)  # what the view dropped has size 1
    for i, (dim, join) in enumerate(zip(tensor.dims, joins, strict=True)):
        if dim is None:
            continue
        size = base[dim]
        if shape is not None and size == 1 and shape[join] > 1:
            continue  # broadcast
        numerator, denominator = scale if i == len(tensor.dims) - 1 else (1, 1)
        begin, end, offset = (windows or {}).get(i, (0, size * denominator // numerator, 0))
        axes[dim] = Axis(join, begin, end, offset, numerator, denominator)
    return Read(tensor.op, tuple(axes))


def _select(x: Tensor, parts: list[Any]) -> Tensor:
    check_no_view(x, "select")
    windows, shape = {}, []
    for axis, (part, size) in enumerate(zip(parts, x.shape, strict=True)):
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise ProgramError(f"`{x.name}`: select takes slices without a step, not {part!r}")
        start, stop, _ = part.indices(size)
        if start >= stop:
            raise ProgramError(
                f"`{x.name}`: {part!r} of axis {axis}, which has size {size}, is empty"
            )
        windows[axis] = (0, stop - start, start)
        shape.append(stop - start)
    read = read_of(x, range(len(shape)), windows=windows)
    return x.builder.add(OpKind.SELECT, tuple(shape), x.dtype, [read], name="select")


def check_no_view(x: Tensor, name: str) -> None:
    """Raise if a tensor is a transposed or broadcast view."""
    if x.dims != tuple(range(len(x.dims))):
        raise ProgramError(
            f"`{name}`: `{x.name}` is a transposed or broadcast view",
            hint="use the result of the operation itself, and take the view after",
        )


def check_tensor(x: object, name: str) -> None:
    """Raise unless the operand of an operation is a tensor."""
    if not isinstance(x, Tensor):
        raise ProgramError(
            f"`{name}` of {x!r}, which is not a tensor of the program",
            hint="numbers can be added and multiplied; make an array an input of the program",
        )


def json_number(value: float, name: str) -> float | str:
    """The number, or `inf`, `-inf` or `nan` as a text: JSON, which attributes are, has no such."""
    if not isinstance(value, Real):
        raise ProgramError(f"`{name}`: {value!r} is not a real number")
    return float(value) if isfinite(value) else str(float(value))


def check_pair(a: Tensor, b: Tensor, name: str) -> None:
    """Raise unless two tensors are of one program and one dtype."""
    for x in (a, b):
        check_tensor(x, name)
    if a.builder is not b.builder:
        raise ProgramError(f"`{name}`: `{a.name}` and `{b.name}` are of different programs")
    if a.dtype != b.dtype:
        raise ProgramError(
            f"`{name}`: `{a.name}` is {a.dtype}, `{b.name}` is {b.dtype}",
            hint="cast one with .astype",
        )


def _squeezer(x: Tensor, dims: tuple[int | None, ...], name: str) -> Tensor:
    view = Tensor(x.builder, x.op, dims)
    read = read_of(view, range(len(dims)))
    return x.builder.add(OpKind.SQUEEZER, view.shape, x.dtype, [read], name=name)


def axis_of(x: Tensor, axis: int) -> int:
    """The number of an axis, counted from the front."""
    rank = len(x.dims)
    if not -rank <= axis < rank:
        raise ProgramError(f"`{x.name}` has {rank} axes, and no axis {axis}")
    return axis % rank
