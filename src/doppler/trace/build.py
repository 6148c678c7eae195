"""A trace from the times of tasks: the one way executors make one."""

from typing import Any

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray, frozen
from doppler.graph.graph import Graph
from doppler.memory_plan import MemoryPlan
from doppler.tasks import Tasks, dependencies, task_levels
from doppler.topology.topology import Topology
from doppler.trace.trace import Trace, TraceDevice, TraceLink


def build_trace(
    graph: Graph,
    topology: Topology,
    tasks: Tasks,
    times: tuple[FloatArray, FloatArray, FloatArray],
    *,
    placer: str = "",
    plan: MemoryPlan | None = None,
) -> Trace:
    """The Trace of tasks with these (ready, begin, end) seconds, indexed by task.

    The moves of a `plan` are among the tasks, as `with_moves` gives them.
    """
    ready, begin, end = times
    size = graph.num_vertices
    task = np.concatenate([graph.assigned, size + np.arange(tasks.num_transfers)])
    position = np.argsort(graph.topological_order)
    rank = np.concatenate([2 * position, 2 * position[graph.tensor_producer[tasks.tensor]] + 1])
    if plan is not None:  # tasks may wait for any others, for their memory
        levels = task_levels(*dependencies(graph, tasks, plan), len(rank))
        assert levels is not None
        rank = levels
    task = task[np.lexsort((task, rank[task], begin[task]))]
    moves = task >= size
    k = np.where(moves, task - size, 0)
    pick = _picker(moves, k)
    vertex = np.where(moves, pick(graph.tensor_producer[tasks.tensor]), task)
    return Trace(
        graph=graph.name,
        topology=topology.name,
        placer=placer,
        vertex_names=graph.vertex_names,
        vertex_kinds=graph.kinds,
        devices=tuple(TraceDevice(d.name, d.group, d.slots) for d in topology.devices),
        links=tuple(TraceLink(link.name, link.lanes) for link in topology.links),
        local_bytes=_local_bytes(graph, tasks),
        vertex=frozen(vertex),
        tensor=frozen(pick(tasks.tensor)),
        source=frozen(pick(tasks.source)),
        device=frozen(np.where(moves, pick(tasks.target), tasks.devices[vertex])),
        link=frozen(pick(tasks.link)),
        moved_bytes=frozen(np.where(moves, pick(graph.tensor_bytes[tasks.tensor]), 0.0)),
        ready_s=frozen(ready[task]),
        begin_s=frozen(begin[task]),
        end_s=frozen(end[task]),
        after=frozen(_last_inputs(graph, tasks, plan, end, task)),
    )


def _picker(moves: BoolArray, k: IntArray) -> Any:
    def pick(column: Any) -> Any:
        return np.where(moves, column[k], -1) if len(column) else np.full(len(moves), -1)

    return pick


def _local_bytes(graph: Graph, tasks: Tasks) -> float:
    producer = graph.tensor_producer[graph.edge_tensor]
    local = ~graph.is_input[producer] & (
        tasks.devices[producer] == tasks.devices[graph.edge_reader]
    )
    return float(graph.tensor_bytes[np.unique(graph.edge_tensor[local])].sum())


def _last_inputs(
    graph: Graph, tasks: Tasks, plan: MemoryPlan | None, end: FloatArray, task: IntArray
) -> IntArray:
    """(N,) row of the task each row's last input came from; ties go to the lowest task."""
    count = graph.num_vertices + tasks.num_transfers
    needed, needs = dependencies(graph, tasks, plan)
    order = np.lexsort((-needed, end[needed], needs))  # the last of each task's run wins
    last = np.full(count, -1, np.int64)
    last[needs[order]] = needed[order]
    row_of = np.full(count + 1, -1, np.int64)
    row_of[task] = np.arange(len(task))
    return row_of[last[task]]
