"""The moves of search, compiled: what they are made of, and random ones."""

from typing import NamedTuple

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import by_reference, inlined
from doppler.placers.search.judging import KINDS

NEAR = 0.75  # probability that the device to move to is that of a vertex nearby
OTHERS = 16  # moves that are no region, by their weights
REGIONS = 8  # weight of regions; chosen on problems of split `train`
WANDER = 8  # steps in which a vertex on another device is looked for, to move a region there
WALK = 8  # vertices that are moved along the dataflow at once, at most
# Kinds of moves, as in `KINDS`.
ONE, PAIR, ALONG, IN_META_OP, REGION, STRETCH = range(6)
NUM_KINDS = len(KINDS)
SECONDS, SHARE, PRICE = range(3)  # of `Chain.lent`
LEAST, STEP = range(2)  # of `Chain.pricing`


class Neighbourhood(NamedTuple):
    """What moves are made of."""

    movable: IntArray  # (M,) vertices that get a device, in topological order
    group_ptr: IntArray  # (G+1,) CSR of vertices that were one operation: shards of a meta-op
    group: IntArray
    group_of: IntArray  # (V,) group of each vertex, -1 if it has none
    next_ptr: IntArray  # (V+1,) CSR: assigned vertices that a vertex feeds or is fed by
    next: IntArray


class Chain(NamedTuple):
    """The state of one search: kept from call to call."""

    devices: IntArray  # (1, V) where it is
    best: IntArray  # (1, V) the best it has seen
    cost: FloatArray  # (2,) of where it is, and of the best
    lent: FloatArray  # (3,) makespan where it is, share of memory lent for it, price of all of it
    pricing: FloatArray  # (2,) the least price, and by how much a move changes it
    log_vertex: IntArray  # (V,) vertices changed by the move being tried
    log_device: IntArray  # (V,) where they were
    makespan: FloatArray  # (1,)
    costs: FloatArray  # (S,) makespans under each draw of the noise


by_reference(Neighbourhood, Chain)


@inlined
def propose(n: Neighbourhood, c: Chain, num_devices: int) -> tuple[int, int]:
    """Make a random move: how many vertices it changed, which are logged, and its kind."""
    if num_devices < 2:
        return 0, ONE
    v = n.movable[np.random.randint(len(n.movable))]
    kind = np.random.randint(OTHERS + REGIONS)
    if kind >= OTHERS:  # vertices that are connected, of one device to another
        return move_region(n, c, v, num_devices), REGION
    if kind < 6:  # one vertex to another device
        return put(c, 0, v, likely_device(n, c, v, num_devices)), ONE
    if kind < 10:  # two vertices exchange their devices
        w = n.movable[np.random.randint(len(n.movable))]
        if n.group_of[v] >= 0 and kind < 8:
            w = random_member(n, n.group_of[v])
        old = c.devices[0, v]
        count = put(c, 0, v, c.devices[0, w])
        return put(c, count, w, old), PAIR
    if kind < 14:  # a walk along the dataflow to one device
        device, count = likely_device(n, c, v, num_devices), 0
        for _ in range(np.random.randint(2, WALK)):
            count = put(c, count, v, device)
            w = random_neighbour(n, v)
            if w == v:
                break
            v = w
        return count, ALONG
    a, b = np.random.randint(num_devices), np.random.randint(num_devices)
    if kind < 15:  # two devices are exchanged among the shards of a meta-op
        group = n.group_of[v]
        first, last = (n.group_ptr[group], n.group_ptr[group + 1]) if group >= 0 else (0, 0)
        return exchange(c, n.group[first:last], a, b), IN_META_OP
    # and over a stretch of the topological order, of any length
    length = int(2.0 * (len(n.movable) / 2.0) ** np.random.random())
    first = np.random.randint(max(len(n.movable) - length, 0) + 1)
    return exchange(c, n.movable[first : first + length], a, b), STRETCH


@inlined
def move_region(n: Neighbourhood, c: Chain, v: int, num_devices: int) -> int:
    """Move v, and vertices connected with it on its device, up to a random number of them.

    They are found breadth first, and go mostly to where a vertex nearby is.
    """
    own = c.devices[0, v]
    target, w = own, v
    if np.random.random() < NEAR:
        for _ in range(WANDER):
            w = random_neighbour(n, w)
            if c.devices[0, w] != own:
                target = c.devices[0, w]
                break
    if target == own:
        target = np.random.randint(num_devices)
    if target == own:
        return 0
    most = int(2.0 * (len(n.movable) / 2.0) ** np.random.random())
    count, at = put(c, 0, v, target), 0
    while at < count < most:
        u = c.log_vertex[at]
        at += 1
        first, end = n.next_ptr[u], n.next_ptr[u + 1]
        if end > first:
            shift = np.random.randint(end - first)
            for i in range(end - first):
                j = first + (i + shift) % (end - first)
                w = n.next[j]
                if c.devices[0, w] == own and count < most:
                    count = put(c, count, w, target)
    return count


@inlined
def likely_device(n: Neighbourhood, c: Chain, v: int, num_devices: int) -> int:
    """Mostly the device of a vertex one or two steps from v: fewer tensors are moved then."""
    if np.random.random() >= NEAR:
        return np.random.randint(num_devices)
    w = random_neighbour(n, v)
    if np.random.randint(2):
        w = random_neighbour(n, w)
    return c.devices[0, w]


@inlined
def random_neighbour(n: Neighbourhood, v: int) -> int:
    """A vertex that v feeds or is fed by; v itself if there is none."""
    size = n.next_ptr[v + 1] - n.next_ptr[v]
    return n.next[n.next_ptr[v] + np.random.randint(size)] if size else v


@inlined
def exchange(c: Chain, vertices: IntArray, a: int, b: int) -> int:
    """Exchange two devices among some vertices."""
    count = 0
    for v in vertices:
        if c.devices[0, v] == a:
            count = put(c, count, v, b)
        elif c.devices[0, v] == b:
            count = put(c, count, v, a)
    return count


@inlined
def random_member(n: Neighbourhood, group: int) -> int:
    """A vertex of a group."""
    size = n.group_ptr[group + 1] - n.group_ptr[group]
    return n.group[n.group_ptr[group] + np.random.randint(size)]


@inlined
def put(c: Chain, count: int, vertex: int, device: int) -> int:
    """Change a vertex's device and log where it was; the number of changes so far."""
    if c.devices[0, vertex] == device or count == len(c.log_vertex):
        return count
    c.log_vertex[count] = vertex
    c.log_device[count] = c.devices[0, vertex]
    c.devices[0, vertex] = device
    return count + 1


@inlined
def take_back(c: Chain, count: int) -> None:
    """Undo the move that is logged."""
    for i in range(count - 1, -1, -1):
        c.devices[0, c.log_vertex[i]] = c.log_device[i]
