"""Tasks: every exec and transfer that an assignment gives rise to (Alg. 2)."""

from collections.abc import Iterable
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


def dependencies(graph: Graph, tasks: Tasks) -> tuple[IntArray, IntArray]:
    """(P,) tasks that are needed, and (P,) the task that needs each.

    A transfer needs the exec that makes its tensor; an exec needs, for each tensor that it reads,
    the exec that makes it on its device or the transfer that brings it there.
    """
    size = graph.num_vertices
    num_devices = int(tasks.devices.max(initial=0)) + 1
    edges = np.flatnonzero(~graph.is_input[graph.tensor_producer[graph.edge_tensor]])
    tensor, reader = graph.edge_tensor[edges], graph.edge_reader[edges]
    giver = graph.tensor_producer[tensor]
    remote = tasks.devices[giver] != tasks.devices[reader]
    brought = np.searchsorted(
        tasks.tensor * num_devices + tasks.target, tensor * num_devices + tasks.devices[reader]
    )
    giver = np.where(remote, size + brought, giver)
    needed = np.concatenate([giver, graph.tensor_producer[tasks.tensor]])
    return needed, np.concatenate([reader, size + np.arange(tasks.num_transfers)])


@dataclass(frozen=True, slots=True)
class TaskTable:
    """What each task needs, what needs it and where it runs, as lists for Python loops.

    An exec needs the producer of each tensor it reads, or the transfer that brings it; a transfer
    needs the producer. What only inputs are read for needs nothing.
    """

    tasks: list[int]  # execs of assigned vertices, then transfers
    needs: list[list[int]]  # (N,) by task
    dependents: list[list[int]]  # (N,) by task
    resource: list[int]  # (N,) device, or num_devices + link; -1 for inputs

    @property
    def num_needs(self) -> list[int]:
        """(N,) tasks that each task waits for."""
        return [len(needs) for needs in self.needs]


def task_table(
    graph: Graph, topology: Topology, tasks: Tasks, after: Iterable[tuple[int, int]] = ()
) -> TaskTable:
    """The table of the tasks; `after` adds pairs of a task and one that it has to wait for too."""
    size, devices = graph.num_vertices, tasks.devices.tolist()
    producer = graph.tensor_producer.tolist()
    is_input = graph.is_input.tolist()
    needs: list[list[int]] = [[] for _ in range(size + tasks.num_transfers)]
    arrival: dict[tuple[int, int], int] = {}
    for k, (tensor, target) in enumerate(
        zip(tasks.tensor.tolist(), tasks.target.tolist(), strict=True)
    ):
        arrival[tensor, target] = size + k
        needs[size + k].append(producer[tensor])
    for tensor, reader in zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True):
        if not is_input[producer[tensor]]:
            needs[reader].append(arrival.get((tensor, devices[reader]), producer[tensor]))
    for task, other in after:
        if other not in needs[task]:
            needs[task].append(other)
    dependents: list[list[int]] = [[] for _ in needs]
    for task, found in enumerate(needs):
        for other in found:
            dependents[other].append(task)
    return TaskTable(
        tasks=[*graph.assigned.tolist(), *range(size, len(needs))],
        needs=needs,
        dependents=dependents,
        resource=devices + [topology.num_devices + link for link in tasks.link.tolist()],
    )
