"""Operands of kernels in torch: inputs, views of them, or tensors put together from pieces."""

from collections.abc import Callable, Sequence
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from doppler.graph.graph import Kernel

Tensors = Sequence[torch.Tensor]
Compiled = Callable[[Tensors, torch.Tensor], None]  # inputs in their slots, output
Fetch = Callable[[Tensors], torch.Tensor]  # an operand, from the inputs in their slots
Axes = Sequence[int | None]  # join axis of each axis of an operand; None: of size 1, dropped


class Piece(NamedTuple):
    """Part of an input, and where it goes."""

    source: Fetch
    begin: tuple[int, ...]  # in the target, along each axis
    end: tuple[int, ...]


def operands(kernel: Kernel) -> list[Fetch]:
    """What gets each operand of a kernel, as it is."""
    return [_operand(row) for row in kernel.attributes.get("operands", ())]


def aligned(kernel: Kernel, rank: int | None = None) -> list[Fetch]:
    """What gets each operand with its axes in the order of the join's.

    They are views of `rank` axes, by default as many as the output has, and of size 1 along those
    that the operand lacks.
    """
    rank = len(kernel.shapes[0]) if rank is None else rank
    axes = kernel.attributes["axes"]
    return [_view(fetch, own, rank) for fetch, own in zip(operands(kernel), axes, strict=True)]


def pieces_of(operand: Any) -> list[Piece]:
    """The pieces that an operand of a kernel is made of."""
    return [_piece(slot, part, place) for slot, part, place in operand["pieces"]]


def put(pieces: list[Piece], shape: tuple[int, ...]) -> Compiled:
    """What puts pieces into the tensor of this shape that they cover."""
    volume = sum(prod(b - a for a, b in zip(p.begin, p.end, strict=True)) for p in pieces)
    if volume != prod(shape):
        raise ValueError(f"pieces of {volume} elements for a tensor of {prod(shape)}")
    return _put(pieces, (0,) * len(shape))


def _operand(row: Any) -> Fetch:
    if isinstance(row, int):
        return itemgetter(row)
    pieces, shape = pieces_of(row), tuple(row["shape"])
    if len(pieces) == 1:
        return pieces[0].source
    fill, slot = put(pieces, shape), int(row["pieces"][0][0])

    def put_together(inputs: Tensors) -> torch.Tensor:
        whole = inputs[slot].new_empty(shape)
        fill(inputs, whole)
        return whole

    return put_together


def _view(fetch: Fetch, axes: Axes, rank: int) -> Fetch:
    places = [axis for axis in axes if axis is not None]
    order = sorted(range(len(places)), key=places.__getitem__)
    kept = tuple(0 if axis is None else slice(None) for axis in axes)
    spread = tuple(slice(None) if axis in places else None for axis in range(rank))

    def view(inputs: Tensors) -> torch.Tensor:
        x = fetch(inputs)
        x = x[kept] if 0 in kept else x
        return x.permute(order)[spread]

    return fetch if list(axes) == list(range(rank)) else view


def _piece(slot: int, part: Sequence[Sequence[int]], place: Sequence[int]) -> Piece:
    index = tuple(slice(low, high) for low, high in part)
    ends = tuple(at + high - low for at, (low, high) in zip(place, part, strict=True))
    return Piece(lambda inputs: inputs[slot][index], tuple(place), ends)


def _put(pieces: list[Piece], corner: tuple[int, ...]) -> Compiled:
    """One concatenation where the pieces lie along one axis; slab by slab where they do not.

    `corner` is where the target begins, in the coordinates of the pieces.
    """
    if len(pieces) == 1:
        return _copy(pieces[0].source)
    found = [(axis, _slabs(pieces, axis)) for axis in range(len(corner))]
    for axis, slabs in found:
        if len(slabs) == len(pieces):
            return _concatenation([piece.source for (piece,) in slabs], axis)
    for axis, slabs in found:  # the outer axes first: their slabs are contiguous
        if len(slabs) > 1:
            return _by_slab(slabs, axis, corner)
    raise ValueError("pieces overlap")


def _slabs(pieces: list[Piece], axis: int) -> list[list[Piece]]:
    """The pieces in the groups that planes across an axis part them into, in order."""
    slabs: list[list[Piece]] = []
    reach = -1
    for piece in sorted(pieces, key=lambda piece: piece.begin[axis]):
        if piece.begin[axis] >= reach:
            slabs.append([])
        slabs[-1].append(piece)
        reach = max(reach, piece.end[axis])
    return slabs


def _copy(source: Fetch) -> Compiled:
    def copy(inputs: Tensors, out: torch.Tensor) -> None:
        out.copy_(source(inputs))

    return copy


def _concatenation(sources: list[Fetch], axis: int) -> Compiled:
    def concatenate(inputs: Tensors, out: torch.Tensor) -> None:
        torch.cat([source(inputs) for source in sources], axis, out=out)

    return concatenate


def _by_slab(slabs: list[list[Piece]], axis: int, corner: tuple[int, ...]) -> Compiled:
    steps = []
    for slab in slabs:
        begin, end = min(p.begin[axis] for p in slab), max(p.end[axis] for p in slab)
        inner = _put(slab, (*corner[:axis], begin, *corner[axis + 1 :]))
        steps.append((begin - corner[axis], end - begin, inner))

    def put_slabs(inputs: Tensors, out: torch.Tensor) -> None:
        for start, length, inner in steps:
            inner(inputs, out.narrow(axis, start, length))

    return put_slabs
