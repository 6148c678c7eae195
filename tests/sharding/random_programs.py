"""Random programs of every kind of operation, and random cuts of them.

All values are whole numbers below 2⁵³, so that every order of summation gives the same bits.
"""

from itertools import permutations
from math import prod

import numpy as np
from hypothesis import strategies as st
from strategies import one_of, pick

from doppler.graph.ops import OpKind
from doppler.programs import (
    Op,
    Program,
    ProgramBuilder,
    Tensor,
    binary,
    concat,
    einsum,
    reduce,
    to_complex,
    to_real,
    unary,
)

LARGEST_INPUT = 2
LARGEST = 2**40
MAX_ELEMENTS = 4096
INPUT_SHAPES = st.lists(st.sampled_from([1, 2, 4, 8, 2, 4]), min_size=1, max_size=3)
FILL_SHAPES = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=2, max_size=3)
ORDERS = [st.permutations(range(rank)) for rank in range(5)]


class _Pool:
    """The tensors made so far, each with a bound on its absolute values."""

    def __init__(self, draw: st.DrawFn, parts: int, method: str) -> None:
        self.draw, self.parts, self.method = draw, parts, method
        self.builder = ProgramBuilder("random", dtype="float64")
        self.tensors: list[Tensor] = []
        self.bounds: list[int] = []  # by number of the operation

    def put(self, tensor: Tensor, bound: int) -> None:
        self.tensors.append(tensor)
        self.bounds.append(bound)

    def take(self, *, view: bool = True) -> Tensor:
        """One of the tensors, the latest more often, transposed or with a new axis."""
        latest = self.draw(st.booleans())
        tensor = pick(self.draw, self.tensors[-2:] if latest else self.tensors)
        return self.viewed(tensor) if view else tensor

    def viewed(self, tensor: Tensor) -> Tensor:
        rank = len(tensor.shape)
        if rank > 1 and self.draw(st.booleans()):
            tensor = tensor.transpose(*self.draw(ORDERS[rank]))
        if rank < 3 and self.draw(one_of(False, False, True)):
            at = self.draw(st.integers(0, rank))
            key = (slice(None),) * at + (None,)
            tensor = tensor[key]
        return tensor

    def can_cut(self, join: list[int], output: list[int]) -> bool:
        """Whether the method can cut a contraction into that many parts."""
        if self.method == "even":
            return self.parts == 1 or any(size % self.parts == 0 for size in output)
        return prod(size & -size for size in join) >= self.parts

    def bound(self, tensor: Tensor) -> int:
        return self.bounds[tensor.op]


def _add_input(pool: _Pool) -> None:
    shape = pool.draw(INPUT_SHAPES)
    dtype = pool.draw(one_of(*["float64"] * 4, "complex128"))
    tensor = pool.builder.input(f"x{len(pool.tensors)}", shape, dtype=dtype)
    pool.put(tensor, LARGEST_INPUT)


def _add_fill(pool: _Pool) -> None:
    shape = pool.draw(FILL_SHAPES)
    above = pool.draw(one_of(None, -2.0))
    pool.put(pool.builder.fill(shape, 1.0, above=above), 2)


def _add_unary(pool: _Pool) -> None:
    x = pool.take()
    real = "complex" not in x.dtype
    fn = pool.draw(one_of("affine", "square", *(["relu"] if real else [])))
    bound = {"affine": 2 * pool.bound(x) + 1, "square": 2 * pool.bound(x) ** 2}
    if bound.get(fn, 0) <= LARGEST:
        options = {"scale": -2.0, "shift": 1.0} if fn == "affine" else {}
        pool.put(unary(fn, x, **options), bound.get(fn, pool.bound(x)))


def _add_binary(pool: _Pool) -> None:
    a = pool.take()
    b = pick(pool.draw, _partners(pool, a))
    functions = ["add", "sub", "mul"]
    if "complex" not in a.dtype:
        functions += ["maximum", "minimum", "keep_if_at_least"]
    fn = pick(pool.draw, functions)
    one, two = pool.bound(a), pool.bound(b)
    bound = 2 * one * two if fn == "mul" else one + two
    if bound <= LARGEST:
        pool.put(binary(fn, a, b), bound)


