"""Plan: the load that an assignment puts on each device, by name, for people to read."""

from dataclasses import dataclass

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray
from doppler.graph.graph import Graph
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
    bytes_in = np.bincount(trace.device[moves], trace.moved_bytes[moves], size + 1)
    bytes_out = np.bincount(trace.source[moves], trace.moved_bytes[moves], size + 1)
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
    the begin of its transfer, until the last task that uses it there ends. Results
    stay. Inputs are not counted.
    """
    moves = trace.is_transfer
    begin_s, end_s = np.zeros((2, graph.num_vertices))
    begin_s[trace.vertex[~moves]] = trace.begin_s[~moves]
    end_s[trace.vertex[~moves]] = trace.end_s[~moves]
    made = np.flatnonzero(~graph.is_input[graph.tensor_producer])
    producer = graph.tensor_producer[made]
    tensor = np.concatenate([made, trace.tensor[moves]])
    device = np.concatenate([assignment.devices[producer], trace.device[moves]])
    start_s = np.concatenate([begin_s[producer], trace.begin_s[moves]])
    last_s = np.full((graph.num_tensors, topology.num_devices), -np.inf)  # use of a tensor there
    readers = graph.edge_reader
    np.maximum.at(last_s, (graph.edge_tensor, assignment.devices[readers]), end_s[readers])
    np.maximum.at(last_s, (trace.tensor[moves], trace.source[moves]), trace.end_s[moves])
    last_s[made, assignment.devices[producer]] = np.where(
        graph.is_result[made], np.inf, last_s[made, assignment.devices[producer]]
    )
    free_s = np.where(np.isneginf(last_s), np.inf, last_s)[tensor, device]
    size = np.ceil(graph.tensor_bytes)[tensor]
    # At one instant, what is freed comes before what is taken.
    time_s, sign = np.concatenate([start_s, free_s]), np.repeat([1, 0], len(tensor))
    order = np.lexsort((sign, time_s))
    change = np.concatenate([size, -size])[order]
    where = np.concatenate([device, device])[order]
    return np.array(
        [np.cumsum(change[where == d]).max(initial=0.0) for d in range(topology.num_devices)]
    )
