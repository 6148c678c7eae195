"""Yardsticks: which part of a makespan is due to contention, to the schedule and to the engine.

On a machine of D devices no run is faster than its work spread over all of them. What a measured
run takes beyond that has three causes, each with a ratio that is 1 where there is nothing to gain:
kernels that slow each other down, devices that wait for one another, and an engine that starts
tasks late.
"""

from dataclasses import replace
from math import inf

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray
from doppler.placers.bounds.lower import bounds_of
from doppler.problem import Problem
from doppler.schedule import Schedule, schedule_from_times
from doppler.scheduler.choose import DYNAMIC, FIXED
from doppler.scheduler.list_scheduling import without_host
from doppler.sim.config import SimConfig
from doppler.sim.fixed import run_fixed
from doppler.sim.simulator import Simulator
from doppler.tasks import Tasks, enumerate_tasks
from doppler.trace import Trace


def contention(
    problem: Problem, *, loaded: Trace | None = None, alone: Trace | None = None
) -> float:
    """The work of a graph spread over all devices under load, divided by the same alone.

    Each is that of a run, where there is one: `loaded` keeps all devices busy, `alone` is on one
    of several equal devices while the others do nothing. Otherwise it is as the problem prices
    it, for `alone` without the topology's factors; on unequal devices that is a bound of the work,
    and of two bounds the ratio is at least 1 only if both are equally tight.
    """
    unloaded = replace(problem, topology=problem.topology.without_contention())
    ratio = _ratio(_work_s(problem, loaded), _work_s(unloaded, alone))
    return max(ratio, 1.0) if loaded is None and alone is None else ratio


def schedule(problem: Problem, assignment: Assignment, *, mode: str = DYNAMIC) -> float:
    """The simulated makespan without host costs, divided by the work spread over all devices."""
    simulator = Simulator(without_host(problem), SimConfig(mode=mode))
    return _ratio(simulator.run(problem.graph, assignment).makespan_s, _work_s(problem))


def engine(problem: Problem, trace: Trace, order: Schedule | None = None) -> float:
    """The makespan of a measured run, divided by that of its `replay`."""
    return _ratio(trace.makespan_s, replay(problem, trace, order).makespan_s)


def replay(problem: Problem, trace: Trace, order: Schedule | None = None) -> Trace:
    """A run again without a host: the same tasks, in the same order, of the same seconds.

    Each task begins as soon as what it needs and the task before it in its slot or lane have
    ended. The order is that in which tasks began, unless one is given. Memory has no limit.
    """
    graph, topology = problem.graph, problem.topology
    devices = np.full(graph.num_vertices, -1, np.int64)
    execs = ~trace.is_transfer
    devices[trace.vertex[execs]] = trace.device[execs]
    tasks = enumerate_tasks(graph, topology, devices)
    number = _tasks_of(trace, tasks, topology.num_devices)
    begin_s, end_s = np.zeros((2, graph.num_vertices + tasks.num_transfers))
    begin_s[number], end_s[number] = trace.begin_s, trace.end_s
    if order is None:
        order = schedule_from_times(graph, topology, tasks, begin_s, end_s)
    config = SimConfig(mode=FIXED, limit_memory=False)
    assignment = Assignment(devices, placer=trace.placer, schedule=order)
    seconds: FloatArray = end_s - begin_s
    return run_fixed(without_host(problem), config, assignment, tasks, seconds.tolist(), 0)


def _tasks_of(trace: Trace, tasks: Tasks, num_devices: int) -> IntArray:
    """(N,) the task of each row of a trace."""
    transfers = np.searchsorted(
        tasks.tensor * num_devices + tasks.target, trace.tensor * num_devices + trace.device
    )
    return np.where(trace.is_transfer, tasks.num_vertices + transfers, trace.vertex)


def _work_s(problem: Problem, trace: Trace | None = None) -> float:
    """The work of a run, or as priced, spread over all devices."""
    if trace is None:
        return bounds_of(problem).work_s
    return float(trace.busy_s().sum()) / float(problem.slots.sum())


def _ratio(measured_s: float, least_s: float) -> float:
    if least_s > 0:
        return measured_s / least_s
    return inf if measured_s > 0 else 1.0