def _partners(pool: _Pool, a: Tensor) -> list[Tensor]:
    """Views of the tensors, `a` among them, that can be broadcast against `a`."""
    found = [a]
    for tensor in pool.tensors:
        orders = permutations(range(len(tensor.shape)))
        for view in [tensor.transpose(*order) for order in orders]:
            pairs = list(zip(a.shape[::-1], view.shape[::-1], strict=False))
            sizes = [max(pair) for pair in pairs]
            if (
                view.dtype == a.dtype
                and all(1 in pair or pair[0] == pair[1] for pair in pairs)
                and prod(sizes) * prod(a.shape) <= MAX_ELEMENTS
            ):
                found.append(view)
    return found


def _add_einsum(pool: _Pool) -> None:
    a, b = pool.take(), pool.take()
    letters = iter("abcdefgh")
    first = [next(letters) for _ in a.shape]
    sizes = dict(zip(first, a.shape, strict=True))
    second: list[str] = []
    for size in b.shape:
        same = [x for x in first if sizes[x] == size and x not in second]
        fresh = next(letters)
        letter = pick(pool.draw, [*same, fresh])
        second.append(letter)
        sizes[letter] = size
    if not sizes:
        return
    letters_of = list(sizes)
    kept = st.lists(st.integers(0, len(sizes) - 1), unique=True, max_size=3)
    output = [letters_of[i] for i in pool.draw(kept)]
    aggregated = prod(size for letter, size in sizes.items() if letter not in output)
    bound = 2 * pool.bound(a) * pool.bound(b) * aggregated
    if (
        a.dtype == b.dtype
        and len(output) < len(sizes)
        and bound <= LARGEST
        and prod(sizes.values()) <= MAX_ELEMENTS
        and pool.can_cut(list(sizes.values()), [sizes[letter] for letter in output])
    ):
        subscripts = f"{''.join(first)},{''.join(second)}->{''.join(output)}"
        pool.put(einsum(subscripts, a, b), bound)


def _add_reduction(pool: _Pool) -> None:
    x = pool.take()
    if not x.shape:
        return
    axes = pool.draw(st.lists(st.integers(-len(x.shape), len(x.shape) - 1), min_size=1, max_size=2))
    count = prod(x.shape[axis] for axis in {axis % len(x.shape) for axis in axes})
    real = "complex" not in x.dtype
    fn = pool.draw(one_of("sum", "product", *(["max", "min"] if real else [])))
    bound = {"sum": count * pool.bound(x), "product": (2 * pool.bound(x)) ** count}
    if bound.get(fn, 0) <= LARGEST:
        pool.put(reduce(fn, x, axes), bound.get(fn, pool.bound(x)))


def _add_slice(pool: _Pool) -> None:
    x = pool.take(view=False)
    key = []
    for size in x.shape:
        length = pick(pool.draw, [size, *(n for n in (1, 2, 3, 4) if n < size)])
        start = pool.draw(st.integers(0, size - length))
        key.append(slice(start, start + length))
    part = x[tuple(key)]
    if part.op != x.op:
        pool.put(part, pool.bound(x))


def _add_concat(pool: _Pool) -> None:
    x = pool.take(view=False)
    if not x.shape:
        return
    axis = pool.draw(st.integers(0, len(x.shape) - 1))
    fitting = [
        t
        for t in pool.tensors
        if t.dtype == x.dtype and _without(t.shape, axis) == _without(x.shape, axis)
    ]
    chosen = st.lists(st.integers(0, len(fitting) - 1), min_size=1, max_size=2)
    more = [fitting[i] for i in pool.draw(chosen)]
    if prod(x.shape) * (1 + len(more)) <= MAX_ELEMENTS:
        pool.put(concat([x, *more], axis), max(pool.bound(t) for t in [x, *more]))


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], -1, *shape[axis + 1 :]) if axis < len(shape) else (*shape, -2)


