"""Exercise: one graph on one topology that a policy is trained on."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf, isfinite
from typing import Any, TypeVar

import numpy as np

from doppler.assignment import Assignment, assignment_for
from doppler.base.arrays import FloatArray, IntArray
from doppler.executor import Executor
from doppler.graph.graph import Graph
from doppler.mdp.instance import Instance, make_instance
from doppler.mdp.rollout import Rollouts
from doppler.placers.base import cores
from doppler.placers.bounds.lower import lower_bounds
from doppler.policies.configs import RivalConfig
from doppler.policies.trainable import TrainablePolicy
from doppler.serving.measuring import Bench, Measured
from doppler.serving.prediction import Predictor
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology
from doppler.trace import Trace
from doppler.training.config import TrainConfig
from doppler.training.expert import Expert, Pool

Value = TypeVar("Value")
OUT_OF_MEMORY = 2.0  # makespans that cannot run count as so many times the worst that can


class Exercise:
    """A graph on a topology, and what training has found out about it.

    What takes a while to make, such as the expert, is made when it is first needed.
    """

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        config: TrainConfig,
        *,
        executor: Executor | None = None,
        starts: Sequence[Assignment] = (),
    ) -> None:
        """Stage III needs the executor; `starts` are what it may begin with, the best first."""
        self.graph, self.topology, self.config = graph, topology, config
        # Those that are trained on together have a thread each first of all.
        self.threads = max((config.threads or len(cores()) or 1) // config.together, 1)
        self.simulator = Simulator(topology, config.sim_config)
        self._view: Any = None  # of the policy, once it is asked for
        self._pool: Pool | None = None  # of a checkpoint: the expert's, once there is one
        self.starts = list(starts)
        self.bench: Bench | None = None
        if executor is not None and "real" in config.stages:
            self.bench = Bench(executor, graph, topology, config.real, self._predictor())
        self.mean_s = 0.0  # of all episodes of Stage II so far
        self.episodes = 0  # of Stage II
        # Of all assignments that the policy made, or the expert; in Stage III, the incumbent's.
        self.best_s = inf
        self.best_devices = np.where(graph.is_input, -1, 0)
        self.best_order: IntArray | None = None

    @cached_property
    def instance(self) -> Instance:
        """What the policy sees."""
        return make_instance(self.graph, self.topology)

    @cached_property
    def bound_s(self) -> float:
        """A lower bound of the makespan of any assignment."""
        return lower_bounds(self.graph, self.topology).best_s

    @cached_property
    def expert(self) -> Expert | None:
        """The expert of Stage II, if it has one."""
        config, policy = self.config, self.config.policy
        if config.sim.expert is None or "sim" not in config.stages:
            return None
        if isinstance(policy, RivalConfig) or not policy.place:
            return None
        return Expert(self.graph, self.topology, config, self.threads, self._pool)

    def prepare(self, policy: TrainablePolicy) -> None:
        """Make all that training needs now, so that no update has to."""
        _ = self.view(policy), self.bound_s, self.expert

    def see(self, topology: Topology) -> None:
        """Let the policy see the costs of this topology."""
        self.instance = make_instance(self.graph, topology)
        self._view = None

    def view(self, policy: TrainablePolicy) -> Any:
        """What a policy reads of the instance, made once."""
        if self._view is None:
            self._view = policy.view(self.instance, self.config.device, threads=self.threads)
        return self._view

    @property
    def label(self) -> str:
        """`graph@topology`."""
        return f"{self.graph.name}@{self.topology.name}"

    @property
    def message_passes(self) -> int:
        """Passes of message passing in Stage II so far, as App. G.3 counts them.

        One per episode, or per step. (Episodes of one update share theirs where it is per episode.)
        """
        per_step = self.config.sim.messages == "step"
        return self.episodes * (self.instance.num_vertices if per_step else 1)

    def measure(self, rollouts: Rollouts, number: int) -> FloatArray:
        """(B,) makespans of episodes under one draw of the noise; the best is remembered."""
        devices = self.instance.expand(rollouts.devices)
        makespans = self._simulated(devices, number)
        first = int(np.argmin(makespans))
        if makespans[first] < self.best_s or self.config.draws > 1:
            order = self.instance.vertices[rollouts.order[first]]
            self.consider(devices[first], order)
        return self._finite(makespans)

    def makespans(self, devices: IntArray, number: int) -> FloatArray:
        """(K,) makespans of (K, V) devices under one draw of the noise."""
        return self._finite(self._simulated(devices, number))

    def consider(self, devices: IntArray, order: IntArray | None = None) -> None:
        """Remember an assignment if it is the best, over all draws of the noise."""
        mean_s = self.mean_makespan_s(devices)
        if mean_s < self.best_s:
            self.best_s, self.best_devices, self.best_order = mean_s, devices.copy(), order

    def mean_makespan_s(self, devices: IntArray, simulator: Simulator | None = None) -> float:
        """The mean makespan of (V,) devices over the draws of the noise, on this simulator."""
        simulator = self.simulator if simulator is None else simulator
        seeds = range(self.config.seed, self.config.seed + self.config.draws)
        row = devices.reshape(1, -1)
        return float(np.mean([simulator.makespans(self.graph, row, seed=s) for s in seeds]))

    def measured(self) -> Measured | None:
        """What Stage III has measured, once it has begun."""
        if self.bench is None or self.bench.incumbent is None:
            return None
        return self.bench.measured()

    def keep_incumbent(self) -> None:
        """From Stage III on, the best is the incumbent, and its makespan what was measured."""
        assert self.bench is not None
        assert self.bench.incumbent is not None
        self.best_s, self.best_devices = self.bench.incumbent_s, self.bench.incumbent
        self.best_order = None

    def best_trace(self) -> Trace:
        """The trace of the best assignment: measured, or simulated before Stage III."""
        if self.bench is not None and self.bench.trace is not None:
            return self.bench.trace
        return self.simulator.run(self.graph, self.best(), self.config.seed)

    def recalibrated(self) -> Topology | None:
        """The topology with the costs that Stage III has measured, once it has begun."""
        if self.bench is None or self.bench.incumbent is None:
            return None
        self.bench.predictor.recalibrate()  # from the same traces as the next update would
        return self.bench.predictor.calibrated

    def best(self) -> Assignment:
        """The best assignment known."""
        return assignment_for(
            self.graph,
            self.topology,
            self.best_devices,
            order=self.best_order,
            placer=self.config.policy.kind,
        )

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that changes in training, as named arrays and JSON values."""
        arrays: dict[str, Any] = {"best": self.best_devices}
        if self.best_order is not None:
            arrays["order"] = self.best_order
        expert = self.__dict__.get("expert")  # one that is not made yet has nothing to tell
        pool = self._pool if expert is None else expert.pool
        if pool is not None:
            arrays |= {"pool": pool.devices, "costs": pool.costs_s}
        arrays |= {f"start.{k}": start.devices for k, start in enumerate(self.starts)}
        numbers: dict[str, Any] = {"mean_s": self.mean_s, "episodes": self.episodes}
        if self.bench is not None:
            measured, numbers["real"] = self.bench.state()
            arrays |= {f"real.{k}": v for k, v in measured.items()}
        return arrays, numbers | {"best_s": self.best_s if isfinite(self.best_s) else None}

    def load_state(self, arrays: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.mean_s, self.episodes = numbers["mean_s"], numbers["episodes"]
        self.best_s = inf if numbers["best_s"] is None else numbers["best_s"]
        self.best_devices, self.best_order = arrays["best"], arrays.get("order")
        if self.config.sim.expert is not None and "pool" in arrays:
            self._pool = Pool(self.config.sim.expert.pool, self.graph.num_vertices)
            self._pool.devices, self._pool.costs_s = arrays["pool"], arrays["costs"]
            if (expert := self.__dict__.get("expert")) is not None:
                expert.pool = self._pool
        starts = under("start.", arrays)
        self.starts = [Assignment(starts[str(k)]) for k in range(len(starts))]
        if self.bench is not None:
            self.bench.load_state(under("real.", arrays), numbers["real"])

    def _predictor(self) -> Predictor:
        return Predictor(
            self.graph,
            self.topology,
            self.config.sim_config,
            draws=self.config.draws,
            seed=self.config.seed,
            threads=self.threads,
        )

    def _simulated(self, devices: IntArray, number: int) -> FloatArray:
        return self.simulator.makespans(self.graph, devices, seed=number, threads=self.threads)

    def _finite(self, makespans: FloatArray) -> FloatArray:
        """Makespans with a number, worse than all others, for what ran out of memory."""
        runs = np.isfinite(makespans)
        worst = makespans[runs].max() if runs.any() else max(self.bound_s, self.mean_s)
        return np.where(runs, makespans, OUT_OF_MEMORY * worst)


def under(prefix: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """Those whose names begin with the prefix, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
