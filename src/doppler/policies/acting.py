"""Acting: the dual policy at work on one instance."""

from copy import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from doppler.base.arrays import IntArray
from doppler.mdp.features import early
from doppler.mdp.guide import NO_GUIDE, UNASSIGNED, Guide
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import (
    NOTHING_ASSIGNED,
    PartialAssignments,
    Roller,
    Rollouts,
    Sampling,
)
from doppler.policies.arrays.acting import play
from doppler.policies.dual import DualPolicy, PolicyConfig, Scores
from doppler.policies.gradients.losses import (
    chosen,
    entropy,
    miss,
    place_log_probs,
    select_log_probs,
    select_miss,
    tensor,
)
from doppler.policies.inputs import make_inputs
from doppler.policies.trainable import Choices


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
        partial: PartialAssignments = NOTHING_ASSIGNED,
        record: bool = True,
        config: PolicyConfig | None = None,
    ) -> Rollouts:
        """One episode per seed; `scores` are the policy's on this instance's inputs.

        `config` replaces the policy's own in saying who selects and who places.
        """
        from doppler.mdp.kernel import Weights

        weights, config = Weights(**policy.arrays(scores)), config or policy.config
        return play(self.roller, weights, config, sampling, seeds, partial=partial, record=record)


class DualPass:
    """All that SEL and PLC do follows from one pass of message passing (Sec. 4.3)."""

    def __init__(self, policy: DualPolicy, actor: Actor) -> None:
        self.policy, self.actor = policy, actor
        self.guide: Guide = actor.instance.guide
        self.scores: Scores = policy(actor.inputs)

    def guided_by(self, guide: Guide) -> "DualPass":
        """The same with another guide, which message passing does not see."""
        other = copy(self)
        other.guide = guide
        return other

    @property
    def instance(self) -> Instance:
        """The instance that it is on."""
        return self.actor.instance

    def play(self, sampling: Sampling, seeds: IntArray, *, record: bool = True) -> Rollouts:
        """One episode for each of (B,) seeds."""
        partial = PartialAssignments(guide=self._known(NO_GUIDE))
        return self.actor.play(
            self.policy, self.scores, sampling, seeds, partial=partial, record=record
        )

    def recorded(
        self, played: Rollouts, rows: IntArray, sampling: Sampling, seeds: IntArray
    ) -> Rollouts:
        """The same episodes again: they depend on the seeds alone."""
        return self.play(sampling, seeds[rows])

    def choices(self, rollouts: Rollouts, sampling: Sampling) -> list[Choices]:
        """Those of SEL, (B, n), and of PLC, (B, n), as far as they are learned."""
        found, config = [], self.policy.config
        temperature = sampling.place_temperature or 1.0
        if config.select:
            found.append(Choices(*select_log_probs(self.scores, rollouts, temperature)))
        if config.place:
            every = self._place_log_probs(rollouts, temperature, alike=sampling.alike)
            found.append(Choices(chosen(every, rollouts), entropy(every)))
        return found

    def select_rule_loss(self, rollouts: Rollouts) -> Tensor:
        """SEL's cross-entropy to the critical path."""
        if not self.policy.config.select:
            return self._zero()
        return select_miss(self.instance, self.scores, rollouts)

    def place_rule_loss(self, rollouts: Rollouts) -> Tensor:
        """PLC's cross-entropy to the devices on which a vertex can start first."""
        if not self.policy.config.place:
            return self._zero()
        right = tensor(self.scores.select, early(rollouts.features))
        return miss(self._place_log_probs(rollouts), right)

    def place_log_probs(
        self,
        devices: IntArray,
        sampling: Sampling,
        seeds: IntArray,
        *,
        by_rule: bool = False,
        guide: Guide = NO_GUIDE,
    ) -> Tensor:
        """(K, n) PLC's log-probabilities of (K, V) devices, in an order of SEL's or the rule's.

        With a guide for each, 0 of vertices that follow it.
        """
        config = self.policy.config
        replay = self.actor.play(
            *(self.policy, self.scores, sampling, seeds),
            partial=PartialAssignments(
                devices[:, self.instance.vertices], guide=self._known(guide)
            ),
            config=replace(config, select=False) if by_rule else config,
        )
        log_probs = chosen(self._place_log_probs(replay), replay)
        if not len(guide.devices):
            return log_probs
        follows = np.take_along_axis(replay.devices == guide.devices, replay.order, axis=1)
        return log_probs.masked_fill(tensor(log_probs, follows), 0.0)

    def _known(self, guide: Guide) -> Guide:
        """A guide, or that of the pass; one that says nothing where there is none.

        Otherwise the roller would take another: that of the instance, or what it is asked to place.
        """
        known = guide if len(guide.devices) else self.guide
        if len(known.devices):
            return known
        return Guide(np.full((1, self.instance.num_vertices), UNASSIGNED))

    def states(self, rollouts: Rollouts) -> None:
        """None: it is rewarded at the end."""

    def _place_log_probs(
        self, rollouts: Rollouts, temperature: float = 1.0, *, alike: bool = True
    ) -> Tensor:
        return place_log_probs(self.policy, self.scores, rollouts, temperature, alike=alike)

    def _zero(self) -> Tensor:
        return torch.zeros((), device=self.scores.select.device)


def episode_seeds(seed: int, stage: int, number: int, count: int) -> IntArray:
    """Seeds of the episodes of one update: no two of a run are the same."""
    mixed = np.random.SeedSequence([seed, stage, number]).generate_state(1, np.uint64)[0]
    return (np.int64(mixed >> np.uint64(1)) // (1 << 20)) * (1 << 20) + np.arange(count)
