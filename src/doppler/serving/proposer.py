"""Proposer: a policy that proposes assignments of one graph and learns from how they did."""

from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from doppler.base.arrays import FloatArray, IntArray
from doppler.graph.graph import Graph
from doppler.mdp.rollout import Sampling
from doppler.placers.lists.guides import instance_for
from doppler.policies.acting import episode_seeds
from doppler.policies.gradients.losses import tensor
from doppler.policies.threads import one_thread
from doppler.policies.trainable import TrainablePolicy
from doppler.problem import Problem
from doppler.topology.topology import Topology
from doppler.training.reinforce import CLIP, lesson_loss

STAGE = 4  # of seeds
TEMPERATURE = 0.3  # of what it proposes
LESSONS = 4  # orders in which the incumbent is imitated, in a step
MAX_NORM = 1.0  # of a gradient


class Proposer:
    """A policy on one graph: a copy, so that the one it began with stays as it was."""

    def __init__(
        self, policy: TrainablePolicy, graph: Graph, topology: Topology, lr: float
    ) -> None:
        self.policy, self.graph = deepcopy(policy), graph
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=lr)
        self.steps = 0
        self.see(topology)

    def see(self, topology: Topology) -> None:
        """Let the policy see the costs of this topology."""
        device = str(next(self.policy.parameters()).device)
        instance = instance_for(self.policy.config, Problem(self.graph, topology))
        self._view = self.policy.view(instance, device)

    def propose(self, count: int, seed: int) -> IntArray:
        """(K, V) sampled assignments."""
        seeds = episode_seeds(seed, STAGE, self.steps, count)
        forward = self.policy.acting(self._view)
        warm = Sampling(select_temperature=TEMPERATURE, place_temperature=TEMPERATURE)
        return forward.instance.expand(forward.play(warm, seeds, record=False).devices)

    def learn(self, devices: IntArray, gains: FloatArray, incumbent: IntArray) -> None:
        """One step: REINFORCE of placing (K, V) as was run, and imitation of the incumbent."""
        if not self.policy.learns_to_place:
            return
        with one_thread():
            loss = self._loss(devices, gains, incumbent)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), MAX_NORM)
            if bool(torch.isfinite(norm)):
                self.optimizer.step()
                self.policy.after_step()
        self.steps += 1

    def _loss(self, devices: IntArray, gains: FloatArray, incumbent: IntArray) -> Tensor:
        forward, sampling, count = self.policy.on(self._view), Sampling(), len(devices)
        seeds = episode_seeds(0, STAGE + 1, self.steps, count + LESSONS)
        log_probs = forward.place_log_probs(devices, sampling, seeds[:count])  # (K, T)
        gain = tensor(log_probs, np.clip(gains, -CLIP, CLIP)).float()
        lessons = np.repeat(incumbent[None], LESSONS, axis=0)
        lesson = lesson_loss(forward, sampling, lessons, seeds[count:])
        return lesson - (gain[:, None] * log_probs).mean()
