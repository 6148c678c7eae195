"""The compiled simulator: `ReferenceSimulator`, event for event, on plain arrays.

Ends are in one heap by time. A task is seen a constant time after its end, so those events form
a plain queue. The order in which events of one instant are taken in never matters, because keys
are compared by (priority or ready time, task): that is what lets this equal its readable twin.
"""

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import compiled, inlined
from doppler.sim.bounds_kernel import bound_execs, bound_transfers, raise_bound
from doppler.sim.memory_kernel import count_uses, drop_use, lend, lent_share, priced_s, requeue
from doppler.sim.queues_kernel import activate, enqueue, pop, sink
from doppler.sim.state_kernel import (
    ACTIVE,
    DRAW,
    EVENTS,
    PHASE,
    UNFINISHED,
    UNLIMITED,
    Arrays,
    Scratch,
    memory_device,
    need_bytes,
    source_of,
    transfer_s,
)


@compiled
def run_batch(
    p: Arrays,
    draw: int,
    devices: IntArray,
    priority: FloatArray,
    s: Scratch,
    makespan_s: FloatArray,
    limit_s: float,
    price: float,
) -> None:
    """Simulate each row of `devices` (B, V); infinity where memory never suffices.

    A makespan above `limit_s` may come out as any number above it that is not more: the simulation
    ends as soon as the limit is out of reach. `priority` is (1, V) for all or (B, V). Afterwards
    `s` holds the times of the last row, by task, if there was no limit.

    With a `price` that is not negative, a device is lent memory for good where tasks wait for it
    and nothing runs: as much as lets one more task start, that which lacks least. Then every run
    ends, `s` says how much each device was lent in the last row, and the limit is one of
    `priced_s`: what is lent makes the makespan count as longer.
    """
    for row in range(len(devices)):
        order = priority[min(row, len(priority) - 1)]
        makespan_s[row] = run_one(p, draw, devices[row], order, s, limit_s, price)


@inlined
def run_one(
    p: Arrays,
    draw: int,
    devices: IntArray,
    priority: FloatArray,
    s: Scratch,
    limit_s: float,
    price: float,
) -> float:
    """The makespan of one assignment; a bound of it, as soon as that is above `limit_s`."""
    s.counters[DRAW] = draw
    s.least_s[0] = 0.0
    limited = limit_s < np.inf
    if limited:
        bound_execs(p, draw, devices, s)
        if s.least_s[0] > limit_s:
            return s.least_s[0]
    prepare(p, devices, priority, s)
    if limited:
        bound_transfers(p, draw, devices, s)
        if s.least_s[0] > limit_s:
            return s.least_s[0]
    now, host_free_s, makespan_s = 0.0, 0.0, 0.0
    seen_head, seen_tail = 0, 0
    begin(p, devices, s)
    while True:
        if p.dispatch_s == 0.0:
            start_all(p, devices, s, now, limited)
        elif host_free_s <= now:
            task = choose(p, devices, s)
            if task >= 0:
                host_free_s = now + p.dispatch_s
                start(p, devices, s, task, host_free_s, limited)
        if s.least_s[0] > limit_s:
            return s.least_s[0]
        before, now = now, np.inf
        if s.counters[EVENTS] > 0:
            now = s.event_s[0]
        if seen_head < seen_tail:
            now = min(now, s.seen_s[seen_head])
        if s.counters[ACTIVE] > 0 and p.dispatch_s > 0.0:
            now = min(now, host_free_s)
        if now == np.inf:
            if price < 0.0 or s.counters[UNFINISHED] == 0:
                break
            now = before
            lend(p, s)
            if priced_s(max(makespan_s, s.least_s[0]), lent_share(p, s), price) > limit_s:
                return max(makespan_s, s.least_s[0])
            continue
        while s.counters[EVENTS] > 0 and s.event_s[0] == now:
            task = pop_event(s)
            makespan_s = max(makespan_s, now)
            release(p, devices, s, task)
            if p.completion_s > 0.0:
                s.seen_s[seen_tail], s.seen_task[seen_tail] = now + p.completion_s, task
                seen_tail += 1
            else:
                complete(p, devices, s, task, now)
        while seen_head < seen_tail and s.seen_s[seen_head] == now:
            complete(p, devices, s, s.seen_task[seen_head], now)
            seen_head += 1
    return makespan_s if s.counters[UNFINISHED] == 0 else np.inf


