"""Critical path: the paper's list-scheduling baseline and the teacher of its first stage."""

from heapq import heapify, heappop, heappush

import numpy as np

from doppler.arrays import FloatArray, IntArray, rows
from doppler.assignment import Assignment
from doppler.cost import Costs, DefaultCostModel
from doppler.errors import ConfigError
from doppler.graph.graph import Graph
from doppler.placers.base import assign
from doppler.progress import track
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology


class CriticalPathPlacer:
    """Longest path to an exit first, on the device where it can start first; best of 50.

    Sec. 6.1, after Kwok & Ahmad (1999): of the vertices whose producers are placed, take the one
    with the longest path to an exit, by mean exec and transfer seconds; put it on the device
    where it can start earliest, given when the device is free and when its inputs get there.
    Ties are broken at random, so `runs` assignments are made and the best in simulation is kept.
    """

    name = "critical-path"

    def __init__(self, runs: int = 50) -> None:  # Sec. 6.1
        if runs < 1:
            raise ConfigError(f"runs is {runs}, must be at least 1")
        self.runs = runs

    def place(self, graph: Graph, topology: Topology, *, seed: int = 0) -> Assignment:
        """The best of `runs` list schedules by simulated makespan."""
        costs = DefaultCostModel().costs(graph, topology)
        scheduler = _ListScheduler(graph, topology, costs)
        rng = np.random.default_rng(seed)
        found = [scheduler.run(rng) for _ in track(range(self.runs), "critical path")]
        makespans = Simulator(topology).makespans(graph, np.array([f[0] for f in found]))
        devices, order = found[int(np.argmin(makespans))]
        return assign(self, graph, topology, devices, order=order)


class _ListScheduler:
    """Makes list schedules of one graph on one topology."""

    def __init__(self, graph: Graph, topology: Topology, costs: Costs) -> None:
        self.graph = graph
        self.rank = (-costs.bottom_levels(graph, topology).length_s).tolist()
        self.exec_s = costs.exec_s.tolist()
        self.reads = rows(graph.read_ptr, graph.read_tensor)
        self.outputs = rows(graph.output_ptr, graph.output_tensor)
        self.readers = rows(graph.reader_ptr, graph.reader)
        self.producer = graph.tensor_producer.tolist()
        self.is_input = graph.is_input.tolist()
        self.num_devices = topology.num_devices
        # Seconds of tensor t from device a to b: fixed[t] + latency[a][b] + bytes[t] * slope[a][b].
        self.fixed = costs.fixed_s.tolist()
        self.bytes = graph.tensor_bytes.tolist()
        local = topology.route < 0
        self.latency = np.where(local, 0.0, _by_pair(costs.latency_s, topology.route)).tolist()
        self.slope = np.where(local, 0.0, _by_pair(costs.s_per_byte, topology.route)).tolist()

    def run(self, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """(V,) devices, and the order in which the vertices were placed."""
        size = self.graph.num_vertices
        tie = rng.permutation(size).tolist()
        devices, finish_s = [-1] * size, [0.0] * size
        free_s = [0.0] * self.num_devices
        missing = [sum(not self.is_input[self.producer[t]] for t in r) for r in self.reads]
        ready = [(self.rank[v], tie[v], v) for v in self.graph.assigned.tolist() if not missing[v]]
        heapify(ready)
        order = []
        while ready:
            _, _, v = heappop(ready)
            start_s = [
                max(f, a) for f, a in zip(free_s, self._arrivals(v, devices, finish_s), strict=True)
            ]
            first = min(start_s)
            earliest = [d for d, s in enumerate(start_s) if s == first]
            d = earliest[0] if len(earliest) == 1 else earliest[int(rng.integers(len(earliest)))]
            devices[v] = d
            free_s[d] = finish_s[v] = first + self.exec_s[v][d]
            order.append(v)
            for r in (r for t in self.outputs[v] for r in self.readers[t]):
                missing[r] -= 1
                if missing[r] == 0:
                    heappush(ready, (self.rank[r], tie[r], r))
        return np.array(devices, np.int64), np.array(order, np.int64)

    def _arrivals(self, v: int, devices: list[int], finish_s: list[float]) -> list[float]:
        """When the last input of v gets to each device."""
        arrival = [0.0] * self.num_devices
        for t in self.reads[v]:
            p = self.producer[t]
            if self.is_input[p]:
                continue
            source, made_s = devices[p], finish_s[p]
            latency, slope = self.latency[source], self.slope[source]
            for d in range(self.num_devices):
                at = made_s
                if d != source:
                    at += self.fixed[t] + latency[d] + self.bytes[t] * slope[d]
                if at > arrival[d]:
                    arrival[d] = at
        return arrival


def _by_pair(per_link: FloatArray, route: IntArray) -> FloatArray:
    return per_link[np.maximum(route, 0)] if len(per_link) else np.zeros(route.shape)
