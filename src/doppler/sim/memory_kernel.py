"""Memory in the compiled simulator: who uses it, who lacks it, and what is lent."""

import numpy as np

from doppler.base.arrays import IntArray
from doppler.base.jit import inlined
from doppler.sim.queues_kernel import enqueue
from doppler.sim.state_kernel import Arrays, Scratch, need_bytes

LEAST_SHARE = 1e-12  # of lent memory, if there is any


@inlined
def count_uses(p: Arrays, devices: IntArray, s: Scratch) -> None:
    """Uses of each tensor on each device: readers there, and transfers that leave.

    A result has one more where it is made, which never ends. What is in place takes its memory.
    """
    s.uses[:] = 0
    for t in range(len(p.producer)):
        if p.is_in_place[t]:
            for e in range(p.reader_ptr[t], p.reader_ptr[t + 1]):
                d = devices[p.reader[e]]
                if s.uses[t, d] == 0:
                    s.free_bytes[d] -= p.whole_bytes[t]
                s.uses[t, d] += 1
        elif p.is_released[t]:
            for e in range(p.reader_ptr[t], p.reader_ptr[t + 1]):
                s.uses[t, devices[p.reader[e]]] += 1
            if not p.is_input[p.producer[t]]:
                leaving = s.transfer_ptr[t + 1] - s.transfer_ptr[t]
                s.uses[t, devices[p.producer[t]]] += leaving + (1 if p.is_result[t] else 0)


@inlined
def drop_use(p: Arrays, s: Scratch, tensor: int, device: int) -> bool:
    """Count one use less; free the tensor there if it was the last."""
    s.uses[tensor, device] -= 1
    if s.uses[tensor, device] > 0:
        return False
    s.free_bytes[device] += p.whole_bytes[tensor]
    return True


@inlined
def requeue(p: Arrays, s: Scratch, device: int) -> None:
    """Queue the tasks again that lacked memory on a device, but for those that still do."""
    waiting = s.lacking[device]
    s.lacking[device] = -1
    while waiting >= 0:
        following = s.following[waiting]
        if need_bytes(p, s, waiting) <= s.free_bytes[device]:
            enqueue(s, waiting)
        else:
            s.following[waiting] = s.lacking[device]
            s.lacking[device] = waiting
        waiting = following


@inlined
def lend(p: Arrays, s: Scratch) -> None:
    """Lend a device what the task that lacks least memory lacks; of equal ones the first task."""
    first, least, device = -1, np.inf, -1
    for d in range(len(p.memory_bytes)):
        task = s.lacking[d]
        while task >= 0:
            lack = need_bytes(p, s, task) - s.free_bytes[d]
            if lack < least or (lack == least and task < first):
                first, least, device = task, lack, d
            task = s.following[task]
    s.free_bytes[device] += least
    s.lent_bytes[device] += least
    requeue(p, s, device)


@inlined
def lent_share(p: Arrays, s: Scratch) -> float:
    """How much memory was lent, as a share of that of all devices whose memory has a limit."""
    lent_bytes, all_bytes = 0.0, 0.0
    if p.limit_memory:
        for d in range(len(p.memory_bytes)):
            if p.memory_bytes[d] < np.inf:
                lent_bytes += s.lent_bytes[d]
                all_bytes += p.memory_bytes[d]
    return max(lent_bytes / max(all_bytes, 1.0), LEAST_SHARE) if lent_bytes > 0.0 else 0.0


@inlined
def priced_s(makespan_s: float, share: float, price: float) -> float:
    """What a makespan counts as where this share of the memory was lent."""
    return makespan_s * (1.0 + price * share)