@inlined
def begin(p: Arrays, devices: IntArray, s: Scratch) -> None:
    """Make ready what needs no other task: entry vertices, and what arrives from the host."""
    vertices = len(devices)
    for v in range(vertices):
        if not p.is_input[v] and s.missing[v] == 0:
            make_ready(p, devices, s, v, 0.0)
    for t in p.arriving:
        for k in range(s.transfer_ptr[t], s.transfer_ptr[t + 1]):
            make_ready(p, devices, s, vertices + k, 0.0)


@inlined
def prepare(p: Arrays, devices: IntArray, priority: FloatArray, s: Scratch) -> None:
    """Enumerate the tasks (Alg. 2) and reset the working memory."""
    vertices, num_devices = len(devices), len(p.memory_bytes)
    resources = len(p.capacity)
    s.queue_ptr[:] = 0
    unfinished = 0
    for v in range(vertices):
        s.missing[v] = p.num_reads[v]
        if not p.is_input[v]:
            s.resource[v] = devices[v]
            s.key[v] = priority[v]
            s.queue_ptr[devices[v] + 1] += 1
            unfinished += 1
    transfers = enumerate_transfers(p, devices, priority, s)
    for r in range(resources):
        s.queue_ptr[r + 1] += s.queue_ptr[r]
        s.queue_size[r] = 0
        s.free[r] = p.capacity[r]
        s.place[r] = -1
    if p.ahead > 0:
        s.room_free_s[:] = 0.0
    s.counters[EVENTS] = 0
    s.counters[ACTIVE] = 0
    s.counters[UNFINISHED] = unfinished + transfers
    s.counters[PHASE] = 0
    if p.limit_memory:
        for d in range(num_devices):
            s.free_bytes[d] = p.memory_bytes[d]
            s.lacking[d] = -1
            s.lent_bytes[d] = 0.0
        count_uses(p, devices, s)
    if p.synchronous:
        s.phase_left[:] = 0
        s.parked[:] = -1
        for v in range(vertices):
            if not p.is_input[v]:
                s.phase_left[2 * p.level[v]] += 1
        for k in range(transfers):
            s.phase_left[phase_of(p, s, vertices + k)] += 1


@inlined
def phase_of(p: Arrays, s: Scratch, task: int) -> int:
    """The phase of a task between barriers; 0 for what arrives."""
    vertices = len(p.is_input)
    if task < vertices:
        return 2 * p.level[task]
    producer = p.producer[s.transfer_tensor[task - vertices]]
    return 0 if p.is_input[producer] else 2 * p.level[producer] + 1


@inlined
def enumerate_transfers(p: Arrays, devices: IntArray, priority: FloatArray, s: Scratch) -> int:
    """Number the transfers by (tensor, target)."""
    vertices, num_devices = len(devices), len(p.memory_bytes)
    k = 0
    for t in range(len(p.producer)):
        s.transfer_ptr[t] = k
        if not p.is_moved[t]:
            continue
        source, first = source_of(p, devices, t), k
        for e in range(p.reader_ptr[t], p.reader_ptr[t + 1]):
            r = p.reader[e]
            target = devices[r]
            if target == source:
                continue
            i = first  # insert in order of target, once
            while i < k and s.transfer_target[i] < target:
                i += 1
            if i < k and s.transfer_target[i] == target:
                s.key[vertices + i] = min(s.key[vertices + i], priority[r])
                continue
            for j in range(k, i, -1):
                s.transfer_target[j] = s.transfer_target[j - 1]
                s.key[vertices + j] = s.key[vertices + j - 1]
            s.transfer_target[i] = target
            s.key[vertices + i] = priority[r]
            k += 1
        for i in range(first, k):
            resource = num_devices + p.route[source, s.transfer_target[i]]
            s.transfer_tensor[i] = t
            s.resource[vertices + i] = resource
            s.queue_ptr[resource + 1] += 1
    s.transfer_ptr[len(p.producer)] = k
    return k


