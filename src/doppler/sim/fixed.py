"""Mode `fixed`, written to be read: tasks run in the order of a schedule, in virtual time."""

from math import isinf
from typing import TYPE_CHECKING

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import csr, rows
from doppler.problem import Problem
from doppler.schedule import Schedule
from doppler.scheduler.list_scheduling import list_schedule
from doppler.scheduler.memory import MemoryInOrder
from doppler.sim.config import SimConfig
from doppler.tasks import Tasks, dependencies
from doppler.trace import Trace, build_trace

if TYPE_CHECKING:
    from doppler.sim.state_kernel import Arrays


def schedule_for(
    problem: Problem, config: SimConfig, assignment: Assignment, seed: int
) -> Schedule:
    """The assignment's own schedule, or one made by list scheduling with the strategy."""
    if assignment.schedule is not None:
        return assignment.schedule
    return list_schedule(
        problem, assignment, config.strategy, seed, limit_memory=config.limit_memory
    )


def run_fixed(
    problem: Problem,
    config: SimConfig,
    assignment: Assignment,
    tasks: Tasks,
    duration_s: list[float],
    seed: int,
) -> Trace:
    """The trace of tasks of these (V + K,) seconds, run in the order of a schedule.

    The host starts one task after the other, each of which keeps it busy for `dispatch_s`, and
    waits for none. A task begins when it was started, all that it needs has ended, the task before
    it in its slot or lane has ended, and tasks earlier in the order have released enough memory.
    """
    graph, topology = problem.graph, problem.topology
    schedule = schedule_for(problem, config, assignment, seed)
    needed, needs = dependencies(graph, tasks, assignment.memory)
    size = graph.num_vertices + tasks.num_transfers
    needed_by = rows(*csr(needs, needed, size))
    resource = np.concatenate([tasks.devices, topology.num_devices + tasks.link]).tolist()
    is_limited = config.limit_memory and assignment.memory is None
    memory = MemoryInOrder(graph, topology, tasks) if is_limited else None
    free_s: dict[tuple[int, int], float] = {}  # when each slot and lane is free again
    ready, begin, end = np.zeros((3, size))
    started_s = 0.0
    for task, room in zip(schedule.tasks.tolist(), schedule.rooms.tolist(), strict=True):
        started_s += topology.host.dispatch_s
        ready[task] = max((end[other] for other in needed_by[task]), default=0.0)
        place = resource[task], room
        room_s = free_s.get(place, 0.0) if room >= 0 else 0.0
        memory_s = memory.take_in_order(task) if memory else 0.0
        if memory and isinf(memory_s):
            raise memory.error(task, topology)
        begin[task] = max(started_s, ready[task], room_s, memory_s)
        end[task] = begin[task] + duration_s[task]
        free_s[place] = end[task]
        if memory:
            memory.use_until(task, end[task])
    times = (ready, begin, end)
    return build_trace(
        graph, topology, tasks, times, placer=assignment.placer, plan=assignment.memory
    )


def hostless_arrays(problem: Problem, arrays: "Arrays") -> "Arrays":
    """The problem as list scheduling sees it: no host, no noise."""
    from doppler.sim.state_kernel import UNLIMITED

    rooms = np.concatenate([problem.slots, problem.lanes])
    return arrays._replace(
        exec_s=np.array(problem.costs.exec_s[None]),
        transfer_factor=np.zeros((0, 0, 0)),
        capacity=np.where(rooms > 0, rooms, UNLIMITED),
        dispatch_s=0.0,
        completion_s=0.0,
        ahead=0,
        eager_transfers=False,
    )
