"""Search on the simulator: annealing and local search over assignments, on all cores."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from operator import index
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray, unbox_fields
from doppler.base.progress import report
from doppler.errors import ConfigError, Interrupted, MissingExtraError
from doppler.placers.base import Placer, Shown, assign, cores
from doppler.placers.registry import make_placer
from doppler.placers.search.improver import (
    PRICING,
    make_chain,
    make_judge,
    make_neighbourhood,
)
from doppler.placers.search.move_model import MoveModel, shipped_move_model
from doppler.placers.warm_up import warm_up_search
from doppler.problem import Problem
from doppler.scheduler.choose import FIXED
from doppler.sim.config import SimConfig
from doppler.sim.simulator import Simulator

if TYPE_CHECKING:
    from doppler.placers.search.moves_kernel import Chain

SLICE_S = 0.1  # between looks at the clock
LAST_SHARE = 0.999  # of a budget, at which the temperature is that of its end
INSTANT = (  # the quickest first: a portfolio may stop on the way
    "single",
    "round-robin",
    "max-min",
    "min-min",
    "peft",
    "heft",
    "cpop",
    "etf",
    "m-sct",
    "fewer-devices",
    "enumerative",
    "metis",
    "critical-path",
)


BUDGETED = frozenset({"metis"})  # of these, those that take a budget
SELDOM_BEST = frozenset({"critical-path"})  # of these, those that a short budget goes without
# Times as long as the median of the others: the medians of 48 problems of split `validation` with
# 1,600 to 20,000 vertices and up to 46 devices. Half to twice as long is common.
SLOWER = {"fewer-devices": 12.0, "enumerative": 10.0, "critical-path": 20.0}
START_SHARE = 0.5  # of a budget, for the heuristics that search begins from
LEAST_S = 1e-3  # of a budget that is spent
MEETING = 0.5  # of the time that the temperature falls, when the worst chain joins the best


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """How long and how to search."""

    seconds: float = 10.0
    evaluations: int | None = None  # instead of seconds: simulations in all
    chains: int | None = None  # searches side by side; one per core if None
    enough_s: float = 0.0  # stop at this cost: a lower bound, say
    hot: float = 2e-3  # temperature at the beginning, as a share of the makespan; 0: only improve
    cold: float = 1e-4  # and at the end
    hotter: float = 10.0  # times as hot as that every second chain begins
    # Each move is drawn from that many random ones by the odds of the model of moves; 0: random.
    candidates: int = 8
    random_moves: float = 0.1  # share of the moves that are random all the same
    moves: MoveModel | None = None  # the model of moves; that of this package if None
    price: float = PRICING[0]  # of lent memory, the least: all of it costs that many makespans
    price_step: float = PRICING[1]  # factor by which each move makes lent memory dearer or cheaper
    restarts: int = 1  # times the temperature falls within the budget
    draws: int = 1  # of the noise: the objective is the mean makespan over them
    quantile: float | None = None  # of the makespans over the draws, instead of their mean
    sim: SimConfig = field(default_factory=SimConfig)

    def __post_init__(self) -> None:
        unbox_fields(self)
        if self.sim.mode == FIXED:
            raise ConfigError(
                "search for devices simulates in mode `dynamic`: `sim.mode` must be that",
                hint='for mode `fixed`, give `mode="fixed"` to `place`',
            )
        if not self.seconds > 0 or (self.evaluations is not None and self.evaluations < 1):
            raise ConfigError("the budget must be positive")
        chains = 1 if self.chains is None else self.chains
        if min(chains, self.restarts, self.draws) < 1:
            raise ConfigError("chains, restarts and draws must be at least 1")
        if self.hot < 0 or self.cold <= 0 or self.hotter <= 0:
            raise ConfigError("hot must not be negative, cold and hotter must be positive")
        if not 0 <= self.price < inf or not 1 <= self.price_step < inf:
            raise ConfigError("price must not be negative, price_step must be at least 1")
        if self.candidates < 0 or not 0 <= self.random_moves <= 1:
            raise ConfigError(
                "candidates must not be negative, random_moves must be between 0 and 1"
            )
        if self.quantile is not None and not 0 <= self.quantile <= 1:
            raise ConfigError(f"quantile is {self.quantile}, must be between 0 and 1")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found."""

    devices: IntArray  # (V,)
    cost_s: float  # of the objective
    evaluations: int  # simulations it took
    history: list[tuple[float, int, float]]  # (seconds, evaluations, best cost) as it improved
    interrupted: bool = False  # by Ctrl-C: the best so far


