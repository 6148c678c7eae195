"""Bounds of a makespan that is being simulated, so that a simulation with a limit ends early."""

import numpy as np

from doppler.base.arrays import IntArray
from doppler.base.jit import inlined
from doppler.sim.state_kernel import Arrays, Scratch, transfer_s

BELOW = 1 - 1e-12  # bounds are rounded in another order than what they bound: stay below


@inlined
def bound_execs(p: Arrays, draw: int, devices: IntArray, s: Scratch) -> None:
    """What an assignment takes at least: its longest path, and the work of each device.

    Also what that takes from the end of each vertex, and on each device, for `raise_bound`.
    """
    hop_s, longest_s = p.dispatch_s + p.completion_s, -p.dispatch_s
    s.load_s[:] = 0.0
    s.least_tail_s[:] = np.inf
    for i in range(len(p.order) - 1, -1, -1):
        v, tail_s = p.order[i], 0.0
        if p.is_input[v]:
            continue
        d = devices[v]
        for o in range(p.output_ptr[v], p.output_ptr[v + 1]):
            t = p.output_tensor[o]
            for e in range(p.reader_ptr[t], p.reader_ptr[t + 1]):
                r = p.reader[e]
                target = devices[r]
                after_s = hop_s + p.exec_s[draw, r, target] + s.tail_s[r]
                if d != target:
                    after_s += hop_s + transfer_s(p, draw, t, p.route[d, target], target)
                tail_s = max(tail_s, after_s)
        count(s, d, v, p.exec_s[draw, v, d], tail_s)
        longest_s = max(longest_s, p.exec_s[draw, v, d] + tail_s)
    for d in range(len(p.memory_bytes)):
        if s.load_s[d] > 0.0:
            longest_s = max(longest_s, busy_s(p, s, d))
    s.least_s[0] = (p.dispatch_s + longest_s) * BELOW


@inlined
def bound_transfers(p: Arrays, draw: int, devices: IntArray, s: Scratch) -> None:
    """The same for the transfers, once they are enumerated: their readers, the work of links."""
    vertices, hop_s, longest_s = len(devices), p.dispatch_s + p.completion_s, -p.dispatch_s
    for t in range(len(p.producer)):
        for k in range(s.transfer_ptr[t], s.transfer_ptr[t + 1]):
            target, tail_s = s.transfer_target[k], 0.0
            for e in range(p.reader_ptr[t], p.reader_ptr[t + 1]):
                r = p.reader[e]
                if devices[r] == target:
                    tail_s = max(tail_s, hop_s + p.exec_s[draw, r, target] + s.tail_s[r])
            resource = s.resource[vertices + k]
            link = resource - len(p.memory_bytes)
            count(s, resource, vertices + k, transfer_s(p, draw, t, link, target), tail_s)
    for resource in range(len(p.memory_bytes), len(p.capacity)):
        if s.load_s[resource] > 0.0:
            longest_s = max(longest_s, busy_s(p, s, resource))
    s.least_s[0] = max(s.least_s[0], (p.dispatch_s + longest_s) * BELOW)


@inlined
def count(s: Scratch, resource: int, task: int, duration: float, tail_s: float) -> None:
    """Note a task that has not started."""
    s.tail_s[task] = tail_s
    s.load_s[resource] += duration
    s.least_tail_s[resource] = min(s.least_tail_s[resource], tail_s)


@inlined
def busy_s(p: Arrays, s: Scratch, resource: int) -> float:
    """How long a resource takes at least for what has not started, and what comes after it."""
    rooms = p.room_ptr[resource + 1] - p.room_ptr[resource]
    if rooms == 0:
        return 0.0
    return s.load_s[resource] / rooms + s.least_tail_s[resource]


@inlined
def raise_bound(p: Arrays, s: Scratch, task: int, begin_s: float, duration: float) -> None:
    """A task starts: nothing else on its resource starts before it, and its readers come after."""
    resource = s.resource[task]
    least_s = max(begin_s + busy_s(p, s, resource), s.end_s[task] + s.tail_s[task])
    s.least_s[0] = max(s.least_s[0], least_s * BELOW)
    s.load_s[resource] -= duration
