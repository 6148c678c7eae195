"""Tasks: every exec and transfer that an assignment gives rise to (Alg. 2)."""

from dataclasses import dataclass

import numpy as np

from doppler.base.arrays import IntArray, frozen
from doppler.graph.graph import Graph
from doppler.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of one graph under one assignment.

    Task v < V is the exec of vertex v (inputs have none). Task V + k is transfer k. There is one
    transfer for each tensor and each device, other than the producer's, where a reader sits,
    however many readers wait there; transfers are numbered by (tensor, target).
    """

    devices: IntArray  # (V,) device of each exec, -1 for inputs
    tensor: IntArray  # (K,) tensor a transfer moves
    source: IntArray  # (K,) device it leaves
    target: IntArray  # (K,) device it goes to
    link: IntArray  # (K,) link it takes

    @property
    def num_vertices(self) -> int:
        """Number of vertices; ids from there on are transfers."""
        return len(self.devices)

    @property
    def num_transfers(self) -> int:
        """Number of transfers."""
        return len(self.tensor)


def enumerate_tasks(graph: Graph, topology: Topology, devices: IntArray) -> Tasks:
    """The tasks of `graph` with its vertices on `devices`."""
    producer = graph.tensor_producer[graph.edge_tensor]
    target = devices[graph.edge_reader]
    remote = ~graph.is_input[producer] & (devices[producer] != target)
    size = topology.num_devices
    pairs = np.unique(graph.edge_tensor[remote] * size + target[remote])
    tensor, target = pairs // size, pairs % size
    source = devices[graph.tensor_producer[tensor]]
    return Tasks(
        devices=frozen(devices),
        tensor=frozen(tensor),
        source=frozen(source),
        target=frozen(target),
        link=frozen(topology.route[source, target]),
    )
