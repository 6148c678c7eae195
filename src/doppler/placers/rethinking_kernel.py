"""Which vertices belong together, compiled."""

from typing import Any

import numpy as np
from numba import njit

from doppler.arrays import BoolArray, FloatArray, IntArray
from doppler.mdp.instance import Tables

compiled: Any = njit(cache=True, nogil=True)
AHEAD = 4  # of the vertices that wait, any of the first so many is next


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


@compiled
def root(parent: IntArray, v: int) -> int:
    """The vertex that v's group has its number from; the way there gets shorter."""
    while parent[v] != v:
        parent[v] = parent[parent[v]]
        v = parent[v]
    return v


@compiled
def ball(t: Tables, first: int, size: int, seed: int) -> BoolArray:
    """(n,) whether a vertex is one of about `size` around the first, roughly the nearest."""
    np.random.seed(seed)
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


@compiled
def include(v: int, inside: BoolArray, queue: IntArray, end: int) -> int:
    """Let a vertex wait if it is new; the end of the queue."""
    if inside[v]:
        return end
    inside[v], queue[end] = True, v
    return end + 1
