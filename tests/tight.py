"""Random problems for which memory is scarce."""

from dataclasses import replace

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.graph import Graph, InputKind, build_graph
from doppler.problem import Problem
from doppler.scheduler.places import memory_sizes
from doppler.topology import Topology

INPUTS = tuple(map(str, InputKind))


def tight_problem(seed: int) -> tuple[Problem, Assignment]:
    """A problem and an assignment for which memory is scarce, on a machine with host links."""
    rng = np.random.default_rng(seed)
    size, count = int(rng.integers(4, 40)), int(rng.integers(1, 4))
    kinds = ["input" if rng.random() < 0.3 else "matmul" for _ in range(size)]
    edges = [
        (int(t), v)
        for v in range(1, size)
        if kinds[v] != "input"
        for t in rng.choice(v, min(v, int(rng.integers(0, 4))), replace=False)
    ]
    graph = build_graph(
        name="tight",
        kinds=kinds,
        input_kinds=[str(rng.choice(INPUTS)) if kind == "input" else "" for kind in kinds],
        temporary_bytes=rng.choice([0.0, 0.0, 3.0], size),
        exec_s=rng.choice([1.0, 2.0], size),
        tensor_producer=list(range(size)),
        tensor_bytes=rng.integers(0, 10, size).astype(float),
        transfer_s=rng.choice([0.0, 1.0, 3.0], size),
        edge_tensor=[tensor for tensor, _ in edges],
        edge_reader=[reader for _, reader in edges],
    )
    devices = np.where(graph.is_input, -1, rng.integers(0, count, size))
    slack = float(rng.choice([1.0, 1.1, 1.3]))
    limits = [max(slack * least_bytes(graph, devices, d), 1.0) for d in range(count)]
    topology = Topology.uniform(
        count,
        slots=int(rng.integers(1, 3)),
        lanes=int(rng.integers(0, 3)),
        host_bandwidth_bytes_per_s=1.0,
    )
    machines = zip(topology.devices, limits, strict=True)
    limited = tuple(replace(device, memory_bytes=limit) for device, limit in machines)
    return Problem(graph, replace(topology, devices=limited)), Assignment(devices)


def least_bytes(graph: Graph, devices: IntArray, device: int) -> float:
    """What one vertex needs at most on a device."""
    sizes, temporaries = memory_sizes(graph)
    most = 0
    for v in np.flatnonzero(devices == device).tolist():
        reads = graph.read_tensor[graph.read_ptr[v] : graph.read_ptr[v + 1]].tolist()
        makes = graph.output_tensor[graph.output_ptr[v] : graph.output_ptr[v + 1]].tolist()
        most = max(most, sum(sizes[t] for t in (*reads, *makes)) + temporaries[v])
    return float(most)
