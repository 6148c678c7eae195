"""Mode `fixed`, compiled: list scheduling without host costs, and runs in the order of a schedule.

Equal event for event to `scheduler.list_scheduling` and `sim.fixed`. A kernel of its own, which is
compiled on first use, so that mode `dynamic` does not take longer to compile.
"""

from typing import Any, NamedTuple

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import by_reference, njit, part
from doppler.sim.kernel import begin, choose, complete, pop_event, prepare, release, start
from doppler.sim.state_kernel import (
    DRAW,
    EVENTS,
    UNFINISHED,
    Arrays,
    Scratch,
    memory_device,
    need_bytes,
    source_of,
    transfer_s,
)

_OPTIONS: Any = {"nogil": True, "_nrt": False}  # as in `sim.kernel`
compiled: Any = njit(cache=True, no_cfunc_wrapper=True, **_OPTIONS)
inlined: Any = part(**_OPTIONS)


class Fixed(NamedTuple):
    """Working memory of one thread for mode `fixed`, beside that of the simulator."""

    tasks: IntArray  # (N,) the order that list scheduling gives
    rooms: IntArray  # (N,) slot or lane of each
    until_s: FloatArray  # (T, D) latest end of the tasks that use a tensor on a device
    # (D, T + V) heap of tensors, and behind them temporaries, that are released, by (time, number)
    released: IntArray
    num_released: IntArray  # (D,)
    free_since_s: FloatArray  # (D,) release that what is free came from


class Rows(NamedTuple):
    """What a batch runs: assignments, and the schedules of those that have one."""

    devices: IntArray  # (B, V)
    priority: FloatArray  # (1, V) for all, or (B, V)
    ptr: IntArray  # (B+1,) tasks of each schedule; none where there is no schedule
    tasks: IntArray
    rooms: IntArray


by_reference(Fixed, Rows)


def make_fixed(p: Arrays) -> Fixed:
    """Working memory for a problem."""
    tasks = len(p.is_input) + len(p.reader)
    devices = len(p.memory_bytes)
    tensors = len(p.producer) if p.limit_memory else 0
    return Fixed(
        tasks=np.zeros(tasks, np.int64),
        rooms=np.zeros(tasks, np.int64),
        until_s=np.zeros((tensors, devices)),
        released=np.zeros((devices, tensors + len(p.is_input)), np.int64),
        num_released=np.zeros(devices, np.int64),
        free_since_s=np.zeros(devices),
    )


@compiled
def run_fixed_batch(
    p: Arrays, hostless: Arrays, rows: Rows, s: Scratch, f: Fixed, makespan_s: FloatArray
) -> None:
    """The makespan of each row; infinity where memory never suffices.

    `hostless` is the problem without noise and without a host: what list scheduling sees.
    Afterwards `s` holds the times of the last row, by task, and `f` the last list schedule.
    """
    for row in range(len(rows.devices)):
        devices = rows.devices[row]
        priority = rows.priority[min(row, len(rows.priority) - 1)]
        first, last = rows.ptr[row], rows.ptr[row + 1]
        makespan_s[row] = np.inf
        if first < last:
            tasks, rooms = rows.tasks[first:last], rows.rooms[first:last]
        else:
            count = list_tasks(hostless, devices, priority, s, f)
            if s.counters[UNFINISHED] > 0:
                continue
            tasks, rooms = f.tasks[:count], f.rooms[:count]
        makespan_s[row] = run_fixed(p, devices, priority, tasks, rooms, s, f)


@inlined
def list_tasks(p: Arrays, devices: IntArray, priority: FloatArray, s: Scratch, f: Fixed) -> int:
    """The tasks in the order in which they are started, and the room of each; how many."""
    s.counters[DRAW] = 0
    prepare(p, devices, priority, s)
    count, now = 0, 0.0
    begin(p, devices, s)
    while True:
        task = choose(p, devices, s)
        if task >= 0:
            f.tasks[count] = task
            count += 1
            start(p, devices, s, task, now, False)
            continue
        if s.counters[EVENTS] == 0:
            break
        now = s.event_s[0]
        while s.counters[EVENTS] > 0 and s.event_s[0] == now:
            task = pop_event(s)
            release(p, devices, s, task)
            complete(p, devices, s, task, now)
    s.room_free_s[:] = 0.0
    for i in range(count):
        task = f.tasks[i]
        f.rooms[i] = first_free_room(p, s, s.resource[task])
        if f.rooms[i] >= 0:
            s.room_free_s[p.room_ptr[s.resource[task]] + f.rooms[i]] = s.end_s[task]
    return count


@inlined
def first_free_room(p: Arrays, s: Scratch, resource: int) -> int:
    """The slot or lane that is free first; -1 where there is no limit."""
    first, last = p.room_ptr[resource], p.room_ptr[resource + 1]
    if first == last:
        return -1
    best = first
    for i in range(first + 1, last):
        if s.room_free_s[i] < s.room_free_s[best]:
            best = i
    return best - first