def _add_squeezer(pool: _Pool) -> None:
    x = pool.take()
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    if ones and pool.draw(st.booleans()):
        pool.put(x.squeeze(pick(pool.draw, ones)), pool.bound(x))
    elif len(x.shape) < 3:
        pool.put(x.unsqueeze(pool.draw(st.integers(0, len(x.shape)))), pool.bound(x))


def _add_complexer(pool: _Pool) -> None:
    x = pool.take()
    if x.dtype == "complex128" and x.dims and x.dims[-1] is not None:
        pool.put(to_real(x), pool.bound(x))
    elif x.dtype == "float64" and x.shape and x.shape[-1] % 2 == 0:
        pool.put(to_complex(x), pool.bound(x))


_ADD = [_add_einsum, _add_einsum, _add_binary, _add_binary, _add_reduction, _add_slice, _add_unary]
_ADD += [_add_concat, _add_squeezer, _add_complexer, _add_fill]


@st.composite
def programs(
    draw: st.DrawFn, *, max_ops: int = 8, parts: int = 1, method: str = "paper"
) -> Program:
    """A program over 1 to 4 inputs whose contractions a method can cut into `parts`.

    Its outputs are the last operation, and maybe some before it, whether they are read or not.
    """
    pool = _Pool(draw, parts, method)
    for _ in range(draw(st.integers(1, 4))):
        _add_input(pool)
    fewest = draw(st.integers(1, max_ops))
    for add in draw(st.lists(one_of(*_ADD), min_size=fewest, max_size=max_ops)):
        add(pool)
    chosen = draw(st.lists(st.integers(0, len(pool.tensors) - 1), max_size=2, unique=True))
    others = {pool.tensors[i].op: pool.tensors[i] for i in chosen}
    last = pool.tensors[-1]
    return pool.builder.build(*(t for op, t in others.items() if op != last.op), last)


_TANGLE = [lambda x, y: x + y, lambda x, y: x @ y, lambda x, _: -x]


@st.composite
def tangles(draw: st.DrawFn, *, max_ops: int = 12) -> Program:
    """A program of square matrices that read each other in all ways: its trees are entangled."""
    b = ProgramBuilder("tangle")
    tensors = [b.input(f"x{i}", (4, 4)) for i in range(draw(st.integers(1, 4)))]
    for _ in range(draw(st.integers(1, max_ops))):
        one, two = (pick(draw, tensors) for _ in range(2))
        two = two.T if draw(st.booleans()) else two
        tensors.append(draw(one_of(*_TANGLE))(one, two))
    return b.build(tensors[-1])


def whole_inputs(program: Program, seed: int) -> dict[str, np.ndarray]:
    """Whole numbers of at most `LARGEST_INPUT` for every input."""
    rng = np.random.default_rng(seed)
    values = {}
    for op in program.ops:
        if op.kind == OpKind.INPUT:
            low, high = -LARGEST_INPUT, LARGEST_INPUT
            value = rng.integers(low, high, op.shape, endpoint=True).astype(op.dtype)
            if "complex" in op.dtype:  # |re| + |im| stays below the bound
                value = value * rng.choice([1, 1j], op.shape)
            values[op.name] = value
    return values


@st.composite
def cuts_of(draw: st.DrawFn, op: Op, *, max_blocks: int = 16) -> tuple[int, ...]:
    """Pieces of each join axis: divisors, up to `max_blocks` in all, no complex number split."""
    cut: list[int] = []
    for axis, size in enumerate(op.join):
        if any(a.join == axis and a.denominator == 2 for read in op.reads for a in read.axes):
            size //= 2
        room = max_blocks // prod(cut)
        cut.append(pick(draw, [n for n in range(1, room + 1) if size % n == 0]))
    return tuple(cut)


@st.composite
def cut_programs(draw: st.DrawFn) -> tuple[Program, dict[str, tuple[int, ...]]]:
    """A program and a cut for every operation of it."""
    program = draw(programs())
    return program, {op.name: draw(cuts_of(op)) for op in program.ops}
