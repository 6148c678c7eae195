"""Cuts: into how many pieces the join axes of an operation are cut, and what a cut costs."""

from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import TypeVar

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.programs.program import Axis, Op

Key = TypeVar("Key", bound=Hashable)
Cut = tuple[int, ...]  # pieces of each join axis
Points = tuple[frozenset[int], ...]  # positions at which each axis of an output is cut


def divides(op: Op, cut: Cut) -> bool:
    """Whether every piece has the same size, and none splits a complex number or a whole axis."""
    return _fits(op.join, _units(op), cut)


def _units(op: Op) -> list[int]:
    """Along each join axis, the elements that stay together."""
    unit = [n if j in op.whole else 1 for j, n in enumerate(op.join)]
    for read in op.reads:
        for axis in read.axes:
            if axis.join is not None:
                unit[axis.join] = max(unit[axis.join], axis.denominator)
    return unit


def _fits(join: Sequence[int], units: Sequence[int], cut: Cut) -> bool:
    return all(c >= 1 and n % (c * u) == 0 for n, c, u in zip(join, cut, units, strict=True))


def candidates(op: Op, parts: int) -> list[Cut]:
    """The cuts to choose from: even, in powers of two, in the order that breaks ties.

    The product is exactly `parts` for a contraction and at most that for anything else; larger
    products come first, then cuts of the first axis.
    """
    exponent = parts.bit_length() - 1
    totals = [exponent] if op.is_contraction else range(exponent, -1, -1)
    axes = [j for j in range(len(op.join)) if j not in op.whole]
    cuts = []
    for total in totals:
        for exponents in _compositions(total, len(axes)):
            pieces = {j: 1 << e for j, e in zip(axes, exponents, strict=True)}
            cuts.append(tuple(pieces.get(j, 1) for j in range(len(op.join))))
    units = _units(op)
    return [cut for cut in cuts if _fits(op.join, units, cut)]


def _compositions(total: int, length: int) -> list[tuple[int, ...]]:
    """Ways to spread a total over places; the last place counts up slowest."""
    if length == 0:
        return [()] if total == 0 else []
    if length == 1:
        return [(total,)]
    return [
        (*rest, last)
        for last in range(total + 1)
        for rest in _compositions(total - last, length - 1)
    ]


def contraction_cost(op: Op, cut: Cut, parts: int) -> float:
    """Elements moved to cut a contraction this way: inputs copied, partial outputs summed."""
    if not op.is_contraction:
        return 0.0
    factor = 2 if "complex" in op.dtype else 1
    cost = 0.0
    for read in op.reads:
        joins = [axis.join for axis in read.axes if axis.join is not None]
        size, blocks = prod(op.join[j] for j in joins), prod(cut[j] for j in joins)
        cost += factor * size * (parts / blocks)
    blocks = prod(cut[: len(op.shape)])
    return cost + op.size / blocks * (parts - blocks)


def cut_points(axis: Axis, join: tuple[int, ...], cut: Cut) -> frozenset[int]:
    """Where a reader's even cut of its join axis falls on the axis it reads."""
    if axis.join is None:
        return frozenset()
    step = join[axis.join] // cut[axis.join]
    ranges = [axis.region(i * step, (i + 1) * step) for i in range(cut[axis.join])]
    return frozenset(point for r in ranges if r is not None for point in r)


def distinct(items: Sequence[Key]) -> tuple[list[Key], IntArray]:
    """Distinct items in order of appearance, and which of them each item is."""
    number: dict[Key, int] = {}
    which = [number.setdefault(item, len(number)) for item in items]
    return list(number), np.array(which, np.int64)


def repartition_costs(
    op: Op, pieces: list[Cut], needs: list[list[Points]], rest: list[Points]
) -> FloatArray:
    """(K, G1, G2, …) elements moved to bring an output from its own cut to what is needed.

    For each own cut, and each need of every child in `needs`; `rest` are needs that are given.
    Nothing where the union of all needs is the own cut; otherwise the largest own and the largest
    needed block, once for every block of the finer of the two cuts along each axis.
    """
    shape = (len(pieces), *(len(need) for need in needs))
    own_block, needed_block = np.ones(shape), np.ones(shape)
    blocks, same = np.ones(shape), np.ones(shape, np.bool_)
    for dim, size in enumerate(op.shape):
        cuts, cut_of = distinct([cut[dim] for cut in pieces])
        points = [distinct([point[dim] for point in need]) for need in needs]
        always = frozenset({0, size}).union(*(point[dim] for point in rest))
        tables = _axis_tables(size, tuple(cuts), tuple(tuple(sets) for sets, _ in points), always)
        at = np.ix_(cut_of, *(which for _, which in points))
        own_block *= tables[0][at]
        needed_block *= tables[1][at]
        blocks *= tables[2][at]
        same &= tables[3][at].astype(np.bool_)
    factor = 2 if "complex" in op.dtype else 1
    return np.where(same, 0.0, factor * (own_block + needed_block) * blocks)


@lru_cache(maxsize=4096)  # layers are alike
def _axis_tables(
    size: int,
    cuts: tuple[int, ...],
    sets: tuple[tuple[frozenset[int], ...], ...],
    always: frozenset[int],
) -> list[FloatArray]:
    """For one axis, by own cut and each child's points: own and needed block, pieces, equality."""
    shape = (len(cuts), *(len(points) for points in sets))
    tables = [np.zeros(shape) for _ in range(4)]
    owns = [frozenset(range(0, size + 1, size // cut)) for cut in cuts]
    for index in np.ndindex(*shape):
        own = owns[index[0]]
        needed = always.union(*(points[i] for points, i in zip(sets, index[1:], strict=True)))
        largest = max(b - a for a, b in pairwise(sorted(needed)))
        values = (size // cuts[index[0]], largest, max(len(own), len(needed)) - 1, own == needed)
        for table, value in zip(tables, values, strict=True):
            table[index] = value
    return tables
