"""The inner loop of laying parts onto devices: two trade places where that should be faster."""

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import compiled, inlined


@compiled
def trade(
    on: IntArray,
    load: FloatArray,
    fixed: FloatArray,
    moves: FloatArray,
    moved: FloatArray,
    latency: FloatArray,
    slope: FloatArray,
    max_swaps: int,
) -> None:
    """Swap two entries of (D,) `on`, the devices of parts, as long as the estimate falls.

    The others are (D, D): the work of a part on a device; seconds, number and bytes of what one
    part sends to another; seconds of a transfer, and of a byte, from one device to another.
    """
    size, better, left = len(on), True, max_swaps
    total = 0.0
    for a in range(size):
        total += sent_s(on, a, fixed, moves, moved, latency, slope)
    best = longest_s(on, load) + total / size
    while better and left > 0:
        better, tried = False, 0
        for i in range(size):
            for j in range(i):
                if tried == max_swaps:
                    break
                tried, left = tried + 1, left - 1
                before = touched_s(on, i, j, fixed, moves, moved, latency, slope)
                on[i], on[j] = on[j], on[i]
                after = touched_s(on, i, j, fixed, moves, moved, latency, slope)
                value = longest_s(on, load) + (total - before + after) / size
                if value < best * (1 - 1e-12):
                    best, better = value, True
                    total += after - before
                else:
                    on[i], on[j] = on[j], on[i]


@inlined
def longest_s(on: IntArray, load: FloatArray) -> float:
    """The longest work of a device."""
    longest = 0.0
    for a in range(len(on)):
        longest = max(longest, load[a, on[a]])
    return longest


@inlined
def sent_s(
    on: IntArray,
    a: int,
    fixed: FloatArray,
    moves: FloatArray,
    moved: FloatArray,
    latency: FloatArray,
    slope: FloatArray,
) -> float:
    """Seconds of all that part `a` sends."""
    total = 0.0
    for b in range(len(on)):
        if moves[a, b] > 0.0:
            p, q = on[a], on[b]
            total += fixed[a, b] + moves[a, b] * latency[p, q] + moved[a, b] * slope[p, q]
    return total


@inlined
def touched_s(
    on: IntArray,
    i: int,
    j: int,
    fixed: FloatArray,
    moves: FloatArray,
    moved: FloatArray,
    latency: FloatArray,
    slope: FloatArray,
) -> float:
    """Seconds of all that parts i and j send or get."""
    total = sent_s(on, i, fixed, moves, moved, latency, slope)
    total += sent_s(on, j, fixed, moves, moved, latency, slope)
    for a in range(len(on)):
        if a != i and a != j:
            for b in (i, j):
                if moves[a, b] > 0.0:
                    p, q = on[a], on[b]
                    total += fixed[a, b] + moves[a, b] * latency[p, q] + moved[a, b] * slope[p, q]
    return total
