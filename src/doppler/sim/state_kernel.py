"""A problem and a run of it on plain arrays: what the kernels of the compiled simulator share.

Tasks are numbered as in `Tasks`: v for the exec of vertex v, V + k for transfer k.
"""

from typing import NamedTuple

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.base.jit import by_reference, inlined

UNLIMITED = 1 << 60  # lanes of a link without a limit
NOT_LENT = -1.0  # in the place of a price: no memory is lent
# What `Scratch.counters` counts.
EVENTS, ACTIVE, UNFINISHED, PHASE, DRAW = 0, 1, 2, 3, 4


class Arrays(NamedTuple):
    """A problem, flattened, and how it is simulated."""

    is_input: BoolArray  # (V,)
    level: IntArray  # (V,)
    num_reads: IntArray  # (V,) tensors read that are made or arrive
    arriving: IntArray  # (A,) tensors that come from the host
    producer: IntArray  # (T,)
    output_ptr: IntArray  # (V+1,)
    output_tensor: IntArray  # (T,)
    reader_ptr: IntArray  # (T+1,)
    reader: IntArray  # (E,)
    read_ptr: IntArray  # (V+1,)
    read_tensor: IntArray  # (E,)
    is_moved: BoolArray  # (T,) is made, or arrives
    is_in_place: BoolArray  # (T,) in memory from the beginning where it is read
    is_released: BoolArray  # (T,) leaves the memory after its last use
    is_result: BoolArray  # (T,) stays in memory
    whole_bytes: FloatArray  # (T,) for the memory
    temporary_bytes: FloatArray  # (V,) given back at the end of an exec
    need_bytes: FloatArray  # (V,) that an exec takes when it starts
    exec_s: FloatArray  # (S, V, D) for each of S draws of the noise
    order: IntArray  # (V,) topological
    fixed_s: FloatArray  # (T,) of a transfer, over any link
    tensor_bytes: FloatArray  # (T,)
    latency_s: FloatArray  # (L,)
    s_per_byte: FloatArray  # (L,)
    transfer_factor: FloatArray  # (S, T, D), or (0, 0, 0) where all are 1
    route: IntArray  # (D+1, D) the last row: from the host
    room_ptr: IntArray  # (R+1,) slots of each device, lanes of each limited link; R = D + L
    capacity: IntArray  # (R,) tasks that may be started: those rooms and the host's lead
    memory_bytes: FloatArray  # (D,)
    dispatch_s: float
    completion_s: float
    ahead: int
    fifo: bool
    synchronous: bool
    limit_memory: bool
    eager_transfers: bool  # no host, memory or barrier holds transfers back, and all take time


class Scratch(NamedTuple):
    """Working memory of one thread, reused from run to run; N = V + E bounds the tasks."""

    missing: IntArray  # (V,) inputs that have not arrived
    free: IntArray  # (R,) capacity left
    room_free_s: FloatArray  # (slots + lanes,) when each is free again
    key: FloatArray  # (N,) priority, or ready time
    ready_s: FloatArray  # (N,)
    begin_s: FloatArray  # (N,)
    end_s: FloatArray  # (N,)
    resource: IntArray  # (N,)
    transfer_ptr: IntArray  # (T+1,)
    transfer_tensor: IntArray  # (E,)
    transfer_target: IntArray  # (E,)
    queue_ptr: IntArray  # (R+1,) where each resource's heap begins
    queue_size: IntArray  # (R,)
    queue_head: IntArray  # (D,) where uncontended queues begin now
    queue: IntArray  # (N,)
    free_s: FloatArray  # (D,) when uncontended devices are free
    load_s: FloatArray  # (R,) seconds of tasks that have not started, where there is a limit
    tail_s: FloatArray  # (N,) seconds from the end of a task to the end of all, at least
    least_tail_s: FloatArray  # (R,) of all tasks of a resource
    least_s: FloatArray  # (1,) that the makespan takes at least, where there is a limit
    active: IntArray  # (R,) heap, by their first tasks, of resources with capacity and a queue
    place: IntArray  # (R,) of each resource in that heap; -1 if it is not there
    event_s: FloatArray  # (N,) heap of ends
    event_task: IntArray  # (N,)
    seen_s: FloatArray  # (N,) queue of completions to be seen
    seen_task: IntArray  # (N,)
    uses: IntArray  # (T, D) tasks that still use a tensor on a device
    free_bytes: FloatArray  # (D,)
    lacking: IntArray  # (D,) first of the tasks set aside for lack of memory; -1 none
    lent_bytes: FloatArray  # (D,) memory that a device was lent
    phase_left: IntArray  # (2 * levels,) tasks to complete before the barrier
    parked: IntArray  # (2 * levels,) first of the tasks that wait for their phase; -1 none
    following: IntArray  # (N,) next in those lists
    counters: IntArray  # (5,) ends in the heap, active resources, unfinished tasks, phase, draw


