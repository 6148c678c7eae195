"""Compiled runs of assignments with a memory plan."""

from typing import TYPE_CHECKING

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, csr
from doppler.problem import Problem
from doppler.scheduler.choose import FIXED, priorities
from doppler.scheduler.state import task_priorities
from doppler.sim.config import SimConfig
from doppler.sim.fixed import schedule_for
from doppler.sim.noise import draw
from doppler.tasks import Tasks, dependencies, enumerate_tasks, task_table, with_moves

if TYPE_CHECKING:
    from doppler.sim.planned_kernel import TaskArrays

Times = tuple[FloatArray, FloatArray, FloatArray]  # (V + K,) ready, begin and end of each task


def run_planned(
    problem: Problem, config: SimConfig, assignment: Assignment, seed: int
) -> tuple[Tasks, Times]:
    """The tasks of an assignment, moves among them, and when each runs."""
    from doppler.sim.planned_kernel import make_times, run_tasks, run_tasks_in_order

    graph, topology, plan = problem.graph, problem.topology, assignment.memory
    tasks = with_moves(topology, enumerate_tasks(graph, topology, assignment.devices), plan)
    size = graph.num_vertices + tasks.num_transfers
    own = None if config.mode == FIXED else priorities(config.strategy, problem, assignment, seed)
    priority = np.zeros(size)
    if own is not None:
        table = task_table(graph, topology, tasks, plan=plan)
        priority = np.array(task_priorities(own, table, graph.num_vertices))
    duration_s = draw(config.noise, problem, seed).task_seconds(problem, tasks)
    arrays = _task_arrays(problem, assignment, tasks, duration_s, fifo=own is None)
    times = make_times(arrays, priority)
    if config.mode == FIXED:
        schedule = schedule_for(problem, config, assignment, seed)
        run_tasks_in_order(arrays, times, schedule.tasks, schedule.rooms)
    else:
        run_tasks(arrays, times)
    return tasks, (times.ready_s, times.begin_s, times.end_s)


def _task_arrays(
    problem: Problem, assignment: Assignment, tasks: Tasks, duration_s: FloatArray, *, fifo: bool
) -> "TaskArrays":
    from doppler.sim.planned_kernel import TaskArrays
    from doppler.sim.state_kernel import UNLIMITED

    graph, topology = problem.graph, problem.topology
    needed, needs = dependencies(graph, tasks, assignment.memory)
    size = graph.num_vertices + tasks.num_transfers
    ptr, dependent = csr(needed, needs, size)
    exists = np.ones(size, np.int64)
    exists[: graph.num_vertices] = ~graph.is_input
    rooms = np.concatenate([problem.slots, problem.lanes])
    resource = np.concatenate([tasks.devices, topology.num_devices + tasks.link])
    on_resource = np.bincount(resource[exists > 0], minlength=len(rooms))
    return TaskArrays(
        exists=exists,
        duration_s=np.array(duration_s, np.float64),
        resource=resource,
        num_needs=np.bincount(needs, minlength=size),
        ptr=np.array(ptr),
        dependent=np.array(dependent),
        room_ptr=np.concatenate([[0], np.cumsum(rooms)]),
        capacity=np.where(rooms > 0, rooms + topology.host.ahead, UNLIMITED),
        queue_ptr=np.concatenate([[0], np.cumsum(on_resource)]),
        dispatch_s=float(topology.host.dispatch_s),
        completion_s=float(topology.host.completion_s),
        fifo=fifo,
    )
