"""Program: a tensor computation before sharding, as operations over join axes.

Every operation is seen as a join: its axes are those of its output, then those it aggregates
over. A matrix product `ij,jk->ik` joins (i, k, j) and aggregates j; `relu` joins the axes of its
output and aggregates none. What an operation reads is described by where each axis of the tensor
it reads lies among its join axes, so transposed and broadcast views need no operation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from doppler.graph.ops import OpKind

CONTRACTION = OpKind.MATMUL
REDUCTIONS = {
    "max": OpKind.MAX_REDUCTION,
    "min": OpKind.MIN_REDUCTION,
    "sum": OpKind.SUM_REDUCTION,
    "product": OpKind.PRODUCT_REDUCTION,
}


@dataclass(frozen=True, slots=True)
class Axis:
    """Where an axis of a tensor that is read lies among the reader's join axes.

    Position p of the join axis, for `begin` ≤ p < `end`, is position
    `offset + (p - begin) * numerator / denominator` of the tensor.
    """

    join: int | None  # None: one position of the axis, as of one of size 1 that is broadcast
    begin: int = 0
    end: int = 1
    offset: int = 0
    numerator: int = 1
    denominator: int = 1

    def region(self, low: int, high: int) -> tuple[int, int] | None:
        """The part of the tensor's axis behind `low` … `high` of the join axis; None if empty."""
        if self.join is None:
            return (self.offset, self.offset + 1)
        low, high = max(low, self.begin) - self.begin, min(high, self.end) - self.begin
        if low >= high:
            return None
        scale = self.numerator, self.denominator
        return (
            self.offset + low * scale[0] // scale[1],
            self.offset + high * scale[0] // scale[1],
        )


@dataclass(frozen=True, slots=True)
class Read:
    """One operand of an operation."""

    op: int  # number of the operation whose output is read
    axes: tuple[Axis, ...]  # one per axis of that output


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a program."""

    name: str  # unique
    kind: OpKind
    shape: tuple[int, ...]  # of its output
    dtype: str
    join: tuple[int, ...]  # sizes of the join axes: those of the output, then the aggregated
    reads: tuple[Read, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)  # JSON; "-inf" is a text
    is_weight: bool = False  # an input that is the same in every run, not data
    whole: frozenset[int] = frozenset()  # join axes that are never cut

    @property
    def is_contraction(self) -> bool:
        """Whether it multiplies and sums: the operations worth cutting evenly."""
        return self.kind == CONTRACTION

    @property
    def is_aggregated(self) -> bool:
        """Whether partial results of its shards have to be formed into one (App. A.1)."""
        return self.is_contraction or self.kind in REDUCTIONS.values()

    @property
    def size(self) -> int:
        """Elements of the output, a complex one counted twice."""
        return int(np.prod(self.shape, dtype=np.int64)) * (2 if "complex" in self.dtype else 1)


@dataclass(frozen=True, slots=True)
class Program:
    """Operations in an order in which they can be computed; made by a `ProgramBuilder`.

    >>> import doppler as dp
    >>> dp.programs.chainmm(size=64).name
    'chainmm'
    """

    name: str
    ops: tuple[Op, ...]
    outputs: tuple[int, ...]  # numbers of the operations whose results are wanted

    def __repr__(self) -> str:
        inputs = sum(op.kind == OpKind.INPUT for op in self.ops)
        return f"<Program {self.name!r}: {len(self.ops)} ops ({inputs} inputs)>"

    def consumers(self) -> list[list[tuple[int, Read]]]:
        """For every operation, who reads it and how, in order."""
        result: list[list[tuple[int, Read]]] = [[] for _ in self.ops]
        for number, op in enumerate(self.ops):
            for read in op.reads:
                result[read.op].append((number, read))
        return result