@inlined
def make_ready(p: Arrays, devices: IntArray, s: Scratch, task: int, now: float) -> None:
    """A task has all its inputs: queue it, or keep it for its phase."""
    s.ready_s[task] = now
    if p.fifo:
        s.key[task] = now
    if p.synchronous:
        phase = phase_of(p, s, task)
        if phase > s.counters[PHASE]:
            s.following[task] = s.parked[phase]
            s.parked[phase] = task
            return
    elif p.eager_transfers and task >= len(devices) and s.free[s.resource[task]] >= UNLIMITED:
        start(p, devices, s, task, now, False)  # nothing to queue for
        return
    enqueue(s, task)


@inlined
def start_all(p: Arrays, devices: IntArray, s: Scratch, now: float, limited: bool) -> None:
    """Start everything that can start, where starting takes no time.

    Then the order only matters for memory, which several resources compete for.
    """
    if p.limit_memory:
        task = choose(p, devices, s)
        while task >= 0:
            start(p, devices, s, task, now, limited)
            task = choose(p, devices, s)
        return
    for i in range(s.counters[ACTIVE]):
        resource = s.active[i]
        s.place[resource] = -1
        while s.free[resource] > 0 and s.queue_size[resource] > 0:
            s.free[resource] -= 1
            start(p, devices, s, pop(s, resource), now, limited)
    s.counters[ACTIVE] = 0


@inlined
def choose(p: Arrays, devices: IntArray, s: Scratch) -> int:
    """Take the first of all tasks that can start, and what it needs; -1 if none can.

    Tasks before it that lack memory are set aside.
    """
    while s.counters[ACTIVE] > 0:
        resource = s.active[0]
        task, d, lacks = pop(s, resource), -1, False
        if p.limit_memory:
            d = memory_device(s, len(devices), task)
            lacks = need_bytes(p, s, task) > s.free_bytes[d]
        if lacks:
            s.following[task] = s.lacking[d]
            s.lacking[d] = task
        else:
            s.free[resource] -= 1
        if s.free[resource] > 0 and s.queue_size[resource] > 0:
            sink(s, resource)
        else:
            s.place[resource] = -1
            s.counters[ACTIVE] -= 1
            if s.counters[ACTIVE] > 0:
                sink(s, s.active[s.counters[ACTIVE]])
        if not lacks:
            if p.limit_memory:
                s.free_bytes[d] -= need_bytes(p, s, task)
            return task
    return -1


@inlined
def start(
    p: Arrays, devices: IntArray, s: Scratch, task: int, begin_s: float, limited: bool
) -> None:
    """Begin a task, at `begin_s` or when there is room, and schedule its end."""
    vertices = len(devices)
    if task < vertices:
        duration = p.exec_s[s.counters[DRAW], task, devices[task]]
    else:
        t, target = s.transfer_tensor[task - vertices], s.transfer_target[task - vertices]
        link = s.resource[task] - len(p.memory_bytes)
        duration = transfer_s(p, s.counters[DRAW], t, link, target)
    if p.ahead > 0:
        begin_s = take_room(p, s, s.resource[task], begin_s, duration)
    end = begin_s + duration
    s.begin_s[task] = begin_s
    s.end_s[task] = end
    if limited:
        raise_bound(p, s, task, begin_s, duration)
    i = s.counters[EVENTS]
    s.counters[EVENTS] = i + 1
    while i > 0:
        up = (i - 1) >> 1
        if s.event_s[up] <= end:
            break
        s.event_s[i], s.event_task[i] = s.event_s[up], s.event_task[up]
        i = up
    s.event_s[i], s.event_task[i] = end, task


