"""Plan: the load that an assignment puts on each device, by name, for people to read."""

from dataclasses import dataclass

import numpy as np

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
    peak_bytes: float  # in its memory at the same time, inputs and temporaries included
    memory_bytes: float  # it has; infinity where there is no limit


def device_loads(
    graph: Graph, topology: Topology, trace: Trace, *, is_planned: bool = False
) -> list[DeviceLoad]:
    """What each device does in the run of `trace`, which may be that of a memory plan."""
    size, moves = topology.num_devices, trace.is_transfer
    bytes_in = np.bincount(trace.device[moves], trace.moved_bytes[moves], size + 1)
    bytes_out = np.bincount(trace.source[moves], trace.moved_bytes[moves], size + 1)
    operations = np.bincount(trace.device[~moves], minlength=size)
    busy_s, memory = trace.busy_s(), trace.memory(graph, is_planned=is_planned)
    return [
        DeviceLoad(
            device=device.name,
            operations=int(operations[d]),
            exec_s=float(busy_s[d]),
            bytes_in=float(bytes_in[d]),
            bytes_out=float(bytes_out[d]),
            peak_bytes=memory[d].peak_bytes,
            memory_bytes=device.memory_bytes,
        )
        for d, device in enumerate(topology.devices)
    ]
