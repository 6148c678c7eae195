"""Exact: the best static schedule of a small graph, by constraint programming (CP-SAT)."""

import os
from dataclasses import dataclass
from heapq import heapreplace
from math import inf
from operator import index
from time import perf_counter
from typing import Any

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray, frozen, rows
from doppler.errors import ConfigError, MissingExtraError
from doppler.placers.base import Shown, assign
from doppler.placers.bounds.lower import ROUNDING, bounds_of
from doppler.placers.exact.model import (
    ScheduleModel,
    StaticSchedule,
    Units,
    alike,
    first_come,
    whole_units,
)
from doppler.placers.lists.critical_path import CriticalPathPlacer
from doppler.placers.solution import Solution
from doppler.problem import Problem
from doppler.sim.config import SimConfig
from doppler.sim.simulator import Simulator
from doppler.tasks import enumerate_tasks

MIN_WORKERS = 8  # the solver's strategies differ by thread; fewer do worse, even on two cores
OVERTIME = 5.0  # times the budget, by the wall clock, at which a repeatable solution ends anyway
STEPS_PER_SECOND = 0.15  # of the solver's deterministic clock, roughly; 0.1 to 0.7 were seen
MAX_VERTICES = 500  # assigned ones; beyond, to build and presolve the model alone takes minutes


@dataclass(frozen=True, slots=True, eq=False)
class ExactResult:
    """A static schedule, how long it is, and how short any could be.

    A static schedule fixes the device and the order of every task and may idle on purpose, which
    a work-conserving runtime never does. So `static_s` and `makespan_s` differ, and either may be
    the larger: the model of static schedules also leaves out the serial host, memory and what
    arrives from the host.
    """

    devices: IntArray  # (V,) device of each vertex, -1 for inputs
    order: IntArray  # (assigned,) vertices by their start in the schedule
    static_s: float  # length of the schedule
    makespan_s: float  # of `devices` in simulation; infinity where memory never suffices
    bound_s: float  # no run and no static schedule is shorter, whatever the assignment
    proven: bool  # static_s is bound_s, up to the rounding of time: there is nothing shorter
    seconds: float  # it took
    interrupted: bool = False  # by Ctrl-C: the best so far


class ExactPlacer(Shown):
    """The best static schedules found by a solver, CP-SAT; for small graphs.

    Of the schedules on the way to the best one, and the critical path's from which it starts, the
    one whose assignment is fastest in simulation is kept: that need not be the shortest.
    """

    name = "cp-sat"
    searches = True

    def __init__(self, seconds: float = 5.0, *, repeatable: bool = True) -> None:
        """`repeatable`: about `seconds` by a clock that counts the solver's steps, one thread.

        A budget given to `place` is one of real seconds, on all cores.
        """
        _check_seconds(seconds)
        self.seconds, self.repeatable = float(seconds), repeatable

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The devices of the schedule, and its order."""
        return self.solve(problem, seed=seed, budget_s=budget_s).assignment

    def solve(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        budget_s: float | None = None,
        first: Assignment | None = None,
    ) -> Solution:
        """The assignment and the best bound; it starts from `first`, or the critical path's."""
        graph, first = problem.graph, _first(problem, seed, first)
        limits = _limits(budget_s or self.seconds, seed, None)
        if self.repeatable and budget_s is None:
            limits = _repeatable_limits(self.seconds, seed)
        result, schedules = _solve(problem, first, limits)
        found = [(s.devices, s.order(graph)) for s in reversed(schedules)]
        assignments = [
            assign(self, problem, devices, order=order)
            for devices, order in [*found, (first.devices, first.order)]
        ]
        makespans = Simulator(problem).makespans(graph, assignments)
        best = assignments[int(np.argmin(makespans))]
        bound_s = max(result.bound_s, bounds_of(problem).best_s)
        return Solution(best, self.name, bound_s, result.interrupted)


def solve_exactly(
    problem: Problem, *, seconds: float = 60.0, seed: int = 0, workers: int | None = None
) -> ExactResult:
    """The shortest static schedule found in `seconds`, and a lower bound for all of them.

    Devices, the order on each, and transfers, one per tensor and destination on the lanes of its
    link, are chosen together. The host's seconds are in; its serial dispatch, the limits of
    memory and inputs that arrive from it are not: without them schedules can only be shorter, so
    the bound holds with them.
    Time is counted in units of at most 2^-29 of the makespan, every duration rounded down: that
    keeps the bound below the optimum. `static_s` is in true seconds.

    `workers` is the number of the solver's threads, at least 8 unless given. More than one find
    different schedules from run to run.
    """
    _check_seconds(seconds)
    if workers is not None and workers < 1:
        raise ConfigError(f"workers is {workers}, must be at least 1")
    return _solve(problem, _first(problem, seed), _limits(seconds, seed, workers))[0]


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds < inf:
        raise ConfigError(f"seconds is {seconds}, must be positive and finite")


def _limits(seconds: float, seed: int, workers: int | None) -> dict[str, Any]:
    workers = workers or max(os.cpu_count() or 1, MIN_WORKERS)
    return {
        "max_time_in_seconds": float(seconds),
        "num_workers": int(workers),
        "random_seed": index(seed) % 2**31,  # what it takes
    }


def _repeatable_limits(seconds: float, seed: int) -> dict[str, Any]:
    return {
        "max_deterministic_time": seconds * STEPS_PER_SECOND,
        # On a few problems that clock hardly moves; this limit is then not repeatable, but ends it.
        "max_time_in_seconds": OVERTIME * seconds,
        "num_workers": 1,
        "random_seed": index(seed) % 2**31,
    }


