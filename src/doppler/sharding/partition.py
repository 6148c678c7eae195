"""Partitioner: into how many pieces each axis of each operation is cut.

`paper` minimises the elements moved, as the paper's own partitioner does: contractions are cut
into exactly `parts` pieces, everything else into at most that many, and cutting a tensor otherwise
than its readers need costs a repartition. `even` cuts the first axis that can be cut (batch, rows)
and nothing else. Cuts given by hand override either.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from doppler.arrays import FloatArray, IntArray
from doppler.errors import ShardingError, UnknownNameError
from doppler.graph.ops import OpKind
from doppler.programs.program import Axis, Op, Program, Read

Cut = tuple[int, ...]  # pieces of each join axis
FREE_CHILDREN = 2  # consumers whose cuts are chosen jointly with their producer's


def partition(
    program: Program,
    parts: int,
    *,
    method: str = "paper",
    partitions: Mapping[str, Sequence[int]] | None = None,
) -> list[Cut]:
    """The cut of every operation's join axes, for `parts` pieces.

    `method` is `paper` or `even`; `partitions` fixes cuts by the operations' names.
    """
    if parts < 1:
        raise ShardingError(f"parts is {parts}, must be at least 1")
    fixed = _fixed_cuts(program, partitions or {})
    if method not in METHODS:
        raise UnknownNameError("partition method", method, METHODS)
    return METHODS[method](program, parts, fixed)


def _fixed_cuts(program: Program, partitions: Mapping[str, Sequence[int]]) -> dict[int, Cut]:
    numbers = {op.name: i for i, op in enumerate(program.ops)}
    fixed: dict[int, Cut] = {}
    for name, cut in partitions.items():
        if name not in numbers:
            raise UnknownNameError("operation", name, numbers)
        op = program.ops[numbers[name]]
        if len(cut) != len(op.join):
            raise ShardingError(
                f"`{name}`: cut {tuple(cut)} has {len(cut)} numbers for {len(op.join)} axes",
                hint=f"its join axes are {op.join}: those of the output, then the aggregated",
            )
        if not _divides(op, tuple(cut)):
            raise ShardingError(
                f"`{name}`: cut {tuple(cut)} does not divide its axes {op.join} evenly"
            )
        fixed[numbers[name]] = tuple(cut)
    return fixed


def _divides(op: Op, cut: Cut) -> bool:
    """Whether every piece has the same size, and no piece splits a complex number."""
    unit = [1] * len(cut)
    for axis in (axis for read in op.reads for axis in read.axes):
        if axis.join is not None:
            unit[axis.join] = max(unit[axis.join], axis.denominator)
    return all(c >= 1 and n % (c * u) == 0 for n, c, u in zip(op.join, cut, unit, strict=True))


# --- even ---------------------------------------------------------------------------------------


def even_cuts(program: Program, parts: int, fixed: Mapping[int, Cut]) -> list[Cut]:
    """The first output axis that divides into `parts` is cut, inputs as finely as they are read."""
    cuts: list[Cut] = []
    for number, op in enumerate(program.ops):
        cuts.append(fixed.get(number) or _first_axis_cut(op, parts))
    for number, readers in enumerate(program.consumers()):
        op = program.ops[number]
        if op.kind == OpKind.INPUT and number not in fixed:
            needed = [_even_need(op, program.ops[c], r, cuts[c]) for c, r in readers]
            finest = tuple(max(n) for n in zip(*needed, strict=True)) if needed else (1,) * len(op.join)
            cuts[number] = finest if _divides(op, finest) else (1,) * len(op.join)
    return cuts


def _first_axis_cut(op: Op, parts: int) -> Cut:
    for axis in range(len(op.shape)):
        cut = tuple(parts if i == axis else 1 for i in range(len(op.join)))
        if _divides(op, cut):
            return cut
    return (1,) * len(op.join)


def _even_need(op: Op, reader: Op, read: Read, cut: Cut) -> Cut:
    """Pieces of each axis of `op` that a reader's cut asks for; 1 where it reads only a part."""
    whole = [
        axis.join is not None and axis.end - axis.begin == reader.join[axis.join]
        for axis in read.axes
    ]
    return tuple(
        cut[axis.join] if axis.join is not None and w else 1
        for axis, w in zip(read.axes, whole, strict=True)
    )