class AnnealingPlacer(Shown):
    """Simulated annealing from the best heuristics, with moves of vertices, regions and meta-ops.

    Moves: a vertex to another device, mostly that of a vertex nearby; two vertices, or two shards
    of one meta-op, exchanged; a walk along the dataflow put on one device; a region of one device
    put on another; two devices exchanged within a meta-op, or over a stretch of the topological
    order. Each is simulated and accepted by Metropolis' rule. The best assignment seen is returned,
    also on Ctrl-C.
    """

    name = "annealing"
    searches = True
    hot = SearchConfig().hot

    def __init__(self, config: SearchConfig | None = None) -> None:
        self.config = config or SearchConfig(hot=self.hot)

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The best assignment found within the budget."""
        warm_up_search()
        began, config = monotonic(), self.config
        if budget_s is not None:
            config = replace(config, seconds=budget_s, evaluations=None)
        if config.evaluations is not None:
            starts = starting_points(problem, seed)
        else:
            starts = starting_points(problem, seed, START_SHARE * config.seconds)
            left = config.seconds - (monotonic() - began)
            config = replace(config, seconds=max(left, LEAST_S))
        result = search(problem, starts, config, seed=seed)
        return assign(self, problem, result.devices)


class LocalSearchPlacer(AnnealingPlacer):
    """Local search from the best heuristics: moves that do not make it worse, with restarts."""

    name = "local-search"
    hot = 0.0


def starting_points(problem: Problem, seed: int, seconds: float = inf) -> list[IntArray]:
    """(V,) assignments of the instant heuristics, to search from; of those that are installed.

    Some are left out where all would take longer than some seconds.
    """
    found: list[IntArray] = []
    clock = InstantClock(seconds)
    for name in INSTANT:
        if found and not clock.has_time(name):
            continue
        with clock.timing(name), suppress(MissingExtraError):
            budget_s = clock.left_s if name in BUDGETED and isfinite(seconds) else None
            found.append(make_instant(name).place(problem, seed=seed, budget_s=budget_s).devices)
    return found


def make_instant(name: str, tries: int | None = None) -> Placer:
    """One of the instant heuristics, as one of many: it says nothing where it has no time.

    A partitioner makes as many `tries` of each cut, or as many as it does by itself.
    """
    if name not in BUDGETED:
        return make_placer(name)
    from doppler.placers.partition.metis import MetisPlacer

    return MetisPlacer(warns=False) if tries is None else MetisPlacer(tries, warns=False)


class InstantClock:
    """Whether there is time for one more of the instant heuristics, the quickest of which go first.

    The next one takes as long as the longest but one before it, or as many times the median of
    these as `SLOWER` says. So one that was paused counts for neither: on tens of thousands of
    vertices, garbage collection takes longer than most heuristics. Nor do those in `SLOWER`.
    """

    def __init__(self, seconds: float) -> None:
        self._until, self._took_s = monotonic() + seconds, list[float]()

    @property
    def left_s(self) -> float:
        """Seconds, a moment at least."""
        return max(self._until - monotonic(), LEAST_S)

    def has_time(self, name: str) -> bool:
        """Whether a heuristic would end in time."""
        return monotonic() + self.expected_s(name) <= self._until

    def expected_s(self, name: str) -> float:
        """How long a heuristic takes, as those before it tell."""
        if not self._took_s:
            return 0.0
        if name in SLOWER:
            return SLOWER[name] * median(self._took_s)
        return sorted(self._took_s)[-2:][0]

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """The time that a heuristic takes."""
        began = monotonic()
        yield
        if name not in SLOWER:
            self._took_s.append(monotonic() - began)


def search(
    problem: Problem, starts: list[IntArray], config: SearchConfig, *, seed: int = 0
) -> SearchResult:
    """The best assignment found from (V,) `starts` within the budget; the best so far on Ctrl-C."""
    graph = problem.graph
    if not len(graph.assigned) or problem.topology.num_devices == 1:
        devices = np.where(graph.is_input, -1, 0)
        cost = float(Simulator(problem, config.sim).makespans(graph, devices[None])[0])
        return SearchResult(devices, cost, 1, [])
    return Annealer(problem, starts, config, seed).run()


class Annealer:
    """Parallel chains of moves, run in slices: for all of the budget, or by and by."""

    def __init__(
        self, problem: Problem, starts: list[IntArray], config: SearchConfig, seed: int
    ) -> None:
        from doppler.sim.state_kernel import make_scratch

        seed = index(seed)  # a plain int: the kernel is compiled for it
        self.config, self.seed = config, seed
        simulator = Simulator(problem, config.sim)
        self.arrays = simulator.arrays(problem.graph, range(seed, seed + config.draws))
        self.priority = simulator.priority(problem.graph, seed)
        self.neighbourhood = make_neighbourhood(problem)
        self.quantile = -1.0 if config.quantile is None else config.quantile
        count = config.chains or len(cores()) or 1
        self.scratches = [make_scratch(self.arrays) for _ in range(count)]
        self.judges = [
            make_judge(
                *(self.arrays, config.moves or shipped_move_model()),
                candidates=config.candidates,
                random_share=config.random_moves,
            )
            for _ in range(count)
        ]
        began = monotonic()
        ranked = sorted((self._chain(start) for start in starts), key=lambda c: float(c.cost[1]))
        self._step_s = (monotonic() - began) / len(starts)  # roughly, of a move
        self.chains = [self._copy(ranked[i % len(ranked)]) for i in range(count)]
        self.best = self._copy(ranked[0])
        self.evaluations, self._slice, self._steps = len(starts) * config.draws, 0, 1
        self._phase = 0.0  # of the time that the temperature falls
        self.history: list[tuple[float, int, float]] = []

    def run(self) -> SearchResult:
        """Anneal until the budget is spent, the cost low enough, or Ctrl-C."""
        from doppler.placers.search.kernel import INFEASIBLE

        began, interrupted = monotonic(), False
        try:
            for number, (share, steps) in enumerate(self._slices(began)):
                if self.best.cost[1] <= self.config.enough_s:
                    break
                self._advance(number, share, steps)
                self._keep_best()
                self._note(began, float(self.best.cost[1]))
        except (KeyboardInterrupt, Interrupted):
            interrupted = True  # anytime: the best so far is returned
        cost = float(self.best.cost[1]) if self.best.cost[1] < INFEASIBLE else inf
        devices = self.best.best[0].copy()
        return SearchResult(devices, cost, self.evaluations, self.history, interrupted)

    def run_for(self, seconds: float, share: float) -> None:
        """Try moves for some seconds, at the temperature of this share of the whole budget.

        One move at least; none once the cost is low enough.
        """
        end = monotonic() + seconds
        while self.best.cost[1] > self.config.enough_s:
            began = monotonic()
            left_s = min(end - began, SLICE_S)
            steps = int(min(max(left_s / max(self._step_s, 1e-9), 1), 4 * self._steps))
            self._advance(self._slice, min(share, LAST_SHARE), steps)
            self._slice, self._steps = self._slice + 1, steps
            self._keep_best()
            self._step_s = (monotonic() - began) / steps
            if monotonic() >= end:
                return

    def take(self, devices: IntArray) -> None:
        """Let the worst chain continue from (V,) devices that others found, if they are better."""
        found, worst = self._chain(devices), self._worst()
        if found.cost[1] < self.chains[worst].cost[1]:
            self.chains[worst] = found
            self._keep_best()

    def _worst(self) -> int:
        return max(range(len(self.chains)), key=lambda i: float(self.chains[i].cost[1]))

    def _keep_best(self) -> None:
        leader = min(self.chains, key=lambda c: float(c.cost[1]))
        if leader.cost[1] < self.best.cost[1]:
            self.best = self._copy(leader)

    def _slices(self, began: float) -> Iterator[tuple[float, int]]:
        """(share of the budget spent, moves to try next) until it is spent.

        By seconds, slices adapt to the clock; by evaluations they do not, so that runs repeat.
        """
        config = self.config
        steps = int(min(max(config.seconds / max(self._step_s, 1e-9) / 2, 1), 64))
        per_step = len(self.chains) * config.draws
        while True:
            spent = monotonic() - began
            if config.evaluations is None:
                share = spent / config.seconds
            else:
                share = self.evaluations / config.evaluations
                left = config.evaluations - self.evaluations
                steps = max(min(left, config.evaluations // 50) // per_step, 1)
            report("searching", int(1000 * min(share, 1.0)), 1000)
            if share >= 1.0:
                return
            yield share, steps
            took = monotonic() - began - spent
            steps = int(min(max(steps * SLICE_S / max(took, 1e-6), 1), 4 * steps))

    def _advance(self, number: int, share: float, steps: int) -> None:
        """Let every chain try some moves, at the temperature of this share of the budget."""
        from doppler.placers.search.kernel import improve

        config = self.config
        phase, before = share * config.restarts % 1.0, self._phase
        if phase < before:  # it is hot again
            self._join(range(len(self.chains)))
        elif before < MEETING <= phase:
            self._join([self._worst()])
        self._phase = phase

        def work(i: int) -> None:
            hottest = config.hot * (config.hotter if i % 2 else 1.0)
            hot = hottest * (config.cold / hottest) ** phase if hottest else 0.0
            seed = (self.seed * 1_000_003 + number * 1009 + i) % 2**32
            improve(
                *(self.arrays, self.neighbourhood, self.chains[i], self.judges[i], self.priority),
                *(self.scratches[i], seed, steps, hot, hot or config.cold, self.quantile),
            )

        with ThreadPoolExecutor(len(self.chains)) as pool:
            list(pool.map(work, range(len(self.chains))))
        self.evaluations += steps * len(self.chains) * config.draws

    def _join(self, chains: Iterable[int]) -> None:
        """Let some chains continue from the best assignment so far."""
        from doppler.placers.search.kernel import settle

        leader = min(self.chains, key=lambda c: float(c.cost[1]))
        for chain in (self.chains[i] for i in chains):
            chain.devices[:] = leader.best
            settle(self.arrays, chain, self.priority, self.scratches[0], self.quantile)

    def _note(self, began: float, cost: float) -> None:
        if not self.history or cost < self.history[-1][2]:
            self.history.append((monotonic() - began, self.evaluations, cost))

    def _chain(self, devices: IntArray) -> "Chain":
        scratch = self.scratches[0]
        pricing = (self.config.price, self.config.price_step)
        return make_chain(self.arrays, self.priority, scratch, devices, self.quantile, pricing)

    @staticmethod
    def _copy(chain: "Chain") -> "Chain":
        arrays: Any = (array.copy() for array in chain)
        return type(chain)(*arrays)
