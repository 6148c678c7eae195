"""Runs with a memory plan, compiled: the tasks are any graph of dependencies on slots and lanes.

Equal event for event to `ReferenceSimulator` and `sim.fixed`. It is a kernel of its own, compiled
on first use, as few runs have a plan.
"""

from typing import NamedTuple

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import by_reference, compiled, inlined


class TaskArrays(NamedTuple):
    """Tasks, what each waits for and where it runs; N tasks on R resources."""

    exists: IntArray  # (N,) 0 for inputs, which are no tasks
    duration_s: FloatArray  # (N,)
    resource: IntArray  # (N,) device, or num_devices + link
    num_needs: IntArray  # (N,)
    ptr: IntArray  # (N+1,) tasks that wait for a task
    dependent: IntArray  # (P,)
    room_ptr: IntArray  # (R+1,) slots and lanes of each resource; none where there is no limit
    capacity: IntArray  # (R,) tasks that may be started: those rooms and the host's lead
    queue_ptr: IntArray  # (R+1,) where the heap of ready tasks of each resource begins
    dispatch_s: float
    completion_s: float
    fifo: bool


class TaskTimes(NamedTuple):
    """When tasks run, and working memory."""

    ready_s: FloatArray  # (N,)
    begin_s: FloatArray  # (N,)
    end_s: FloatArray  # (N,)
    key: FloatArray  # (N,) priority, or ready time
    missing: IntArray  # (N,)
    free: IntArray  # (R,)
    room_free_s: FloatArray  # (slots + lanes,)
    queue: IntArray  # (N,)
    queue_size: IntArray  # (R,)
    event: IntArray  # (N,) heap of running tasks by end
    seen: IntArray  # (N,) queue of ended tasks whose end is not seen yet


by_reference(TaskArrays, TaskTimes)


def make_times(p: TaskArrays, priority: FloatArray) -> TaskTimes:
    """Working memory for a run; `priority` (N,) counts unless the strategy is fifo."""
    tasks, resources = len(p.exists), len(p.capacity)
    ready_s, begin_s, end_s = np.zeros((3, tasks))
    return TaskTimes(
        ready_s,
        begin_s,
        end_s,
        key=np.array(priority, np.float64),
        missing=p.num_needs.copy(),
        free=p.capacity.copy(),
        room_free_s=np.zeros(int(p.room_ptr[-1])),
        queue=np.zeros(tasks, np.int64),
        queue_size=np.zeros(resources, np.int64),
        event=np.zeros(tasks, np.int64),
        seen=np.zeros(tasks, np.int64),
    )


@compiled
def run_tasks(p: TaskArrays, s: TaskTimes) -> float:
    """The makespan where the scheduler starts each task when it is ready; the times are in `s`."""
    now, host_free_s, makespan_s = 0.0, 0.0, 0.0
    events, seen_head, seen_tail = 0, 0, 0
    for task in range(len(p.exists)):
        if p.exists[task] and s.missing[task] == 0:
            make_ready(p, s, task, 0.0)
    while True:
        waiting = first_ready(p, s)
        while waiting >= 0 and host_free_s <= now:
            start(p, s, waiting, now + p.dispatch_s)
            push_event(s, events, waiting)
            events += 1
            if p.dispatch_s > 0.0:
                host_free_s = now + p.dispatch_s
            waiting = first_ready(p, s)
        now = np.inf
        if events > 0:
            now = s.end_s[s.event[0]]
        if seen_head < seen_tail:
            now = min(now, s.end_s[s.seen[seen_head]] + p.completion_s)
        if waiting >= 0:
            now = min(now, host_free_s)
        if now == np.inf:
            return makespan_s
        while events > 0 and s.end_s[s.event[0]] == now:
            task = pop_event(s, events)
            events -= 1
            makespan_s = max(makespan_s, now)
            s.free[p.resource[task]] += 1
            if p.completion_s > 0.0:
                s.seen[seen_tail] = task
                seen_tail += 1
            else:
                complete(p, s, task, now)
        while seen_head < seen_tail and s.end_s[s.seen[seen_head]] + p.completion_s == now:
            complete(p, s, s.seen[seen_head], now)
            seen_head += 1


