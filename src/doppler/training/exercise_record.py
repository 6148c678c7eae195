"""ExerciseRecord: the best assignment of an exercise, and all else that training keeps of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any, TypeVar

import numpy as np

from doppler.assignment import Assignment, assignment_for
from doppler.base.arrays import FloatArray, IntArray
from doppler.executor import Executor
from doppler.mdp.rollout import Rollouts
from doppler.policies.trainable import TrainablePolicy
from doppler.scheduler.choose import DYNAMIC, FIXED
from doppler.scheduler.list_scheduling import list_schedule
from doppler.serving.prediction import Predictor
from doppler.serving.trials import Trials, TrialSummary
from doppler.sim.config import SimConfig
from doppler.topology.topology import Topology
from doppler.trace import Trace
from doppler.training.exercise import Exercise
from doppler.training.expert import Pool

Value = TypeVar("Value")
OUT_OF_MEMORY = 2.0  # times the worst makespan of a batch: that of what does not fit


class ExerciseRecord:
    """The best assignment of an exercise, and all else that changes in training, its weights aside.

    `state` and `load_state` hold all of it.
    """

    def __init__(
        self,
        exercise: Exercise,
        *,
        executor: Executor | None = None,
        starts: Sequence[Assignment] = (),
    ) -> None:
        """Stage III needs the executor; `starts` are what it may begin with, the best first."""
        self.exercise, self.starts = exercise, list(starts)
        self.mean_s = 0.0  # of all episodes of Stage II so far
        self.episodes = 0  # of Stage II
        # Of all assignments that the policy made, or the expert; in Stage III, the incumbent's.
        self.best_s = inf
        self.best_devices = np.where(exercise.graph.is_input, -1, 0)
        self.best_order: IntArray | None = None
        self._pool: Pool | None = None  # of the expert, once it is asked for
        self._view: Any = None  # of the policy, likewise
        self.trials: Trials | None = None  # of Stage III
        if executor is not None and "real" in exercise.config.stages:
            self.trials = _trials(exercise, executor)

    @property
    def label(self) -> str:
        """`graph@topology`."""
        return self.exercise.label

    @property
    def pool(self) -> Pool:
        """The best assignments that the expert knows; at first those of the heuristics."""
        if self._pool is None:
            assert self.exercise.expert is not None
            self._pool = self.exercise.expert.first_pool()
        return self._pool

    def view(self, policy: TrainablePolicy) -> Any:
        """What the policy that is trained reads of the exercise, made once."""
        if self._view is None:
            self._view = self.exercise.view(policy)
        return self._view

    def prepare(self, policy: TrainablePolicy) -> None:
        """Make all that training needs now, so that no update has to."""
        _ = self.view(policy), self.exercise.bound_s
        if self.exercise.expert is not None:
            _ = self.pool

    @property
    def message_passes(self) -> int:
        """Passes of message passing in Stage II so far, as App. G.3 counts them.

        One per episode, or per step. (Episodes of one update share theirs where it is per episode.)
        """
        per_step = self.exercise.config.sim.messages == "step"
        return self.episodes * (self.exercise.instance.num_vertices if per_step else 1)

    def measure(self, rollouts: Rollouts, number: int) -> FloatArray:
        """(B,) makespans of episodes under one draw of the noise; the best is remembered."""
        instance = self.exercise.instance
        devices = instance.expand(rollouts.devices)
        makespans = self.exercise.makespans(devices, number)
        first = int(np.argmin(makespans))
        if makespans[first] < self.best_s or self.exercise.config.draws > 1:
            self.consider(devices[first], instance.vertices[rollouts.order[first]])
        return self.penalized(makespans)

    def penalized(self, makespans: FloatArray) -> FloatArray:
        """Makespans with a number, worse than all others, for what ran out of memory."""
        runs = np.isfinite(makespans)
        worst = makespans[runs].max() if runs.any() else max(self.exercise.bound_s, self.mean_s)
        return np.where(runs, makespans, OUT_OF_MEMORY * worst)

    def consider(self, devices: IntArray, order: IntArray | None = None) -> None:
        """Remember an assignment if it is the best, over all draws of the noise."""
        mean_s = self.exercise.mean_makespan_s(devices)
        if mean_s < self.best_s:
            self.best_s, self.best_devices, self.best_order = mean_s, devices.copy(), order

    def keep_incumbent(self) -> None:
        """From Stage III on, the best is the incumbent, and its makespan what was measured."""
        assert self.trials is not None
        if not self.trials.has_begun:
            return
        self.best_s, self.best_devices = self.trials.incumbent.mean_s, self.trials.devices
        self.best_order = None

    def measured(self) -> TrialSummary | None:
        """What Stage III has measured, once it has begun."""
        if self.trials is None or not self.trials.executions:
            return None
        return self.trials.measured()

    @property
    def is_traced(self) -> bool:
        """Whether Stage III has measured more than makespans."""
        return self.trials is not None and self.trials.trace is not None

    def recalibrated(self) -> Topology | None:
        """The topology with the costs that Stage III has measured, once it has begun.

        None where it only looks at makespans.
        """
        if not self.is_traced:
            return None
        assert self.trials is not None
        self.trials.predictor.recalibrate()  # from the same traces as the next update would
        return self.trials.predictor.calibrated

    @property
    def sim_config(self) -> SimConfig:
        """How assignments are simulated to compare with what the last stage found."""
        config = self.exercise.config
        mode = DYNAMIC if self.trials is None else config.real.mode
        return replace(config.sim_config, mode=mode)

    def best(self) -> Assignment:
        """The best assignment known; with its schedule where Stage III ran it in fixed order."""
        exercise, config = self.exercise, self.exercise.config
        assignment = assignment_for(
            exercise.graph,
            exercise.topology,
            self.best_devices,
            order=self.best_order,
            placer=config.policy.kind,
        )
        if self.trials is None or not self.trials.has_begun or config.real.mode != FIXED:
            return assignment
        limit_memory = config.limit_memory
        schedule = list_schedule(
            exercise.problem, assignment, config.strategy, limit_memory=limit_memory
        )
        return replace(assignment, schedule=schedule)

    def best_trace(self) -> Trace | None:
        """The trace of the best assignment: measured, or simulated before Stage III.

        None where Stage III only looks at makespans.
        """
        if self.trials is not None and self.trials.has_begun:
            return self.trials.trace
        exercise = self.exercise
        return exercise.simulator.run(exercise.graph, self.best(), exercise.config.seed)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that changes in training, as named arrays and JSON values."""
        arrays: dict[str, Any] = {"best": self.best_devices}
        if self.best_order is not None:
            arrays["order"] = self.best_order
        if self._pool is not None:
            arrays |= {"pool": self._pool.devices, "costs": self._pool.costs_s}
        arrays |= {f"start.{k}": start.devices for k, start in enumerate(self.starts)}
        numbers: dict[str, Any] = {"mean_s": self.mean_s, "episodes": self.episodes}
        if self.trials is not None:
            measured, numbers["real"] = self.trials.state()
            arrays |= {f"real.{k}": v for k, v in measured.items()}
        return arrays, numbers | {"best_s": self.best_s if isfinite(self.best_s) else None}

    def load_state(self, arrays: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
        """Resume where `state` was taken."""
        self.mean_s, self.episodes = numbers["mean_s"], numbers["episodes"]
        self.best_s = inf if numbers["best_s"] is None else numbers["best_s"]
        self.best_devices, self.best_order = arrays["best"], arrays.get("order")
        expert = self.exercise.config.sim.expert
        if expert is not None and "pool" in arrays:
            self._pool = Pool(expert.pool, self.exercise.graph.num_vertices)
            self._pool.devices, self._pool.costs_s = arrays["pool"], arrays["costs"]
        starts = under("start.", arrays)
        self.starts = [Assignment(starts[str(k)]) for k in range(len(starts))]
        if self.trials is not None:
            self.trials.load_state(under("real.", arrays), numbers["real"])


def _trials(exercise: Exercise, executor: Executor) -> Trials:
    config, problem = exercise.config, (exercise.graph, exercise.topology)
    predictor = Predictor(
        *(*problem, replace(config.sim_config, mode=config.real.mode)),
        draws=config.draws,
        seed=config.seed,
        threads=exercise.threads,
    )
    return Trials(executor, *problem, config.real, predictor)


def under(prefix: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """Those whose names begin with the prefix, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
