"""What of Placeto's messages changes from one step to the next.

Every step passes messages over the whole graph, but from one step to the next only two vertices
differ: one has been placed, the next is at hand. After i rounds the difference has come i edges
far. So what a vertex knows is computed once for as many steps as it stays the same, and a plan says
for which: an `entry` is a vertex from a step on. On the paper's graphs one in ten is left.
"""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from doppler.base.arrays import BoolArray, IntArray
from doppler.policies.rivals.placeto_kernel import Floats


class Average(NamedTuple):
    """A sparse matrix that averages over rows, and its transpose for gradients."""

    matrix: Tensor  # (a, b) sparse
    transposed: Tensor


@dataclass(frozen=True, slots=True)
class Ways:
    """From whom vertices hear: from their producers (down), or from their readers (up)."""

    down: Any  # (n, n) scipy matrices with a 1 for everyone a vertex hears from
    up: Any

    @property
    def both(self) -> tuple[Any, Any]:
        """The two."""
        return self.down, self.up


class Level(NamedTuple):
    """The entries after one round of messages, one way."""

    first: Tensor  # (N,) the entries that the same vertices had before all rounds
    heard: Average  # (N, M) over the entries of the round before


class MessagePlan(NamedTuple):
    """The entries of some steps: those of all vertices at the first, and all that change later."""

    vertex: Tensor  # (N,) of the entries before all rounds
    step: Tensor  # (N,)
    levels: tuple[tuple[Level, ...], tuple[Level, ...]]  # by way, and round by round
    last: tuple[Tensor, Tensor]  # (E,) for each entry after all rounds, its last one of each way
    mine: Tensor  # (C,) the entry of the vertex at hand at each step
    groups: tuple[Average, ...]  # three (C, E): its parents, children and parallel vertices
    size: int  # entries of all rounds


def make_ways(source: IntArray, target: IntArray, n: int) -> Ways:
    """The ways along edges; who is heard from twice counts twice."""
    one = np.ones(len(source), np.float32)
    down = csr_matrix((one, (target, source)), shape=(n, n))
    return Ways(down, down.T.tocsr())


def changes(way: Any, rounds: int, first: int, last: int) -> list[BoolArray]:
    """(n, C) for each round, and before all: who is another at steps first, …, last - 1.

    Another than at the step before, that is; at step 0, only who is at hand.
    """
    begin: BoolArray = np.zeros((way.shape[0], last - first), bool)
    at = np.arange(first, last)
    begin[at, at - first] = True  # at hand at its step, placed at the next
    begin[np.maximum(at - 1, 0), at - first] = True
    found = [begin]
    for _ in range(rounds):
        found.append(begin | (way @ found[-1].astype(np.float32) > 0))
    return found


def make_plan(
    ways: Ways, rounds: int, groups: Floats, first: int, last: int, device: str
) -> MessagePlan:
    """The entries of steps first, …, last - 1; (C, 3, n) are the weights in the groups of each."""
    count = last - first
    by_way = [changes(way, rounds, first, last) for way in ways.both]
    for found in by_way:
        for changed in found:
            changed[:, 0] = True  # all vertices have an entry at the first step
    begin = by_way[0][0]
    levels, ends = [], []
    for way, found in zip(ways.both, by_way, strict=True):
        before, passed = begin, []
        for changed in found[1:]:
            passed.append(_level(way, changed, before, begin, device))
            before = changed
        levels.append(tuple(passed))
        ends.append(before)
    either = ends[0] | ends[1]
    vertex, step = np.nonzero(either)
    entry, at = numbers(either), np.arange(count)
    down, up = (_tensor(numbers(end)[vertex, step], device) for end in ends)
    began, since = np.nonzero(begin)
    return MessagePlan(
        vertex=_tensor(began, device),
        step=_tensor(since + first, device),
        levels=(levels[0], levels[1]),
        last=(down, up),
        mine=_tensor(entry[first + at, at], device),
        groups=tuple(_pool(groups[:, i], entry, len(vertex), device) for i in range(3)),
        size=sum(int(changed.sum()) for found in by_way for changed in found),
    )


def numbers(changed: BoolArray) -> IntArray:
    """(n, C) the number of the entry that counts for each vertex at each step."""
    entry: IntArray = np.cumsum(changed.reshape(-1)).reshape(changed.shape) - 1
    return entry


def _level(way: Any, changed: BoolArray, before: BoolArray, begin: BoolArray, device: str) -> Level:
    """The entries of one round, where those of the round before and of the first are known."""
    vertex, column = np.nonzero(changed)
    size = np.diff(way.indptr)[vertex]  # of those each hears from
    row = np.repeat(np.arange(len(vertex)), size)
    within = np.arange(len(row)) - np.repeat(np.cumsum(size) - size, size)
    position = way.indptr[vertex][row] + within
    entry = numbers(before)[way.indices[position], column[row]]
    total = np.bincount(row, way.data[position], minlength=len(vertex))
    values = way.data[position] / total[row]
    shape = (len(vertex), int(before.sum()))
    return Level(
        first=_tensor(numbers(begin)[vertex, column], device),
        heard=average(csr_matrix((values, (row, entry)), shape=shape), device),
    )


def _pool(weights: Floats, entry: IntArray, size: int, device: str) -> Average:
    """(C, E) the means over a group at each step, from (C, n) weights."""
    step, vertex = np.nonzero(weights)
    matrix = csr_matrix(
        (weights[step, vertex], (step, entry[vertex, step])), shape=(len(weights), size)
    )
    return average(matrix, device)


def average(matrix: Any, device: str) -> Average:
    """A scipy matrix for torch."""
    return Average(_csr(matrix.tocsr(), device), _csr(matrix.T.tocsr(), device))


def _csr(matrix: Any, device: str) -> Tensor:
    with warnings.catch_warnings():  # torch says that its sparse matrices are young
        warnings.simplefilter("ignore")
        return torch.sparse_csr_tensor(
            torch.as_tensor(matrix.indptr.astype(np.int64)),
            torch.as_tensor(matrix.indices.astype(np.int64)),
            torch.as_tensor(matrix.data.astype(np.float32)),
            size=matrix.shape,
            device=device,
            check_invariants=False,
        )


def _tensor(values: IntArray, device: str) -> Tensor:
    return torch.as_tensor(values, device=device)
