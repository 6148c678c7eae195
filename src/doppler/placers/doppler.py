"""Doppler: the learned policy as a placer."""

from copy import copy
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Union

import numpy as np

from doppler.arrays import FloatArray, IntArray
from doppler.assignment import Assignment
from doppler.errors import ConfigError, Interrupted, MissingExtraError
from doppler.graph.graph import Graph
from doppler.inference.acting import play
from doppler.inference.checkpoint import read_policy, shipped_policy
from doppler.inference.config import PolicyConfig
from doppler.inference.policy import ArrayPolicy, from_torch
from doppler.mdp.instance import Instance, make_instance
from doppler.mdp.rollout import GREEDY, Roller, Sampling
from doppler.placers.base import cores
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology

if TYPE_CHECKING:
    from doppler.policies.dual import DualPolicy

POLICY_FILE = "policy.safetensors"  # of a training run
TEMPERATURES = (0.15, 0.3)  # of the samples, by turns
BATCH = 32  # samples of one kind, between looks at the clock


class DopplerPlacer:
    """The best of one greedy and so many sampled assignments of a policy, in simulation.

    The policy may have been trained on any graphs and topologies (Sec. 6, transfer). On some of
    the samples the critical-path rule selects, as on graphs unlike those SEL was trained on that
    is the safer order. Nothing here needs torch, whatever the policy was trained with.
    """

    name = "doppler"

    def __init__(
        self,
        policy: Union[ArrayPolicy, "DualPolicy", None] = None,
        *,
        samples: int = 128,
        seconds: float | None = None,
        select: bool = True,
        place: bool = True,
    ) -> None:
        """`policy` as it is now, or the one that comes with the package.

        `samples` are taken in at most `seconds`. Without `select` or `place` the critical-path
        rule does that part, as in Table 3.
        """
        if samples < 0 or (seconds is not None and not seconds > 0):
            raise ConfigError("samples must not be negative, and seconds must be positive")
        if policy is None:
            policy = shipped_policy()
        self.arrays = policy if isinstance(policy, ArrayPolicy) else from_torch(policy)
        self._policy = None if isinstance(policy, ArrayPolicy) else policy
        config = self.arrays.config
        if (select, place) != (True, True):
            config = replace(config, select=config.select and select, place=config.place and place)
        self.config = config
        self.samples, self.seconds = samples, seconds

    @classmethod
    def from_path(cls, path: str | Path, *, seconds: float | None = None) -> "DopplerPlacer":
        """One with the policy of a training run, or of a checkpoint."""
        file = Path(path)
        return cls(read_policy(file / POLICY_FILE if file.is_dir() else file), seconds=seconds)

    @classmethod
    def with_budget(cls, seconds: float) -> "DopplerPlacer":
        """One with the policy that comes with the package, sampled for at most so many seconds."""
        return cls(seconds=seconds)

    def within(self, seconds: float | None) -> "DopplerPlacer":
        """The same, sampled for at most so many seconds where it has no limit of its own."""
        if seconds is None or self.seconds is not None:
            return self
        limited = copy(self)
        limited.seconds = seconds
        return limited

    @property
    def policy(self) -> "DualPolicy":
        """The policy as a torch module, to be trained on: the one given, or a copy of it."""
        if self._policy is None:
            try:
                from doppler.policies.checkpoint import to_torch
            except ImportError as error:
                raise MissingExtraError(error.name or "torch", "training", extra="torch") from None
            self._policy = to_torch(self.arrays)
        return self._policy

    def place(self, graph: Graph, topology: Topology, *, seed: int = 0) -> Assignment:
        """The best assignment by simulated makespan."""
        instance = make_instance(graph, topology)
        devices, order, makespans = self.propose(instance, seed=seed)
        best = int(np.argmin(makespans))
        return instance.assignment(devices[best], order[best], self.name)

    def propose(
        self, instance: Instance, *, seed: int = 0
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """(K, n) devices and orders of all assignments that were made, and their (K,) makespans.

        The greedy one is the first. Ctrl-C ends it after those that were made.
        """
        began = monotonic()
        roller, weights = Roller(instance, threads=len(cores()) or 1), self.arrays.on(instance)
        graph, simulator = instance.graph, Simulator(instance.topology)
        found: list[tuple[IntArray, IntArray, FloatArray]] = []
        try:
            for number, (sampling, config, count) in enumerate(self._batches()):
                late = self.seconds is not None and monotonic() - began > self.seconds
                if found and late:
                    break
                seeds = np.random.default_rng([seed, number]).integers(2**62, size=count)
                played = play(roller, weights, config, sampling, seeds, record=False)
                full = instance.expand(played.devices)
                found.append((played.devices, played.order, simulator.makespans(graph, full)))
        except (KeyboardInterrupt, Interrupted):
            if not found:
                raise
        devices, order, makespans = (np.concatenate(part) for part in zip(*found, strict=True))
        return devices, order, makespans

    def _batches(self) -> list[tuple[Sampling, PolicyConfig, int]]:
        """How each batch is sampled, who selects and places, and its size; the first is greedy."""
        by_rule = replace(self.config, select=False) if self.config.place else self.config
        kinds = [
            (Sampling(select_temperature=t, place_temperature=t), config)
            for t in TEMPERATURES
            for config in (self.config, by_rule)
        ]
        sizes = [min(BATCH, self.samples - at) for at in range(0, self.samples, BATCH)]
        warm = [(*kinds[i % len(kinds)], size) for i, size in enumerate(sizes)]
        return [(GREEDY, self.config, 1), *warm]
