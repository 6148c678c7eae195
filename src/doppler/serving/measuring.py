"""Bench: assignments of one graph on an executor, and the incumbent among them."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray
from doppler.errors import DopplerError, TrainingError
from doppler.executor import Executor
from doppler.graph.graph import Graph
from doppler.serving.confidence import BETTER, FIRST_LOOK, Race
from doppler.serving.prediction import Predictor, digest, times_of, trace_from
from doppler.topology.topology import Topology
from doppler.trace import Trace
from doppler.training.config import RealConfig
from doppler.training.expert import Pool

PLACER = "doppler"
RECENT = 32  # measurements of the incumbent that its mean is taken over
FAILED = 2.0  # makespans of what failed count as so many times the worst measured
FASTEST = 16  # assignments remembered
ATTEMPTS = 3  # of the incumbent, before its failures stop the run
BETWEEN = 8  # runs of others after which the incumbent is measured again
NUMBERS = (  # of a bench: its state, but for lists and arrays
    *("runs", "failures", "replaced"),
    *("worst_s", "mean_s", "episodes", "since"),
)


@dataclass(frozen=True)  # without slots: RealProgress has two bases
class Measured:
    """What was measured of one graph so far."""

    spread_s: float  # standard deviation of the incumbent's makespans, lately
    runs: int  # of the executor, those that do not count left out
    failures: int  # among them
    replaced: int  # times that the incumbent was
    speedup: float  # of the incumbent over the first one, measured in turn
    sim_error: float | None  # mean relative error of the recalibrated simulator, lately


class Bench:
    """Runs assignments, counts what fails, and keeps the best: the incumbent.

    Another becomes the incumbent only by winning a `Race` against it. Seeds of runs are counted
    on, so that an executor in virtual time measures the same after a run was resumed.
    """

    def __init__(
        self,
        executor: Executor,
        graph: Graph,
        topology: Topology,
        config: RealConfig,
        predictor: Predictor,
    ) -> None:
        self.executor, self.graph, self.topology = executor, graph, topology
        self.config, self.predictor = config, predictor
        self.incumbent: IntArray | None = None  # (V,)
        self.trace: Trace | None = None  # of the incumbent, the median of some
        self.recent_s: deque[float] = deque(maxlen=RECENT)  # makespans of the incumbent
        self.runs = self.failures = self.replaced = 0  # see `Measured`
        self.first: IntArray | None = None  # (V,) the first incumbent, once it was replaced
        self.first_s: deque[float] = deque(maxlen=RECENT)  # its makespans
        self.wanderer: IntArray | None = None  # (V,) where a search on the simulator goes on
        self.fastest = Pool(FASTEST, graph.num_vertices)
        self.worst_s = 0.0  # of all measured
        self.mean_s = 0.0  # of all episodes measured
        self.episodes = 0
        self.known: dict[str, float] = {}  # digests of what was run: its makespan; inf if it failed
        self.beaten: list[str] = []  # digests of those that lost a race
        self.since = 0  # runs since the incumbent was measured
        self.warm: set[str] = set()  # digests of what ran in this update

    @property
    def incumbent_s(self) -> float:
        """The mean of the incumbent's latest makespans."""
        return float(np.mean(self.recent_s)) if self.recent_s else inf

    @property
    def spread_s(self) -> float:
        """Their standard deviation."""
        return float(np.std(self.recent_s, ddof=1)) if len(self.recent_s) > 1 else 0.0

    @property
    def speedup(self) -> float:
        """How many times as fast as the first incumbent the present one is.

        Both are measured now and then, in turn: means of races won alone would flatter it.
        """
        return float(np.mean(self.first_s)) / self.incumbent_s if self.first_s else 1.0

    def measured(self) -> Measured:
        """The numbers of interest."""
        return Measured(
            spread_s=self.spread_s,
            runs=self.runs,
            failures=self.failures,
            replaced=self.replaced,
            speedup=self.speedup,
            sim_error=self.predictor.error,
        )

    def begin(self, starts: Sequence[IntArray]) -> None:
        """Make the first of (V,) assignments that runs the incumbent, and measure it."""
        reason = "there is none"
        for devices in starts:
            try:
                traces = [self._run(devices) for _ in range(FIRST_LOOK)]
            except DopplerError as error:
                self._fail(devices)
                reason = str(error)
                continue
            self._install(devices, traces)
            return
        raise TrainingError(
            f"no assignment of graph `{self.graph.name}` to begin with runs: {reason}",
            hint="does `dop execute` run one of `dop place`?",
        )

    def measure(self, devices: IntArray) -> FloatArray:
        """(K,) mean makespans of (K, V) assignments; infinity where one fails, or did before."""
        found = np.full(len(devices), inf)
        for i, row in enumerate(devices):
            if self.known.get(digest(row)) == inf:
                continue
            if self.since >= BETWEEN:
                self._look_back()
            try:
                runs = [self._run(row).makespan_s for _ in range(self.config.repeats)]
            except DopplerError:
                self._fail(row)
                continue
            found[i] = np.mean(runs)
            self.known[digest(row)] = float(found[i])
        self.fastest.add(devices, found)
        self.worst_s = max(self.worst_s, float(found[np.isfinite(found)].max(initial=0.0)))
        return found

    def measure_incumbent(self) -> Trace:
        """The trace of another run of the incumbent; an error where it fails again and again."""
        assert self.incumbent is not None
        for attempt in range(1, ATTEMPTS + 1):
            try:
                trace = self._run(self.incumbent)
            except DopplerError as error:
                self.failures += 1
                if attempt == ATTEMPTS:
                    raise TrainingError(
                        f"the best assignment of graph `{self.graph.name}`, which ran before, "
                        f"failed {ATTEMPTS} times in a row: {error.message}",
                        hint="is the machine as it was? then go on: dop train --resume",
                    ) from error
            else:
                break
        self.recent_s.append(trace.makespan_s)
        self.since = 0
        return trace

    def _look_back(self) -> None:
        """Measure the incumbent again, and the first one."""
        self.measure_incumbent()
        if self.first is not None:
            try:
                self.first_s.append(self._run(self.first).makespan_s)
            except DopplerError:
                self.failures += 1

    def challenge(self, devices: IntArray) -> bool:
        """Whether (V,) devices won a race against the incumbent, whose place they then take."""
        race = Race(confidence=self.config.confidence, most=self.config.most)
        traces = []
        while race.verdict is None:
            if not race.challenger_is_next:
                race.add(self.measure_incumbent().makespan_s, challenger=False)
                continue
            try:
                traces.append(self._run(devices))
            except DopplerError:
                self._fail(devices)
                return False
            race.add(traces[-1].makespan_s, challenger=True)
        if race.verdict != BETTER:
            self.known[digest(devices)] = float(np.mean(race.challenger_s))
            self.beaten.append(digest(devices))
            return False
        if self.first is None:
            self.first = self.incumbent
            self.first_s.extend(self.recent_s)
        self.replaced += 1
        self._install(devices, traces)
        return True

    def penalized(self, makespans: FloatArray) -> FloatArray:
        """Makespans with a number, worse than all measured, for what failed."""
        worst_s = max(self.worst_s, self.incumbent_s)
        return np.where(np.isfinite(makespans), makespans, FAILED * worst_s)

    def _install(self, devices: IntArray, traces: list[Trace]) -> None:
        makespans = [trace.makespan_s for trace in traces]
        self.incumbent = devices.copy()
        self.trace = traces[int(np.argsort(makespans, kind="stable")[len(traces) // 2])]
        self.recent_s.clear()
        self.recent_s.extend(makespans)
        self.known[digest(devices)] = float(np.mean(makespans))
        self.worst_s = max(self.worst_s, *makespans)
        self.since = 0

    def _run(self, devices: IntArray) -> Trace:
        """The trace of one run; before the first in an update come those that do not count."""
        assignment = Assignment(devices=devices, placer=PLACER, topology=self.topology.name)
        if (mine := digest(devices)) not in self.warm:
            for seed in range(self.config.warm_up):
                self.executor.run(self.graph, assignment, seed)
            self.warm.add(mine)
        self.runs += 1
        self.since += 1
        trace = self.executor.run(self.graph, assignment, self.runs)
        self.predictor.add(devices, trace)
        return trace

    def _fail(self, devices: IntArray) -> None:
        self.failures += 1
        self.known[digest(devices)] = inf

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that changes, as arrays and JSON values."""
        arrays, values = self.predictor.state()
        values |= {name: getattr(self, name) for name in NUMBERS}
        values |= {"recent_s": list(self.recent_s), "first_s": list(self.first_s)}
        values["beaten"] = list(self.beaten)
        values["known"] = {key: None if x == inf else x for key, x in self.known.items()}
        arrays |= {"fastest": self.fastest.devices, "fastest_s": self.fastest.costs_s}
        places = {"first": self.first, "wanderer": self.wanderer}
        arrays |= {name: place for name, place in places.items() if place is not None}
        if self.incumbent is not None and self.trace is not None:
            arrays["incumbent"] = self.incumbent
            arrays["incumbent.times"] = times_of(self.graph, self.topology, self.trace)
        return arrays, values

    def load_state(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.predictor.load_state(arrays, values)
        for name in NUMBERS:
            setattr(self, name, values[name])
        self.recent_s.extend(values["recent_s"])
        self.first_s.extend(values["first_s"])
        self.fastest.devices, self.fastest.costs_s = arrays["fastest"], arrays["fastest_s"]
        self.first, self.wanderer = arrays.get("first"), arrays.get("wanderer")
        self.beaten = list(values["beaten"])
        self.known = {key: inf if x is None else x for key, x in values["known"].items()}
        if "incumbent" in arrays:
            self.incumbent, times = arrays["incumbent"], arrays["incumbent.times"]
            self.trace = trace_from(self.graph, self.topology, self.incumbent, times, PLACER)