@inlined
def take_room(p: Arrays, s: Scratch, resource: int, begin_s: float, duration: float) -> float:
    """When a task begins that may begin at `begin_s` but has to wait for a slot or lane."""
    first, last = p.room_ptr[resource], p.room_ptr[resource + 1]
    if first == last:
        return begin_s
    for i in range(first + 1, last):
        if s.room_free_s[i] < s.room_free_s[first]:
            first = i
    begin_s = max(begin_s, s.room_free_s[first])
    s.room_free_s[first] = begin_s + duration
    return begin_s


@inlined
def pop_event(s: Scratch) -> int:
    """Take the next end off its heap."""
    first = s.event_task[0]
    size = s.counters[EVENTS] - 1
    s.counters[EVENTS] = size
    time, task = s.event_s[size], s.event_task[size]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and s.event_s[down + 1] < s.event_s[down]:
            down += 1
        if time <= s.event_s[down]:
            break
        s.event_s[i], s.event_task[i] = s.event_s[down], s.event_task[down]
        i = down
    s.event_s[i], s.event_task[i] = time, task
    return first


@inlined
def release(p: Arrays, devices: IntArray, s: Scratch, task: int) -> None:
    """Give back an ended task's slot or lane, and memory it was the last to use."""
    if s.free[s.resource[task]] < UNLIMITED:
        s.free[s.resource[task]] += 1
        activate(s, s.resource[task])
    if not p.limit_memory:
        return
    vertices = len(devices)
    if task < vertices:
        d = devices[task]
        freed = p.temporary_bytes[task] > 0.0
        s.free_bytes[d] += p.temporary_bytes[task]
        for i in range(p.read_ptr[task], p.read_ptr[task + 1]):
            t = p.read_tensor[i]
            if p.is_released[t]:
                freed |= drop_use(p, s, t, d)
    else:
        t = s.transfer_tensor[task - vertices]
        d = source_of(p, devices, t)
        freed = d < len(p.memory_bytes) and drop_use(p, s, t, d)
    if freed:
        requeue(p, s, d)


@inlined
def complete(p: Arrays, devices: IntArray, s: Scratch, task: int, now: float) -> None:
    """An ended task's result is known: transfers and readers may become ready."""
    vertices = len(devices)
    s.counters[UNFINISHED] -= 1
    if task < vertices:
        for i in range(p.output_ptr[task], p.output_ptr[task + 1]):
            t = p.output_tensor[i]
            arrived(p, devices, s, t, devices[task], now)
            for k in range(s.transfer_ptr[t], s.transfer_ptr[t + 1]):
                make_ready(p, devices, s, vertices + k, now)
    else:
        k = task - vertices
        arrived(p, devices, s, s.transfer_tensor[k], s.transfer_target[k], now)
    if p.synchronous:
        pass_barrier(p, s, task)


@inlined
def arrived(p: Arrays, devices: IntArray, s: Scratch, tensor: int, device: int, now: float) -> None:
    """A tensor is on a device: its readers there miss one input less."""
    for e in range(p.reader_ptr[tensor], p.reader_ptr[tensor + 1]):
        r = p.reader[e]
        if devices[r] == device:
            s.missing[r] -= 1
            if s.missing[r] == 0:
                make_ready(p, devices, s, r, now)


@inlined
def pass_barrier(p: Arrays, s: Scratch, task: int) -> None:
    """Count a completed task; open the next phase if it was the last of its own."""
    s.phase_left[phase_of(p, s, task)] -= 1
    while s.counters[PHASE] < len(s.phase_left) - 1 and s.phase_left[s.counters[PHASE]] == 0:
        s.counters[PHASE] += 1
        waiting = s.parked[s.counters[PHASE]]
        while waiting >= 0:
            following = s.following[waiting]
            enqueue(s, waiting)
            waiting = following
