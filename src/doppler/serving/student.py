"""Student: a policy that proposes assignments of one graph and learns from how they did."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from doppler.base.arrays import FloatArray, IntArray
from doppler.graph.graph import Graph
from doppler.mdp.rollout import Sampling
from doppler.policies.acting import episode_seeds
from doppler.policies.dual import DualPolicy
from doppler.policies.threads import one_thread
from doppler.topology.topology import Topology
from doppler.training.config import TrainConfig
from doppler.training.exercise import Exercise
from doppler.training.gradients.losses import chosen, place_log_probs, tensor
from doppler.training.reinforce import CLIP, lesson_loss

STAGE = 4  # of seeds
TEMPERATURE = 0.3  # of what it proposes
LESSONS = 4  # orders in which the incumbent is imitated, in a step


class Student:
    """A policy on one graph: a copy, so that the one it began with stays as it was."""

    def __init__(self, policy: DualPolicy, graph: Graph, topology: Topology, lr: float) -> None:
        self.policy = deepcopy(policy)
        device = str(next(policy.parameters()).device)
        config = TrainConfig(stages=("imitation",), policy=policy.config, device=device)
        self.exercise = Exercise(graph, topology, replace(config, threads=1))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=lr)
        self.steps = 0

    def see(self, topology: Topology) -> None:
        """Let the policy see the costs of this topology."""
        self.exercise.see(topology)

    def propose(self, count: int, seed: int) -> IntArray:
        """(K, V) sampled assignments."""
        exercise, seeds = self.exercise, episode_seeds(seed, STAGE, self.steps, count)
        scores = self.policy.scores(exercise.actor.inputs)
        warm = Sampling(select_temperature=TEMPERATURE, place_temperature=TEMPERATURE)
        played = exercise.actor.play(self.policy, scores, warm, seeds, record=False)
        return exercise.instance.expand(played.devices)

    def learn(self, devices: IntArray, gains: FloatArray, incumbent: IntArray) -> None:
        """One step: REINFORCE of PLC on (K, V) assignments that ran, imitation of the incumbent."""
        if not self.policy.config.place:
            return
        with one_thread():
            loss = self._loss(devices, gains, incumbent)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            if bool(torch.isfinite(norm)):
                self.optimizer.step()
        self.steps += 1

    def _loss(self, devices: IntArray, gains: FloatArray, incumbent: IntArray) -> Tensor:
        exercise, policy = self.exercise, self.policy
        seeds = episode_seeds(0, STAGE + 1, self.steps, len(devices) + LESSONS)
        scores = policy(exercise.actor.inputs)
        forced = devices[:, exercise.instance.vertices]
        sampling, play = Sampling(), exercise.actor.play
        replay = play(policy, scores, sampling, seeds[: len(devices)], forced=forced)
        log_probs = chosen(place_log_probs(policy, scores, replay), replay)  # (K, n)
        gain = tensor(log_probs, np.clip(gains, -CLIP, CLIP)).float()
        lessons = np.repeat(incumbent[None], LESSONS, axis=0)
        lesson = lesson_loss(policy, scores, exercise, sampling, lessons, seeds[len(devices) :])
        return lesson - (gain[:, None] * log_probs).mean()

    def state(self) -> dict[str, Tensor]:
        """The weights, by name."""
        return {name: t.detach().cpu().clone() for name, t in self.policy.state_dict().items()}

    def load_state(self, tensors: Mapping[str, Any]) -> None:
        """Go on with these weights; the optimizer begins anew."""
        self.policy.load_state_dict(dict(tensors))
