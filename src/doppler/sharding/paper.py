"""The `paper` partitioner: the cuts that move the fewest elements, tree by tree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.errors import ShardingError
from doppler.programs.program import Program, Read
from doppler.sharding.cuts import (
    Cut,
    Points,
    candidates,
    contraction_cost,
    cut_points,
    distinct,
    repartition_costs,
)
from doppler.sharding.trees import downstream_first, grow_trees

FREE_CHILDREN = 2  # consumers whose cuts are chosen jointly with their producer's


def paper_cuts(program: Program, parts: int, fixed: Mapping[int, Cut]) -> list[Cut]:
    """The cuts of least cost, found tree by tree."""
    if parts & (parts - 1):
        raise ShardingError(
            f"parts is {parts}; the `paper` partitioner cuts in powers of two",
            hint="choose 2, 4, 8, …, or method `even`",
        )
    return _Solver(program, parts, fixed).solve()


class _Solver:
    """Chooses the cuts tree by tree.

    Trees grow from the inputs downstream: a consumer joins its producer's tree unless another of
    its producers is in that tree or downstream of it, so that within a tree each operation but
    the root depends on one other. The last trees are solved first. Within a tree, from the
    leaves to the root, the best cost of each cut of an operation is found over the cuts of its
    consumers in the tree; those elsewhere are known (or, where trees wait for each other in a
    circle, left out of account). Of more than two consumers in the tree only
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
                    f"`{op.name}`, with join axes {op.join}, has no cut into {parts} even parts",
                    hint="choose fewer parts, or sizes with more factors of two",
                )
        self.cuts: dict[int, Cut] = {}
        self._points_cache: dict[Any, Points] = {}

    def solve(self) -> list[Cut]:
        """The cut of every operation."""
        tree_of, children = grow_trees(self.program, self.consumers)
        for root in downstream_first(self.consumers, tree_of):
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
        """For each cut of an operation: its least cost with all below it, and the cuts there."""
        op, options = self.program.ops[number], self.options[number]
        own = np.array([contraction_cost(op, cut, self.parts) for cut in options])
        free, frozen = children[:FREE_CHILDREN], children[FREE_CHILDREN:]
        alone = {child: int(np.argmin(costs[child])) for child in frozen}
        own += sum(costs[child][pick] for child, pick in alone.items())

        needs: list[list[Points]] = []  # of each free child, by its cuts
        rest: list[Points] = []  # of consumers whose cut is known
        for consumer, reads in self._readers(number):
            if consumer in free:
                needs.append(
                    [self._points(number, consumer, reads, c) for c in self.options[consumer]]
                )
            elif consumer in alone:
                cut = self.options[consumer][alone[consumer]]
                rest.append(self._points(number, consumer, reads, cut))
            elif consumer in self.cuts:
                rest.append(self._points(number, consumer, reads, self.cuts[consumer]))
        if not needs and not rest:
            return own, [{} for _ in options]

        pieces, row_of = distinct([cut[: len(op.shape)] for cut in options])
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

    def _points(self, number: int, consumer: int, reads: list[Read], cut: Cut) -> Points:
        """Where a consumer's cut cuts each axis of an operation's output."""
        shape, reader = self.program.ops[number].shape, self.program.ops[consumer]
        key = (shape, reader.join, tuple(read.axes for read in reads), cut)
        if key not in self._points_cache:
            points = []
            for dim in range(len(shape)):
                axes = [read.axes[dim] for read in reads]
                points.append(frozenset().union(*(cut_points(a, reader.join, cut) for a in axes)))
            self._points_cache[key] = tuple(points)
        return self._points_cache[key]


@dataclass(frozen=True, slots=True)
class _Group:
    """The cuts of a child that ask the same of its producer, each represented by the cheapest."""

    points: list[Points]  # in the order of `option`
    cost: FloatArray  # (G,) least cost among the cuts of a group
    option: IntArray  # (G,) the first cut that has it


def _grouped(points: list[Points], cost: FloatArray) -> _Group:
    best: dict[Points, int] = {}
    for i, point in enumerate(points):
        if point not in best or cost[i] < cost[best[point]]:
            best[point] = i
    option = np.array(sorted(best.values()), np.int64)
    return _Group([points[i] for i in option], cost[option], option)
