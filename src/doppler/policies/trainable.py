"""TrainablePolicy: what the stages of training and serving need of a policy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from doppler.base.arrays import IntArray
from doppler.mdp.guide import NO_GUIDE, Guide
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import Rollouts, Sampling
from doppler.policies.threads import one_thread


@dataclass(frozen=True, slots=True)
class Choices:
    """What B episodes chose in T steps, for gradients."""

    log_probs: Tensor  # (B, T) log-probability of what each step chose
    entropies: Tensor  # (B, T) of the distribution it was drawn from


class ForwardPass(Protocol):
    """A policy on one instance of n vertices, with the weights it had when this was made.

    B is the number of episodes and T that of decisions in each: n, or fewer where a decision is
    for several vertices.
    """

    @property
    def instance(self) -> Instance:
        """The instance that it is on."""
        ...

    def play(self, sampling: Sampling, seeds: IntArray, *, record: bool = True) -> Rollouts:
        """One episode for each of (B,) seeds, without gradients.

        Losses need them recorded.
        """
        ...

    def recorded(
        self, played: Rollouts, rows: IntArray, sampling: Sampling, seeds: IntArray
    ) -> Rollouts:
        """Some rows of what was played with this sampling and these (B,) seeds, recorded."""
        ...

    def guided_by(self, guide: Guide) -> "ForwardPass":
        """The same with another guide for all episodes; policies that read none ignore it."""
        ...

    def choices(self, rollouts: Rollouts, sampling: Sampling) -> Sequence[Choices]:
        """The choices of episodes that were sampled so, of each network that makes any."""
        ...

    def select_rule_loss(self, rollouts: Rollouts) -> Tensor:
        """() cross-entropy of selecting to the critical-path rule; 0 if that is not learned."""
        ...

    def place_rule_loss(self, rollouts: Rollouts) -> Tensor:
        """() cross-entropy of placing to the critical-path rule; 0 if that is not learned."""
        ...

    def place_log_probs(
        self,
        devices: IntArray,
        sampling: Sampling,
        seeds: IntArray,
        *,
        by_rule: bool = False,
        guide: Guide = NO_GUIDE,
    ) -> Tensor:
        """(K, T) log-probabilities of placing vertices where (K, V) devices say.

        They are met in an order that the policy selects, or the critical-path rule. The (K,) seeds
        are those of the selections. With a guide for each, instead of the one of this pass, it is 0
        of vertices that these have where the devices do.
        """
        ...

    def states(self, rollouts: Rollouts) -> IntArray | None:
        """(B, T + 1, n) devices before each step and after the last, if each step is rewarded.

        None where the policy is rewarded at the end only.
        """
        ...


class TrainablePolicy(nn.Module, ABC):
    """A policy as training sees it.

    A view is what the policy reads of an instance. It is made once; a forward pass on it is made
    in every update, and all that the update learns from comes from there.
    """

    kind: ClassVar[str]
    config: Any  # one of `doppler.policies.configs`

    @property
    def learns_to_place(self) -> bool:
        """Whether placing is learned, or left to a rule."""
        return True

    @abstractmethod
    def view(self, instance: Instance, device: str = "cpu", *, threads: int = 1) -> Any:
        """What the policy reads of an instance, on a torch device; `threads` play episodes."""

    @abstractmethod
    def on(self, view: Any) -> ForwardPass:
        """A forward pass, with gradients where torch records them."""

    def acting(self, view: Any) -> ForwardPass:
        """The same, for acting only."""
        with torch.no_grad(), one_thread():
            return self.on(view)

    def check_machine(self, num_devices: int, name: str) -> None:
        """Raise unless the policy can place on a machine with this number of devices."""

    def after_step(self) -> None:
        """Called after every step of the optimizer, for what is kept besides the weights."""
