"""Plan: the load that an assignment puts on each device, by name, for people to read."""

from dataclasses import dataclass

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray
from doppler.graph.graph import Graph
from doppler.tasks import Tasks, enumerate_tasks
from doppler.topology.topology import Topology
from doppler.trace import Trace


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """What one device does in a run."""

    device: str  # name
    operations: int
    exec_s: float  # seconds of exec, summed over its slots
    bytes_in: float  # moved to it
    bytes_out: float  # moved from it
    peak_bytes: float  # of tensors in its memory at the same time
    memory_bytes: float  # it has; infinity where there is no limit


def device_loads(
    graph: Graph, topology: Topology, assignment: Assignment, trace: Trace
) -> list[DeviceLoad]:
    """What each device does in the run of `trace`."""
    size, moves = topology.num_devices, trace.is_transfer
    bytes_in = np.bincount(trace.device[moves], trace.moved_bytes[moves], size)
    bytes_out = np.bincount(trace.source[moves], trace.moved_bytes[moves], size)
    operations = np.bincount(trace.device[~moves], minlength=size)
    busy_s, peak = trace.busy_s(), peak_bytes(graph, topology, assignment, trace)
    return [
        DeviceLoad(
            device=device.name,
            operations=int(operations[d]),
            exec_s=float(busy_s[d]),
            bytes_in=float(bytes_in[d]),
            bytes_out=float(bytes_out[d]),
            peak_bytes=float(peak[d]),
            memory_bytes=device.memory_bytes,
        )
        for d, device in enumerate(topology.devices)
    ]


def peak_bytes(
    graph: Graph, topology: Topology, assignment: Assignment, trace: Trace
) -> FloatArray:
    """(D,) most bytes of tensors on each device at the same time.

    As in `scheduler.memory`: an output is there from the begin of its exec, a received copy from
    the begin of its transfer, until the last task that uses it there ends. What nobody reads
    stays. Inputs are not counted.
    """
    tasks = enumerate_tasks(graph, topology, assignment.devices)
    begin_s, end_s = _times(graph, tasks, trace)
    made = np.flatnonzero(~graph.is_input[graph.tensor_producer])
    producer = graph.tensor_producer[made]
    tensor = np.concatenate([made, tasks.tensor])
    device = np.concatenate([assignment.devices[producer], tasks.target])
    start_s = np.concatenate([begin_s[producer], begin_s[graph.num_vertices :]])
    free_s = _last_use_s(graph, topology, tasks, end_s)[tensor, device]
    size = np.ceil(graph.tensor_bytes)[tensor]
    # At one instant, what is freed comes before what is taken.
    time_s, sign = np.concatenate([start_s, free_s]), np.repeat([1, 0], len(tensor))
    order = np.lexsort((sign, time_s))
    change = np.concatenate([size, -size])[order]
    where = np.concatenate([device, device])[order]
    return np.array(
        [np.cumsum(change[where == d]).max(initial=0.0) for d in range(topology.num_devices)]
    )


def _times(graph: Graph, tasks: Tasks, trace: Trace) -> tuple[FloatArray, FloatArray]:
    """Begin and end of every task, numbered as in `Tasks`."""
    moves, size = trace.is_transfer, int(tasks.devices.max(initial=0)) + 1
    number = np.searchsorted(tasks.tensor * size + tasks.target, trace.tensor * size + trace.device)
    task = np.where(moves, graph.num_vertices + number, trace.vertex)
    times = np.zeros((2, graph.num_vertices + tasks.num_transfers))
    times[:, task] = trace.begin_s, trace.end_s
    return times[0], times[1]


def _last_use_s(graph: Graph, topology: Topology, tasks: Tasks, end_s: FloatArray) -> FloatArray:
    """(T, D) when the last task that uses a tensor on a device ends; infinity where none does."""
    last = np.full((graph.num_tensors, topology.num_devices), -np.inf)
    readers: IntArray = graph.edge_reader
    np.maximum.at(last, (graph.edge_tensor, tasks.devices[readers]), end_s[readers])
    np.maximum.at(last, (tasks.tensor, tasks.source), end_s[graph.num_vertices :])
    return np.where(np.isneginf(last), np.inf, last)
