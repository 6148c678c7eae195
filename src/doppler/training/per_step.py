"""Stage II with message passing at every step, for the ablation of App. G.3.

Episodes are played side by side by the readable `Episode`, with torch at every step, so that every
vertex tells what has become of it. That takes as many passes of message passing as there are steps.
All devices are scored, however many there are.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.mdp.episode import Episode
from doppler.mdp.features import TIE, early
from doppler.mdp.rollout import Rollouts, Sampling
from doppler.policies.acting import Actor, episode_seeds
from doppler.policies.dual import DualPolicy, Scores
from doppler.policies.gradients.losses import chosen, entropy, miss, tensor
from doppler.policies.inputs import Inputs, replicate, with_state
from doppler.policies.plc import log_same, place_log_softmax
from doppler.policies.trainable import Choices
from doppler.training.config import TrainConfig
from doppler.training.exercise_record import ExerciseRecord
from doppler.training.reinforce import advantages, policy_loss, sampling_at


def reinforce_by_steps(
    policy: DualPolicy, record: ExerciseRecord, config: TrainConfig, share: float, number: int
) -> tuple[Tensor, FloatArray]:
    """As `reinforce`, without an expert; messages are passed as often as the config says."""
    stage = config.sim
    seeds = episode_seeds(config.seed, 1, number, stage.batch)
    sampling, every_step = sampling_at(stage, share), stage.messages == "step"
    played = play(policy, record.view(policy), sampling, seeds, every_step=every_step)
    makespans = record.measure(played.rollouts, number)
    gains = advantages(record, makespans, stage)[:, None]
    choices = []
    if policy.config.select:
        choices.append(Choices(played.selected(), entropy(played.select)))
    if policy.config.place:
        choices.append(Choices(chosen(played.place, played.rollouts), entropy(played.place)))
    loss = policy_loss(choices, gains, stage)
    if stage.anchor and policy.config.select:
        # Imitation is of the scores as they are, whatever temperature they were sampled at.
        scores = (played.select * (sampling.select_temperature or 1.0)).log_softmax(dim=2)
        loss = loss + stage.anchor * miss(scores, tensor(scores, played.urgent))
    return loss, makespans


@dataclass(frozen=True, slots=True)
class Played:
    """B episodes, and the distributions that their choices were drawn from, for gradients."""

    rollouts: Rollouts
    select: Tensor  # (B, n, n) log-probability of every vertex at every step; not candidates: -inf
    place: Tensor  # (B, n, D) log-probability of every device at every step
    urgent: BoolArray  # (B, n, n) at every step, the candidates that the critical path would take

    def selected(self) -> Tensor:
        """(B, n) log-probability of the vertex that each step selected."""
        order = tensor(self.select, self.rollouts.order)
        return self.select.gather(2, order.unsqueeze(2)).squeeze(2)


def play(
    policy: DualPolicy,
    actor: Actor,
    sampling: Sampling,
    seeds: IntArray,
    *,
    every_step: bool = True,
) -> Played:
    """One episode per seed; messages are passed at every step or, if not, once at the beginning."""
    table = _Table(policy, actor, sampling, seeds)
    scores: Scores = policy(table.inputs)
    for step in range(actor.instance.num_vertices):
        if step and every_step:  # what backward needs is computed again there, to save memory
            inputs = table.observed()
            scores = checkpoint(policy, inputs, use_reentrant=False, preserve_rng_state=False)
        table.place(scores, table.select(scores))
    return table.played()


class _Table:
    """B episodes of one instance side by side, and what was seen and computed at each step."""

    def __init__(
        self, policy: DualPolicy, actor: Actor, sampling: Sampling, seeds: IntArray
    ) -> None:
        if not policy.config.select:
            sampling = replace(sampling, select_temperature=0.0)
        if not policy.config.place:
            sampling = replace(sampling, place_early=True)
        self.policy, self.instance, self.sampling = policy, actor.instance, sampling
        self.inputs = replicate(actor.inputs, len(seeds))
        self.episodes = [Episode(actor.instance) for _ in seeds]
        self.rngs = [np.random.default_rng(seed) for seed in seeds.tolist()]
        self.possible: list[npt.NDArray[np.bool_]] = []  # (B, n) the candidates
        self.features: list[npt.NDArray[np.float32]] = []  # (B, D, 30)
        self.last_step: list[IntArray] = []  # (B, D) that placed something on a device, or -1
        self.select_log_probs: list[Tensor] = []  # (B, n)
        self.place_log_probs: list[Tensor] = []  # (B, D)

    def observed(self) -> Inputs:
        """What messages start from now."""
        state = np.concatenate([episode.vertex_state() for episode in self.episodes])
        return with_state(self.inputs, self._tensor(state.astype(np.float32)))

    def select(self, scores: Scores) -> IntArray:
        """(B,) the vertices that come next."""
        temperature = self.sampling.select_temperature
        candidates = [episode.candidates for episode in self.episodes]
        possible = np.zeros((len(candidates), self.instance.num_vertices), bool)
        for row, vertices in zip(possible, candidates, strict=True):
            row[vertices] = True
        raw = scores.select.reshape(possible.shape) / (temperature or 1.0)
        log_probs = raw.masked_fill(~self._tensor(possible), -torch.inf).log_softmax(dim=1)
        ranks = log_probs.detach().cpu().numpy()
        if not self.policy.config.select:
            ranks = np.broadcast_to(self.instance.tables.bottom_s, possible.shape)
        picked = [
            vertices[pick(row[vertices], temperature == 0.0, self.sampling.epsilon, rng)]
            for row, vertices, rng in zip(ranks, candidates, self.rngs, strict=True)
        ]
        self.possible.append(possible)
        self.select_log_probs.append(log_probs)
        return np.array(picked)

    def place(self, scores: Scores, vertices: IntArray) -> None:
        """Give each episode's vertex a device."""
        pairs = list(zip(self.episodes, vertices.tolist(), strict=True))
        features = np.array([episode.device_features(v) for episode, v in pairs], np.float32)
        rows = np.arange(len(pairs)) * self.instance.num_vertices + vertices
        logits = self.policy.place.logits(
            scores.place.vertex[self._tensor(rows)],
            self._on_devices(scores.place.placed),
            self._tensor(features),
        )
        temperature = self.sampling.place_temperature
        alike = self.sampling.alike
        log_probs = place_log_softmax(logits, temperature or 1.0, alike=alike)
        self.features.append(features)
        self.last_step.append(self._last_step())
        self.place_log_probs.append(log_probs)
        ranked = log_probs + log_same(logits) if alike and not temperature else log_probs
        ranks = ranked.detach().cpu().numpy()
        for (episode, v), seen, row, rng in zip(pairs, features, ranks, self.rngs, strict=True):
            if self.sampling.place_early:
                device = int(rng.choice(np.flatnonzero(early(seen))))
            else:
                device = pick(row, temperature == 0.0, self.sampling.epsilon, rng, TIE)
            episode.place(v, device)

    def played(self) -> Played:
        """All episodes, when they are done."""
        order = np.array([episode.order for episode in self.episodes])
        entered = np.argmax(np.stack(self.possible), axis=0)  # (B, n) the first step of each vertex
        features = np.stack(self.features, axis=1)
        rollouts = Rollouts(
            order=order,
            devices=np.array([episode.devices for episode in self.episodes]),
            features=features,
            since=np.take_along_axis(entered, order, axis=1),
            scored=np.broadcast_to(np.arange(self.instance.num_devices), features.shape[:3]),
            last_step=np.stack(self.last_step, axis=1),
        )
        select, place = self.select_log_probs, self.place_log_probs
        possible = np.stack(self.possible, axis=1)
        longest = np.where(possible, self.instance.tables.bottom_s, -np.inf)
        urgent = possible & (longest == longest.max(axis=2, keepdims=True))
        return Played(rollouts, torch.stack(select, dim=1), torch.stack(place, dim=1), urgent)

    def _last_step(self) -> IntArray:
        """(B, D) the step that last placed something on each device, or -1."""
        last = np.full((len(self.episodes), self.instance.num_devices), -1)
        for row, episode in zip(last, self.episodes, strict=True):
            row[episode.devices[episode.order]] = np.arange(len(episode.order))
        return last

    def _on_devices(self, placed: Tensor) -> Tensor:
        """(B, D, H) sums of (B * n, H) over the vertices on each device."""
        shape = (len(self.episodes), self.instance.num_devices, placed.shape[1])
        devices = np.array([episode.devices for episode in self.episodes])
        episode, vertex = np.nonzero(devices >= 0)
        to = self._tensor(episode * shape[1] + devices[episode, vertex])
        rows = placed[self._tensor(episode * devices.shape[1] + vertex)]
        return placed.new_zeros(shape[0] * shape[1], shape[2]).index_add(0, to, rows).view(shape)

    def _tensor(self, array: object) -> Tensor:
        return tensor(self.inputs.vertices, array)


def pick(
    log_probs: FloatArray,
    greedy: bool,
    epsilon: float,
    rng: np.random.Generator,
    tie: float = 0.0,
) -> int:
    """An index drawn by (C,) log-probabilities, or the best; with some probability any.

    The best is the first of those that are less than the maximum by `tie` or less.
    """
    if rng.random() < epsilon:
        return int(rng.integers(len(log_probs)))
    if greedy:
        return int(np.argmax(log_probs >= log_probs.max() - tie))
    weights = np.exp(log_probs.astype(np.float64))
    return int(rng.choice(len(weights), p=weights / weights.sum()))