# --- paper --------------------------------------------------------------------------------------


def paper_cuts(program: Program, parts: int, fixed: Mapping[int, Cut]) -> list[Cut]:
    """The cuts of least cost, found tree by tree (see `Trees`), downstream first."""
    if parts & (parts - 1):
        raise ShardingError(
            f"parts is {parts}; the `paper` partitioner cuts in powers of two",
            hint="choose 2, 4, 8, …, or method `even`",
        )
    return _Solver(program, parts, fixed).solve()


def candidates(op: Op, parts: int) -> list[Cut]:
    """The cuts to choose from: even, in powers of two, in the order that breaks ties.

    The product is exactly `parts` for a contraction and at most that for anything else; larger
    products come first, then cuts of the first axis.
    """
    exponent = parts.bit_length() - 1
    totals = [exponent] if op.is_contraction else range(exponent, -1, -1)
    cuts = [
        tuple(1 << e for e in exponents)
        for total in totals
        for exponents in _compositions(total, len(op.join))
    ]
    return [cut for cut in cuts if _divides(op, cut)]


def _compositions(total: int, length: int) -> list[tuple[int, ...]]:
    """Ways to spread a total over places; the last place counts up slowest."""
    if length == 0:
        return [()] if total == 0 else []
    if length == 1:
        return [(total,)]
    return [
        (*rest, last) for last in range(total + 1) for rest in _compositions(total - last, length - 1)
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


class _Solver:
    """Chooses the cuts tree by tree.

    Trees grow from the inputs downstream: a consumer joins its producer's tree unless another of
    its producers is in that tree or downstream of it, so that within a tree each operation but
    the root depends on one other. The last trees are solved first. Within a tree, from the
    leaves to the root, the best cost of each cut of an operation is found over the cuts of its
    consumers in the tree; those elsewhere are known. Of more than two consumers in the tree only
    the two of lowest number are chosen jointly, the others take their own best.
    """

    def __init__(self, program: Program, parts: int, fixed: Mapping[int, Cut]) -> None:
        self.program, self.parts = program, parts
        self.consumers = program.consumers()
        self.options = [
            [fixed[i]] if i in fixed else candidates(op, parts) for i, op in enumerate(program.ops)
        ]
        for op, options in zip(program.ops, self.options, strict=True):
            if not options:
                raise ShardingError(
                    f"`{op.name}` cannot be cut into {parts} even parts: its join axes are {op.join}",
                    hint="choose fewer parts, or sizes with more factors of two",
                )
        self.cuts: dict[int, Cut] = {}
        self._points_cache: dict[Any, _Points] = {}

    def solve(self) -> list[Cut]:
        """The cut of every operation."""
        tree_of, children = grow_trees(self.program, self.consumers)
        for root in _downstream_first(self.consumers, tree_of):
            self._solve_tree(root, children)
        return [self.cuts[i] for i in range(len(self.program.ops))]

    def _solve_tree(self, root: int, children: list[list[int]]) -> None:
        order = [root]
        for op in order:
            order += children[op]
        costs: dict[int, FloatArray] = {}
        chosen: dict[int, list[dict[int, int]]] = {}
        for op in reversed(order):
            costs[op], chosen[op] = self._best(op, sorted(children[op]), costs)
        picks = {root: int(np.argmin(costs[root]))}
        for op in order:
            self.cuts[op] = self.options[op][picks[op]]
            picks |= chosen[op][picks[op]]

    def _best(
        self, number: int, children: list[int], costs: dict[int, FloatArray]
    ) -> tuple[FloatArray, list[dict[int, int]]]:
        """For each cut of an operation: its least cost with all below it, and its children's cuts."""
        op, options = self.program.ops[number], self.options[number]
        own = np.array([contraction_cost(op, cut, self.parts) for cut in options])
        free, frozen = children[:FREE_CHILDREN], children[FREE_CHILDREN:]
        alone = {child: int(np.argmin(costs[child])) for child in frozen}
        own += sum(costs[child][pick] for child, pick in alone.items())

        needs: list[list[_Points]] = []  # of each free child, by its cuts
        rest: list[_Points] = []  # of consumers whose cut is known
        for consumer, reads in self._readers(number):
            if consumer in free:
                needs.append([self._points(number, consumer, reads, c) for c in self.options[consumer]])
            elif consumer in alone:
                cut = self.options[consumer][alone[consumer]]
                rest.append(self._points(number, consumer, reads, cut))
            else:
                rest.append(self._points(number, consumer, reads, self.cuts[consumer]))
        if not needs and not rest:
            return own, [{} for _ in options]

        pieces, row_of = _distinct([cut[: len(op.shape)] for cut in options])
        groups = [_grouped(points, costs[child]) for points, child in zip(needs, free, strict=True)]
        total = repartition_costs(op, pieces, [group.points for group in groups], rest)
        for axis, group in enumerate(groups):
            total += group.cost.reshape([-1 if a == axis + 1 else 1 for a in range(total.ndim)])
        flat = total.reshape(len(pieces), -1)
        first = flat.argmin(axis=1)
        picks = np.unravel_index(first, total.shape[1:]) if groups else ()
        best = flat[np.arange(len(pieces)), first]
        chosen = [
            alone
            | {
                child: int(group.option[pick[row]])
                for child, group, pick in zip(free, groups, picks, strict=True)
            }
            for row in row_of
        ]
        return own + best[row_of], chosen

    def _readers(self, number: int) -> list[tuple[int, list[Read]]]:
        """Who reads an operation, ascending, each with all its reads."""
        readers: dict[int, list[Read]] = {}
        for consumer, read in self.consumers[number]:
            readers.setdefault(consumer, []).append(read)
        return sorted(readers.items())

    def _points(self, number: int, consumer: int, reads: list[Read], cut: Cut) -> "_Points":
        """Where a consumer's cut cuts each axis of an operation's output."""
        shape, reader = self.program.ops[number].shape, self.program.ops[consumer]
        key = (shape, reader.join, tuple(reads_axes(reads)), cut)
        if key not in self._points_cache:
            points = []
            for dim in range(len(shape)):
                axes = [read.axes[dim] for read in reads]
                points.append(frozenset().union(*(_cut_points(a, reader.join, cut) for a in axes)))
            self._points_cache[key] = tuple(points)
        return self._points_cache[key]


_Points = tuple[frozenset[int], ...]  # positions at which each axis is cut


def reads_axes(reads: list[Read]) -> list[tuple[Axis, ...]]:
    """The axes of some reads, without whose they are."""
    return [read.axes for read in reads]


def _cut_points(axis: Axis, join: tuple[int, ...], cut: Cut) -> frozenset[int]:
    """Where a reader's even cut of its join axis falls on the axis it reads."""
    if axis.join is None:
        return frozenset()
    step = join[axis.join] // cut[axis.join]
    ranges = [axis.region(i * step, (i + 1) * step) for i in range(cut[axis.join])]
    return frozenset(point for r in ranges if r is not None for point in r)


@dataclass(frozen=True, slots=True)
class _Group:
    """The cuts of a child that ask the same of its producer, each represented by the cheapest."""

    points: list[_Points]  # in the order of `option`
    cost: FloatArray  # (G,) least cost among the cuts of a group
    option: IntArray  # (G,) the first cut that has it


def _grouped(points: list[_Points], cost: FloatArray) -> _Group:
    best: dict[_Points, int] = {}
    for option, point in enumerate(points):
        if point not in best or cost[option] < cost[best[point]]:
            best[point] = option
    option = np.array(sorted(best.values()), np.int64)
    return _Group([points[i] for i in option], cost[option], option)


def _distinct(rows: list[Cut]) -> tuple[list[Cut], IntArray]:
    """Distinct rows in order of appearance, and which of them each row is."""
    number: dict[Cut, int] = {}
    row_of = [number.setdefault(row, len(number)) for row in rows]
    return list(number), np.array(row_of, np.int64)


def repartition_costs(
    op: Op, pieces: list[Cut], needs: list[list[_Points]], rest: list[_Points]
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
        cuts, cut_of = _distinct([(cut[dim],) for cut in pieces])
        sets, indices = [], []
        for need in needs:
            points, point_of = _distinct_points([point[dim] for point in need])
            sets.append(points)
            indices.append(point_of)
        always = frozenset({0, size}).union(*(point[dim] for point in rest))
        tables = _axis_tables(size, [cut[0] for cut in cuts], sets, always)
        at = np.ix_(cut_of, *indices)
        own_block *= tables[0][at]
        needed_block *= tables[1][at]
        blocks *= tables[2][at]
        same &= tables[3][at].astype(np.bool_)
    factor = 2 if "complex" in op.dtype else 1
    return np.where(same, 0.0, factor * (own_block + needed_block) * blocks)


def _distinct_points(points: list[frozenset[int]]) -> tuple[list[frozenset[int]], IntArray]:
    number: dict[frozenset[int], int] = {}
    index = [number.setdefault(point, len(number)) for point in points]
    return list(number), np.array(index, np.int64)


def _axis_tables(
    size: int, cuts: list[int], sets: list[list[frozenset[int]]], always: frozenset[int]
) -> list[FloatArray]:
    """For one axis, by own cut and each child's points: own and needed block, pieces, equality."""
    shape = (len(cuts), *(len(points) for points in sets))
    tables = [np.zeros(shape) for _ in range(4)]
    for index in np.ndindex(*shape):
        own = frozenset(range(0, size + 1, size // cuts[index[0]]))
        needed = always.union(*(points[i] for points, i in zip(sets, index[1:], strict=True)))
        largest = max(b - a for a, b in pairwise(sorted(needed)))
        values = (size // cuts[index[0]], largest, max(len(own), len(needed)) - 1, own == needed)
        for table, value in zip(tables, values, strict=True):
            table[index] = value
    return tables


def grow_trees(
    program: Program, consumers: list[list[tuple[int, Read]]]
) -> tuple[list[int], list[list[int]]]:
    """The root of each operation's tree, and each operation's children in it."""
    producers = [sorted({read.op for read in op.reads}) for op in program.ops]
    level, latest = _levels(producers, consumers)
    tree_of = [-1] * len(program.ops)
    children: list[list[int]] = [[] for _ in program.ops]
    for root in range(len(program.ops)):
        if tree_of[root] >= 0:
            continue
        tree_of[root] = root
        members = [root]
        for member in members:
            for consumer in sorted({c for c, _ in consumers[member]}):
                others = [p for p in producers[consumer] if p != member]
                if tree_of[consumer] < 0 and not any(
                    _is_downstream(p, root, tree_of, producers, level, latest) for p in others
                ):
                    tree_of[consumer] = root
                    members.append(consumer)
                    children[member].append(consumer)
    return tree_of, children


def _is_downstream(
    op: int,
    root: int,
    tree_of: list[int],
    producers: list[list[int]],
    level: list[int],
    latest: list[int],
) -> bool:
    """Whether an operation is in a tree, or depends on it; only levels below the root can."""
    stack, seen = [op], {op}
    while stack:
        op = stack.pop()
        if tree_of[op] == root:
            return True
        if level[op] > latest[root]:
            fresh = [p for p in producers[op] if p not in seen]
            seen.update(fresh)
            stack += fresh
    return False


def _levels(
    producers: list[list[int]], consumers: list[list[tuple[int, Read]]]
) -> tuple[list[int], list[int]]:
    """The level of each operation, and the last one it could be on given its consumers."""
    level: list[int] = []
    for inputs in producers:
        level.append(1 + max((level[p] for p in inputs), default=-1))
    latest = [min((level[c] for c, _ in readers), default=0) - 1 for readers in consumers]
    return level, latest


def _downstream_first(consumers: list[list[tuple[int, Read]]], tree_of: list[int]) -> list[int]:
    """The roots in an order in which consumers in other trees come first."""
    waits_for: dict[int, set[int]] = {root: set() for root in tree_of}
    for op, readers in enumerate(consumers):
        waits_for[tree_of[op]] |= {tree_of[c] for c, _ in readers} - {tree_of[op]}
    waiting: dict[int, list[int]] = {root: [] for root in waits_for}
    for root, others in waits_for.items():
        for other in others:
            waiting[other].append(root)
    ready = [root for root, others in waits_for.items() if not others]
    heapify(ready)
    left = {root: len(others) for root, others in waits_for.items()}
    order = []
    while ready:
        root = heappop(ready)
        order.append(root)
        for other in waiting[root]:
            left[other] -= 1
            if left[other] == 0:
                heappush(ready, other)
    return order


METHODS: dict[str, Callable[[Program, int, Mapping[int, Cut]], list[Cut]]] = {
    "paper": paper_cuts,
    "even": even_cuts,
}
