"""Lessons: what exercises teach in one update, and how ranks share them out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from doppler.base.arrays import FloatArray
from doppler.engine.ranks.group import Group
from doppler.training.exercise_record import ExerciseRecord


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one exercise teaches in an update."""

    record: ExerciseRecord
    makespans: FloatArray  # (B,) of its episodes
    loss: float
    norm: float  # of the gradients, before they were clipped
    bound_s: float  # a lower bound of its makespans, where it is to be shown
    gradients: Sequence[Tensor | None]  # of each parameter that takes part


def learn_together(
    group: Group,
    turn: Sequence[ExerciseRecord],
    learn: Callable[[Sequence[int]], list[Lesson]],
    parameters: Sequence[Tensor],
) -> list[Lesson]:
    """The lessons of those whose turn it is, each learned by one rank and known to all.

    A rank also tells what it has found out about the exercises, so that all ranks know the same.
    """
    exercises = [record.exercise for record in turn]  # of which more choices take longer
    sizes = [len(each.graph.assigned) * each.topology.num_devices for each in exercises]
    shares = shared_out(sizes, group.size)
    lessons = learn(shares[group.rank])
    packed = group.gather_tensor(_packed(lessons, parameters, max(map(len, shares))))
    told = group.gather([_told(lesson) for lesson in lessons])
    found: dict[int, Lesson] = dict(zip(shares[group.rank], lessons, strict=True))
    for rank, share in enumerate(shares):
        if rank == group.rank:
            continue
        rows = packed[rank][: len(share)]
        for place, row, (values, has, state) in zip(share, rows, told[rank], strict=True):
            turn[place].load_state(*state)
            gradients = _unpacked(row, has, parameters)
            found[place] = Lesson(turn[place], **values, gradients=gradients)
    return [found[place] for place in range(len(turn))]


def _told(lesson: Lesson) -> tuple[Any, ...]:
    """What other ranks must know of a lesson, its gradients aside."""
    values = {name: getattr(lesson, name) for name in ("makespans", "loss", "norm", "bound_s")}
    return values, [each is not None for each in lesson.gradients], lesson.record.state()


def _packed(lessons: Sequence[Lesson], parameters: Sequence[Tensor], count: int) -> Tensor:
    """(count, P) the gradients of each lesson in one row."""
    packed = torch.zeros(count, sum(each.numel() for each in parameters))
    for row, lesson in zip(packed, lessons, strict=False):
        pairs = zip(_pieces(row, parameters), lesson.gradients, strict=True)
        for piece, gradient in pairs:
            if gradient is not None:
                piece.copy_(gradient)
    return packed


def _unpacked(
    row: Tensor, has: Sequence[bool], parameters: Sequence[Tensor]
) -> list[Tensor | None]:
    pairs = zip(_pieces(row, parameters), has, parameters, strict=True)
    return [piece.to(like.device) if known else None for piece, known, like in pairs]


def _pieces(row: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The parts of (P,) that are the gradients of each parameter."""
    parts = torch.split(row, [each.numel() for each in parameters])
    return [part.view(each.shape) for part, each in zip(parts, parameters, strict=True)]


def shared_out(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The places of `sizes` that each of `count` ranks gets: the largest first, to who has least.

    >>> shared_out([10, 50, 30, 20], 2)
    [[1, 0], [2, 3]]
    """
    found: list[list[int]] = [[] for _ in range(count)]
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        least = min(found, key=lambda places: sum(sizes[each] for each in places))
        least.append(place)
    return found
