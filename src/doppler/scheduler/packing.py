"""Packing: offsets for the buffers of one memory along a known order of the tasks.

A buffer takes its bytes from the position of the task that writes it to that of the last task that
reads it. Two that are there at the same time may not overlap. The most bytes that are there at
once bound the memory from below; packing finds offsets that come close to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from doppler.base.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Spans:
    """The buffers of one memory, by position in the order of the tasks."""

    begin: IntArray  # (B,) position of the task that writes it
    end: IntArray  # (B,) position of the last task that uses it
    size: IntArray  # (B,) bytes


@dataclass(frozen=True, slots=True)
class Packing:
    """Offsets of the buffers, and the bytes that they take together."""

    offset: IntArray  # (B,)
    top: int


def live_bound(spans: Spans) -> int:
    """The most bytes that are there at the same time: no packing takes less."""
    if not len(spans.size):
        return 0
    change = np.zeros(int(spans.end.max()) + 2, np.int64)
    np.add.at(change, spans.begin, spans.size)
    np.subtract.at(change, spans.end + 1, spans.size)
    return int(np.cumsum(change).max())


def pack(spans: Spans, enough: float = 0.0) -> Packing:
    """The packing that takes least of several; the first that takes no more than `enough`.

    Each puts the buffers down one after the other, each into the smallest gap between those that
    are there at the same time that holds it: the largest buffers first, then those that take most
    bytes for longest, then those that stay longest, then as they come.
    """
    length = (spans.end - spans.begin + 1).astype(np.float64)
    area: FloatArray = spans.size * length
    rules = (
        (spans.begin, -length, -spans.size),
        (spans.begin, -area),
        (-spans.size, spans.begin, -length),
        (-spans.size, -length, spans.begin),
    )
    best, enough = None, max(enough, live_bound(spans))
    for keys in rules:
        found = _put_down(spans, np.lexsort(keys))
        if best is None or found.top < best.top:
            best = found
        if best.top <= enough:
            break
    assert best is not None
    return best


def _put_down(spans: Spans, order: IntArray) -> Packing:
    """Every buffer in this order in the smallest gap that holds it."""
    count = len(spans.size)
    offset, low, high = np.zeros((3, count), np.int64)
    begin, end = np.zeros((2, count), np.int64)
    top, placed = 0, 0
    sizes = spans.size.tolist()
    for i in order.tolist():
        size = sizes[i]
        if not size:
            continue
        there = np.flatnonzero(
            (begin[:placed] <= spans.end[i]) & (end[:placed] >= spans.begin[i])
        )
        offset[i] = _smallest_gap(low[there], high[there], size)
        low[placed], high[placed] = offset[i], offset[i] + size
        begin[placed], end[placed] = spans.begin[i], spans.end[i]
        placed, top = placed + 1, max(top, int(offset[i]) + size)
    return Packing(offset, top)


def _smallest_gap(low: IntArray, high: IntArray, size: int) -> int:
    """The begin of the smallest gap of at least `size` between ranges; behind them if none is."""
    if not len(low):
        return 0
    order = np.argsort(low)
    floor = np.concatenate([[0], np.maximum.accumulate(high[order])])
    gap = low[order] - floor[:-1]
    fits = np.flatnonzero(gap >= size)
    if not len(fits):
        return int(floor[-1])
    return int(floor[fits[np.argmin(gap[fits])]])


def places_after(
    spans: Spans, packing: Packing, users: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """Pairs of a buffer and a task that must be done before it is written.

    `users` are the tasks that use each buffer. A buffer waits for the users of those whose bytes it
    takes over; what these took over themselves is older still.
    """
    pairs: list[tuple[int, int]] = []
    segments: list[tuple[int, int, int]] = []  # begin, end, buffer that was there last; by begin
    sizes, offsets = spans.size.tolist(), packing.offset.tolist()
    for i in np.lexsort((spans.end, spans.begin)).tolist():
        if not sizes[i]:
            continue
        low, high = offsets[i], offsets[i] + sizes[i]
        kept: list[tuple[int, int, int]] = []
        found: set[int] = set()
        for first, last, other in segments:
            if last <= low or first >= high:
                kept.append((first, last, other))
                continue
            found.update(users[other])
            if first < low:
                kept.append((first, low, other))
            if last > high:
                kept.append((high, last, other))
        kept.append((low, high, i))
        segments = kept
        pairs += [(i, task) for task in sorted(found)]
    return pairs
