"""RivalPass: a rival on one instance."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from doppler.base.arrays import BoolArray, IntArray
from doppler.mdp.features import NUM_FEATURES, early
from doppler.mdp.guide import NO_GUIDE, Guide
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import PartialAssignments, Rollouts, Sampling
from doppler.policies.gradients.losses import miss, tensor
from doppler.policies.trainable import Choices

if TYPE_CHECKING:
    from doppler.policies.rivals.base import RivalPolicy, RivalView


class RivalPass:
    """A rival plays and is then evaluated on what it did, so that nothing is computed at first."""

    def __init__(self, policy: "RivalPolicy", view: Any) -> None:
        self.policy, self.view = policy, view

    @property
    def instance(self) -> Instance:
        """The instance that it is on."""
        instance: Instance = self.view.instance
        return instance

    def play(self, sampling: Sampling, seeds: IntArray, *, record: bool = True) -> Rollouts:
        """As many episodes as there are seeds; the first one seeds them all."""
        generator = torch.Generator().manual_seed(int(seeds[0]))
        taken = self.policy.act(self.view, len(seeds), sampling, generator)
        return rollouts_of(self.view, self.view.devices(taken))

    def recorded(
        self, played: Rollouts, rows: IntArray, sampling: Sampling, seeds: IntArray
    ) -> Rollouts:
        """Those rows: there is nothing else to record."""
        return rollouts_of(self.view, played.devices[rows])

    def guided_by(self, guide: Guide) -> "RivalPass":
        """The same: it reads no guide."""
        return self

    def choices(self, rollouts: Rollouts, sampling: Sampling) -> list[Choices]:
        """Those of placing, (B, T)."""
        return [self.policy.choices(self.view, self._taken(rollouts.devices), sampling)]

    def select_rule_loss(self, rollouts: Rollouts) -> Tensor:
        """0: the order is fixed."""
        return torch.zeros((), device=next(self.policy.parameters()).device)

    def place_rule_loss(self, rollouts: Rollouts) -> Tensor:
        """The cross-entropy to the devices on which the first vertex of a step can start first."""
        taken = self._taken(rollouts.devices)
        right = early_devices(self.view, rollouts.devices)[:, self.view.first]
        return miss(self.policy.log_probs(self.view, taken), tensor(taken, right))

    def place_log_probs(
        self,
        devices: IntArray,
        sampling: Sampling,
        seeds: IntArray,
        *,
        by_rule: bool = False,
        guide: Guide = NO_GUIDE,
    ) -> Tensor:
        """(K, T) log-probabilities of (K, V) devices, in the order that it always takes."""
        taken = self._taken(devices[:, self.instance.vertices])
        return self.policy.log_probs(self.view, taken).gather(2, taken.unsqueeze(2)).squeeze(2)

    def states(self, rollouts: Rollouts) -> IntArray | None:
        """(B, T + 1, n) devices before each step and after the last, if each step is rewarded."""
        if not self.policy.rewards_steps:
            return None
        steps = self.view.num_steps
        before = np.arange(steps) < np.arange(steps + 1)[:, None]  # (T + 1, T) who moved by then
        taken = self._taken(rollouts.devices).cpu().numpy()
        moved: IntArray = np.where(before[None], taken[:, None], 0)  # all on the first device
        return moved[..., self.view.step]

    def _taken(self, devices: IntArray) -> Tensor:
        """(B, T) the devices that steps chose, from (B, n) those of the vertices."""
        device = next(self.policy.parameters()).device
        return torch.as_tensor(devices[:, self.view.order[self.view.first]], device=device)


def rollouts_of(view: "RivalView", devices: IntArray) -> Rollouts:
    """(B, n) devices as episodes in the order of the policy."""
    order = np.broadcast_to(view.order, devices.shape)
    return Rollouts(order, devices, np.zeros((0, 0, 0, 0), np.float32), np.zeros((0, 0), np.int64))


def early_devices(view: "RivalView", devices: IntArray) -> BoolArray:
    """(B, n, D) bool: on which devices each vertex, in order, could start first.

    All that comes before it is where (B, n) devices say.
    """
    from doppler.mdp.kernel import Weights

    n = len(view.order)
    score = np.empty(n)
    score[view.order] = -np.arange(n, dtype=np.float64)  # the order of the policy
    nothing = np.zeros((n, 2), np.float32)
    weights = Weights(
        score=score,
        vertex=nothing,
        placed=nothing.copy(),
        feature=np.zeros((NUM_FEATURES, 2), np.float32),
        hidden=np.zeros((2, 1), np.float32),
        hidden_bias=np.zeros(1, np.float32),
        out=np.zeros(1, np.float32),
        crowded=np.zeros(1, np.float32),
        most=np.zeros(1, np.int64),
    )
    by_rule = Sampling(select_temperature=0.0, place_early=True)
    seeds = np.zeros(len(devices), np.int64)
    partial = PartialAssignments(devices)
    return early(view.roller.play(weights, by_rule, seeds, partial=partial).features)
