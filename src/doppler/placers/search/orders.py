"""Orders: a local search over the order of the tasks of one assignment, for mode `fixed`.

An order of vertices becomes a schedule by list scheduling, in which a transfer is as urgent as the
first vertex that waits for it. The search begins at the best of a few schedules, puts some
vertices earlier or later, and keeps what is not slower.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray, unbox_fields
from doppler.base.compiling import clock
from doppler.errors import ConfigError, Interrupted, OutOfMemoryError
from doppler.problem import Problem
from doppler.schedule import Schedule, all_tasks
from doppler.scheduler.choose import FIFO, FIXED, ORDER
from doppler.sim.config import SimConfig
from doppler.sim.fixed import hostless_arrays
from doppler.sim.simulator import Simulator
from doppler.tasks import enumerate_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderConfig:
    """How long and how to search for an order."""

    seconds: float = 1.0
    evaluations: int | None = None  # instead of seconds: simulations after the first ones
    strategies: tuple[str, ...] = (FIFO, "critical-path")  # that the search may begin with
    batch: int = 16  # orders that are simulated before the best of them is kept
    moved: float = 32.0  # vertices that a step moves, at most, on average
    far: float = 0.25  # distance it moves them by, at most, as a share of the order
    enough_s: float = 0.0  # stop at this makespan: a lower bound, say

    def __post_init__(self) -> None:
        unbox_fields(self)
        if not self.seconds > 0 or (self.evaluations is not None and self.evaluations < 0):
            raise ConfigError("the budget must be positive")
        if self.batch < 1 or self.moved < 1 or not 0 < self.far <= 1:
            raise ConfigError("batch and moved must be at least 1, far above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class OrderResult:
    """The best schedule found."""

    schedule: Schedule
    makespan_s: float  # in mode `fixed`
    first_s: float  # makespan of the schedule that the search began with
    evaluations: int  # simulations after the first ones


def improve_order(
    problem: Problem, assignment: Assignment, config: OrderConfig | None = None, *, seed: int = 0
) -> OrderResult:
    """A schedule for an assignment, never slower than that of any strategy, or its own.

    The same seed gives the same schedule where the budget is a number of evaluations. An
    `OutOfMemoryError` where memory suffices for none of the first schedules. The best so far on
    Ctrl-C.
    """
    config, graph = config or OrderConfig(), problem.graph
    if assignment.memory is not None:  # its plan was made for the order that it has
        simulator = Simulator(problem, SimConfig(mode=FIXED))
        schedule = simulator.schedule(graph, assignment)
        planned_s = float(simulator.makespans(graph, [assignment])[0])
        return OrderResult(schedule, planned_s, planned_s, 0)
    best, first_s = _first(problem, assignment, config, seed)
    runs, rng = _Runs(problem, assignment.devices), np.random.default_rng([seed, 2])
    rank, rank_s = _ranks(best.tasks, graph.num_vertices), inf
    best_s, count = first_s, 0
    try:
        for size in _batches(config):
            if best_s <= config.enough_s or len(graph.assigned) < 2:
                break
            tried = _perturbed(rank, size, config, rng)
            if count == 0:
                tried[0] = rank  # list scheduling by it need not give the schedule it is from
            makespans = runs.makespans(tried)
            count += size
            winner = int(makespans.argmin())
            if makespans[winner] <= rank_s:
                rank, rank_s = _positions(tried[winner]), float(makespans[winner])
            if rank_s < best_s:
                best, best_s = runs.schedule(rank), rank_s
    except (KeyboardInterrupt, Interrupted):
        pass
    return OrderResult(best, best_s, first_s, count)


def _first(
    problem: Problem, assignment: Assignment, config: OrderConfig, seed: int
) -> tuple[Schedule, float]:
    """The fastest of the strategies' schedules and the assignment's own; and its makespan."""
    own = [] if assignment.order is None else [ORDER]
    simulators = [
        Simulator(problem, SimConfig(strategy=strategy, mode=FIXED))
        for strategy in (*config.strategies, *own)
    ]
    found = [] if assignment.schedule is None else [assignment.schedule]
    bare = replace(assignment, schedule=None)
    for simulator in simulators:
        try:
            found.append(simulator.schedule(problem.graph, bare, seed))
        except OutOfMemoryError:
            continue
    scheduled = [replace(assignment, schedule=schedule) for schedule in found]
    makespans = simulators[0].makespans(problem.graph, scheduled)
    if not np.isfinite(makespans).any():
        simulators[0].run(problem.graph, bare, seed)  # an error that says why
    best = int(makespans.argmin())
    return found[best], float(makespans[best])


def _ranks(tasks: IntArray, size: int) -> FloatArray:
    """(V,) the position of each vertex among the execs of a schedule; 0 for inputs."""
    rank, execs = np.zeros(size), tasks[tasks < size]
    rank[execs] = np.arange(len(execs))
    return rank


def _positions(rank: FloatArray) -> FloatArray:
    """(V,) the position of each vertex when they are sorted by rank."""
    return np.argsort(np.argsort(rank, kind="stable"), kind="stable").astype(np.float64)


def _batches(config: OrderConfig) -> Iterator[int]:
    """Sizes of the batches, until the budget is spent."""
    if config.evaluations is not None:
        for done in range(0, config.evaluations, config.batch):
            yield min(config.batch, config.evaluations - done)
        return
    end = clock() + config.seconds
    while clock() < end:
        yield config.batch


def _perturbed(
    rank: FloatArray, count: int, config: OrderConfig, rng: np.random.Generator
) -> FloatArray:
    """(count, V) ranks in which some vertices, at random, come earlier or later."""
    size = len(rank)
    share = np.exp(rng.uniform(0, np.log(config.moved), (count, 1))) / size
    far = np.exp(rng.uniform(0, np.log(max(config.far * size, 2.0)), (count, 1)))
    moves = (rng.random((count, size)) < share) * rng.normal(size=(count, size)) * far
    moved: FloatArray = rank + moves
    return moved


class _Runs:
    """Runs one assignment in mode `fixed` under many orders."""

    def __init__(self, problem: Problem, devices: IntArray) -> None:
        from doppler.sim.fixed_kernel import make_fixed
        from doppler.sim.state_kernel import make_scratch

        simulator = Simulator(problem, SimConfig(strategy=ORDER, mode=FIXED))
        self._arrays = simulator.arrays(problem.graph)
        self._hostless = hostless_arrays(problem, self._arrays)
        self._scratch, self._fixed = make_scratch(self._arrays), make_fixed(self._arrays)
        self._devices = devices
        tasks = enumerate_tasks(problem.graph, problem.topology, devices)
        self._count = len(all_tasks(problem.graph, tasks))

    def makespans(self, ranks: FloatArray) -> FloatArray:
        """(B,) makespans of list schedules by (B, V) ranks, the lowest first."""
        from doppler.sim.fixed_kernel import Rows, run_fixed_batch

        count, nothing = len(ranks), np.zeros(0, np.int64)
        rows = Rows(
            devices=np.repeat(self._devices[None], count, axis=0),
            priority=ranks,
            ptr=np.zeros(count + 1, np.int64),
            tasks=nothing,
            rooms=nothing,
        )
        makespans = np.zeros(count)
        run_fixed_batch(self._arrays, self._hostless, rows, self._scratch, self._fixed, makespans)
        return makespans

    def schedule(self, rank: FloatArray) -> Schedule:
        """The list schedule by (V,) ranks."""
        self.makespans(rank[None])
        return Schedule(self._fixed.tasks[: self._count], self._fixed.rooms[: self._count])
