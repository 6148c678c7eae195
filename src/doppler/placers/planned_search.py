"""Placing where memory is short: plans for assignments that do not fit, and a search with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray, rows, unbox_fields
from doppler.cost import GivenCosts
from doppler.errors import ConfigError, Interrupted, OutOfMemoryError
from doppler.problem import Problem
from doppler.scheduler.choose import FIFO
from doppler.scheduler.list_scheduling import list_schedule
from doppler.scheduler.packing import PackingConfig
from doppler.scheduler.planning import PlanConfig, plan_memory
from doppler.sim.simulator import Simulator

ORDERS = (FIFO, "critical-path", "depth-first")  # strategies whose orders plans are made for
QUICK = PlanConfig(packing=PackingConfig(repairs=50))  # while searching


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSearchConfig:
    """How long and how to search for assignments with memory plans."""

    seconds: float = 10.0
    evaluations: int | None = None  # instead of seconds: plans in all
    enough_s: float = 0.0  # stop at this makespan: a lower bound, say
    starts: int = 4  # of the given ones, the fastest, are planned along several orders
    patience: int = 50  # moves in a row that are not worth a plan, for each that is

    def __post_init__(self) -> None:
        unbox_fields(self)
        if not self.seconds > 0 or (self.evaluations is not None and self.evaluations < 1):
            raise ConfigError("the budget must be positive")
        if self.starts < 1 or self.patience < 1:
            raise ConfigError("starts and patience must be at least 1")


@dataclass(frozen=True, slots=True)
class PlannedResult:
    """What a search found."""

    assignment: Assignment  # with its memory plan
    makespan_s: float
    plans: int  # made on the way
    interrupted: bool = False  # by Ctrl-C: the best so far


def can_plan(problem: Problem) -> bool:
    """Whether memory may be short, and there are links to the host to help."""
    return problem.topology.has_host_links and problem.may_run_out


def without_limits(problem: Problem, times: float = inf) -> Problem:
    """The problem with the same costs on devices without a limit of memory, or so many times it."""
    devices = tuple(
        replace(device, memory_bytes=times * device.memory_bytes)
        for device in problem.topology.devices
    )
    topology = replace(problem.topology, devices=devices)
    return Problem(problem.graph, topology, GivenCosts(problem.costs))


def planned(
    problem: Problem, assignment: Assignment, *, seed: int = 0, orders: Sequence[str] = ORDERS
) -> tuple[Assignment, float]:
    """The assignment with the fastest of its memory plans along several orders; its makespan.

    An `OutOfMemoryError` where there is none.
    """
    plain, simulator = replace(assignment, schedule=None, memory=None), Simulator(problem)
    best, best_s, failure = assignment, inf, None
    for strategy in orders:
        order = list_schedule(problem, plain, strategy, seed, limit_memory=False).tasks
        try:
            found = plan_memory(problem, plain, order=order)
        except OutOfMemoryError as error:
            failure = failure or error
            continue
        makespan_s = float(simulator.makespans(problem.graph, [found], seed=seed)[0])
        if makespan_s < best_s:
            best, best_s = found, makespan_s
    if best.memory is None and failure is not None:
        raise failure
    return best, best_s


def search_planned(
    problem: Problem,
    starts: Sequence[IntArray],
    config: PlannedSearchConfig | None = None,
    *,
    seed: int = 0,
    first: Assignment | None = None,
) -> PlannedResult:
    """The fastest assignment with a memory plan found by local search from (V,) `starts`.

    The search continues from `first`, which has a plan, if that is given; its result is never
    slower. Starts and moves are only planned for if they would be no slower than the best so far
    with unlimited memory. The same seed gives the same result where the budget is a number of
    evaluations. An `OutOfMemoryError` where no plan is found.
    """
    return _Search(problem, config or PlannedSearchConfig(), seed, first).run(starts)


class _Search:
    def __init__(
        self, problem: Problem, config: PlannedSearchConfig, seed: int, first: Assignment | None
    ) -> None:
        self._problem, self._config, self._seed = problem, config, seed
        self._end = monotonic() + config.seconds
        self._simulator, self._relaxed = Simulator(problem), Simulator(without_limits(problem))
        self._rng = np.random.default_rng([seed, 3])
        self._best, self._best_s, self._plans = first, inf, 0
        if first is not None:
            self._best_s = self._seconds(first)
        self._strategy = FIFO  # whose orders have given the best plans
        self._failure: OutOfMemoryError | None = None
        graph = problem.graph
        self._movable = graph.topological_order[~graph.is_input[graph.topological_order]]
        self._near = self._neighbours()

    def run(self, starts: Sequence[IntArray]) -> PlannedResult:
        """Plan for the starts, then move vertices."""
        interrupted = False
        try:
            self._begin(starts)
            can_move = self._best is not None and self._problem.topology.num_devices > 1
            while can_move and not self._is_over():
                self._step()
        except (KeyboardInterrupt, Interrupted):
            interrupted = True
        if self._best is None:
            raise self._failure or OutOfMemoryError("no memory plan was found")
        return PlannedResult(self._best, self._best_s, self._plans, interrupted)

    def _begin(self, starts: Sequence[IntArray]) -> None:
        """Plan for the starts, the fastest without limits first, and for stripes.

        Without moves, then: only the plan along another order may be faster than `first`.
        """
        first = () if self._best is None else (self._best.devices,)
        graph, stripes = self._problem.graph, self._stripes()
        found = np.unique(np.array([*starts, *first, *stripes]), axis=0)
        costs_s = self._relaxed.makespans(graph, found)
        ranked = np.argsort(costs_s, kind="stable").tolist()
        striped = {stripe.tobytes() for stripe in stripes}
        others = [i for i in ranked if found[i].tobytes() not in striped][: self._config.starts]
        for i in [*others, *(i for i in ranked if found[i].tobytes() in striped)]:
            for strategy in ORDERS:
                if self._best is None or not (self._is_over() or costs_s[i] > self._best_s):
                    self._try(found[i], strategy)

    def _stripes(self) -> list[IntArray]:
        """Vertices in turn on all devices, and in runs: all links to the host have work then."""
        size, count = len(self._movable), self._problem.topology.num_devices
        found = []
        for length in (1, max(size // (8 * count), 1), max(-(-size // count), 1)):
            devices = np.full(self._problem.graph.num_vertices, -1, np.int64)
            devices[self._movable] = np.arange(size) // length % count
            found.append(devices)
        return found

    def _is_over(self) -> bool:
        config = self._config
        if self._best_s <= config.enough_s:
            return True
        if config.evaluations is not None:
            return self._plans >= config.evaluations
        return monotonic() > self._end

    def _step(self) -> None:
        """Make moves until one is worth a plan, and plan for it."""
        assert self._best is not None
        for _ in range(self._config.patience):
            devices = self._moved(self._best.devices)
            cost_s = self._relaxed.makespans(self._problem.graph, devices[None], threads=1)[0]
            if cost_s < self._best_s:
                break
            if self._config.evaluations is None and self._is_over():
                return
        self._try(devices, self._strategy)

    def _try(self, devices: IntArray, strategy: str) -> None:
        self._plans += 1
        plain = Assignment(devices)
        order = list_schedule(self._problem, plain, strategy, self._seed, limit_memory=False).tasks
        try:
            found = plan_memory(self._problem, plain, QUICK, order=order)
        except OutOfMemoryError as error:
            self._failure = self._failure or error
            return
        cost_s = self._seconds(found)
        if cost_s < self._best_s:
            self._strategy = strategy
        if self._best is None or cost_s <= self._best_s:
            self._best, self._best_s = found, cost_s

    def _seconds(self, found: Assignment) -> float:
        return float(self._simulator.makespans(self._problem.graph, [found], seed=self._seed)[0])

    def _moved(self, devices: IntArray) -> IntArray:
        """Other devices for a vertex, for one and what is near it, or for a run of vertices."""
        rng, count = self._rng, self._problem.topology.num_devices
        moved, moves = devices.copy(), (self._one, self._nearby, self._run, self._exchange)
        change: Callable[[IntArray, int], None] = moves[int(rng.integers(len(moves)))]
        change(moved, int(rng.integers(count)))
        if np.array_equal(moved, devices):
            v = int(rng.choice(self._movable))
            moved[v] = (moved[v] + rng.integers(1, count)) % count
        return moved

    def _one(self, moved: IntArray, device: int) -> None:
        moved[int(self._rng.choice(self._movable))] = device

    def _nearby(self, moved: IntArray, device: int) -> None:
        v = int(self._rng.choice(self._movable))
        for _ in range(int(self._rng.integers(1, 9))):
            moved[v] = device
            if not self._near[v]:
                return
            v = self._near[v][int(self._rng.integers(len(self._near[v])))]

    def _run(self, moved: IntArray, device: int) -> None:
        moved[self._stretch()] = device

    def _exchange(self, moved: IntArray, device: int) -> None:
        """Two devices change places along a stretch of the topological order."""
        where, count = self._stretch(), self._problem.topology.num_devices
        other = int(device + self._rng.integers(1, count)) % count
        now = moved[where]
        moved[where] = np.where(now == device, other, np.where(now == other, device, now))

    def _stretch(self) -> IntArray:
        size = len(self._movable)
        length = int(np.exp(self._rng.uniform(0, np.log(max(size, 2)))))
        begin = int(self._rng.integers(max(size - length, 0) + 1))
        return self._movable[begin : begin + length]

    def _neighbours(self) -> list[list[int]]:
        """Vertices that a vertex gives to or takes from, and that read the same inputs."""
        graph, edges = self._problem.graph, self._problem.edges
        near: list[list[int]] = [[] for _ in range(graph.num_vertices)]
        for a, b in zip(edges.producer.tolist(), edges.reader.tolist(), strict=True):
            near[a].append(b)
            near[b].append(a)
        readers = rows(graph.reader_ptr, graph.reader)
        for tensor in np.flatnonzero(~self._problem.is_produced).tolist():
            for a, b in zip(readers[tensor], readers[tensor][1:], strict=False):
                near[a].append(b)
                near[b].append(a)
        return near
