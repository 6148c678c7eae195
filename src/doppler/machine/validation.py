"""Validation: does the simulator predict what the engine measures? If not, refine the topology."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray, frozen
from doppler.base.files import to_json
from doppler.base.notebook import brief
from doppler.base.progress import report
from doppler.base.writing import write_text
from doppler.errors import ConfigError, EngineError, MissingExtraError, OutOfMemoryError
from doppler.executor import Executor
from doppler.graph.graph import Graph
from doppler.machine.calibration import Measured, Refined
from doppler.placers.registry import make_placer
from doppler.placers.search.annealing import INSTANT, SearchConfig, search
from doppler.placers.warm_up import warm_up_search
from doppler.problem import Problem
from doppler.resolve import as_assignment, as_graph, as_topology
from doppler.scheduler.choose import DYNAMIC, FIXED
from doppler.sim.config import SimConfig
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology

FORMAT, VERSION = "doppler-validation", 1
EVALUATIONS = 20_000  # of the longest search for good assignments
BEST = 4  # the best quarter
CANDIDATES = 16  # for each assignment to choose
# Shares of the assignments whose predicted makespan is within a factor of the best.
QUALITIES = ((1.02, 0.25), (1.1, 0.25), (1.5, 0.25), (np.inf, 0.25))
GOOD = ((1.02, 0.5), (1.1, 0.3), (1.5, 0.2))  # of those that a probe runs
PROBED = 16  # assignments that a probe runs in each round

# Refining: the logs of dispatch_s and completion_s, in steps from what was timed.
STEP = 0.5
STARTS = ((0, 0), (1, 0), (2, 0))
FINEST = 1 / 16  # of a step
SIMULATIONS = 200  # of all runs, at most, from each start
PULL = 1e-3  # a step away from what was timed has to save that much error, two four times as much
LEAST_S = 1e-6  # added before costs are scaled, for those that were timed as nothing


@dataclass(frozen=True, slots=True, eq=False)
class Validation:
    """Measured and predicted makespans of some assignments, one row each."""

    graph: str
    topology: str
    placers: tuple[str, ...]  # (A,) how each assignment was made
    measured_s: FloatArray  # (A,) mean makespan on the engine
    spread_s: FloatArray  # (A,) standard deviation
    predicted_s: FloatArray  # (A,) makespan in the simulator
    failures: tuple[str, ...] = ()  # assignments that did not run, and why

    def __repr__(self) -> str:
        counts = f"{len(self.placers)} assignments, mean error {self.mape:.1%}"
        return f"<Validation of {brief(self.graph)} on {brief(self.topology)}: {counts}>"

    @property
    def pearson(self) -> float:
        """Correlation of measured and predicted makespans."""
        return _correlation("pearsonr", self.measured_s, self.predicted_s)

    @property
    def spearman(self) -> float:
        """Correlation of their ranks."""
        return _correlation("spearmanr", self.measured_s, self.predicted_s)

    @property
    def best_spearman(self) -> float:
        """Correlation of the ranks among the quarter of the assignments that measured best."""
        best = np.argsort(self.measured_s, kind="stable")[: -(-len(self.measured_s) // BEST)]
        return _correlation("spearmanr", self.measured_s[best], self.predicted_s[best])

    @property
    def mape(self) -> float:
        """Mean of |predicted / measured - 1|."""
        return float(np.abs(self.errors).mean()) if len(self.placers) else nan

    @property
    def errors(self) -> FloatArray:
        """(A,) predicted / measured - 1."""
        return self.predicted_s / np.maximum(self.measured_s, 1e-12) - 1

    def worst(self, count: int = 5) -> IntArray:
        """The rows that are furthest off, worst first."""
        return np.argsort(-np.abs(self.errors), kind="stable")[:count]


def validate(
    graph: Graph | str | Path,
    topology: Topology | str | Path,
    engine: Executor,
    assignments: Sequence[Assignment | str | Path],
    *,
    repeats: int = 3,
    warm_up: int = 1,
    config: SimConfig | None = None,
) -> Validation:
    """Run assignments on an engine and in the simulator, and compare.

    Each runs `warm_up` times unmeasured, then `repeats` times; in turns, so that a machine that
    gets slower does so for all. One that fails, say for want of memory, is left out and listed.
    Graph, topology and assignments may be given as the paths of their files, and the topology as
    the name of a preset.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64, dtype="float32"), parts=2)
    >>> assignment = dp.place(graph, "cpu2", "round-robin")
    >>> with dp.Engine("cpu2", "null") as engine:
    ...     found = dp.validate(graph, "cpu2", engine, [assignment], repeats=1)
    >>> len(found.measured_s)
    1
    """
    graph, topology = as_graph(graph), as_topology(topology)
    chosen = [as_assignment(each) for each in assignments]
    if repeats < 1 or warm_up < 0:
        raise ConfigError("repeats must be at least 1, and warm_up not negative")
    predicted = Simulator(topology, config).makespans(graph, chosen)
    failures = {
        i: f"{chosen[i].placer}: runs out of memory in the simulator"
        for i in np.flatnonzero(np.isinf(predicted)).tolist()
    }
    measured: list[list[float]] = [[] for _ in chosen]
    total = (warm_up + repeats) * len(chosen)
    for step in range(total):
        report("running assignments", step, total)
        turn, i = divmod(step, len(chosen))
        if i in failures:
            continue
        try:
            trace = engine.run(graph, chosen[i])
        except (EngineError, OutOfMemoryError) as error:
            failures[i] = f"{chosen[i].placer}: {error.message}"
            continue
        if turn >= warm_up:
            measured[i].append(trace.makespan_s)
    report("running assignments", total, total)
    ran = [i for i in range(len(chosen)) if i not in failures]
    return Validation(
        graph=graph.name,
        topology=topology.name,
        placers=tuple(chosen[i].placer for i in ran),
        measured_s=frozen(np.array([np.mean(measured[i]) for i in ran])),
        spread_s=frozen(np.array([np.std(measured[i]) for i in ran])),
        predicted_s=frozen(predicted[ran]),
        failures=tuple(failures[i] for i in sorted(failures)),
    )


def refine(
    graph: Graph,
    topology: Topology,
    fitted: Sequence[Measured],
    held_out: Sequence[Measured],
    *,
    mode: str = DYNAMIC,
) -> Refined:
    """The topology with the costs of the host that predict measured makespans best.

    What starting a task and seeing its end costs the host is hard to time: it depends on the
    task, on what else the host has to do, and on whether it sleeps. But it shows in the makespans.
    So `dispatch_s` and `completion_s` are scaled until the simulator predicts the fitted ones;
    good ones count most. If that does not help those held out, nothing changes. `mode` is the one
    in which they were measured: in a fixed order the host is ahead, and its costs stay.
    """
    priced = replace(graph, exec_s=Problem(graph, topology).costs.exec_s)
    off_fitted = _error_of(priced, topology, fitted, mode)
    off_held_out = _error_of(priced, topology, held_out or fitted, mode)
    if mode == FIXED:
        before = off_held_out(topology)
        return Refined(topology, before, before)
    found = [_descend(topology, off_fitted, np.array(start, np.float64)) for start in STARTS]
    _, steps = min(found, key=lambda each: each[0])
    refined = _scaled(topology, steps)
    before, after = off_held_out(topology), off_held_out(refined)
    return Refined(refined, before, after) if after < before else Refined(topology, before, before)


def _descend(
    topology: Topology, error: Callable[[Topology], float], at: FloatArray
) -> tuple[float, FloatArray]:
    """The least error, and where: one cost at a time, in smaller and smaller steps."""

    def value(steps: FloatArray) -> float:
        return error(_scaled(topology, steps)) + PULL * float(steps @ steps)

    best, size, tried = value(at), 1.0, 1
    while size >= FINEST and tried < SIMULATIONS:
        moves = [sign * size * axis for axis in np.eye(len(at)) for sign in (1, -1)]
        before = best
        for move in moves:
            report("refining", tried, SIMULATIONS)
            tried += 1
            if (off := value(at + move)) < best:
                best, at = off, at + move
        if best == before:
            size /= 2
    report("refining", SIMULATIONS, SIMULATIONS)
    return best, at


def _scaled(topology: Topology, steps: FloatArray) -> Topology:
    """The topology with the costs of the host moved by these steps."""
    costs = np.array([topology.host.dispatch_s, topology.host.completion_s])
    costs = np.maximum((costs + LEAST_S) * np.exp(STEP * steps) - LEAST_S, 0.0)
    dispatch_s, completion_s = costs.tolist()
    return replace(
        topology, host=replace(topology.host, dispatch_s=dispatch_s, completion_s=completion_s)
    )


def _error_of(
    graph: Graph, topology: Topology, runs: Sequence[Measured], mode: str
) -> Callable[[Topology], float]:
    """How far a topology's makespans are off those of runs: the mean of |log(predicted/measured)|.

    A run counts by how close it comes to the best; those that do not fit into memory do not.
    """

    def predict(topology: Topology, runs: Sequence[Measured]) -> FloatArray:
        simulator = Simulator(topology, SimConfig(mode=mode))
        return simulator.makespans(graph, [run.assignment for run in runs])

    kept = [
        run
        for run, predicted in zip(runs, predict(topology, runs), strict=True)
        if np.isfinite(predicted)
    ]
    measured = np.maximum([run.makespan_s for run in kept], 1e-12)
    if not kept:
        return lambda _: 0.0

    def error(topology: Topology) -> float:
        predicted = np.maximum(predict(topology, kept), 1e-12)
        return float(np.average(np.abs(np.log(predicted / measured)), weights=1 / measured))

    return error


def good_assignments(
    graph: Graph, topology: Topology, seed: int = 0, count: int = PROBED
) -> list[Assignment]:
    """Assignments that a probe is to run: heuristics, and what is about as good as the best."""
    # Not those that `validate` will run.
    return diverse_assignments(graph, topology, count, seed + 1, qualities=GOOD)


def diverse_assignments(
    graph: Graph,
    topology: Topology,
    count: int,
    seed: int = 0,
    *,
    qualities: Sequence[tuple[float, float]] = QUALITIES,
) -> list[Assignment]:
    """Different assignments from bad to the best known, as the simulator sees it.

    Heuristics, stages of searches, good assignments with some vertices moved, and random ones; of
    these the share of each of the `qualities`: within a factor of the best predicted makespan.
    All fit into memory. Fewer than `count` where there are not as many.
    """
    warm_up_search()
    seed = index(seed)
    problem, rng = Problem(graph, topology), np.random.default_rng(seed)
    simulator = Simulator(problem)
    pool: dict[bytes, Assignment] = {}

    def add(found: Iterable[tuple[str, IntArray]]) -> None:
        for placer, devices in found:
            one = Assignment(np.where(graph.is_input, -1, devices), placer=placer)
            pool.setdefault(one.devices.tobytes(), one)

    def makespans() -> FloatArray:
        return simulator.makespans(graph, list(pool.values()))

    add(_heuristics(problem, seed, count // 4))
    always = len(pool)
    starts = [assignment.devices for assignment in pool.values()]
    add(_searched(problem, starts, max(count // 4, 2), seed))
    ranked = np.argsort(makespans(), kind="stable")[: max(len(pool) // 3, 1)]
    good = [list(pool.values())[i].devices for i in ranked]
    add(_varied(graph, topology, good, rng, CANDIDATES * count))
    chosen = _of_all_qualities(makespans(), count, always, rng, qualities)
    return [list(pool.values())[i] for i in chosen]


def _of_all_qualities(
    makespan_s: FloatArray,
    count: int,
    always: int,
    rng: np.random.Generator,
    qualities: Sequence[tuple[float, float]],
) -> list[int]:
    """`count` of some assignments: the first `always`, and of each quality its share."""
    feasible = np.isfinite(makespan_s)
    chosen = [i for i in range(min(always, count)) if feasible[i]]
    left = np.setdiff1d(rng.permutation(np.flatnonzero(feasible)), chosen, assume_unique=True)
    ratio = makespan_s / makespan_s[feasible].min(initial=np.inf)
    wanted, low = count - len(chosen), 0.0
    for limit, share in qualities:
        members = [i for i in left.tolist() if low <= ratio[i] < limit]
        chosen += members[: int(share * wanted)]
        low = limit
    rest = sorted(set(left.tolist()) - set(chosen), key=lambda i: (ratio[i], i))
    return sorted([*chosen, *rest[: count - len(chosen)]])


def _heuristics(problem: Problem, seed: int, count: int) -> Iterator[tuple[str, IntArray]]:
    """The assignments of placers that take no time, of those that are installed.

    Not of `fewer-devices`, which leaves half of the machine idle, and so says little about it.
    """
    names = [name for name in INSTANT[::-1] if name != "fewer-devices"]
    for name in names[:count]:
        try:
            yield name, make_placer(name).place(problem, seed=seed).devices
        except MissingExtraError:
            continue


def _searched(
    problem: Problem, starts: Sequence[IntArray], count: int, seed: int
) -> Iterator[tuple[str, IntArray]]:
    """The results of longer and longer searches, from random assignments and from good ones."""
    graph, rng = problem.graph, np.random.default_rng([seed, 1])
    for i, evaluations in enumerate(np.geomspace(30, EVALUATIONS, count).astype(int).tolist()):
        report("searching for assignments", i, count)
        random = rng.integers(problem.topology.num_devices, size=graph.num_vertices)
        start = [np.where(graph.is_input, -1, random)] if i % 2 or not starts else list(starts)
        config = SearchConfig(evaluations=evaluations + len(start), chains=1, hot=0.0)
        result = search(problem, start, config, seed=seed + i)
        yield f"search, {evaluations}", result.devices
    report("searching for assignments", count, count)


def _varied(
    graph: Graph,
    topology: Topology,
    good: Sequence[IntArray],
    rng: np.random.Generator,
    count: int,
) -> Iterator[tuple[str, IntArray]]:
    """Good assignments with some or all vertices moved at random, again and again."""
    size, devices = len(graph.assigned), topology.num_devices
    few = np.unique(np.geomspace(1, max(size // 8, 1), 5).astype(int)).tolist()
    for step in range(count):
        base = good[step // 8 % len(good)].copy()
        if step % 8 == 0:
            moved = size
        elif step % 8 == 1:
            moved = max(int(size * rng.uniform(0.15, 0.9)), 1)
        else:
            moved = few[rng.integers(len(few))]
        chosen = rng.permutation(graph.assigned)[:moved]
        base[chosen] = rng.integers(devices, size=len(chosen))
        yield ("random" if moved == size else f"{moved} moved"), base


def _correlation(name: str, x: FloatArray, y: FloatArray) -> float:
    """Of two columns; nan where there is nothing to correlate."""
    from scipy import stats

    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return nan
    return float(getattr(stats, name)(x, y).statistic)


def validation_document(validation: Validation) -> dict[str, Any]:
    """The JSON object of a validation; figures that there are not are null."""
    figures = ("pearson", "spearman", "best_spearman", "mape")
    document: dict[str, Any] = {name: _or_none(getattr(validation, name)) for name in figures}
    document |= {"format": FORMAT, "version": VERSION}
    document |= {"graph": validation.graph, "topology": validation.topology}
    document["failures"] = list(validation.failures)
    columns = ("measured_s", "spread_s", "predicted_s")
    document["assignments"] = {"placer": list(validation.placers)} | {
        name: getattr(validation, name).tolist() for name in columns
    }
    return document


def write_validation(validation: Validation, path: str | Path, *, force: bool = False) -> None:
    """Write a validation as JSON; over a file of another kind only with `force`."""
    write_text(path, to_json(validation_document(validation)), kind=FORMAT, force=force)


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value
