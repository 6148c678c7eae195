"""Factors: dimensions of tensors cut into the axes that views split them into and merge them from.

A view that splits 64 into 4 × 16 tells that the 64 are 4 heads of 16. Where every dimension that is
the same axis of some operation is factored alike, views cost nothing and are no operations: the
factors are the axes, and heads can be cut.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

Dim = int | None  # a dimension; None for one of size 1, or without elements


class Factors:
    """Dimensions, which of them are the same axis, and how views factor them.

    >>> factors = Factors()
    >>> columns, heads, size = factors.new(64), factors.new(4), factors.new(16)
    >>> factors.view([columns], [heads, size])
    0
    >>> factors.solve()
    set()
    >>> factors.of(columns)
    (4, 16)
    """

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._factors: list[tuple[int, ...]] = []  # of roots
        self._views: list[tuple[list[int], list[int]]] = []

    def new(self, size: int) -> Dim:
        """Another dimension; None for one without factors."""
        if size <= 1:
            return None
        self._parent.append(len(self._parent))
        self._factors.append((size,))
        return len(self._parent) - 1

    def same(self, a: Dim, b: Dim) -> None:
        """Say that two dimensions are one axis; before `solve`."""
        if a is not None and b is not None:
            a, b = self._root(a), self._root(b)
            self._parent[max(a, b)] = min(a, b)

    def view(self, before: Sequence[Dim], after: Sequence[Dim]) -> int:
        """Say that some dimensions, in a row, are others; returns a number for that."""
        self._views.append(
            ([d for d in before if d is not None], [d for d in after if d is not None])
        )
        return len(self._views) - 1

    def of(self, dim: Dim) -> tuple[int, ...]:
        """The sizes of a dimension's factors, outermost first."""
        return () if dim is None else self._factors[self._root(dim)]

    def solve(self) -> set[int]:
        """Factor all dimensions; returns the views that contradict others, and are no views."""
        wrong: set[int] = set()
        pending = True
        while pending:
            pending = False
            for number in range(len(self._views)):
                while number not in wrong and (changed := self._refine(number)):
                    pending = True
                if number not in wrong and changed is None:
                    wrong.add(number)
        return wrong

    def _refine(self, number: int) -> bool | None:
        """Factor a dimension of a view further; False where none is left, None where that fails."""
        sides = self._views[number]
        sizes = _refined(*(self._flat(dims) for dims in sides))
        if sizes is None:
            return None
        for dims in sides:
            at = 0
            for dim in dims:
                total, begin = prod(self.of(dim)), at
                while prod(sizes[begin:at]) < total:
                    at += 1
                if tuple(sizes[begin:at]) != self.of(dim):
                    self._factors[self._root(dim)] = tuple(sizes[begin:at])
                    return True
        return False

    def _flat(self, dims: Sequence[int]) -> list[int]:
        return [size for dim in dims for size in self.of(dim)]

    def _root(self, dim: int) -> int:
        while self._parent[dim] != dim:
            self._parent[dim] = self._parent[self._parent[dim]]
            dim = self._parent[dim]
        return dim


def _refined(a: Sequence[int], b: Sequence[int]) -> list[int] | None:
    """The coarsest sizes that both of two factorings of a number merge from; None without any.

    >>> _refined([6, 4], [2, 12])
    [2, 3, 4]
    >>> _refined([2, 3], [3, 2]) is None
    True
    """
    if prod(a) != prod(b):
        return None
    points = sorted({*_strides(a), *_strides(b)}, reverse=True)
    if any(big % small for big, small in pairwise(points)):
        return None
    return [big // small for big, small in pairwise(points)]


def _strides(sizes: Sequence[int]) -> list[int]:
    return [prod(sizes[i:]) for i in range(len(sizes) + 1)]
