"""What the rivals share: policies that give devices to vertices in one fixed order."""

from abc import abstractmethod
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from doppler.base.arrays import FloatArray, IntArray
from doppler.errors import ConfigError
from doppler.graph.ops import OpKind
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import GREEDY, Roller, Sampling
from doppler.policies.rivals.rival_pass import RivalPass
from doppler.policies.threads import one_thread
from doppler.policies.trainable import Choices, TrainablePolicy

KINDS = tuple(kind.value for kind in OpKind)
APART = 3.0  # times torch's first weights
NUM_KINDS = len(KINDS) + 1  # the last is for those that a graph names itself


@dataclass(frozen=True, slots=True)
class RivalView:
    """An instance as a rival sees it: a sequence of T steps, each for one or more vertices."""

    order: IntArray  # (n,) vertices, producers before readers
    step: IntArray  # (n,) the step that gives a vertex its device
    first: IntArray  # (T,) where in `order` the first vertex of a step is
    roller: Roller  # of the instance

    @property
    def instance(self) -> Instance:
        """The instance."""
        return self.roller.instance

    @property
    def num_steps(self) -> int:
        """Number of decisions in an episode."""
        return len(self.first)

    def devices(self, taken: Tensor) -> IntArray:
        """(…, n) the device of every vertex from (…, T) those of the steps."""
        chosen: IntArray = taken.cpu().numpy()[..., self.step]
        return chosen


class RivalPolicy(TrainablePolicy):
    """A policy that chooses devices step by step, for one number of devices.

    Episodes are played without gradients, by `act`; what was chosen is then looked at again by
    `log_probs`, all steps at once. Both see the same distributions.
    """

    @abstractmethod
    def act(self, view: Any, count: int, sampling: Sampling, generator: torch.Generator) -> Tensor:
        """(B, T) the devices of `count` sampled episodes, without gradients."""

    @abstractmethod
    def log_probs(self, view: Any, taken: Tensor, temperature: float = 1.0) -> Tensor:
        """(B, T, D) log-probability of every device at every step of episodes that took (B, T)."""

    @property
    def rewards_steps(self) -> bool:
        """Whether each step is rewarded, by how it changes the makespan, or the end only."""
        return False

    def on(self, view: Any) -> RivalPass:
        """What training asks of the policy on one instance."""
        return RivalPass(self, view)

    def choices(self, view: Any, taken: Tensor, sampling: Sampling) -> Choices:
        """Those of episodes that took (B, T), sampled so: with a share of random choices."""
        every = self.log_probs(view, taken, sampling.place_temperature or 1.0)
        picked = every.gather(2, taken.unsqueeze(2)).squeeze(2)
        entropies = -(every.exp() * every).sum(dim=2)
        return Choices(mixed(picked, sampling.epsilon, every.shape[2]), entropies)

    def seen(self, instance: Instance) -> Any:
        """The `RivalView` of an instance where the policy's weights are."""
        return self.view(instance, str(next(self.parameters()).device))

    def assign(self, view: Any, samples: int, seed: int) -> IntArray:
        """(K, n) devices of sampled episodes; of a greedy one, (1, n), if 0."""
        generator = torch.Generator().manual_seed(seed)
        with one_thread():
            taken = self.act(view, samples or 1, Sampling() if samples else GREEDY, generator)
        devices: IntArray = view.devices(taken)
        return devices

    def check_machine(self, num_devices: int, name: str) -> None:
        """Raise unless the policy has an output for every device of a machine."""
        if num_devices != self.config.devices:
            raise ConfigError(
                f"policy `{self.kind}` has outputs for {self.config.devices} devices, "
                f"topology `{name}` has {num_devices}",
                hint="its output layer fixes the number: train it on a machine with as many",
            )


def pick(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """(…) devices drawn by (…, D) logits: the best at temperature 0, and some at random."""
    shape, size = logits.shape[:-1], logits.shape[-1]
    drawn, chance, other = (
        torch.rand(shape, generator=generator).to(logits.device) for _ in range(3)
    )
    if sampling.place_temperature > 0:
        weights = (logits / sampling.place_temperature).softmax(dim=-1).cumsum(dim=-1)
        chosen = (weights <= drawn.unsqueeze(-1) * weights[..., -1:]).sum(dim=-1)
    else:
        chosen = logits.argmax(dim=-1)
    at_random = (other * size).long()
    return torch.where(chance < sampling.epsilon, at_random, chosen).clamp(max=size - 1)


def mixed(log_probs: Tensor, epsilon: float, num_devices: int) -> Tensor:
    """Log-probabilities of choices, some of which are made at random instead."""
    if not epsilon:
        return log_probs
    if epsilon >= 1.0:
        return torch.full_like(log_probs, -log(num_devices)) + 0.0 * log_probs
    at_random = torch.full_like(log_probs, log(epsilon / num_devices))
    return torch.logaddexp(log_probs + log(1.0 - epsilon), at_random)


def apart_at_first(layer: nn.Linear) -> nn.Linear:
    """A last layer that begins with different logits for different vertices, and no bias.

    Where every device is as likely as any other for all vertices, none is better than another for
    any of them, so nothing could be learned from there on a machine with equal devices.
    """
    with torch.no_grad():
        layer.weight *= APART
        nn.init.zeros_(layer.bias)
    return layer


def linear(layer: nn.Module) -> nn.Linear:
    """The same layer, which is a linear one."""
    assert isinstance(layer, nn.Linear)
    return layer


def fixed_order(instance: Instance) -> IntArray:
    """(n,) vertices with the longest path to an exit first: producers before readers.

    No path grows along an edge; where it does not shrink either, the graph's order decides.
    """
    position = np.zeros(instance.graph.num_vertices, np.int64)
    position[instance.graph.topological_order] = np.arange(instance.graph.num_vertices)
    return np.lexsort((position[instance.vertices], -instance.tables.bottom_s))


def ordered_edges(instance: Instance, order: IntArray) -> IntArray:
    """(2, m) the edges between vertices that are numbered by their place in an order."""
    position = np.zeros(len(order), np.int64)
    position[order] = np.arange(len(order))
    between: IntArray = position[instance.edges]
    return between


def costs_and_sizes(instance: Instance) -> FloatArray:
    """(n, 2) mean exec seconds and bytes of outputs, over their means: free of any scale."""
    graph = instance.graph
    sizes = np.bincount(graph.tensor_producer, graph.tensor_bytes, minlength=graph.num_vertices)
    columns = [instance.tables.exec_s.mean(axis=1), sizes[instance.vertices]]
    means = [column.sum() / max(len(column), 1) for column in columns]
    return np.stack([c / (mean or 1.0) for c, mean in zip(columns, means, strict=True)], axis=1)


def kinds_of(instance: Instance) -> IntArray:
    """(n,) the number of each vertex's kind."""
    names = [str(instance.graph.kinds[v]) for v in instance.vertices.tolist()]
    return np.array([KINDS.index(k) if k in KINDS else len(KINDS) for k in names], np.int64)


def spread(values: FloatArray, device: str) -> Tensor:
    """(n, 2c) float32 of (n, c): every column as log1p, for the large, and as square root."""
    both = np.concatenate([np.log1p(values), np.sqrt(values)], axis=1)
    return torch.as_tensor(both.astype(np.float32), device=device)
