"""The compiled simulator where only device slots are contended for: no events, no heaps."""

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import compiled, inlined
from doppler.sim.state_kernel import Arrays, Scratch, transfer_s


@compiled
def run_uncontended_batch(
    p: Arrays, draw: int, devices: IntArray, s: Scratch, makespan_s: FloatArray
) -> None:
    """`run_batch` for problems in which only device slots are contended for."""
    for row in range(len(devices)):
        makespan_s[row] = run_uncontended(p, draw, devices[row], s)


@inlined
def run_uncontended(p: Arrays, draw: int, devices: IntArray, s: Scratch) -> float:
    """The makespan where only device slots are contended for, first in, first out.

    Then a transfer ends a known time after its producer, so a vertex's ready time is known as
    soon as its last producer has started, and no events are needed: the device whose next exec
    starts first goes next. Whatever is found later starts later, as long as every task takes time.
    Queues are sorted arrays: vertices are found nearly in the order they become ready.
    """
    num_devices, makespan_s = len(p.memory_bytes), 0.0
    head, tail, free_s = s.queue_head, s.queue_size, s.free_s
    tail[:] = 0
    for v in range(len(devices)):
        s.missing[v] = p.num_reads[v]
        s.key[v] = 0.0
        if not p.is_input[v]:
            tail[devices[v]] += 1
    room = 0
    for d in range(num_devices):
        head[d], tail[d], room = room, room, room + tail[d]
        free_s[d] = 0.0
    for v in range(len(devices)):
        if not p.is_input[v] and s.missing[v] == 0:
            s.queue[tail[devices[v]]] = v
            tail[devices[v]] += 1
    for t in p.arriving:
        for e in range(p.reader_ptr[t], p.reader_ptr[t + 1]):
            target = devices[p.reader[e]]
            seen_s = transfer_s(p, draw, t, p.route[num_devices, target], target) + p.completion_s
            see_input(p, s, p.reader[e], target, seen_s)
    while True:
        device, begin_s = -1, np.inf
        for d in range(num_devices):
            if head[d] < tail[d]:
                at_s = max(free_s[d], s.key[s.queue[head[d]]])
                if at_s < begin_s:
                    device, begin_s = d, at_s
        if device < 0:
            return makespan_s
        v = s.queue[head[device]]
        head[device] += 1
        end_s = begin_s + p.exec_s[draw, v, device]
        free_s[device] = end_s
        makespan_s = max(makespan_s, end_s)
        for i in range(p.output_ptr[v], p.output_ptr[v + 1]):
            t = p.output_tensor[i]
            for e in range(p.reader_ptr[t], p.reader_ptr[t + 1]):
                r = p.reader[e]
                target = devices[r]
                seen_s = end_s + p.completion_s
                if target != device:
                    seen_s += transfer_s(p, draw, t, p.route[device, target], target)
                    seen_s += p.completion_s
                see_input(p, s, r, target, seen_s)


@inlined
def see_input(p: Arrays, s: Scratch, vertex: int, device: int, seen_s: float) -> None:
    """An uncontended vertex has one more input at a time; queue it if that was the last."""
    s.key[vertex] = max(s.key[vertex], seen_s)
    s.missing[vertex] -= 1
    if s.missing[vertex] == 0:
        insert(s, vertex, s.queue_head[device], s.queue_size[device])
        s.queue_size[device] += 1


@inlined
def insert(s: Scratch, task: int, head: int, tail: int) -> None:
    """Put a task into the sorted queue between `head` and `tail`, from the end."""
    key = s.key[task]
    while tail > head:
        other = s.queue[tail - 1]
        if s.key[other] < key or (s.key[other] == key and other < task):
            break
        s.queue[tail] = other
        tail -= 1
    s.queue[tail] = task