@inlined
def run_fixed(
    p: Arrays,
    devices: IntArray,
    priority: FloatArray,
    tasks: IntArray,
    rooms: IntArray,
    s: Scratch,
    f: Fixed,
) -> float:
    """The makespan of tasks that are started in this order; infinity if memory runs out."""
    vertices = len(devices)
    prepare(p, devices, priority, s)
    s.room_free_s[:] = 0.0
    s.ready_s[:] = 0.0
    if p.limit_memory:
        f.until_s[:] = 0.0
        f.num_released[:] = 0
        f.free_since_s[:] = 0.0
    started_s, makespan_s = 0.0, 0.0
    for i in range(len(tasks)):
        task = tasks[i]
        started_s += p.dispatch_s
        begin_s = max(started_s, s.ready_s[task])
        slot = p.room_ptr[s.resource[task]] + rooms[i]
        if rooms[i] >= 0:
            begin_s = max(begin_s, s.room_free_s[slot])
        if p.limit_memory:
            begin_s = max(begin_s, take_in_order(p, s, f, task))
            if begin_s == np.inf:
                return np.inf
        if task < vertices:
            duration = p.exec_s[0, task, devices[task]]
        else:
            t, target = s.transfer_tensor[task - vertices], s.transfer_target[task - vertices]
            duration = transfer_s(p, 0, t, s.resource[task] - len(p.memory_bytes), target)
        end_s = begin_s + duration
        s.begin_s[task], s.end_s[task] = begin_s, end_s
        makespan_s = max(makespan_s, end_s)
        if rooms[i] >= 0:
            s.room_free_s[slot] = end_s
        make_needed_ready(p, devices, s, task, end_s)
        if p.limit_memory:
            use_until(p, devices, s, f, task, end_s)
    return makespan_s


@inlined
def make_needed_ready(p: Arrays, devices: IntArray, s: Scratch, task: int, end_s: float) -> None:
    """What needs a task is not ready before it ends."""
    vertices = len(devices)
    if task >= vertices:
        k = task - vertices
        arrive(p, devices, s, s.transfer_tensor[k], s.transfer_target[k], end_s)
        return
    for i in range(p.output_ptr[task], p.output_ptr[task + 1]):
        t = p.output_tensor[i]
        arrive(p, devices, s, t, devices[task], end_s)
        for k in range(s.transfer_ptr[t], s.transfer_ptr[t + 1]):
            s.ready_s[vertices + k] = end_s


@inlined
def arrive(
    p: Arrays, devices: IntArray, s: Scratch, tensor: int, device: int, end_s: float
) -> None:
    """A tensor is on a device: its readers there are not ready before that."""
    for e in range(p.reader_ptr[tensor], p.reader_ptr[tensor + 1]):
        r = p.reader[e]
        if devices[r] == device:
            s.ready_s[r] = max(s.ready_s[r], end_s)


@inlined
def take_in_order(p: Arrays, s: Scratch, f: Fixed, task: int) -> float:
    """Occupy what a task needs; when it may begin, infinity if never."""
    need, d = need_bytes(p, s, task), memory_device(s, len(p.is_input), task)
    if need == 0.0 and s.free_bytes[d] >= 0.0:
        return 0.0
    earliest_s = f.free_since_s[d]
    while need > s.free_bytes[d]:
        if f.num_released[d] == 0:
            return np.inf
        number = pop_released(s, f, d)
        tensors = len(f.until_s)
        if number < tensors:
            s.free_bytes[d] += p.whole_bytes[number]
        else:
            s.free_bytes[d] += p.temporary_bytes[number - tensors]
        f.free_since_s[d] = released_s(s, f, number, d)
        earliest_s = max(earliest_s, f.free_since_s[d])
    s.free_bytes[d] -= need
    return earliest_s


@inlined
def use_until(p: Arrays, devices: IntArray, s: Scratch, f: Fixed, task: int, end_s: float) -> None:
    """Release what a task that ends then is the last in the order to use."""
    vertices = len(devices)
    if task >= vertices:
        t = s.transfer_tensor[task - vertices]
        source = source_of(p, devices, t)
        if source < len(p.memory_bytes):
            use_one(p, s, f, t, source, end_s)
        return
    for i in range(p.read_ptr[task], p.read_ptr[task + 1]):
        t = p.read_tensor[i]
        if p.is_released[t]:
            use_one(p, s, f, t, devices[task], end_s)
    if p.temporary_bytes[task] > 0.0:
        push_released(s, f, devices[task], len(f.until_s) + task)


@inlined
def use_one(p: Arrays, s: Scratch, f: Fixed, tensor: int, device: int, end_s: float) -> None:
    """Count one use of a tensor on a device, which ends then."""
    f.until_s[tensor, device] = max(f.until_s[tensor, device], end_s)
    s.uses[tensor, device] -= 1
    if s.uses[tensor, device] == 0 and p.whole_bytes[tensor] > 0.0:
        push_released(s, f, device, tensor)


@inlined
def released_s(s: Scratch, f: Fixed, number: int, device: int) -> float:
    """When a tensor, or the temporaries of a vertex, left a device."""
    tensors = len(f.until_s)
    return f.until_s[number, device] if number < tensors else s.end_s[number - tensors]


@inlined
def is_before(s: Scratch, f: Fixed, device: int, a: int, b: int) -> bool:
    """Whether one is released before another; ties go to the lowest."""
    a_s, b_s = released_s(s, f, a, device), released_s(s, f, b, device)
    return a_s < b_s or (a_s == b_s and a < b)


@inlined
def push_released(s: Scratch, f: Fixed, device: int, number: int) -> None:
    """Put a tensor or a vertex's temporaries into a device's heap."""
    i = f.num_released[device]
    f.num_released[device] = i + 1
    while i > 0:
        up = (i - 1) >> 1
        if is_before(s, f, device, f.released[device, up], number):
            break
        f.released[device, i] = f.released[device, up]
        i = up
    f.released[device, i] = number


@inlined
def pop_released(s: Scratch, f: Fixed, device: int) -> int:
    """Take what is released first off a device's heap."""
    first = f.released[device, 0]
    size = f.num_released[device] - 1
    f.num_released[device] = size
    number, i = f.released[device, size], 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and is_before(
            s, f, device, f.released[device, down + 1], f.released[device, down]
        ):
            down += 1
        if is_before(s, f, device, number, f.released[device, down]):
            break
        f.released[device, i] = f.released[device, down]
        i = down
    f.released[device, i] = number
    return first