@compiled
def run_tasks_in_order(p: TaskArrays, s: TaskTimes, tasks: IntArray, rooms: IntArray) -> float:
    """The makespan where the host starts the tasks in this order; the times are in `s`."""
    started_s, makespan_s = 0.0, 0.0
    for i in range(len(tasks)):
        task = tasks[i]
        started_s += p.dispatch_s
        begin_s = max(started_s, s.ready_s[task])
        room = p.room_ptr[p.resource[task]] + rooms[i]
        if rooms[i] >= 0:
            begin_s = max(begin_s, s.room_free_s[room])
        end_s = begin_s + p.duration_s[task]
        s.begin_s[task], s.end_s[task] = begin_s, end_s
        makespan_s = max(makespan_s, end_s)
        if rooms[i] >= 0:
            s.room_free_s[room] = end_s
        for e in range(p.ptr[task], p.ptr[task + 1]):
            other = p.dependent[e]
            s.ready_s[other] = max(s.ready_s[other], end_s)
    return makespan_s


@inlined
def make_ready(p: TaskArrays, s: TaskTimes, task: int, now: float) -> None:
    """Put a task into the heap of its resource."""
    s.ready_s[task] = now
    if p.fifo:
        s.key[task] = now
    first = p.queue_ptr[p.resource[task]]
    i = s.queue_size[p.resource[task]]
    s.queue_size[p.resource[task]] += 1
    while i > 0:
        up = (i - 1) >> 1
        if not is_before(s, task, s.queue[first + up]):
            break
        s.queue[first + i] = s.queue[first + up]
        i = up
    s.queue[first + i] = task


@inlined
def is_before(s: TaskTimes, a: int, b: int) -> bool:
    """Whether one task goes first; ties go to the lowest."""
    return s.key[a] < s.key[b] or (s.key[a] == s.key[b] and a < b)


@inlined
def first_ready(p: TaskArrays, s: TaskTimes) -> int:
    """The first of the ready tasks whose resource has capacity; -1 if there is none."""
    best = -1
    for resource in range(len(p.capacity)):
        if s.queue_size[resource] > 0 and s.free[resource] > 0:
            task = s.queue[p.queue_ptr[resource]]
            if best < 0 or is_before(s, task, best):
                best = task
    return best


@inlined
def start(p: TaskArrays, s: TaskTimes, task: int, begin_s: float) -> None:
    """Take a task off its heap, and begin it at `begin_s` or when there is room."""
    resource = p.resource[task]
    first, size = p.queue_ptr[resource], s.queue_size[resource] - 1
    s.queue_size[resource] = size
    last, i = s.queue[first + size], 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and is_before(s, s.queue[first + down + 1], s.queue[first + down]):
            down += 1
        if is_before(s, last, s.queue[first + down]):
            break
        s.queue[first + i] = s.queue[first + down]
        i = down
    s.queue[first + i] = last
    s.free[resource] -= 1
    room, end = p.room_ptr[resource], p.room_ptr[resource + 1]
    if room < end:
        for k in range(room + 1, end):
            if s.room_free_s[k] < s.room_free_s[room]:
                room = k
        begin_s = max(begin_s, s.room_free_s[room])
        s.room_free_s[room] = begin_s + p.duration_s[task]
    s.begin_s[task], s.end_s[task] = begin_s, begin_s + p.duration_s[task]


@inlined
def push_event(s: TaskTimes, size: int, task: int) -> None:
    """Put a running task into the heap of ends, which has that size."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if s.end_s[s.event[up]] <= s.end_s[task]:
            break
        s.event[i] = s.event[up]
        i = up
    s.event[i] = task


@inlined
def pop_event(s: TaskTimes, size: int) -> int:
    """Take the task that ends first off the heap of ends."""
    first, last, i, size = s.event[0], s.event[size - 1], 0, size - 1
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and s.end_s[s.event[down + 1]] < s.end_s[s.event[down]]:
            down += 1
        if s.end_s[last] <= s.end_s[s.event[down]]:
            break
        s.event[i] = s.event[down]
        i = down
    s.event[i] = last
    return first


@inlined
def complete(p: TaskArrays, s: TaskTimes, task: int, now: float) -> None:
    """The end of a task is seen: what waited for it may be ready."""
    for e in range(p.ptr[task], p.ptr[task + 1]):
        other = p.dependent[e]
        s.missing[other] -= 1
        if s.missing[other] == 0:
            make_ready(p, s, other, now)
