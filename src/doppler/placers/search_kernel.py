"""The inner loop of search: moves on one assignment, each simulated, accepted or undone."""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from doppler.arrays import FloatArray, IntArray
from doppler.sim.kernel import UNFINISHED, Problem, Scratch, run_batch

compiled: Any = njit(cache=True, nogil=True)
MOVE, SWAP, CHAIN, EXCHANGE = 0, 1, 2, 3
INFEASIBLE = 1e290  # for each task that never starts for lack of memory: any other cost is less


class Neighbourhood(NamedTuple):
    """What moves are made of."""

    movable: IntArray  # (M,) vertices that get a device
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
    log_vertex: IntArray  # (V,) vertices changed by the move being tried
    log_device: IntArray  # (V,) where they were
    makespan: FloatArray  # (1,)
    costs: FloatArray  # (S,) makespans under each draw of the noise


@compiled
def improve(
    p: Problem,
    n: Neighbourhood,
    c: Chain,
    priority: FloatArray,
    s: Scratch,
    seed: int,
    steps: int,
    hot: float,
    cold: float,
    quantile: float,
) -> None:
    """Try `steps` moves, at a temperature that falls from `hot` to `cold` (shares of the cost)."""
    np.random.seed(seed)
    num_devices = len(p.memory_bytes)
    for step in range(steps):
        temperature = hot * (cold / hot) ** (step / steps) if hot > 0.0 else 0.0
        count = propose(n, c, num_devices)
        if count == 0:
            continue
        # Metropolis' rule, the lot drawn first: so a simulation need go no further than this.
        limit = c.cost[0]
        if temperature > 0.0:
            limit -= np.log(1.0 - np.random.random()) * temperature * c.cost[1]
        cost = evaluate(p, c, priority, s, quantile, limit)
        if cost <= limit:
            c.cost[0] = cost
            if cost < c.cost[1]:
                c.cost[1] = cost
                c.best[:] = c.devices
        else:
            for i in range(count - 1, -1, -1):
                c.devices[0, c.log_vertex[i]] = c.log_device[i]


@compiled
def evaluate(
    p: Problem, c: Chain, priority: FloatArray, s: Scratch, quantile: float, limit: float
) -> float:
    """The cost of where a chain is: its makespan, or the mean or a quantile over the draws.

    If that is above `limit` it may be any number above it that is not more. Where it runs out of
    memory, the fewer tasks are left the better: so search finds its way.
    """
    draws = len(p.exec_s)
    for draw in range(draws):
        run_batch(p, draw, c.devices, priority, s, c.makespan, limit if draws == 1 else np.inf)
        c.costs[draw] = c.makespan[0]
        if c.costs[draw] == np.inf:
            c.costs[draw] = INFEASIBLE * s.counters[UNFINISHED]
    if draws == 1:
        return c.costs[0]
    if quantile < 0.0:
        return c.costs.mean()
    c.costs.sort()
    return c.costs[min(int(quantile * draws), draws - 1)]


@compiled
def propose(n: Neighbourhood, c: Chain, num_devices: int) -> int:
    """Make a random move; the number of vertices it changed is logged."""
    if num_devices < 2:
        return 0
    v = n.movable[np.random.randint(len(n.movable))]
    kind = np.random.randint(8)
    if kind < 3:  # one vertex to another device
        return put(c, 0, v, np.random.randint(num_devices))
    if kind < 5:  # two vertices exchange their devices
        w = n.movable[np.random.randint(len(n.movable))]
        if n.group_of[v] >= 0 and kind == 4:
            w = random_member(n, n.group_of[v])
        old = c.devices[0, v]
        count = put(c, 0, v, c.devices[0, w])
        return put(c, count, w, old)
    if kind < 7:  # a walk along the dataflow to one device
        device, count = np.random.randint(num_devices), 0
        for _ in range(np.random.randint(2, 8)):
            count = put(c, count, v, device)
            size = n.next_ptr[v + 1] - n.next_ptr[v]
            if size == 0:
                break
            v = n.next[n.next_ptr[v] + np.random.randint(size)]
        return count
    return exchange(n, c, n.group_of[v], num_devices)


@compiled
def exchange(n: Neighbourhood, c: Chain, group: int, num_devices: int) -> int:
    """Exchange two devices among the shards of a meta-op."""
    count = 0
    if group < 0:
        return 0
    a, b = np.random.randint(num_devices), np.random.randint(num_devices)
    for i in range(n.group_ptr[group], n.group_ptr[group + 1]):
        v = n.group[i]
        if c.devices[0, v] == a:
            count = put(c, count, v, b)
        elif c.devices[0, v] == b:
            count = put(c, count, v, a)
    return count


@compiled
def random_member(n: Neighbourhood, group: int) -> int:
    """A vertex of a group."""
    size = n.group_ptr[group + 1] - n.group_ptr[group]
    return n.group[n.group_ptr[group] + np.random.randint(size)]


@compiled
def put(c: Chain, count: int, vertex: int, device: int) -> int:
    """Change a vertex's device and log where it was; the number of changes so far."""
    if c.devices[0, vertex] == device or count == len(c.log_vertex):
        return count
    c.log_vertex[count] = vertex
    c.log_device[count] = c.devices[0, vertex]
    c.devices[0, vertex] = device
    return count + 1
