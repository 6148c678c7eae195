"""The rivals, learned competitors of the dual policy, as placers."""

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray, unboxed
from doppler.errors import CheckpointError, ConfigError, Interrupted, MissingExtraError
from doppler.mdp.instance import Instance, make_instance
from doppler.placers.base import Shown, assign
from doppler.placers.learned.doppler import POLICY_FILE
from doppler.problem import Problem
from doppler.sim.simulator import Simulator

if TYPE_CHECKING:
    from doppler.policies.rivals.base import RivalPolicy

MAX_BATCH = 64  # assignments sampled between looks at the clock


class LearnedPlacer(Shown):
    """The best of one greedy and some sampled assignments of a rival, in simulation."""

    searches = True
    kind: ClassVar[str] = ""  # of policies it takes; any if empty

    def __init__(
        self, policy: "RivalPolicy", *, samples: int = 128, seconds: float | None = None
    ) -> None:
        """`samples` are taken in at most `seconds`."""
        if samples < 0 or (seconds is not None and not seconds > 0):
            raise ConfigError("samples must not be negative, and seconds must be positive")
        self.policy, self.samples, self.seconds = policy, unboxed(samples), unboxed(seconds)
        self.name: str = policy.kind

    @classmethod
    def from_path(cls, path: str | Path) -> Self:
        """One with the policy of a training run, or of a checkpoint."""
        try:
            from doppler.policies.checkpoint import load_any
        except ImportError as error:
            raise MissingExtraError(error.name or "torch", f"`{cls.kind}`", extra="torch") from None
        file = Path(path)
        policy = load_any(file / POLICY_FILE if file.is_dir() else file)
        if policy.kind != cls.kind:
            raise CheckpointError(
                f"`{path}` holds a policy of kind `{policy.kind}`, not `{cls.kind}`",
                hint=f"its placer is `{policy.kind}:{path}`",
            )
        return cls(policy)  # type: ignore[arg-type]

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The best assignment by simulated makespan."""
        instance = make_instance(problem)
        if not instance.num_vertices:
            return assign(self, problem, np.full(problem.graph.num_vertices, -1))
        devices, order, makespans = self.propose(instance, seed=seed, budget_s=budget_s)
        best = int(np.argmin(makespans))
        return instance.assignment(devices[best], order[best], self.name)

    def propose(
        self, instance: Instance, *, seed: int = 0, budget_s: float | None = None
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """(K, n) devices and orders of all assignments that were made, and their (K,) makespans.

        The greedy one is the first. Ctrl-C ends it after those that were made.
        """
        began, simulator = monotonic(), Simulator(instance.problem)
        limit_s = self.seconds if budget_s is None else budget_s
        view = self.policy.seen(instance)
        sizes = [min(MAX_BATCH, self.samples - at) for at in range(0, self.samples, MAX_BATCH)]
        found: list[tuple[IntArray, IntArray, FloatArray]] = []
        try:
            for number, size in enumerate([0, *sizes]):
                late = limit_s is not None and monotonic() - began > limit_s
                if found and late:
                    break
                batch_seed = int(np.random.default_rng([seed, number]).integers(2**62))
                devices = self.policy.assign(view, size, batch_seed)
                makespans = simulator.makespans(instance.graph, instance.expand(devices))
                found.append((devices, np.broadcast_to(view.order, devices.shape), makespans))
        except (KeyboardInterrupt, Interrupted):
            if not found:
                raise
        devices, orders, makespans = (np.concatenate(part) for part in zip(*found, strict=True))
        return devices, orders, makespans


class PlacetoPlacer(LearnedPlacer):
    """Placeto: one vertex per step, with message passing at every step (Addanki et al. 2019)."""

    kind = "placeto"


class GdpPlacer(LearnedPlacer):
    """GDP: graph embedding and attention, all devices at once (Zhou et al. 2019)."""

    kind = "gdp"


class Seq2SeqPlacer(LearnedPlacer):
    """Sequence to sequence with attention, group by group (Mirhoseini et al. 2017)."""

    kind = "seq2seq"
