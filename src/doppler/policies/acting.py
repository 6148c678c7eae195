"""Actor: a policy at work on one instance."""

import numpy as np

from doppler.base.arrays import IntArray
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import NOTHING_FORCED, Roller, Rollouts, Sampling
from doppler.policies.arrays.acting import play
from doppler.policies.dual import DualPolicy, PolicyConfig, Scores
from doppler.policies.inputs import make_inputs


class Actor:
    """Plays episodes of one instance by a policy.

    Where the policy's config says that SEL or PLC is not learned, the rule of the critical-path
    heuristic selects or places instead (the ablations of Table 3).
    """

    def __init__(self, instance: Instance, device: str = "cpu", *, threads: int = 1) -> None:
        self.instance = instance
        self.inputs = make_inputs(instance, device)
        self.roller = Roller(instance, threads=threads)

    def play(
        self,
        policy: DualPolicy,
        scores: Scores,
        sampling: Sampling,
        seeds: IntArray,
        *,
        forced: IntArray = NOTHING_FORCED,
        record: bool = True,
        config: PolicyConfig | None = None,
    ) -> Rollouts:
        """One episode per seed; `scores` are the policy's on this instance's inputs.

        `config` replaces the policy's own in saying who selects and who places.
        """
        from doppler.mdp.kernel import Weights

        weights, config = Weights(**policy.arrays(scores)), config or policy.config
        return play(self.roller, weights, config, sampling, seeds, forced=forced, record=record)


def episode_seeds(seed: int, stage: int, number: int, count: int) -> IntArray:
    """Seeds of the episodes of one update: no two of a run are the same."""
    mixed = np.random.SeedSequence([seed, stage, number]).generate_state(1, np.uint64)[0]
    return (np.int64(mixed >> np.uint64(1)) // (1 << 20)) * (1 << 20) + np.arange(count)
