"""Memory of the devices: as little as makes placing harder, and as much as one can place with."""

from dataclasses import replace

import numpy as np

from doppler.datasets.chance import rounded
from doppler.graph.graph import Graph
from doppler.placers.lists.schedulers import HeftPlacer, MemoryEtfPlacer
from doppler.placers.lists.trivial import RoundRobinPlacer
from doppler.problem import Problem
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology

SLACK = (1.5, 3.0)  # times what is alive at the same time, over all devices
STEP = 1.25  # by which memory grows until a placer runs
PLACERS = (RoundRobinPlacer, HeftPlacer, MemoryEtfPlacer)  # one of which runs


def live_bytes(problem: Problem) -> float:
    """The most bytes alive at the same time when vertices run one by one in topological order.

    As the simulator counts: an output lives from its exec to its last reader, what nobody reads
    until the end, temporaries while their vertex runs. Inputs live from the beginning, those that
    stay until the end; those that are everywhere do not count.
    """
    graph, whole = problem.graph, problem.counted_bytes
    size = graph.num_vertices
    position = np.empty(size, np.int64)
    position[graph.topological_order] = np.arange(size)
    last = np.full(graph.num_tensors, size - 1, np.int64)
    read = np.diff(graph.reader_ptr) > 0
    ends = np.zeros(graph.num_tensors, np.int64)
    np.maximum.at(ends, graph.edge_tensor, position[graph.edge_reader])
    leaves = read & ~graph.stays[graph.tensor_producer]
    last[leaves] = ends[leaves]
    first = np.where(problem.is_produced, position[graph.tensor_producer], 0)
    change = np.bincount(first, whole, minlength=size + 1)
    change -= np.bincount(last + 1, whole, minlength=size + 1)
    change += np.bincount(position, problem.temporary_bytes, minlength=size + 1)
    change -= np.bincount(position + 1, problem.temporary_bytes, minlength=size + 1)
    return float(np.cumsum(change).max(initial=0.0))


def limit_memory(graph: Graph, topology: Topology, slack: float) -> Topology:
    """The topology with `slack` × `live_bytes` spread over its devices, or the next that is enough.

    Faster devices have more, by the square root of their speed; every device holds what any one
    vertex reads and makes. Enough is what round-robin, HEFT or m-ETF runs with.
    """
    speed = np.sqrt([max(d.flops_per_s.values()) for d in topology.devices])
    share = speed / speed.sum()
    problem = Problem(graph, topology)
    least = float(problem.working_bytes.max(initial=0.0))
    total = slack * live_bytes(problem)
    while True:
        limited = _with_memory(topology, [max(least, round(rounded(m, 6))) for m in total * share])
        problem = Problem(graph, limited)
        if not problem.may_run_out or _runs(problem):
            return limited
        total *= STEP


def _with_memory(topology: Topology, memory: list[float]) -> Topology:
    devices = [
        replace(device, memory_bytes=max(1.0, float(capacity)))
        for device, capacity in zip(topology.devices, memory, strict=True)
    ]
    return replace(topology, devices=tuple(devices))


def _runs(problem: Problem) -> bool:
    simulator = Simulator(problem)
    for placer in PLACERS:
        devices = placer().place(problem).devices
        if np.isfinite(simulator.makespans(problem.graph, devices.reshape(1, -1))[0]):
            return True
    return False
