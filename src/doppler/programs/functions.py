"""Functions of tensors that are no methods: `relu(x)`, `softmax(x)`, `concat([x, y], 0)`."""

from collections.abc import Sequence

from doppler.errors import ProgramError
from doppler.graph.ops import OpKind
from doppler.programs.tensor import (
    Tensor,
    axis_of,
    binary,
    check_no_view,
    check_pair,
    check_tensor,
    read_of,
    unary,
)

COMPLEX_OF = {"float32": "complex64", "float64": "complex128"}
REAL_OF = {value: key for key, value in COMPLEX_OF.items()}


def concat(tensors: Sequence[Tensor], axis: int, *, name: str = "concat") -> Tensor:
    """The tensors one after the other along an axis."""
    if not tensors:
        raise ProgramError(f"`{name}` of no tensors")
    first = tensors[0]
    check_tensor(first, name)
    axis = axis_of(first, axis)
    for other in tensors:
        check_pair(first, other, name)
        check_no_view(other, name)
        same = [n for i, n in enumerate(other.shape) if i != axis]
        if same != [n for i, n in enumerate(first.shape) if i != axis]:
            raise ProgramError(f"`{name}`: {other!r} does not fit {first!r} but for axis {axis}")
    total = sum(t.shape[axis] for t in tensors)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    reads, begin = [], 0
    for tensor in tensors:
        size = tensor.shape[axis]
        reads.append(read_of(tensor, range(len(shape)), windows={axis: (begin, begin + size, 0)}))
        begin += size
    return first.builder.add(OpKind.SELECT, shape, first.dtype, reads, name=name)


def to_complex(x: Tensor, *, name: str = "to_complex") -> Tensor:
    """Pairs along the last axis as complex numbers."""
    if x.dtype not in COMPLEX_OF or not x.shape or x.shape[-1] % 2:
        raise ProgramError(
            f"`{name}`: {x!r} has no pairs of {' or '.join(COMPLEX_OF)} along its last axis"
        )
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    read = read_of(x, range(len(shape)), scale=(2, 1))
    return x.builder.add(OpKind.COMPLEXER, shape, COMPLEX_OF[x.dtype], [read], name=name)


def to_real(x: Tensor, *, name: str = "to_real") -> Tensor:
    """Complex numbers as pairs along the last axis."""
    if x.dtype not in REAL_OF or not x.dims or x.dims[-1] is None:
        raise ProgramError(f"`{name}`: {x!r} has no complex numbers along its last axis")
    shape = (*x.shape[:-1], x.shape[-1] * 2)
    read = read_of(x, range(len(shape)), scale=(1, 2))
    return x.builder.add(OpKind.COMPLEXER, shape, REAL_OF[x.dtype], [read], name=name)


def relu(x: Tensor, *, name: str = "relu") -> Tensor:
    """max(x, 0)."""
    return unary("relu", x, name=name)


def exp(x: Tensor, *, name: str = "exp") -> Tensor:
    """The exponential."""
    return unary("exp", x, name=name)


def softmax(x: Tensor, *, prefix: str = "") -> Tensor:
    """Softmax over the last axis: max, subtract, exp, sum, divide."""
    shifted = binary("sub", x, x.max(-1, name=f"{prefix}max")[..., None], name=f"{prefix}sub")
    powers = exp(shifted, name=f"{prefix}exp")
    total = powers.sum(-1, name=f"{prefix}sum")
    return binary("div", powers, total[..., None], name=f"{prefix}div")