by_reference(Arrays, Scratch)


def make_scratch(p: Arrays) -> Scratch:
    """Working memory for a problem."""
    vertices, tensors, edges = len(p.is_input), len(p.producer), len(p.reader)
    tasks, resources, devices = vertices + edges, len(p.capacity), len(p.memory_bytes)
    phases = 2 * (int(p.level.max(initial=0)) + 1)

    def ints(*shape: int) -> IntArray:
        return np.zeros(shape, np.int64)

    def floats(*shape: int) -> FloatArray:
        return np.zeros(shape, np.float64)

    return Scratch(
        missing=ints(vertices),
        free=ints(resources),
        room_free_s=floats(int(p.room_ptr[-1])),
        key=floats(tasks),
        ready_s=floats(tasks),
        begin_s=floats(tasks),
        end_s=floats(tasks),
        resource=ints(tasks),
        transfer_ptr=ints(tensors + 1),
        transfer_tensor=ints(edges),
        transfer_target=ints(edges),
        queue_ptr=ints(resources + 1),
        queue_size=ints(resources),
        queue_head=ints(devices),
        queue=ints(tasks),
        free_s=floats(devices),
        load_s=floats(resources),
        tail_s=floats(tasks),
        least_tail_s=floats(resources),
        least_s=floats(1),
        active=ints(resources),
        place=ints(resources),
        event_s=floats(tasks),
        event_task=ints(tasks),
        seen_s=floats(tasks),
        seen_task=ints(tasks),
        uses=ints(tensors, devices) if p.limit_memory else ints(0, 0),
        free_bytes=floats(devices),
        lacking=ints(devices),
        lent_bytes=floats(devices),
        phase_left=ints(phases),
        parked=ints(phases),
        following=ints(tasks),
        counters=ints(5),
    )


@inlined
def source_of(p: Arrays, devices: IntArray, tensor: int) -> int:
    """The device that makes a tensor; D, the host, for one that arrives."""
    producer = p.producer[tensor]
    return len(p.memory_bytes) if p.is_input[producer] else devices[producer]


@inlined
def memory_device(s: Scratch, vertices: int, task: int) -> int:
    """Where a task's output goes."""
    return s.resource[task] if task < vertices else s.transfer_target[task - vertices]


@inlined
def need_bytes(p: Arrays, s: Scratch, task: int) -> float:
    """Bytes a task takes when it starts."""
    vertices = len(p.is_input)
    if task >= vertices:
        return p.whole_bytes[s.transfer_tensor[task - vertices]]
    return p.need_bytes[task]


@inlined
def transfer_s(p: Arrays, draw: int, tensor: int, link: int, target: int) -> float:
    """Seconds to move a tensor over a link to a device."""
    seconds = p.fixed_s[tensor] + p.latency_s[link]
    seconds += p.tensor_bytes[tensor] * p.s_per_byte[link]
    if len(p.transfer_factor) > 0:
        seconds *= p.transfer_factor[draw, tensor, target]
    return seconds
