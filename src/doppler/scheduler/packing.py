"""Packing: offsets for the buffers of one memory along a known order of the tasks.

A buffer takes its bytes from the position of the task that writes it to that of the last task that
reads it. Two that are there at the same time may not overlap. The most bytes that are there at
once bound the memory from below; packing finds offsets that come close to it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.errors import ConfigError

LARGEST = 1 << 62  # bytes; more than there ever are


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingConfig:
    """How long packing tries to take less memory."""

    repairs: int = 400  # orders that are tried after the rules
    steps: int = 20_000_000  # comparisons of two buffers, at most, for all of them
    patience: int = 40  # orders without success, before another rule's order is the start
    heat: float = 0.3  # share by which more may stick out of what is tried next, at most
    seed: int = 0

    def __post_init__(self) -> None:
        if self.repairs < 0 or self.steps < 0 or not self.heat >= 0:
            raise ConfigError("repairs, steps and heat must not be negative")
        if self.patience < 1:
            raise ConfigError(f"patience is {self.patience}, must be at least 1")


def pack(spans: Spans, enough: float = 0.0, config: PackingConfig | None = None) -> Packing:
    """The packing that takes least of several; the first that takes no more than `enough`.

    Each puts the buffers down one after the other, each into the smallest gap between those that
    are there at the same time that holds it: the largest buffers first, then those that take most
    bytes for longest, then those that stay longest, then as they come. Where that is not enough,
    a local search puts buffers that stick out down earlier.
    """
    config, enough = config or PackingConfig(), max(enough, live_bound(spans))
    starts: list[tuple[Packing, IntArray]] = []
    for order in _orders(spans):
        starts.append((_fast_put_down(spans, order), order))
        if starts[-1][0].top <= enough:
            return starts[-1][0]
    starts.sort(key=lambda start: start[0].top)
    return _repaired(spans, starts, enough, config)


def _orders(spans: Spans) -> Iterator[IntArray]:
    """The rules: orders in which to put buffers down."""
    length = (spans.end - spans.begin + 1).astype(np.float64)
    rules: tuple[tuple[IntArray | FloatArray, ...], ...] = (
        (spans.begin, -length, -spans.size),
        (spans.begin, -spans.size * length),
        (-spans.size, spans.begin, -length),
        (-spans.size, -length, spans.begin),
        (-spans.size, spans.begin),
    )
    return (np.lexsort(keys) for keys in rules)


def _pack_within(spans: Spans, limit: float) -> Packing | None:
    """The packing of the first rule that takes no more than the limit."""
    most = int(min(limit, LARGEST))
    found = (_fast_put_down(spans, order, most) for order in _orders(spans))
    return next((packing for packing in found if packing.top <= most), None)


def pack_apart(spans: Spans, limit: float, config: PackingConfig | None = None) -> Packing:
    """A packing that uses the memory there is: places rest for as long as the limit allows.

    Who takes over a place then waits for tasks that ended long ago.
    """
    total, length = int(spans.size.sum()), int(spans.end.max(initial=0)) + 1
    if total <= limit:
        return Packing(np.cumsum(spans.size) - spans.size, total)
    rest = length
    while rest := rest // 2:
        longer = Spans(spans.begin, np.minimum(spans.end + rest, length - 1), spans.size)
        if live_bound(longer) <= limit:
            found = _pack_within(longer, limit)
            if found is not None:
                return found
    return pack(spans, limit, config)


def _repaired(
    spans: Spans, starts: Sequence[tuple[Packing, IntArray]], enough: float, config: PackingConfig
) -> Packing:
    """The best packing found by putting buffers that stick out down earlier.

    A local search over orders that minimizes the bytes by which buffers stick out of what is
    enough, all together, and starts again from the next of the `starts` where it does not get on.
    """
    rng, count = np.random.default_rng(config.seed), len(spans.size)
    best, number, stale = starts[0][0], -1, config.patience
    for turn in range(min(config.repairs, config.steps // max(count * count, 1))):
        if stale >= config.patience:
            number, stale = number + 1, 0
            now, order = starts[number % len(starts)]
            excess = least = _excess(spans, now, enough)
        tried = _moved_up((now.offset + spans.size)[order] > enough, order, turn, number, rng)
        found = _fast_put_down(spans, tried)
        if found.top < best.top:
            best = found
        if best.top <= enough:
            break
        new = _excess(spans, found, enough)
        stale, least = (0, new) if new < least else (stale + 1, least)
        if new <= excess * (1 + config.heat * rng.random()):
            now, order, excess = found, tried, new
    return best


def _excess(spans: Spans, packing: Packing, enough: float) -> float:
    """The bytes by which buffers end behind what is enough, summed over them."""
    return float(np.maximum(packing.offset + spans.size - enough, 0).sum())


def _moved_up(
    sticks_out: BoolArray, order: IntArray, turn: int, start: int, rng: np.random.Generator
) -> IntArray:
    """The order with all buffers that stick out, or one of them, further to the front."""
    count = len(order)
    rank = np.arange(count, dtype=np.float64)
    if turn % 4 == 3:
        out = np.flatnonzero(sticks_out)
        one = out[rng.integers(len(out))]
        rank[one] = rng.integers(one + 1) - 0.5
    else:
        if turn % 4 == 2:
            rank += rng.normal(0.0, max(1.0, 0.05 * count), count)
        is_first = turn % 4 == 0 and start == 0
        rank[sticks_out] -= count if is_first else rng.integers(1, count + 1)
    return order[np.argsort(rank, kind="stable")]


def _fast_put_down(spans: Spans, order: IntArray, most: int = LARGEST) -> Packing:
    """`put_down`, compiled; not all of it where it takes more than `most` bytes."""
    from doppler.scheduler.packing_kernel import put_down as compiled

    offset, low = np.zeros((2, len(order)), np.int64)
    top = compiled(spans.begin, spans.end, spans.size, order, most, offset, low)
    return Packing(offset, int(top))


def put_down(spans: Spans, order: IntArray) -> Packing:
    """Every buffer, in this order, in the smallest gap that holds it."""
    offset, top = np.zeros(len(order), np.int64), 0
    placed: list[int] = []
    for i in order.tolist():
        if spans.size[i]:
            there = np.array(placed, np.int64)
            meets = (spans.begin[there] <= spans.end[i]) & (spans.end[there] >= spans.begin[i])
            low = offset[there[meets]]
            high = low + spans.size[there[meets]]
            offset[i] = _smallest_gap(low, high, int(spans.size[i]))
            placed.append(i)
            top = max(top, int(offset[i] + spans.size[i]))
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
    # The places that were ever used, without gaps within one: begins, ends, who was there last.
    begins, ends, last = list[int](), list[int](), list[int]()
    sizes, offsets = spans.size.tolist(), packing.offset.tolist()
    for i in np.lexsort((spans.end, spans.begin)).tolist():
        if not sizes[i]:
            continue
        low, high = offsets[i], offsets[i] + sizes[i]
        first, behind = bisect_right(ends, low), bisect_left(begins, high)
        found = {task for other in last[first:behind] for task in users[other]}
        rest = [(low, high, i)]
        if first < behind and begins[first] < low:
            rest.insert(0, (begins[first], low, last[first]))
        if first < behind and ends[behind - 1] > high:
            rest.append((high, ends[behind - 1], last[behind - 1]))
        begins[first:behind], ends[first:behind], last[first:behind] = map(
            list, zip(*rest, strict=True)
        )
        pairs += [(i, task) for task in sorted(found)]
    return pairs
