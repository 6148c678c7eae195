"""Predictor: the simulator, recalibrated by what was measured."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.errors import MissingExtraError
from doppler.graph.graph import Graph
from doppler.placers.registry import make_placer
from doppler.placers.search.annealing import INSTANT
from doppler.placers.search.improver import Improver
from doppler.problem import Problem
from doppler.scheduler.choose import DYNAMIC, FIXED
from doppler.scheduler.list_scheduling import without_host
from doppler.serving.traces import TraceWindow, devices_of, times_of, trace_from
from doppler.serving.watch import Change
from doppler.sim.config import SimConfig
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology
from doppler.trace import Trace
from doppler.training.config import ExpertConfig

ERRORS = 64  # predictions that the error is the mean of, the latest
ANNEAL = ExpertConfig()  # its temperatures are those of the search


class Predictor:
    """Predicts makespans of assignments of one graph, and searches for better ones.

    Costs are the topology's until traces have come; from `recalibrate` on they are those measured,
    where the vertices of the graph say what they execute. In mode `fixed` makespans are those of
    list schedules, and searches are made as if the host took no time.
    """

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        sim: SimConfig,
        *,
        draws: int = 1,
        seed: int = 0,
        threads: int = 1,
        repeats: int = 1,
        stale: float = inf,
    ) -> None:
        """`repeats` and `stale` are those of the `TraceWindow`."""
        self.graph, self.topology = graph, topology
        self._sim, self._draws, self._seed, self._threads = sim, draws, seed, threads
        self.calibrated = topology  # what costs come from
        self._improver = self._make(topology)
        self.traces = TraceWindow(graph, topology, repeats=repeats, stale=stale)
        self.errors: deque[float] = deque(maxlen=ERRORS)
        kernels = graph.kernels
        self._has_kernels = bool(kernels) and all(kernels[v] for v in graph.assigned.tolist())

    @property
    def error(self) -> float | None:
        """The mean relative error of the latest predictions; None where there are none."""
        return float(np.mean(self.errors)) if self.errors else None

    def costs_s(self, devices: IntArray) -> FloatArray:
        """(K,) predicted makespans of (K, V) assignments; infinity where memory never suffices."""
        if self._fixed is None:
            return self._search(devices, 0, seed=0)[1]
        seeds = range(self._seed, self._seed + self._draws)
        options: dict[str, Any] = {"threads": self._threads}
        found = [self._fixed.makespans(self.graph, devices, seed=s, **options) for s in seeds]
        mean_s: FloatArray = np.mean(found, axis=0)
        return mean_s

    def cost_s(self, devices: IntArray) -> float:
        """The predicted makespan of (V,) devices."""
        return float(self.costs_s(devices.reshape(1, -1))[0])

    def improve(self, devices: IntArray, moves: int, *, seed: int) -> tuple[IntArray, FloatArray]:
        """(K, V) the best predicted in some moves from each of (K, V), and their (K,) costs."""
        found, costs_s = self._search(devices, moves, seed=seed)
        return found, costs_s if self._fixed is None else self.costs_s(found)

    def heuristic(self, number: int) -> IntArray | None:
        """(V,) what one of the instant heuristics makes of the same costs, where it is there."""
        try:
            placer = make_placer(INSTANT[::-1][number % len(INSTANT)])
            return placer.place(Problem(self.graph, self.calibrated), seed=number).devices
        except MissingExtraError:
            return None

    def add(self, devices: IntArray, trace: Trace, now: int = 0) -> None:
        """Take the trace of (V,) devices, and see how far off its prediction was."""
        self.compare(devices, trace.makespan_s)
        if self._has_kernels and self._is_ours(trace):
            self.traces.add(devices, trace, now)

    def compare(self, devices: IntArray, measured_s: float) -> None:
        """See how far off the prediction of (V,) devices is."""
        predicted_s = self.cost_s(devices)
        if 0 < measured_s < inf and np.isfinite(predicted_s):
            self.errors.append(abs(predicted_s - measured_s) / measured_s)

    def changed(self, change: Change, since: int, now: int) -> None:
        """Count what the machine was before a change no more, and predictions of it."""
        self.traces.changed(change, since, now)
        self.errors.clear()

    def recalibrate(self, now: int = 0) -> None:
        """Predict from the latest traces from here on."""
        if len(self.traces):
            self.calibrated = self.traces.calibrated(now)
            self._improver = self._make(self.calibrated)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that changes, as arrays and JSON values."""
        arrays: dict[str, Any] = {}
        for i, dated in enumerate(self.traces):
            arrays[f"trace.{i}.devices"] = devices_of(self.graph, dated.trace)
            arrays[f"trace.{i}.times"] = times_of(self.graph, self.topology, dated.trace)
        return arrays, {"errors": list(self.errors)}

    def load_state(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Resume where `state` was taken."""
        self.errors.extend(values["errors"])
        count = sum(key.startswith("trace.") and key.endswith(".times") for key in arrays)
        for i in range(count):
            devices, times = arrays[f"trace.{i}.devices"], arrays[f"trace.{i}.times"]
            self.traces.add(devices, trace_from(self.graph, self.topology, devices, times), 0)

    def _is_ours(self, trace: Trace) -> bool:
        """Whether a trace is of these devices and links, and something was done there."""
        names = [device.name for device in self.topology.devices]
        same_links = len(trace.links) == self.topology.num_links
        same = same_links and [device.name for device in trace.devices] == names
        return same and float(trace.busy_s().sum()) > 0

    def _make(self, topology: Topology) -> Improver:
        problem, sim = Problem(self.graph, topology), self._sim
        self._fixed = Simulator(problem, sim) if sim.mode == FIXED else None
        if self._fixed is not None:
            problem, sim = without_host(problem), replace(sim, mode=DYNAMIC)
        return Improver(problem, sim, draws=self._draws, seed=self._seed)

    def _search(self, devices: IntArray, moves: int, *, seed: int) -> tuple[IntArray, FloatArray]:
        return self._improver.improve(
            devices, moves, hot=ANNEAL.hot, cold=ANNEAL.cold, seed=seed, threads=self._threads
        )
