"""Merges of groups after which their graph is still acyclic, compiled."""

from typing import Any

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import njit, part

compiled: Any = njit(cache=True, nogil=True, no_cfunc_wrapper=True)
inlined: Any = part(nogil=True)


@compiled
def depths(ptr: IntArray, reader: IntArray, size: int) -> IntArray:
    """(m,) edges on the longest path to each group; the edges are a CSR index by producer."""
    missing, depth = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for e in range(len(reader)):
        missing[reader[e]] += 1
    queue, at, end = np.zeros(size, np.int64), 0, 0
    for v in range(size):
        if missing[v] == 0:
            queue[end] = v
            end += 1
    while at < end:
        v = queue[at]
        at += 1
        for e in range(ptr[v], ptr[v + 1]):
            w = reader[e]
            depth[w] = max(depth[w], depth[v] + 1)
            missing[w] -= 1
            if missing[w] == 0:
                queue[end] = w
                end += 1
    return depth


@compiled
def merge_ends(
    producer: IntArray,
    reader: IntArray,
    by_weight: IntArray,
    depth: IntArray,
    first: int,
    work: FloatArray,
    most: float,
    fewest: int,
) -> IntArray:
    """(m,) a group that each is merged into, after merges of the ends of edges `by_weight`.

    Bands of two depths each begin at depth `first`, 0 or 1. The ends of an edge within a band are
    merged where the reader reads nothing else of its band, or the producer is read by nothing else
    there. The first kind is entered from no group of its band and the second left to none, so no
    cycle leads through a band; and what leaves a band goes to later ones.
    """
    size = len(work)
    reads, is_read = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for e in range(len(producer)):
        if in_band(depth, producer[e], reader[e], first):
            reads[reader[e]] += 1
            is_read[producer[e]] += 1
    parent, sums, count = np.arange(size), work.copy(), size
    for e in by_weight:
        a, b = producer[e], reader[e]
        if count <= fewest:
            break
        if in_band(depth, a, b, first) and (reads[b] == 1 or is_read[a] == 1):
            count -= join(parent, sums, a, b, most)
    return roots(parent)


@compiled
def merge_alike(
    order: IntArray, hub: IntArray, depth: IntArray, work: FloatArray, most: float, fewest: int
) -> IntArray:
    """(m,) a group that each is merged into, after merges of pairs of the same depth and hub.

    Pairs are next to each other in an order of groups, in which each may come several times; `hub`
    is what they share there. What has the same depth is on no path together, and edges between
    what is merged still lead to greater depths.
    """
    size = len(work)
    parent, sums, count = np.arange(size), work.copy(), size
    paired = np.zeros(size, np.int64)
    last = -1  # place in the order of one without a partner
    for i in range(len(order)):
        v = order[i]
        if count <= fewest:
            break
        if paired[v] or (last >= 0 and order[last] == v):
            continue
        if last >= 0 and hub[last] == hub[i] and depth[order[last]] == depth[v]:
            if join(parent, sums, order[last], v, most):
                paired[v], paired[order[last]], last = 1, 1, -1
                count -= 1
                continue
        last = i
    return roots(parent)


@inlined
def in_band(depth: IntArray, a: int, b: int, first: int) -> bool:
    """Whether an edge leads from the first depth of a band to its second."""
    return depth[b] == depth[a] + 1 and depth[a] % 2 == first


@inlined
def join(parent: IntArray, sums: FloatArray, a: int, b: int, most: float) -> int:
    """Merge the groups of a and b unless that has too much work; 1 if they were merged."""
    a, b = root(parent, a), root(parent, b)
    if a == b or sums[a] + sums[b] > most:
        return 0
    parent[b] = a
    sums[a] += sums[b]
    return 1


@inlined
def roots(parent: IntArray) -> IntArray:
    """(m,) the group that each is in, in the end."""
    for v in range(len(parent)):
        parent[v] = root(parent, v)
    return parent


@inlined
def root(parent: IntArray, v: int) -> int:
    """The group that v is in; the way there gets shorter."""
    while parent[v] != v:
        parent[v] = parent[parent[v]]
        v = parent[v]
    return v
