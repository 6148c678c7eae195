"""Destroy operators, random repair and groups of a large-neighbourhood search, compiled.

Repair by the policy is in `policy_repair`.
"""

from typing import Any

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.base.jit import by_reference, njit, part
from doppler.mdp.instance import Tables
from doppler.mdp.rollout import UNASSIGNED
from doppler.placers.learned.config import OperatorSettings

by_reference(Tables, OperatorSettings)
compiled: Any = njit(cache=True, nogil=True, no_cfunc_wrapper=True)
inlined: Any = part(nogil=True)


@compiled
def destroy_and_repair_at_random(
    t: Tables,
    parents: IntArray,
    orders: IntArray,
    groups: IntArray,
    shares: FloatArray,
    settings: OperatorSettings,
    seed: int,
) -> tuple[IntArray, IntArray, IntArray]:
    """(B, n) devices, or UNASSIGNED where the policy is to repair, (B, n) parents' orders, and (B,)
    which the parents are.

    The parent of each is one of (E, n) assignments. About one of (B,) shares of its vertices are
    destroyed: (n,) groups of them, if there are any; else, in turn, a stretch of its order or the
    vertices around one.
    """
    np.random.seed(seed)
    n = orders.shape[1]
    devices, order = np.empty((len(shares), n), np.int64), np.empty((len(shares), n), np.int64)
    which = np.empty(len(shares), np.int64)
    for b in range(len(shares)):
        parent = np.random.randint(len(parents))
        which[b] = parent
        copy(orders[parent], order[b])
        for _ in range(settings.max_tries):
            if len(groups):
                destroyed = destroy_groups(groups, shares[b])
            elif b % 2:
                first, size = np.random.randint(n), int(shares[b] * n) + 1
                destroyed = destroy_around_vertex(t, first, size, settings.frontier)
            else:
                destroyed = destroy_stretch(orders[parent], shares[b])
            copy(parents[parent], devices[b])
            if repair_at_random(t, devices[b], orders[parent], destroyed, groups, settings):
                break
    return devices, order, which


@inlined
def copy(source: IntArray, target: IntArray) -> None:
    """Copy (n,) numbers."""
    for v in range(len(source)):
        target[v] = source[v]


@inlined
def destroy_groups(groups: IntArray, share: float) -> BoolArray:
    """(n,) whether a vertex is in one of the groups that are drawn at random, at least one."""
    n = len(groups)
    drawn, destroyed = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    for group in range(n):
        drawn[group] = np.random.random() < share
    drawn[groups[np.random.randint(n)]] = True
    for v in range(n):
        destroyed[v] = drawn[groups[v]]
    return destroyed


@inlined
def destroy_stretch(order: IntArray, share: float) -> BoolArray:
    """(n,) whether a vertex is in a stretch of the order, drawn at random."""
    n = len(order)
    length = min(int(share * n) + 1, n)
    first = np.random.randint(n - length + 1)
    destroyed = np.zeros(n, np.bool_)
    for i in range(first, first + length):
        destroyed[order[i]] = True
    return destroyed


@compiled
def destroy_around_vertex(t: Tables, first: int, size: int, frontier: int) -> BoolArray:
    """(n,) whether a vertex is one of about `size` around the first, roughly the nearest.

    A breadth-first search, but that it goes on from any of the first `frontier` of its queue.
    """
    n = len(t.num_reads)
    destroyed, queue = np.zeros(n, np.bool_), np.zeros(n, np.int64)
    destroyed[first], queue[0] = True, first
    at, end = 0, 1
    while at < end < size:
        other = at + np.random.randint(min(end - at, frontier))
        queue[at], queue[other] = queue[other], queue[at]
        v = queue[at]
        at += 1
        for e in range(t.edge_ptr[v], t.edge_ptr[v + 1]):
            end = include(t.edge_reader[e], destroyed, queue, end)
        for i in range(t.read_ptr[v], t.read_ptr[v + 1]):
            end = include(t.edge_producer[t.read_edge[i]], destroyed, queue, end)
    for i in range(size, end):
        destroyed[queue[i]] = False
    return destroyed


@inlined
def include(v: int, destroyed: BoolArray, queue: IntArray, end: int) -> int:
    """Add a vertex to the queue if it is new; the end of the queue."""
    if destroyed[v]:
        return end
    destroyed[v], queue[end] = True, v
    return end + 1


@inlined
def repair_at_random(
    t: Tables,
    devices: IntArray,
    order: IntArray,
    destroyed: BoolArray,
    groups: IntArray,
    settings: OperatorSettings,
) -> bool:
    """Assign a share of the destroyed vertices, or groups, at random, and unassign the rest.

    Returns whether any vertex is unassigned or has moved. Until its turn comes, a destroyed vertex
    still counts as being on its old device.
    """
    n = t.exec_s.shape[0]
    is_repaired, group_device, changed = np.zeros(n, np.bool_), np.empty(n, np.int64), False
    for v in order:
        if destroyed[v]:
            group = groups[v] if len(groups) else v
            if not is_repaired[group]:
                is_repaired[group], group_device[group] = True, UNASSIGNED
                if np.random.random() < settings.random_share:
                    group_device[group] = random_device(t, devices, v, settings)
            changed = changed or group_device[group] != devices[v]
            devices[v] = group_device[group]
    return changed


@inlined
def random_device(t: Tables, devices: IntArray, v: int, settings: OperatorSettings) -> int:
    """Mostly the device of a vertex next to v, or a device by how many vertices are there."""
    reads = t.read_ptr[v + 1] - t.read_ptr[v]
    count = reads + t.edge_ptr[v + 1] - t.edge_ptr[v]
    if count > 0 and np.random.random() < settings.near_probability:
        i = np.random.randint(count)
        e = t.read_edge[t.read_ptr[v] + i] if i < reads else t.edge_ptr[v] + i - reads
        device = devices[t.edge_producer[e] if i < reads else t.edge_reader[e]]
        if device != UNASSIGNED:
            return device
    device = devices[np.random.randint(len(devices))]
    if device != UNASSIGNED and np.random.random() < settings.used_probability:
        return device
    return np.random.randint(t.exec_s.shape[1])


@compiled
def merge_ends(t: Tables, order: IntArray, work: FloatArray, most: float) -> IntArray:
    """(n,) group of each vertex, after the groups of the ends of every edge, in this order, merged.

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
