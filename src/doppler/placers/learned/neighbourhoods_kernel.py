"""Which vertices are unassigned together, and their random repair, compiled."""

from typing import Any

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.base.jit import by_reference, njit, part
from doppler.mdp.instance import Tables
from doppler.mdp.rollout import FREE

by_reference(Tables)
compiled: Any = njit(cache=True, nogil=True, no_cfunc_wrapper=True)
inlined: Any = part(nogil=True)
AHEAD = 4  # waiting vertices of which any may be next
NEAR = 0.75  # probability that random repair takes a neighbour's device
TRIES = 8  # until something changes
UNDECIDED = -(1 << 60)


@compiled
def think_again(
    t: Tables,
    devices: IntArray,
    orders: IntArray,
    groups: IntArray,
    shares: FloatArray,
    by_lot: float,
    seed: int,
) -> tuple[IntArray, IntArray]:
    """(B, n) what to force, and the order, where some of one of (E, n) assignments is placed again.

    Each of (B,) shares of the vertices is what is placed again: whole (n,) groups, if there are
    any, or vertices around one of them or a stretch of the order, by turns. Each goes somewhere by
    lot with a probability; for the others nothing is forced but to stay in their groups.
    """
    np.random.seed(seed)
    n = orders.shape[1]
    forced, order = np.empty((len(shares), n), np.int64), np.empty((len(shares), n), np.int64)
    for b in range(len(shares)):
        of = np.random.randint(len(devices))
        copy(orders[of], order[b])
        for _ in range(TRIES):
            if len(groups):
                chosen = some(groups, shares[b])
            elif b % 2:
                chosen = ball(t, np.random.randint(n), int(shares[b] * n) + 1)
            else:
                chosen = stretch(orders[of], shares[b])
            copy(devices[of], forced[b])
            if scatter(t, forced[b], orders[of], chosen, groups, by_lot):
                break
    return forced, order


@inlined
def copy(source: IntArray, target: IntArray) -> None:
    """Copy (n,) numbers."""
    for v in range(len(source)):
        target[v] = source[v]


@inlined
def scatter(
    t: Tables,
    row: IntArray,
    order: IntArray,
    chosen: BoolArray,
    groups: IntArray,
    by_lot: float,
) -> bool:
    """Unassign the chosen, each for random repair or for the policy; whether any may move."""
    n, num_devices = t.exec_s.shape
    code, changed = np.empty(n, np.int64), False
    for v in range(n):
        code[v] = UNDECIDED
    for v in order:
        if chosen[v]:
            group = groups[v] if len(groups) else v
            if code[group] == UNDECIDED:
                code[group] = FREE - 1 - group if len(groups) else FREE
                if np.random.random() < by_lot:
                    code[group] = likely_device(t, row, v, num_devices)
            changed = changed or code[group] != row[v]
            row[v] = code[group]
    return changed


@inlined
def likely_device(t: Tables, row: IntArray, v: int, num_devices: int) -> int:
    """Mostly the device of a vertex that v reads or is read by, where it has one."""
    reads = t.read_ptr[v + 1] - t.read_ptr[v]
    count = reads + t.edge_ptr[v + 1] - t.edge_ptr[v]
    if count > 0 and np.random.random() < NEAR:
        i = np.random.randint(count)
        e = t.read_edge[t.read_ptr[v] + i] if i < reads else t.edge_ptr[v] + i - reads
        device = row[t.edge_producer[e] if i < reads else t.edge_reader[e]]
        if device >= 0:
            return device
    return np.random.randint(num_devices)


@inlined
def some(groups: IntArray, share: float) -> BoolArray:
    """The vertices of some groups, drawn at random, at least one."""
    n = len(groups)
    lots, chosen = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    for v in range(n):
        lots[v] = np.random.random() < share
    lots[groups[np.random.randint(n)]] = True
    for v in range(n):
        chosen[v] = lots[groups[v]]
    return chosen


@inlined
def stretch(order: IntArray, share: float) -> BoolArray:
    """Those that follow one another in an order."""
    n = len(order)
    length = min(int(share * n) + 1, n)
    first = np.random.randint(n - length + 1)
    chosen = np.zeros(n, np.bool_)
    for i in range(first, first + length):
        chosen[order[i]] = True
    return chosen


@compiled
def join(t: Tables, order: IntArray, work: FloatArray, most: float) -> IntArray:
    """(n,) group of each vertex, after both ends of every edge, in this order, are put in one.

    No group gets more than `most` of the (n,) work. Its number is that of one of its vertices.
    """
    n = len(work)
    parent, sums = np.arange(n), work.copy()
    for e in order:
        a, b = root(parent, t.edge_producer[e]), root(parent, t.edge_reader[e])
        if a != b and sums[a] + sums[b] <= most:
            parent[b] = a
            sums[a] += sums[b]
    for v in range(n):
        parent[v] = root(parent, v)
    return parent


@inlined
def root(parent: IntArray, v: int) -> int:
    """The vertex that v's group has its number from; the way there gets shorter."""
    while parent[v] != v:
        parent[v] = parent[parent[v]]
        v = parent[v]
    return v


@compiled
def ball(t: Tables, first: int, size: int) -> BoolArray:
    """(n,) whether a vertex is one of about `size` around the first, roughly the nearest."""
    n = len(t.num_reads)
    inside, queue = np.zeros(n, np.bool_), np.zeros(n, np.int64)
    inside[first], queue[0] = True, first
    at, end = 0, 1
    while at < end < size:
        other = at + np.random.randint(min(end - at, AHEAD))
        queue[at], queue[other] = queue[other], queue[at]
        v = queue[at]
        at += 1
        for e in range(t.edge_ptr[v], t.edge_ptr[v + 1]):
            end = include(t.edge_reader[e], inside, queue, end)
        for i in range(t.read_ptr[v], t.read_ptr[v + 1]):
            end = include(t.edge_producer[t.read_edge[i]], inside, queue, end)
    for i in range(size, end):
        inside[queue[i]] = False
    return inside


@inlined
def include(v: int, inside: BoolArray, queue: IntArray, end: int) -> int:
    """Let a vertex wait if it is new; the end of the queue."""
    if inside[v]:
        return end
    inside[v], queue[end] = True, v
    return end + 1
