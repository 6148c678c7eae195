"""Compiled episodes of Placeto: float32, on one core, without the GIL.

At every step only what differs from the step before is computed again (see `placeto_plan`).
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.base.arrays import IntArray
from doppler.base.jit import KERNEL, by_reference, njit, part
from doppler.policies.arrays.kernel import multiply
from doppler.policies.rivals.pick_kernel import pick

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint8]

_OPTIONS: Any = {"fastmath": {"contract"}, **KERNEL}
compiled: Any = njit(cache=True, no_cfunc_wrapper=True, **_OPTIONS)
called: Any = part(forceinline=False, **_OPTIONS)


class Layers(NamedTuple):
    """Placeto's weights; matrices are (from, to), and the first axis of two is the way."""

    hidden: Floats  # (n, H) the first layer of what never changes, vertex by vertex
    on: Floats  # (D + 1, H) of the device a vertex is on; the last for nowhere
    flags: Floats  # (2, H) of the vertex at hand, and of those that were visited
    embed: Floats  # (H, H)
    embed_bias: Floats  # (H,)
    send: Floats  # (2, H, H)
    send_bias: Floats  # (2, H)
    receive: Floats  # (2, H, H)
    receive_bias: Floats  # (2, H)
    inside: Floats  # (2H, 3H)
    inside_bias: Floats  # (3H,)
    outside: Floats  # (3, H, 2H)
    outside_bias: Floats  # (3, 2H)
    head: Floats  # (8H, 4H)
    head_bias: Floats  # (4H,)
    middle: Floats  # (4H, 2H)
    middle_bias: Floats  # (2H,)
    out: Floats  # (2H, D)
    out_bias: Floats  # (D,)


class Hearing(NamedTuple):
    """From whom vertices hear: from producers, and from readers. Who hears is the other way."""

    begin: IntArray  # (2, n + 1)
    who: IntArray  # (2, m)
    share: Floats  # (2, m) in the mean
    ancestors: Bits  # (n, n / 8) bits
    descendants: Bits  # (n, n / 8)


class Space(NamedTuple):
    """What an episode is computed in."""

    first: Floats  # (n, H) what messages start from
    sent: Floats  # (rounds, 2, n, H) what vertices tell
    ends: Floats  # (2, n, H) what they know after all rounds
    parts: Floats  # (n, 3H) what they give to the groups
    rows: IntArray  # (2, n) who changes in a round
    other: IntArray  # (n,)
    seen: IntArray  # (n,) when a vertex was last noted
    new: Floats  # (2, n, H) what those in `rows` know
    long: Floats  # (n, 3H)
    wide: Floats  # (n, 2H)
    flat: Floats  # (n, H)
    pools: Floats  # (3, H)
    joined: Floats  # (1, 8H)
    upper: Floats  # (1, 4H)
    lower: Floats  # (1, 2H)


by_reference(Layers, Hearing, Space)


def make_space(n: int, width: int, rounds: int) -> Space:
    """Room for episodes of n steps."""

    def floats(*shape: int) -> Floats:
        return np.zeros(shape, np.float32)

    return Space(
        first=floats(n, width),
        sent=floats(rounds, 2, n, width),
        ends=floats(2, n, width),
        parts=floats(n, 3 * width),
        rows=np.zeros((2, n), np.int64),
        other=np.zeros(n, np.int64),
        seen=np.zeros(n, np.int64),
        new=floats(2, n, width),
        long=floats(n, 3 * width),
        wide=floats(n, 2 * width),
        flat=floats(n, width),
        pools=floats(3, width),
        joined=floats(1, 8 * width),
        upper=floats(1, 4 * width),
        lower=floats(1, 2 * width),
    )


@compiled
def play(
    layers: Layers,
    hearing: Hearing,
    start: int,
    draws: Floats,
    temperature: float,
    epsilon: float,
    taken: IntArray,
    logits: Floats,
    space: Space,
) -> None:
    """Fill in the devices that (B, n) episodes take, and their (B, n, D) logits.

    `draws` are (B, n, 3) uniform numbers from 0 to 1, see `pick`.
    """
    now = 0
    space.seen[:] = 0
    for b in range(taken.shape[0]):
        taken[b, :] = start
        for step in range(taken.shape[1]):
            now = change(layers, hearing, step, taken[b], space, now)
            decide(layers, hearing, step, logits[b, step], space)
            taken[b, step] = pick(logits[b, step], draws[b, step], temperature, epsilon)


