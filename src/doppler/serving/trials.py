"""Trials: runs of assignments of one graph on an executor, and the incumbent among them."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray
from doppler.engine.engine import Engine
from doppler.errors import DopplerError, TrainingError
from doppler.executor import Executor
from doppler.graph.graph import Graph
from doppler.serving.incumbent import LOST, Incumbent, digest
from doppler.serving.prediction import Predictor
from doppler.serving.race import FIRST_LOOK, winner
from doppler.serving.traces import times_of, trace_from
from doppler.topology.topology import Topology
from doppler.trace import Trace
from doppler.training.config import RealConfig
from doppler.training.expert import Pool

PLACER = "doppler"
RECENT = 32  # measurements of the incumbent, and episodes, that means are taken over
FAILED = 2.0  # times the worst makespan measured: that of what failed
FASTEST = 16  # assignments remembered
ATTEMPTS = 3  # of the incumbent, before its failures stop the run
BETWEEN = 8  # runs of others after which the incumbent is measured again
NUMBERS = ("runs", "executions", "failures", "worst_s", "mean_s", "episodes", "since")  # state


@dataclass(frozen=True)  # without slots: RealProgress has two bases
class TrialSummary:
    """The measurements of one graph so far, in numbers."""

    spread_s: float  # standard deviation of the incumbent's recent makespans
    runs: int  # of the executor, those that do not count left out
    executions: int  # all runs of the executor
    best_after: int  # of these, until the best assignment was first run
    failures: int  # among the runs
    replaced: int  # times that the incumbent was
    speedup: float  # of the incumbent over the first one, measured in turn
    sim_error: float | None  # mean relative error of the recalibrated simulator, lately
    sampled_s: float | None  # mean makespan of the policy's latest episodes
    policy_s: float | None  # of its greedy assignment, in the final race
    start_s: float | None  # of the first incumbent, there


class Trials:
    """Runs assignments, counts what fails, and drives the `Incumbent` with what it measures.

    Seeds of runs are part of the state, so that an executor in virtual time measures the same
    after a run was resumed.
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
        self.incumbent = Incumbent(
            confidence=config.confidence, max_runs=config.max_runs, window=RECENT
        )
        self.trace: Trace | None = None  # of the incumbent, the median of some
        self.runs = self.executions = self.failures = 0  # see `TrialSummary`
        self.met: dict[str, int] = {}  # digests of what was run: `executions` at the first time
        self.sampled_s: deque[float] = deque(maxlen=RECENT)  # makespans of episodes
        self.final_s: dict[str, list[float]] = {}  # makespans in the final race, by digest
        self.policy: IntArray | None = None  # (V,) the policy's greedy assignment in it
        self.searched: IntArray | None = None  # (V,) the last result of search
        self.fastest = Pool(FASTEST, graph.num_vertices)
        self.worst_s = 0.0  # of all measured
        self.mean_s = 0.0  # of all episodes measured
        self.episodes = 0
        self.known: dict[str, float] = {}  # digests of what was run: its makespan; inf if it failed
        self.since = 0  # runs since the incumbent was measured
        self.warm: set[str] = set()  # digests of what ran in this update

    @property
    def devices(self) -> IntArray:
        """(V,) of the incumbent, once there is one."""
        assert self.incumbent.devices is not None
        return self.incumbent.devices

    @property
    def has_begun(self) -> bool:
        """Whether there is an incumbent."""
        return self.incumbent.devices is not None

    def measured(self) -> TrialSummary:
        """The numbers of interest.

        The incumbent and the first one are measured now and then, in turn: means of races won
        alone would overestimate the speedup.
        """
        return TrialSummary(
            spread_s=self.incumbent.spread_s,
            runs=self.runs,
            executions=self.executions,
            best_after=0 if not self.has_begun else self.met.get(digest(self.devices), 0),
            failures=self.failures,
            replaced=self.incumbent.promoted,
            speedup=self.incumbent.speedup,
            sim_error=self.predictor.error,
            sampled_s=float(np.mean(self.sampled_s)) if self.sampled_s else None,
            policy_s=self._final_mean_s(self.policy),
            start_s=self._final_mean_s(self.incumbent.first),
        )

    def _final_mean_s(self, devices: IntArray | None) -> float | None:
        makespans = None if devices is None else self.final_s.get(digest(devices))
        return float(np.mean(makespans)) if makespans else None

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
            self.incumbent.install(devices, [trace.makespan_s for trace in traces])
            self._note_incumbent(traces)
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

    def play(self, devices: IntArray) -> FloatArray:
        """(K,) makespans of (K, V) assignments, each run once; infinity where one fails.

        The fastest run of all makes the incumbent, without a race.
        """
        found = np.full(len(devices), inf)
        for i, row in enumerate(devices):
            self.runs += 1
            try:
                found[i] = self._seconds(row, self.runs)
            except DopplerError:
                self._fail(row)
                continue
            self.worst_s = max(self.worst_s, float(found[i]))
            if found[i] < self.incumbent.mean_s:
                self.incumbent.promoted += self.has_begun
                self.incumbent.install(row, [float(found[i])])
        return found

    def final(self, challengers: Sequence[IntArray], policy: IntArray) -> None:
        """Let the first incumbent, the present one and (V,) others run in turn; the winner stays.

        The first one wins unless another is faster by more than the noise (`winner`): whoever
        became the incumbent did so in one of many races, each of which may err. `policy` (V,) is
        one of the others.
        """
        assert self.incumbent.first is not None
        self.policy = policy
        every = (self.incumbent.first, self.devices, *challengers, policy)
        rows = {digest(row): row for row in every}
        if len(rows) == 1:  # nobody to race against
            self.final_s = {key: list(self.incumbent.recent_s) for key in rows}
            return
        self.final_s = self._in_turn(rows)
        keys = list(self.final_s)  # the first that did not fail is to be beaten
        if not keys:
            return
        won = keys[winner(list(self.final_s.values()), self.config.confidence)]
        changed = won != digest(self.devices)
        self.incumbent.conclude(rows[won], self.final_s[won], self.final_s[keys[0]])
        if changed and self.trace is not None:
            self.trace = self._run_incumbent()

    def _in_turn(self, rows: Mapping[str, IntArray]) -> dict[str, list[float]]:
        """Makespans of `final_runs` runs of each, after one to warm up, in turn to and fro."""
        found: dict[str, list[float]] = {key: [] for key in rows}
        for turn in range(1 + self.config.final_runs):
            for key in list(found) if turn % 2 else list(found)[::-1]:
                self.runs += turn > 0
                try:
                    makespan_s = self._seconds(rows[key], self.runs)
                except DopplerError:
                    self._fail(rows[key])
                    del found[key]
                    continue
                if turn:
                    found[key].append(makespan_s)
        return found

    def measure_incumbent(self) -> None:
        """Run the incumbent once more; an error where it fails again and again."""
        self.incumbent.ran(self._run_incumbent().makespan_s)
        self.since = 0

    def _run_incumbent(self) -> Trace:
        attempt = 1
        while True:
            try:
                return self._run(self.devices)
            except DopplerError as error:
                self.failures += 1
                if attempt == ATTEMPTS:
                    raise TrainingError(
                        f"the best assignment of graph `{self.graph.name}`, which ran before, "
                        f"failed {ATTEMPTS} times in a row: {error.message}",
                        hint="is the machine as it was? then resume: dop train --resume",
                    ) from error
                attempt += 1

    def _look_back(self) -> None:
        """Measure the incumbent again, and the first one."""
        self.measure_incumbent()
        if self.incumbent.first_s:
            assert self.incumbent.first is not None
            try:
                self.incumbent.first_s.append(self._run(self.incumbent.first).makespan_s)
            except DopplerError:
                self.failures += 1

    def challenge(self, devices: IntArray) -> bool:
        """Whether (V,) devices won a race against the incumbent, whose place they then take."""
        promoted, traces = self.incumbent.promoted, []
        self.incumbent.challenge(devices)
        while self.incumbent.race is not None:
            if not self.incumbent.challenger_is_next:
                self.measure_incumbent()
                continue
            try:
                traces.append(self._run(devices))
            except DopplerError:
                self._fail(devices)
                self.incumbent.failed()
                return False
            self.incumbent.ran(traces[-1].makespan_s, challenger=True)
        if self.incumbent.promoted == promoted:
            self.known[digest(devices)] = float(np.mean([t.makespan_s for t in traces]))
            return False
        self._note_incumbent(traces)
        return True

    def may_challenge(self, devices: IntArray) -> bool:
        """Whether (V,) devices are another assignment, and lost no race before."""
        key = digest(devices)
        return key != digest(self.devices) and self.incumbent.fates.get(key) != LOST

    def penalized(self, makespans: FloatArray, least_s: float = 0.0) -> FloatArray:
        """Makespans with a number, worse than all measured and `least_s`, for what failed."""
        worst_s = max(self.worst_s, self.incumbent.mean_s if self.has_begun else least_s)
        return np.where(np.isfinite(makespans), makespans, FAILED * worst_s)

    def _note_incumbent(self, traces: list[Trace]) -> None:
        """Remember what was measured of a new incumbent."""
        makespans = [trace.makespan_s for trace in traces]
        self.trace = traces[int(np.argsort(makespans, kind="stable")[len(traces) // 2])]
        self.known[digest(self.devices)] = float(np.mean(makespans))
        self.worst_s = max(self.worst_s, *makespans)
        self.since = 0

    def _run(self, devices: IntArray) -> Trace:
        """The trace of one run; before the first in an update come those that do not count."""
        assignment = self._assignment(devices)
        if (mine := digest(devices)) not in self.warm:
            for seed in range(self.config.warm_up):
                self._seconds(devices, seed)
            self.warm.add(mine)
        self.runs += 1
        self.since += 1
        self._count(devices)
        trace = self.executor.run(self.graph, assignment, self.runs)
        self.predictor.add(devices, trace)
        return trace

    def _seconds(self, devices: IntArray, seed: int) -> float:
        """The makespan of one run, of which nothing else is recorded where that can be."""
        self._count(devices)
        assignment = self._assignment(devices)
        if isinstance(self.executor, Engine):
            return float(self.executor.makespans(self.graph, assignment, seed=seed)[0])
        return self.executor.run(self.graph, assignment, seed).makespan_s

    def _count(self, devices: IntArray) -> None:
        self.executions += 1
        self.met.setdefault(digest(devices), self.executions)

    def _assignment(self, devices: IntArray) -> Assignment:
        return Assignment(devices=devices, placer=PLACER, topology=self.topology.name)

    def _fail(self, devices: IntArray) -> None:
        self.failures += 1
        self.known[digest(devices)] = inf

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that changes, as arrays and JSON values."""
        arrays, values = self.predictor.state()
        values |= {name: getattr(self, name) for name in NUMBERS}
        values["incumbent"] = self.incumbent.state()
        values["known"] = {key: None if x == inf else x for key, x in self.known.items()}
        values |= {"met": self.met, "sampled_s": list(self.sampled_s), "final_s": self.final_s}
        if self.policy is not None:
            arrays["policy"] = self.policy
        arrays |= {"fastest": self.fastest.devices, "fastest_s": self.fastest.costs_s}
        if self.searched is not None:
            arrays["searched"] = self.searched
        if self.trace is not None:
            arrays["incumbent.times"] = times_of(self.graph, self.topology, self.trace)
        return arrays, values

    def load_state(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Resume where `state` was taken."""
        self.predictor.load_state(arrays, values)
        for name in NUMBERS:
            setattr(self, name, values[name])
        self.incumbent.load_state(values["incumbent"])
        self.fastest.devices, self.fastest.costs_s = arrays["fastest"], arrays["fastest_s"]
        self.searched = arrays.get("searched")
        self.known = {key: inf if x is None else x for key, x in values["known"].items()}
        self.met, self.final_s = dict(values["met"]), dict(values["final_s"])
        self.sampled_s.extend(values["sampled_s"])
        self.policy = arrays.get("policy")
        if "incumbent.times" in arrays:
            times = arrays["incumbent.times"]
            self.trace = trace_from(self.graph, self.topology, self.devices, times, PLACER)
