"""The queues of the compiled simulator, and the heap of those that can start a task.

Each resource (device or link) has a binary heap of its ready tasks, by (key, task); all heaps share
one array. Resources that have capacity and a queue are in a heap by their first tasks.
"""

from doppler.base.jit import inlined
from doppler.sim.state_kernel import ACTIVE, Scratch


@inlined
def enqueue(s: Scratch, task: int) -> None:
    """Put a task into its resource's queue."""
    resource = s.resource[task]
    push(s, resource, task)
    if s.place[resource] < 0:
        activate(s, resource)
    elif s.queue[s.queue_ptr[resource]] == task:
        rise(s, resource, s.place[resource])


@inlined
def push(s: Scratch, resource: int, task: int) -> None:
    """Put a task into a resource's heap."""
    base, i = s.queue_ptr[resource], s.queue_size[resource]
    s.queue_size[resource] = i + 1
    key = s.key[task]
    while i > 0:
        up = (i - 1) >> 1
        other = s.queue[base + up]
        if s.key[other] < key or (s.key[other] == key and other < task):
            break
        s.queue[base + i] = other
        i = up
    s.queue[base + i] = task


@inlined
def pop(s: Scratch, resource: int) -> int:
    """Take the first task off a resource's heap."""
    base = s.queue_ptr[resource]
    size = s.queue_size[resource] - 1
    s.queue_size[resource] = size
    first, task = s.queue[base], s.queue[base + size]
    key = s.key[task]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        child = s.queue[base + down]
        if down + 1 < size:
            other = s.queue[base + down + 1]
            if s.key[other] < s.key[child] or (s.key[other] == s.key[child] and other < child):
                down, child = down + 1, other
        if key < s.key[child] or (key == s.key[child] and task < child):
            break
        s.queue[base + i] = child
        i = down
    s.queue[base + i] = task
    return first


@inlined
def activate(s: Scratch, resource: int) -> None:
    """Note a resource that has capacity and a queue."""
    if s.place[resource] < 0 and s.free[resource] > 0 and s.queue_size[resource] > 0:
        last = s.counters[ACTIVE]
        s.counters[ACTIVE] = last + 1
        rise(s, resource, last)


@inlined
def goes_first(s: Scratch, a: int, b: int) -> bool:
    """Whether the first task of one resource comes before that of another."""
    x, y = s.queue[s.queue_ptr[a]], s.queue[s.queue_ptr[b]]
    return s.key[x] < s.key[y] or (s.key[x] == s.key[y] and x < y)


@inlined
def rise(s: Scratch, resource: int, i: int) -> None:
    """Put an active resource where it belongs: at place i of the heap or above it."""
    while i > 0:
        up = (i - 1) >> 1
        other = s.active[up]
        if not goes_first(s, resource, other):
            break
        s.active[i], s.place[other] = other, i
        i = up
    s.active[i], s.place[resource] = resource, i


@inlined
def sink(s: Scratch, resource: int) -> None:
    """Put an active resource where it belongs, in the place of the first or below it."""
    i, size = 0, s.counters[ACTIVE]
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and goes_first(s, s.active[down + 1], s.active[down]):
            down += 1
        other = s.active[down]
        if not goes_first(s, other, resource):
            break
        s.active[i], s.place[other] = other, i
        i = down
    s.active[i], s.place[resource] = resource, i
