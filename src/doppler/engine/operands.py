"""Operands of kernels in torch: inputs, views of them, or tensors put together from pieces."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch

from doppler.errors import EngineError
from doppler.graph.graph import Kernel

Launch = Callable[[], Any]  # queues one piece of work on the current device and stream
Empty = Callable[[Sequence[int], torch.dtype], torch.Tensor]  # room for an intermediate tensor
Axes = Sequence[int | None]  # join axis of each axis of an operand; None: of size 1, dropped


class Binding:
    """A kernel and its tensors: views are made now, and what is to be launched is collected."""

    def __init__(
        self,
        kernel: Kernel,
        inputs: Sequence[torch.Tensor],
        output: torch.Tensor,
        empty: Empty,
    ) -> None:
        """`inputs` are in the kernel's slots; all tensors are contiguous."""
        self.kernel, self.inputs, self.output, self.empty = kernel, inputs, output, empty
        self.launches: list[Launch] = []

    def launch(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Add a launch, with all its arguments; an `out` must have the shape that is made."""
        if isinstance(out := options.get("out"), torch.Tensor):
            function = partial(_sized, function, self.kernel.op, out.shape)
        self.launches.append(partial(function, *arguments, **options))

    def operands(self) -> list[torch.Tensor]:
        """The operands of the kernel, as they are."""
        return [self._operand(row) for row in self.kernel.attributes.get("operands", ())]

    def aligned(self, rank: int | None = None) -> list[torch.Tensor]:
        """The operands with their axes in the order of the join's.

        They are views of `rank` axes, by default as many as the output has, and of size 1 along
        those that the operand lacks.
        """
        rank = len(self.kernel.shapes[0]) if rank is None else rank
        axes = self.kernel.attributes["axes"]
        return [_view(x, own, rank) for x, own in zip(self.operands(), axes, strict=True)]

    def copied(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A contiguous tensor into which `x` is copied."""
        room = self.empty(x.shape, dtype or x.dtype)
        self.copy(x, room)
        return room

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy a tensor into another, of any shape and dtype that `copy_` takes.

        What is a copy of bytes `copy_` leaves to the copy engines of a GPU, which take two to four
        times as long as its multiprocessors, and serve transfers meanwhile.
        """
        if target.is_cuda and _are_plain_bytes(source, target):
            self.launch(torch.bitwise_or, as_integers(source), 0, out=as_integers(target))
        else:
            self.launch(target.copy_, source)

    def put(self, pieces: list["Piece"], target: torch.Tensor) -> None:
        """Put pieces into the tensor that they cover."""
        volume = sum(prod(b - a for a, b in zip(p.begin, p.end, strict=True)) for p in pieces)
        if volume != target.numel():
            raise ValueError(f"pieces of {volume} elements for a tensor of {target.numel()}")
        self._put(pieces, target, (0,) * target.dim())

    def pieces_of(self, operand: Any) -> list["Piece"]:
        """The pieces that an operand of the kernel is made of."""
        return [self._piece(slot, part, place) for slot, part, place in operand["pieces"]]

    def _operand(self, row: Any) -> torch.Tensor:
        if isinstance(row, int):
            return self.inputs[row]
        pieces, shape = self.pieces_of(row), tuple(row["shape"])
        if len(pieces) == 1:
            return pieces[0].source
        whole = self.empty(shape, pieces[0].source.dtype)
        self.put(pieces, whole)
        return whole

    def _piece(self, slot: int, part: Sequence[Sequence[int]], place: Sequence[int]) -> "Piece":
        index = tuple(slice(low, high) for low, high in part)
        ends = tuple(at + high - low for at, (low, high) in zip(place, part, strict=True))
        return Piece(self.inputs[slot][index], tuple(place), ends)

    def _put(self, pieces: list["Piece"], target: torch.Tensor, corner: tuple[int, ...]) -> None:
        """One concatenation where the pieces lie along one axis; slab by slab where they do not.

        `corner` is where the target begins, in the coordinates of the pieces.
        """
        if len(pieces) == 1:
            self.copy(pieces[0].source, target)
            return
        found = [(axis, _slabs(pieces, axis)) for axis in range(len(corner))]
        for axis, slabs in found:
            if len(slabs) == len(pieces):
                self.launch(torch.cat, [piece.source for (piece,) in slabs], axis, out=target)
                return
        for axis, slabs in found:  # the outer axes first: their slabs are contiguous
            if len(slabs) > 1:
                for slab in slabs:
                    begin, end = min(p.begin[axis] for p in slab), max(p.end[axis] for p in slab)
                    inner = target.narrow(axis, begin - corner[axis], end - begin)
                    self._put(slab, inner, (*corner[:axis], begin, *corner[axis + 1 :]))
                return
        raise ValueError("pieces overlap")


class Piece(NamedTuple):
    """Part of an input, and where it goes."""

    source: torch.Tensor
    begin: tuple[int, ...]  # in the target, along each axis
    end: tuple[int, ...]


def _sized(
    function: Callable[..., Any],
    op: str,
    shape: Sequence[int],
    *arguments: Any,
    out: torch.Tensor,
    **options: Any,
) -> None:
    """Launch, and raise where torch has given the output another shape, and other memory."""
    function(*arguments, out=out, **options)
    if out.shape != shape:
        raise EngineError(
            f"kernel `{op}` makes {tuple(out.shape)} for an output of shape {tuple(shape)}"
        )


def _are_plain_bytes(source: torch.Tensor, target: torch.Tensor) -> bool:
    same = (source.shape, source.dtype) == (target.shape, target.dtype)
    return same and source.is_contiguous() and target.is_contiguous()


def as_integers(x: torch.Tensor) -> torch.Tensor:
    """The bits of a contiguous tensor as integers of its element size, at most eight bytes."""
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return x.view(-1).view(sizes.get(x.element_size(), torch.int64))


def _view(x: torch.Tensor, axes: Axes, rank: int) -> torch.Tensor:
    if list(axes) == list(range(rank)):
        return x
    places = [axis for axis in axes if axis is not None]
    order = sorted(range(len(places)), key=places.__getitem__)
    kept = tuple(0 if axis is None else slice(None) for axis in axes)
    spread = tuple(slice(None) if axis in places else None for axis in range(rank))
    return x[kept].permute(order)[spread]


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
