"""Compiled greedy list scheduling: `lists.reference.place_greedily`, vertex for vertex.

Every device has two heaps of ready vertices: those whose inputs arrive after it is free, by
value, and those whose inputs are there by then, by tie. A device is only ever free later, so a
vertex moves from the first to the second once, and its value never falls. A copy that a device
receives makes what others need there smaller by as much as it takes: whoever lacks room on a
device will never have it. So each vertex passes each heap once: O(V D log V + E D).
"""

from typing import NamedTuple

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.base.jit import by_reference, compiled, inlined
from doppler.placers.lists.kernel import ListState, put
from doppler.placers.lists.rules import PlanArrays


class GreedyArrays(NamedTuple):
    """The arrays of a `GreedyRule`."""

    tie: FloatArray  # (V, D)
    memory_bytes: FloatArray  # (D,)
    favourite: IntArray  # (V,)
    awake_s: FloatArray  # (V,)


class Heaps(NamedTuple):
    """Ready vertices: device d has to wait for those in heap 2d, and has all for 2d + 1."""

    heap: IntArray  # (2D+1, V) the last: of those that have room nowhere
    size: IntArray  # (2D+1,)
    options: IntArray  # (V,) devices that may have room
    used_bytes: FloatArray  # (D,)
    temporary_bytes: FloatArray  # (D,) most of any vertex there
    holds: BoolArray  # (T, D) whether a tensor, or a copy of it, is on a device
    last: IntArray  # (S,) vertex placed last, or -1


by_reference(GreedyArrays, Heaps)


def make_heaps(p: PlanArrays) -> Heaps:
    """Working memory of `place_greedily`."""
    vertices, devices = p.exec_s.shape
    return Heaps(
        heap=np.zeros((2 * devices + 1, vertices), np.int64),
        size=np.zeros(2 * devices + 1, np.int64),
        options=np.full(vertices, devices),
        used_bytes=np.zeros(devices),
        temporary_bytes=np.zeros(devices),
        holds=np.zeros((len(p.whole_bytes), devices), np.bool_),
        last=np.full(int(p.slot_ptr[-1]), -1),
    )


@compiled
def place_greedily(p: PlanArrays, c: GreedyArrays, by_finish: bool, s: ListState, h: Heaps) -> int:
    """Follow a `GreedyRule`; returns how many vertices were placed."""
    count, num_devices = 0, p.exec_s.shape[1]
    for v in range(len(s.missing)):
        if s.missing[v] == 0:
            for d in range(num_devices):
                push(c, by_finish, s, h, 2 * d, v)
    while True:
        vertex, device, value_s = -1, -1, np.inf
        for d in range(num_devices):
            v, at_s = propose(p, c, by_finish, s, h, d)
            if v >= 0 and (
                vertex < 0
                or at_s < value_s
                or (at_s == value_s and precedes(c, v, d, vertex, device))
            ):
                vertex, device, value_s = v, d, at_s
        begin_s = value_s
        if vertex < 0:
            if h.size[2 * num_devices] == 0:
                return count
            vertex = pop(c, by_finish, s, h, 2 * num_devices)
            device = roomiest(p, c, h, vertex)
            begin_s = begin_on(p, s, vertex, device)
        elif by_finish:
            begin_s = begin_on(p, s, vertex, device)
        take(p, s, h, vertex, device)
        put(p, s, vertex, device, begin_s)
        s.slot_free_s[first_slot(p, s, device)] = s.end_s[vertex]
        s.order[count] = vertex
        count += 1
        for e in range(p.edge_ptr[vertex], p.edge_ptr[vertex + 1]):
            r = p.edge_reader[e]
            s.missing[r] -= 1
            if s.missing[r] == 0:
                for d in range(num_devices):
                    push(c, by_finish, s, h, 2 * d, r)


@inlined
def precedes(c: GreedyArrays, v: int, d: int, other: int, other_device: int) -> bool:
    """Whether a pair comes before another of the same value, on a device before this one."""
    tie, other_tie = c.tie[v, d], c.tie[other, other_device]
    return tie < other_tie or (tie == other_tie and v < other)


