"""Partitioner: into how many pieces each axis of each operation is cut.

`paper` minimises the elements moved, as the paper's own partitioner does: contractions are cut
into exactly `parts` pieces, everything else into at most that many, and cutting a tensor otherwise
than its readers need costs a repartition. `even` cuts the first axis that can be cut (batch, rows)
and nothing else. Cuts given by hand override either.
"""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from operator import index
from typing import Any

from doppler.errors import ShardingError, UnknownNameError
from doppler.graph.ops import OpKind
from doppler.programs.program import Op, Program, Read
from doppler.sharding.cuts import Cut, divides
from doppler.sharding.paper import paper_cuts

MAX_PARTS = 1 << 16  # of one operation; a graph of the paper has 16


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
    if not isinstance(parts, Integral):
        raise ShardingError(f"parts is {parts!r}, must be a whole number")
    if parts < 1:
        raise ShardingError(f"parts is {parts}, must be at least 1")
    if parts > MAX_PARTS:
        raise ShardingError(f"parts is {parts}, must be at most {MAX_PARTS}")
    fixed = _fixed_cuts(program, partitions or {})
    if method not in METHODS:
        raise UnknownNameError("partition method", method, METHODS)
    return METHODS[method](program, int(parts), fixed)


def _fixed_cuts(program: Program, partitions: Mapping[str, Sequence[int]]) -> dict[int, Cut]:
    numbers = {op.name: i for i, op in enumerate(program.ops)}
    fixed: dict[int, Cut] = {}
    for name, cut in partitions.items():
        if name not in numbers:
            raise UnknownNameError("operation", name, numbers)
        fixed[numbers[name]] = _checked_cut(program.ops[numbers[name]], cut)
    return fixed


def _checked_cut(op: Op, cut: Any) -> Cut:
    hint = f"its join axes are {op.join}: those of the output, then the aggregated"
    try:
        pieces = tuple(index(n) for n in cut)
    except TypeError:
        raise ShardingError(
            f"`{op.name}`: cut {cut!r} is not a whole number for each axis", hint=hint
        ) from None
    if len(pieces) != len(op.join):
        raise ShardingError(
            f"`{op.name}`: cut {pieces} has {len(pieces)} numbers for {len(op.join)} axes",
            hint=hint,
        )
    if not divides(op, pieces):
        raise ShardingError(f"`{op.name}`: cut {pieces} does not divide its axes {op.join} evenly")
    return pieces


def even_cuts(program: Program, parts: int, fixed: Mapping[int, Cut]) -> list[Cut]:
    """The first output axis that divides into `parts` is cut, inputs as finely as they are read."""
    cuts: list[Cut] = []
    for number, op in enumerate(program.ops):
        cuts.append(fixed.get(number) or _first_axis_cut(op, parts))
    for number, readers in enumerate(program.consumers()):
        op = program.ops[number]
        if op.kind == OpKind.INPUT and number not in fixed:
            needed = [_even_need(op, program.ops[c], r, cuts[c]) for c, r in readers]
            finest = (
                tuple(max(n) for n in zip(*needed, strict=True)) if needed else (1,) * len(op.join)
            )
            cuts[number] = finest if divides(op, finest) else (1,) * len(op.join)
    return cuts


def _first_axis_cut(op: Op, parts: int) -> Cut:
    for axis in range(len(op.shape)):
        cut = tuple(parts if i == axis else 1 for i in range(len(op.join)))
        if divides(op, cut):
            return cut
    if op.is_contraction and parts > 1:
        raise ShardingError(
            f"`{op.name}`: no axis of its output {op.shape} divides into {parts} parts",
            hint="choose a divisor of one of them",
        )
    return (1,) * len(op.join)


def _even_need(op: Op, reader: Op, read: Read, cut: Cut) -> Cut:
    """Pieces of each axis of `op` that a reader's cut asks for; 1 where it reads only a part."""
    pieces = []
    for axis, size in zip(read.axes, op.shape, strict=True):
        whole = axis.join is not None and (
            axis.end - axis.begin == reader.join[axis.join]
            and axis.region(axis.begin, axis.end) == (0, size)
        )
        pieces.append(cut[axis.join] if axis.join is not None and whole else 1)
    return tuple(pieces)


METHODS: dict[str, Callable[[Program, int, Mapping[int, Cut]], list[Cut]]] = {
    "paper": paper_cuts,
    "even": even_cuts,
}