@called
def change(
    layers: Layers, hearing: Hearing, step: int, taken: IntArray, space: Space, now: int
) -> int:
    """Bring what vertices know up to a step."""
    n, width = space.first.shape
    count = 2 if step else n  # who differs: the vertex before, and the one at hand
    for i in range(count):
        space.other[i] = step - 1 + i if step else i
    at_first(layers, step, taken, space, count)
    sizes = (count, count)
    for way in range(2):
        for i in range(count):
            space.rows[way, i] = space.other[i]
            for h in range(width):
                space.new[way, i, h] = space.first[space.other[i], h]
    for number in range(space.sent.shape[0]):
        now += 2
        sizes = (
            pass_on(layers, hearing, number, 0, step, sizes[0], space, now),
            pass_on(layers, hearing, number, 1, step, sizes[1], space, now + 1),
        )
    now += 2
    count = 0
    for way in range(2):
        for i in range(sizes[way]):
            vertex = space.rows[way, i]
            for h in range(width):
                space.ends[way, vertex, h] = space.new[way, i, h]
            if space.seen[vertex] != now:
                space.seen[vertex] = now
                space.other[count] = vertex
                count += 1
    for i in range(count):
        for way in range(2):
            for h in range(width):
                space.wide[i, way * width + h] = space.ends[way, space.other[i], h]
    multiply(space.wide, count, layers.inside, layers.inside_bias, space.long)
    for i in range(count):
        for h in range(3 * width):
            space.parts[space.other[i], h] = max(space.long[i, h], np.float32(0))
    return now


@called
def at_first(layers: Layers, step: int, taken: IntArray, space: Space, count: int) -> None:
    """What messages start from, for those in `other`."""
    width = space.first.shape[1]
    for i in range(count):
        vertex = space.other[i]
        on = layers.on[taken[vertex]]
        for h in range(width):
            x = layers.hidden[vertex, h] + on[h]
            if vertex == step:
                x += layers.flags[0, h]
            elif vertex < step:
                x += layers.flags[1, h]
            space.flat[i, h] = max(x, np.float32(0))
    multiply(space.flat, count, layers.embed, layers.embed_bias, space.new[0])
    for i in range(count):
        for h in range(width):
            space.first[space.other[i], h] = space.new[0, i, h]


@called
def pass_on(
    layers: Layers,
    hearing: Hearing,
    number: int,
    way: int,
    step: int,
    count: int,
    space: Space,
    now: int,
) -> int:
    """One round of messages one way: those that changed send it; returns how many received it."""
    n, width = space.first.shape
    rows, new, sent = space.rows[way], space.new[way], space.sent[number, way]
    multiply(new, count, layers.send[way], layers.send_bias[way], space.flat)
    for i in range(count):
        for h in range(width):
            sent[rows[i], h] = max(space.flat[i, h], np.float32(0))
    size = 0
    if step == 0:
        for vertex in range(n):
            rows[vertex] = vertex
        size = n
    else:
        for vertex in (step - 1, step):
            space.seen[vertex] = now
            space.other[size] = vertex
            size += 1
        for i in range(count):
            for e in range(hearing.begin[1 - way, rows[i]], hearing.begin[1 - way, rows[i] + 1]):
                vertex = hearing.who[1 - way, e]
                if space.seen[vertex] != now:
                    space.seen[vertex] = now
                    space.other[size] = vertex
                    size += 1
        for i in range(size):
            rows[i] = space.other[i]
    for i in range(size):
        for h in range(width):
            space.flat[i, h] = 0
        for e in range(hearing.begin[way, rows[i]], hearing.begin[way, rows[i] + 1]):
            share, message = hearing.share[way, e], sent[hearing.who[way, e]]
            for h in range(width):
                space.flat[i, h] += share * message[h]
    multiply(space.flat, size, layers.receive[way], layers.receive_bias[way], new)
    for i in range(size):
        for h in range(width):
            new[i, h] = max(new[i, h], np.float32(0)) + space.first[rows[i], h]
    return size


@called
def decide(layers: Layers, hearing: Hearing, step: int, logits: Floats, space: Space) -> None:
    """Fill in the logits for the vertex at hand."""
    n, width = space.first.shape
    sizes = (0, 0, 0)
    space.pools[:] = 0
    for vertex in range(n):
        if vertex == step:
            continue
        byte, bit = vertex >> 3, 0x80 >> (vertex & 7)
        if hearing.ancestors[step, byte] & bit:
            group = 0
            sizes = (sizes[0] + 1, sizes[1], sizes[2])
        elif hearing.descendants[step, byte] & bit:
            group = 1
            sizes = (sizes[0], sizes[1] + 1, sizes[2])
        else:
            group = 2
            sizes = (sizes[0], sizes[1], sizes[2] + 1)
        for h in range(width):
            space.pools[group, h] += space.parts[vertex, group * width + h]
    joined = space.joined
    for way in range(2):
        for h in range(width):
            joined[0, way * width + h] = space.ends[way, step, h]
    for group in range(3):
        for h in range(width):
            space.pools[group, h] /= np.float32(max(sizes[group], 1))
        row = space.pools[group : group + 1]
        multiply(row, 1, layers.outside[group], layers.outside_bias[group], space.lower)
        for h in range(2 * width):
            joined[0, 2 * width * (1 + group) + h] = max(space.lower[0, h], np.float32(0))
    multiply(joined, 1, layers.head, layers.head_bias, space.upper)
    for h in range(4 * width):
        space.upper[0, h] = max(space.upper[0, h], np.float32(0))
    multiply(space.upper, 1, layers.middle, layers.middle_bias, space.lower)
    for h in range(2 * width):
        space.lower[0, h] = max(space.lower[0, h], np.float32(0))
    for d in range(len(logits)):
        total = layers.out_bias[d]
        for h in range(2 * width):
            total += space.lower[0, h] * layers.out[h, d]
        logits[d] = total