@inlined
def first_slot(p: PlanArrays, s: ListState, d: int) -> int:
    """The slot of a device that is free first."""
    first = p.slot_ptr[d]
    for slot in range(first + 1, p.slot_ptr[d + 1]):
        if s.slot_free_s[slot] < s.slot_free_s[first]:
            first = slot
    return first


@inlined
def begin_on(p: PlanArrays, s: ListState, v: int, d: int) -> float:
    """When a ready vertex can begin on a device."""
    return max(s.slot_free_s[first_slot(p, s, d)], s.arrival_s[v, d])


@inlined
def propose(
    p: PlanArrays, c: GreedyArrays, by_finish: bool, s: ListState, h: Heaps, d: int
) -> tuple[int, float]:
    """A device's first vertex and its value; -1 if it has room for none."""
    slot = first_slot(p, s, d)
    free_s = s.slot_free_s[slot]
    settle(p, c, by_finish, s, h, d, free_s)
    v, at_s = -1, np.inf
    if h.size[2 * d + 1] > 0:
        v = h.heap[2 * d + 1, 0]
        at_s = free_s + c.tie[v, d] if by_finish else free_s
    if h.size[2 * d] > 0:
        w = h.heap[2 * d, 0]
        later_s = waiting_value(c, by_finish, s, w, d)
        if v < 0 or later_s < at_s or (later_s == at_s and precedes(c, w, d, v, d)):
            v, at_s = w, later_s
    if h.last[slot] < 0:
        return v, at_s
    favourite = c.favourite[h.last[slot]]
    if favourite < 0 or favourite == v or s.devices[favourite] >= 0:
        return v, at_s
    if v >= 0 and not is_everywhere(s, v, at_s):
        at_s = max(at_s, s.end_s[h.last[slot]] + c.awake_s[h.last[slot]])
    if s.missing[favourite] == 0 and has_room(p, c, h, favourite, d):
        favourite_s = max(free_s, s.arrival_s[favourite, d])
        if favourite_s <= at_s:
            return favourite, favourite_s
    return v, at_s


@inlined
def is_everywhere(s: ListState, v: int, at_s: float) -> bool:
    """Whether the inputs of a vertex are on all devices at that time."""
    latest_s = 0.0
    for d in range(s.arrival_s.shape[1]):
        latest_s = max(latest_s, s.arrival_s[v, d])
    return latest_s <= at_s


@inlined
def settle(
    p: PlanArrays, c: GreedyArrays, by_finish: bool, s: ListState, h: Heaps, d: int, free_s: float
) -> None:
    """Leave at the top of a device's heaps only vertices that belong there and have room."""
    while h.size[2 * d] > 0:
        v = h.heap[2 * d, 0]
        waits = s.arrival_s[v, d] > free_s
        if s.devices[v] < 0 and waits and has_room(p, c, h, v, d):
            break
        pop(c, by_finish, s, h, 2 * d)
        if s.devices[v] < 0 and not waits:
            push(c, by_finish, s, h, 2 * d + 1, v)
        elif s.devices[v] < 0:
            give_up(c, by_finish, s, h, v)
    while h.size[2 * d + 1] > 0:
        v = h.heap[2 * d + 1, 0]
        if s.devices[v] < 0 and has_room(p, c, h, v, d):
            break
        pop(c, by_finish, s, h, 2 * d + 1)
        if s.devices[v] < 0:
            give_up(c, by_finish, s, h, v)


@inlined
def give_up(c: GreedyArrays, by_finish: bool, s: ListState, h: Heaps, v: int) -> None:
    """A device has no room for a vertex; where none has, it waits for the others."""
    h.options[v] -= 1
    if h.options[v] == 0:
        push(c, by_finish, s, h, len(h.size) - 1, v)


