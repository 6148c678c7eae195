"""Plan: what an assignment makes each device and each operation do, by name."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from doppler.graph.graph import Graph
from doppler.topology.topology import Topology
from doppler.trace import Trace

MODULES = "modules"  # attribute of a piece's kernel: paths of the modules it is of, the main first


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


class Operation(NamedTuple):
    """What one vertex does in a run."""

    vertex: str  # name
    module: str  # path of the module that it is of; empty where that is not known
    kind: str
    device: str  # name
    device_number: int
    flops: float
    touched_bytes: float
    begin_s: float
    end_s: float


def modules_of(graph: Graph, v: int) -> list[str]:
    """The paths of the modules that a vertex is of, the main one first; perhaps none."""
    kernel = graph.kernels[v] if graph.kernels else None
    found = kernel.attributes.get(MODULES) if kernel else None
    return [path for path in found if isinstance(path, str)] if isinstance(found, list) else []


def operations(graph: Graph, topology: Topology, trace: Trace) -> list[Operation]:
    """What each vertex but the inputs does in the run of `trace`, in the order they begin."""
    rows = []
    for task in np.flatnonzero(~trace.is_transfer).tolist():
        v, device = int(trace.vertex[task]), int(trace.device[task])
        modules = modules_of(graph, v)
        rows.append(
            Operation(
                vertex=graph.vertex_names[v],
                module=modules[0] if modules else "",
                kind=graph.kinds[v],
                device=topology.devices[device].name,
                device_number=device,
                flops=float(graph.flops[v]),
                touched_bytes=float(graph.touched_bytes[v]),
                begin_s=float(trace.begin_s[task]),
                end_s=float(trace.end_s[task]),
            )
        )
    return sorted(rows, key=lambda row: row.begin_s)