def _first(problem: Problem, seed: int, given: Assignment | None = None) -> Assignment:
    """The assignment to start from: the given one, or the critical path's."""
    try:
        import ortools  # noqa: F401
    except ImportError:
        raise MissingExtraError("ortools", "placer `cp-sat`", extra="solvers") from None
    graph = problem.graph
    if len(graph.assigned) > MAX_VERTICES:
        raise ConfigError(
            f"graph `{graph.name}` has {len(graph.assigned)} vertices to assign, "
            f"too many for an exact solution: at most {MAX_VERTICES}",
            hint="use another placer, such as critical-path",
        )
    return given or CriticalPathPlacer().place(problem, seed=seed)


def _solve(
    problem: Problem, first: Assignment, parameters: dict[str, Any]
) -> tuple[ExactResult, list[StaticSchedule]]:
    """The best schedule the solver finds within its limits, and those before it."""
    began = perf_counter()
    graph, topology, order = problem.graph, problem.topology, first.order
    if order is None:
        order = graph.topological_order[~graph.is_input[graph.topological_order]]
    runtime = Simulator(problem, SimConfig(limit_memory=False))
    first_s = runtime.run(graph, first).makespan_s
    devices, static_s, bound_s, proven = first.devices, first_s, 0.0, first_s == 0
    schedules: list[StaticSchedule] = []
    interrupted = False
    if not proven:
        classes = alike(topology, problem.costs)
        trace = runtime.run(graph, Assignment(first_come(first.devices, order, classes)))
        units = whole_units(problem, trace.makespan_s)
        model = ScheduleModel(graph, topology, units, classes, order)
        model.start_from(trace)
        schedules, bound = model.solve(parameters)
        bound_s, interrupted = bound * units.unit_s, model.interrupted
        if schedules:
            devices, order = schedules[-1].devices, schedules[-1].order(graph)
            static_s = _length_s(problem, units, schedules[-1])
        proven = static_s <= bound_s * (1 + ROUNDING)
    makespan_s = float(Simulator(problem).makespans(graph, devices.reshape(1, -1))[0])
    result = ExactResult(
        devices=frozen(devices),
        order=frozen(order),
        static_s=static_s,
        makespan_s=makespan_s,
        bound_s=bound_s,
        proven=proven,
        seconds=perf_counter() - began,
        interrupted=interrupted,
    )
    return result, schedules


def _length_s(problem: Problem, units: Units, schedule: StaticSchedule) -> float:
    """The length of the schedule with its durations not rounded.

    Tasks begin in the order of the schedule, each as soon as its inputs are seen and a slot or
    lane is free.
    """
    graph, topology = problem.graph, problem.topology
    devices, host = schedule.devices.tolist(), topology.host
    producer, inputs = graph.tensor_producer.tolist(), graph.is_input.tolist()
    reads = rows(graph.read_ptr, graph.read_tensor)
    outputs = rows(graph.output_ptr, graph.output_tensor)
    slots = [[0.0] * device.slots for device in topology.devices]
    lanes = [[0.0] * link.lanes for link in topology.links]
    seen_s: dict[tuple[int, int], float] = {}  # when a tensor is seen on a device
    length_s = 0.0

    def run(needs: list[int], source: int, room: list[float], duration_s: float) -> float:
        """When the task ends."""
        begin_s = max((seen_s[t, source] for t in needs), default=0.0) + host.dispatch_s
        if room:
            begin_s = max(begin_s, room[0])
            heapreplace(room, begin_s + duration_s)
        return begin_s + duration_s

    for vertex, tensor, target, link in _by_start(problem, units, schedule):
        d = devices[vertex]
        if tensor < 0:
            needs = [t for t in reads[vertex] if not inputs[producer[t]]]
            end_s = run(needs, d, slots[d], float(problem.costs.exec_s[vertex, d]))
            seen_s.update(
                dict.fromkeys(((t, d) for t in outputs[vertex]), end_s + host.completion_s)
            )
        else:
            end_s = run([tensor], d, lanes[link], problem.costs.transfer_s(graph, tensor, link))
            seen_s[tensor, target] = end_s + host.completion_s
        length_s = max(length_s, end_s)
    return length_s


def _by_start(
    problem: Problem, units: Units, schedule: StaticSchedule
) -> list[tuple[int, int, int, int]]:
    """(vertex, -1, -1, -1) of execs and (producer, tensor, target, link) of transfers, by start."""
    graph, start, end = problem.graph, schedule.start, schedule.end
    rank = {v: 2 * i for i, v in enumerate(graph.topological_order.tolist())}
    found = [((at, end[v], rank[v]), (v, -1, -1, -1)) for v, at in start.items()]
    tasks = enumerate_tasks(graph, problem.topology, schedule.devices)
    between = tasks.source < problem.topology.num_devices  # arrivals are not in the model
    columns = [c[between].tolist() for c in (tasks.tensor, tasks.target, tasks.link)]
    for tensor, target, link in zip(*columns, strict=True):
        p = int(graph.tensor_producer[tensor])
        at = schedule.begin.get((tensor, target), end[p] + units.seen)
        key = (at, at + int(units.transfer[tensor, link]), rank[p] + 1)
        found.append((key, (p, tensor, target, link)))
    return [task for _, task in sorted(found)]
