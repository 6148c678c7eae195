"""Placers to measure others by: one device, round-robin, random."""

import numpy as np

from doppler.assignment import Assignment
from doppler.cost import DefaultCostModel
from doppler.graph.graph import Graph
from doppler.placers.base import Shown, assign
from doppler.topology.topology import Topology


class SinglePlacer(Shown):
    """Everything on the one device that does it fastest."""

    name = "single"

    def place(self, graph: Graph, topology: Topology, *, seed: int = 0) -> Assignment:
        """All vertices on the device with the least exec seconds in all."""
        costs = DefaultCostModel().costs(graph, topology)
        fastest = int(np.argmin(costs.exec_s.sum(axis=0)))
        return assign(self, graph, topology, np.full(graph.num_vertices, fastest))


class RoundRobinPlacer(Shown):
    """Vertices in topological order, dealt out to the devices in turn."""

    name = "round-robin"

    def place(self, graph: Graph, topology: Topology, *, seed: int = 0) -> Assignment:
        """The i-th vertex in topological order on device i modulo the number of devices."""
        order = graph.topological_order[~graph.is_input[graph.topological_order]]
        devices = np.zeros(graph.num_vertices, np.int64)
        devices[order] = np.arange(len(order)) % topology.num_devices
        return assign(self, graph, topology, devices, order=order)


class RandomPlacer(Shown):
    """A device for each vertex at random."""

    name = "random"

    def place(self, graph: Graph, topology: Topology, *, seed: int = 0) -> Assignment:
        """Independent and uniform, from the seed."""
        rng = np.random.default_rng(seed)
        devices = rng.integers(topology.num_devices, size=graph.num_vertices)
        return assign(self, graph, topology, devices)
