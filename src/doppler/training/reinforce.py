"""Stage II: REINFORCE on the simulator, with expert iteration (Sec. 5)."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.rollout import Rollouts, Sampling
from doppler.policies.acting import episode_seeds
from doppler.policies.dual import DualPolicy, Scores
from doppler.training.config import ReinforceConfig, TrainConfig
from doppler.training.exercise import Exercise
from doppler.training.gradients.losses import (
    chosen,
    entropy,
    place_log_probs,
    select_log_probs,
    tensor,
)
from doppler.training.imitation import select_miss

IMPOSSIBLE = -30.0  # log-probability from which a choice is none for a policy
CLIP = 3.0  # spreads of the batch beyond which an episode counts no more


def reinforce(
    policy: DualPolicy, exercise: Exercise, config: TrainConfig, share: float, number: int
) -> tuple[Tensor, FloatArray]:
    """The loss of one update, when `share` of the stage is done, and its episodes' makespans."""
    stage = config.sim
    sampling = sampling_at(stage, share)
    scores = policy(exercise.actor.inputs)
    seeds = episode_seeds(config.seed, 1, number, stage.batch + _num_lessons(stage))
    rollouts = exercise.actor.play(policy, scores, sampling, seeds[: stage.batch])
    makespans = exercise.measure(rollouts, number)
    gain = tensor(scores.select, advantages(exercise, makespans, stage)).float()
    loss = policy_loss(policy, scores, rollouts, gain, stage, sampling.place_temperature or 1.0)
    if policy.config.select and stage.anchor:
        loss = loss + stage.anchor * select_miss(exercise, scores, rollouts)
    if stage.expert is not None and share < stage.expert.until and exercise.expert is not None:
        devices = exercise.instance.expand(rollouts.devices)
        lessons = exercise.expert.lessons(devices, makespans, number)
        if exercise.expert.best_s < exercise.best_s and len(lessons):
            exercise.consider(exercise.expert.pool.devices[0])
        loss = loss + lesson_loss(policy, scores, exercise, sampling, lessons, seeds[stage.batch :])
    return loss, makespans


def policy_loss(
    policy: DualPolicy,
    scores: Scores,
    rollouts: Rollouts,
    gain: Tensor,
    stage: ReinforceConfig,
    temperature: float,
) -> Tensor:
    """REINFORCE's loss of both policies, per step, less their entropies; gains are (B,)."""
    loss = torch.zeros((), device=gain.device)
    if policy.config.select:
        picked, entropies = select_log_probs(scores, rollouts, temperature)
        loss = loss + choice_loss(picked, entropies, gain, stage)
    if policy.config.place:
        log_probs = place_log_probs(policy, scores, rollouts, temperature, alike=stage.alike)
        loss = loss + choice_loss(chosen(log_probs, rollouts), entropy(log_probs), gain, stage)
    return loss


def choice_loss(
    log_probs: Tensor, entropies: Tensor, gain: Tensor, stage: ReinforceConfig
) -> Tensor:
    """The same of one policy, from (B, n) log-probabilities of its choices and entropies."""
    return -stage.reinforce * (gain[:, None] * log_probs).mean() - stage.entropy * entropies.mean()


def lesson_loss(
    policy: DualPolicy,
    scores: Scores,
    exercise: Exercise,
    sampling: Sampling,
    lessons: IntArray,
    seeds: IntArray,
) -> Tensor:
    """PLC's cross-entropy to (L, V) assignments.

    Half of them are met in orders that SEL selects, half in those of the critical path, which are
    the safer ones on graphs unlike these.
    """
    loss = torch.zeros((), device=scores.select.device)
    forced = lessons[:, exercise.instance.vertices]
    by_rule = replace(policy.config, select=False)
    for first, config in enumerate((policy.config, by_rule)):
        mine, lots = forced[first::2], seeds[: len(lessons)][first::2]
        if len(mine):  # none where nothing that runs has been found yet
            play = exercise.actor.play
            replay = play(policy, scores, sampling, lots, forced=mine, config=config)
            log_probs = chosen(place_log_probs(policy, scores, replay), replay)
            # What it takes for impossible by its estimate of memory is nothing to learn from.
            loss = loss - log_probs.clamp_min(IMPOSSIBLE).mean() * len(mine) / len(lessons)
    return loss


def advantages(exercise: Exercise, makespans: FloatArray, stage: ReinforceConfig) -> FloatArray:
    """(B,) how much better than the baseline each episode was.

    Against the mean of all episodes so far (Sec. 4.1), over the scale of the instance; or against
    the mean of the batch, over its spread.
    """
    mean_s = float(makespans.mean())
    baseline_s = exercise.mean_s if exercise.episodes else mean_s
    exercise.episodes += len(makespans)
    exercise.mean_s += (mean_s - exercise.mean_s) * len(makespans) / exercise.episodes
    if stage.running_mean:
        return np.array((baseline_s - makespans) / exercise.instance.tables.scale_s)
    spread_s = makespans.std() + 1e-9 * mean_s
    gain: FloatArray = np.clip((mean_s - makespans) / spread_s, -CLIP, CLIP)
    return gain


def sampling_at(stage: ReinforceConfig, share: float) -> Sampling:
    """How actions are sampled when a share of the stage is done."""
    temperature = between(stage.temperature, share)
    return Sampling(
        select_temperature=temperature,
        place_temperature=temperature,
        epsilon=between(stage.epsilon, share),
        alike=stage.alike,
    )


def between(ends: tuple[float, float], share: float) -> float:
    """The value at a share of the way from one end to the other."""
    return ends[0] + (ends[1] - ends[0]) * min(share, 1.0)


def _num_lessons(stage: ReinforceConfig) -> int:
    return 0 if stage.expert is None else stage.expert.lessons
