"""Tasks: every exec and transfer that an assignment gives rise to (Alg. 2)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from doppler.base.arrays import IntArray, csr, frozen, rows
from doppler.graph.graph import Graph
from doppler.topology.topology import Topology

if TYPE_CHECKING:
    from doppler.memory_plan import MemoryPlan


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of one graph under one assignment.

    Task v < V is the exec of vertex v (inputs have none). Task V + k is transfer k. There is one
    transfer for each tensor and each device, other than the producer's, where a reader sits,
    however many readers wait there; transfers are numbered by (tensor, target). What arrives from
    the host comes the same way, from the place D behind the last device. The moves of a memory
    plan, if there is one, follow as further transfers: K then counts them too.
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


def with_moves(topology: Topology, tasks: Tasks, plan: "MemoryPlan | None") -> Tasks:
    """The tasks and, as transfers behind all others, the moves of a plan."""
    if plan is None:
        return tasks
    host = np.full(plan.num_moves, topology.num_devices)
    links = np.array(topology.host_links, np.int64)
    columns = {
        "tensor": plan.tensor,
        "source": np.where(plan.is_load, host, plan.device),
        "target": np.where(plan.is_load, plan.device, host),
        "link": links[plan.device] if plan.num_moves else plan.device,
    }
    return replace(
        tasks,
        **{name: frozen(np.append(getattr(tasks, name), more)) for name, more in columns.items()},
    )


def dependencies(
    graph: Graph, tasks: Tasks, plan: "MemoryPlan | None" = None
) -> tuple[IntArray, IntArray]:
    """(P,) tasks that are needed, and (P,) the task that needs each.

    A transfer needs the exec that makes its tensor; an exec needs, for each tensor that it reads,
    the transfer that brings it to its device or the exec that makes it there. Nothing makes what
    inputs give. Where there is a plan, whose moves are among the tasks, the users of a load need
    it instead, a load needs the eviction of its tensor, and an eviction needs the tensor where it
    takes it from.
    """
    size, moves = graph.num_vertices, 0 if plan is None else plan.num_moves
    count = tasks.num_transfers - moves
    moved, target = tasks.tensor[:count], tasks.target[:count]
    num_devices = int(tasks.devices.max(initial=0)) + 1
    # What is brought where, in order, and one more that nobody wants.
    brought = np.append(moved * num_devices + target, -1)

    def giver(tensor: IntArray, device: IntArray) -> IntArray:
        """The transfer that brings a tensor to a device, or the exec that makes it."""
        wanted = tensor * num_devices + device
        k = np.searchsorted(brought[:count], wanted)
        return np.where(brought[k] == wanted, size + k, graph.tensor_producer[tensor])

    needed = np.concatenate(
        [
            giver(graph.edge_tensor, tasks.devices[graph.edge_reader]),
            graph.tensor_producer[moved],
        ]
    )
    needs = np.concatenate([graph.edge_reader, size + np.arange(count)])
    if plan is not None:
        _read_loads(plan, size + count, needed, needs, np.append(graph.edge_tensor, moved))
        evictions = np.flatnonzero(~plan.is_load)
        evicted = np.full(graph.num_tensors, -1, np.int64)
        evicted[plan.tensor[evictions]] = evictions
        loads = np.flatnonzero(plan.is_load & (evicted[plan.tensor] >= 0))
        first = size + count
        there = giver(plan.tensor[evictions], plan.device[evictions])
        needed = np.concatenate([needed, there, first + evicted[plan.tensor[loads]], plan.needed])
        needs = np.concatenate([needs, first + evictions, first + loads, plan.needs])
    exists = ~np.append(graph.is_input, np.zeros(tasks.num_transfers, np.bool_))[needed]
    return needed[exists], needs[exists]


def _read_loads(
    plan: "MemoryPlan", first: int, needed: IntArray, needs: IntArray, tensor: IntArray
) -> None:
    """Put loads in the place of what their users would read without them; `first` is move 0."""
    load = np.repeat(np.arange(plan.num_moves), np.diff(plan.ptr))
    width = int(max(tensor.max(initial=0), plan.tensor.max(initial=0))) + 1
    keys = plan.user * width + plan.tensor[load]
    order = np.argsort(keys, kind="stable")
    wanted = needs * width + tensor
    i = np.searchsorted(keys[order], wanted)
    found = np.append(keys[order], -1)[i] == wanted
    needed[found] = first + load[order][i[found]]


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
    graph: Graph,
    topology: Topology,
    tasks: Tasks,
    after: Iterable[tuple[int, int]] = (),
    plan: "MemoryPlan | None" = None,
) -> TaskTable:
    """The table of the tasks; `after` adds pairs of a task and one that it has to wait for too.

    The moves of a `plan` are among the tasks, as `with_moves` gives them.
    """
    size, devices = graph.num_vertices, tasks.devices.tolist()
    needed, giving = dependencies(graph, tasks, plan)
    needs = rows(*csr(giving, needed, size + tasks.num_transfers))
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


def task_levels(needed: IntArray, needs: IntArray, size: int) -> IntArray | None:
    """(N,) the most tasks in a row that come before each; None where there is a cycle."""
    ptr, following = csr(needed, needs, size)
    missing, level, now = np.bincount(needs, minlength=size), np.full(size, -1, np.int64), 0
    ready = np.flatnonzero(missing == 0)
    while len(ready):
        level[ready] = now
        counts = ptr[ready + 1] - ptr[ready]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        after = following[np.repeat(ptr[ready], counts) + within]
        np.subtract.at(missing, after, 1)
        ready, now = np.unique(after[missing[after] == 0]), now + 1
    return None if (level < 0).any() else level
