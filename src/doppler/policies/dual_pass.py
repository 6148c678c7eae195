"""DualPass: a forward pass of the dual policy on one instance."""

from dataclasses import replace

import torch
from torch import Tensor

from doppler.base.arrays import IntArray
from doppler.mdp.features import early
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import Rollouts, Sampling
from doppler.policies.acting import Actor
from doppler.policies.dual import DualPolicy, Scores
from doppler.policies.gradients.losses import (
    chosen,
    entropy,
    place_log_probs,
    select_log_probs,
    tensor,
)
from doppler.policies.gradients.teacher import miss, select_miss
from doppler.policies.trainable import Choices


class DualPass:
    """All that SEL and PLC do follows from one pass of message passing (Sec. 4.3)."""

    def __init__(self, policy: DualPolicy, actor: Actor) -> None:
        self.policy, self.actor = policy, actor
        self.scores: Scores = policy(actor.inputs)

    @property
    def instance(self) -> Instance:
        """The instance that it is on."""
        return self.actor.instance

    def play(self, sampling: Sampling, seeds: IntArray, *, record: bool = True) -> Rollouts:
        """One episode for each of (B,) seeds."""
        return self.actor.play(self.policy, self.scores, sampling, seeds, record=record)

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
        self, devices: IntArray, sampling: Sampling, seeds: IntArray, *, by_rule: bool = False
    ) -> Tensor:
        """(K, n) PLC's log-probabilities of (K, V) devices, in an order of SEL's or the rule's."""
        config = self.policy.config
        replay = self.actor.play(
            *(self.policy, self.scores, sampling, seeds),
            forced=devices[:, self.instance.vertices],
            config=replace(config, select=False) if by_rule else config,
        )
        return chosen(self._place_log_probs(replay), replay)

    def states(self, rollouts: Rollouts) -> None:
        """None: it is rewarded at the end."""

    def _place_log_probs(
        self, rollouts: Rollouts, temperature: float = 1.0, *, alike: bool = True
    ) -> Tensor:
        return place_log_probs(self.policy, self.scores, rollouts, temperature, alike=alike)

    def _zero(self) -> Tensor:
        return torch.zeros((), device=self.scores.select.device)
