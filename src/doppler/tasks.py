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
    however many readers wait there; transfers are numbered by (tensor, target). What arrives from
    the host comes the same way, from the place D behind the last device.
    """

    devices: IntArray  # (V,) device of each exec, -1 for inputs
    tensor: IntArray  # (K,) tensor a transfer moves
    source: IntArray  # (K,) device it leaves, D for the host
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
    """The tasks of `graph` with its vertices on `devices`.

    Where the links to the host are not known, inputs do not arrive: they are there.
    """
    producer = graph.tensor_producer[graph.edge_tensor]
    target = devices[graph.edge_reader]
    remote = ~graph.is_input[producer] & (devices[producer] != target)
    if topology.has_host_links:
        remote |= graph.arrives[producer]
    size = topology.num_devices
    pairs = np.unique(graph.edge_tensor[remote] * size + target[remote])
    tensor, target = pairs // size, pairs % size
    producer = graph.tensor_producer[tensor]
    source = np.where(graph.is_input[producer], size, devices[producer])
    return Tasks(
        devices=frozen(devices),
        tensor=frozen(tensor),
        source=frozen(source),
        target=frozen(target),
        link=frozen(topology.route_from_host[source, target]),
    )


def dependencies(graph: Graph, tasks: Tasks) -> tuple[IntArray, IntArray]:
    """(P,) tasks that are needed, and (P,) the task that needs each.

    A transfer needs the exec that makes its tensor; an exec needs, for each tensor that it reads,
    the transfer that brings it to its device or the exec that makes it there. Nothing makes what
    inputs give.
    """
    size, count = graph.num_vertices, tasks.num_transfers
    num_devices = int(tasks.devices.max(initial=0)) + 1
    wanted = graph.edge_tensor * num_devices + tasks.devices[graph.edge_reader]
    # What is brought where, in order, and one more that no edge wants.
    brought = np.append(tasks.tensor * num_devices + tasks.target, -1)
    k = np.searchsorted(brought[:count], wanted)
    giver = graph.tensor_producer[graph.edge_tensor]
    giver = np.where(brought[k] == wanted, size + k, giver)
    needed = np.concatenate([giver, graph.tensor_producer[tasks.tensor]])
    needs = np.concatenate([graph.edge_reader, size + np.arange(count)])
    exists = ~np.append(graph.is_input, np.zeros(count, np.bool_))[needed]
    return needed[exists], needs[exists]


@dataclass(frozen=True, slots=True)
class TaskTable:
    """What each task needs, what needs it and where it runs, as lists for Python loops.

    An exec needs the producer of each tensor it reads, or the transfer that brings it; a transfer
    needs the producer. Nothing produces what inputs give.
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
        if not is_input[producer[tensor]]:
            needs[size + k].append(producer[tensor])
    for tensor, reader in zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True):
        giver = arrival.get((tensor, devices[reader]), producer[tensor])
        if giver >= size or not is_input[giver]:
            needs[reader].append(giver)
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