@inlined
def has_room(p: PlanArrays, c: GreedyArrays, h: Heaps, v: int, d: int) -> bool:
    """Whether what a vertex adds to a device fits there."""
    free_bytes = c.memory_bytes[d] - h.used_bytes[d] - temporary_on(p, h, v, d)
    return p.max_bytes[v] <= free_bytes or need_bytes(p, h, v, d) <= free_bytes


@inlined
def temporary_on(p: PlanArrays, h: Heaps, v: int, d: int) -> float:
    """The most temporaries of any vertex on a device, with one more there."""
    return max(h.temporary_bytes[d], p.temporary_bytes[v])


@inlined
def need_bytes(p: PlanArrays, h: Heaps, v: int, d: int) -> float:
    """What a vertex adds to a device: its outputs, and what it reads and is not yet there."""
    need = p.max_bytes[v]
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        if h.holds[p.read_tensor[i], d]:
            need -= p.whole_bytes[p.read_tensor[i]]
    return need


@inlined
def roomiest(p: PlanArrays, c: GreedyArrays, h: Heaps, v: int) -> int:
    """The device that has most room left with v on it."""
    best, most = 0, -np.inf
    for d in range(len(h.used_bytes)):
        left = c.memory_bytes[d] - h.used_bytes[d] - need_bytes(p, h, v, d)
        left -= temporary_on(p, h, v, d)
        if left > most:
            best, most = d, left
    return best


@inlined
def take(p: PlanArrays, s: ListState, h: Heaps, v: int, d: int) -> None:
    """Occupy the memory that a vertex needs on a device."""
    h.used_bytes[d] += need_bytes(p, h, v, d)
    h.temporary_bytes[d] = temporary_on(p, h, v, d)
    for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
        h.holds[p.read_tensor[i], d] = True
    for e in range(p.edge_ptr[v], p.edge_ptr[v + 1]):
        h.holds[p.edge_tensor[e], d] = True
    h.last[first_slot(p, s, d)] = v


@inlined
def waiting_value(c: GreedyArrays, by_finish: bool, s: ListState, v: int, d: int) -> float:
    """The value of a vertex on a device that waits for its inputs."""
    return s.arrival_s[v, d] + c.tie[v, d] if by_finish else s.arrival_s[v, d]


@inlined
def before(c: GreedyArrays, by_finish: bool, s: ListState, heap: int, v: int, other: int) -> bool:
    """Whether v comes before another in a heap."""
    d = 0 if heap == 2 * len(c.memory_bytes) else heap >> 1
    if heap & 1 == 0 and heap < 2 * len(c.memory_bytes):
        mine, its = waiting_value(c, by_finish, s, v, d), waiting_value(c, by_finish, s, other, d)
        if mine != its:
            return mine < its
    tie, other_tie = c.tie[v, d], c.tie[other, d]
    return tie < other_tie or (tie == other_tie and v < other)


@inlined
def push(c: GreedyArrays, by_finish: bool, s: ListState, h: Heaps, heap: int, v: int) -> None:
    """Put a vertex into a heap."""
    i = h.size[heap]
    h.size[heap] = i + 1
    while i > 0:
        up = (i - 1) >> 1
        if before(c, by_finish, s, heap, h.heap[heap, up], v):
            break
        h.heap[heap, i] = h.heap[heap, up]
        i = up
    h.heap[heap, i] = v


@inlined
def pop(c: GreedyArrays, by_finish: bool, s: ListState, h: Heaps, heap: int) -> int:
    """Take the first vertex off a heap."""
    size = h.size[heap] - 1
    h.size[heap] = size
    first, v = h.heap[heap, 0], h.heap[heap, size]
    i, down = 0, 1
    while down < size:
        if down + 1 < size and before(
            c, by_finish, s, heap, h.heap[heap, down + 1], h.heap[heap, down]
        ):
            down += 1
        if before(c, by_finish, s, heap, v, h.heap[heap, down]):
            break
        h.heap[heap, i] = h.heap[heap, down]
        i, down = down, 2 * down + 1
    h.heap[heap, i] = v
    return first
