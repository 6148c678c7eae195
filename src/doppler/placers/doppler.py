"""Doppler: the learned policy as a placer."""

from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from doppler.arrays import FloatArray, IntArray
from doppler.assignment import Assignment
from doppler.errors import ConfigError, Interrupted, MissingExtraError
from doppler.graph.graph import Graph
from doppler.mdp.instance import Instance, make_instance
from doppler.mdp.rollout import GREEDY, Sampling
from doppler.placers.base import cores
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology

if TYPE_CHECKING:
    from doppler.policies.dual import DualPolicy, PolicyConfig

POLICY_FILE = "policy.safetensors"  # of a training run
TEMPERATURES = (0.15, 0.3)  # of the samples, by turns
BATCH = 32  # samples of one kind, between looks at the clock


class DopplerPlacer:
    """The best of one greedy and so many sampled assignments of a policy, in simulation.

    The policy may have been trained on any graphs and topologies (Sec. 6, transfer). On some of
    the samples the critical-path rule selects, as on graphs unlike those SEL was trained on that
    is the safer order.
    """

    name = "doppler"

    def __init__(
        self,
        policy: "DualPolicy",
        *,
        samples: int = 128,
        seconds: float | None = None,
        select: bool = True,
        place: bool = True,
    ) -> None:
        """`samples` are taken in at most `seconds`.

        Without `select` or `place` the critical-path rule does that part, as in Table 3.
        """
        if samples < 0 or (seconds is not None and not seconds > 0):
            raise ConfigError("samples must not be negative, and seconds must be positive")
        config = policy.config
        if (select, place) != (True, True):
            config = replace(config, select=config.select and select, place=config.place and place)
        self.policy, self.config = policy, config
        self.samples, self.seconds = samples, seconds

    @classmethod
    def from_path(cls, path: str | Path, *, seconds: float | None = None) -> "DopplerPlacer":
        """One with the policy of a training run, or of a checkpoint."""
        try:
            from doppler.policies.checkpoint import load_policy
        except ImportError as error:
            raise MissingExtraError(error.name or "torch", "`doppler`", extra="torch") from None
        file = Path(path)
        return cls(load_policy(file / POLICY_FILE if file.is_dir() else file), seconds=seconds)

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
        from doppler.policies.acting import Actor

        began = monotonic()
        threads = len(cores()) or 1
        device = str(next(self.policy.parameters()).device)
        actor = Actor(instance, device, threads=threads)
        scores = self.policy.scores(actor.inputs)
        graph, simulator = instance.graph, Simulator(instance.topology)
        found: list[tuple[IntArray, IntArray, FloatArray]] = []
        try:
            for number, (sampling, config, count) in enumerate(self._batches()):
                late = self.seconds is not None and monotonic() - began > self.seconds
                if found and late:
                    break
                seeds = np.random.default_rng([seed, number]).integers(2**62, size=count)
                played = actor.play(
                    self.policy, scores, sampling, seeds, record=False, config=config
                )
                full = instance.expand(played.devices)
                found.append((played.devices, played.order, simulator.makespans(graph, full)))
        except (KeyboardInterrupt, Interrupted):
            if not found:
                raise
        devices, order, makespans = (np.concatenate(part) for part in zip(*found, strict=True))
        return devices, order, makespans

    def _batches(self) -> "list[tuple[Sampling, PolicyConfig, int]]":
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
