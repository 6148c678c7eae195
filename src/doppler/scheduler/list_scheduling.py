"""List scheduling: the order in which a host without costs would start the tasks."""

from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray
from doppler.cost import GivenCosts
from doppler.graph.graph import Graph
from doppler.problem import Problem
from doppler.schedule import Schedule, schedule_from_times, schedule_in_order
from doppler.scheduler.choose import FIFO, priorities
from doppler.scheduler.state import SchedulerState
from doppler.tasks import Tasks, enumerate_tasks, task_table, with_moves
from doppler.topology.topology import Host, Topology
from doppler.trace import Trace


def list_schedule(
    problem: Problem,
    assignment: Assignment,
    strategy: str = FIFO,
    seed: int = 0,
    *,
    limit_memory: bool = True,
) -> Schedule:
    """The tasks in the order in which the scheduler starts them, in virtual time.

    Starting a task takes no time, and its end is seen at once. An `OutOfMemoryError` where memory
    never suffices.
    """
    graph, topology = problem.graph, without_host(problem).topology
    plan = assignment.memory
    tasks = with_moves(topology, enumerate_tasks(graph, topology, assignment.devices), plan)
    priority = priorities(strategy, problem, assignment, seed)
    table = task_table(graph, topology, tasks, plan=plan)
    limit_memory = limit_memory and plan is None  # with a plan, tasks wait for one another
    state = SchedulerState(graph, topology, tasks, priority, limit_memory=limit_memory, table=table)
    duration_s = task_seconds(problem, tasks)
    end_s = np.zeros(len(duration_s))
    order: list[int] = []
    running: list[tuple[float, int]] = []  # (end, task)
    now = 0.0
    state.begin(now)
    while True:
        while (task := state.choose()) is not None:
            order.append(task)
            end_s[task] = now + duration_s[task]
            heappush(running, (float(end_s[task]), task))
        if not running:
            break
        now = running[0][0]
        while running and running[0][0] == now:
            task = heappop(running)[1]
            state.release(task)
            state.complete(task, now)
    if state.unfinished:
        raise state.stuck()
    return schedule_in_order(topology, tasks, np.array(order, np.int64), end_s)


def without_host(problem: Problem) -> Problem:
    """The problem with the same costs and a host that takes no time."""
    topology = replace(problem.topology, host=Host())
    return Problem(problem.graph, topology, GivenCosts(problem.costs))


def schedule_from_trace(graph: Graph, topology: Topology, trace: Trace) -> Schedule:
    """The schedule that does what a trace of this graph on this topology shows."""
    size = graph.num_vertices
    devices = np.full(size, -1, np.int64)
    execs, moves = ~trace.is_transfer, trace.is_transfer
    devices[trace.vertex[execs]] = trace.device[execs]
    tasks = enumerate_tasks(graph, topology, devices)
    number = np.array(trace.vertex)
    pairs = tasks.tensor * topology.num_devices + tasks.target
    moved = trace.tensor[moves] * topology.num_devices + trace.device[moves]
    number[moves] = size + np.searchsorted(pairs, moved)
    begin_s, end_s = np.zeros((2, size + tasks.num_transfers))
    begin_s[number], end_s[number] = trace.begin_s, trace.end_s
    return schedule_from_times(graph, topology, tasks, begin_s, end_s)


def task_seconds(problem: Problem, tasks: Tasks, exec_s: FloatArray | None = None) -> FloatArray:
    """(V + K,) seconds of each task, 0 for inputs; `exec_s` (V, D) instead of the problem's."""
    table = problem.costs.exec_s if exec_s is None else exec_s
    own_s = np.where(tasks.devices < 0, 0.0, table[np.arange(len(table)), tasks.devices])
    return np.concatenate([own_s, problem.transfer_s(tasks.tensor, tasks.link)])
