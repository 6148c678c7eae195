"""Stages I and II: imitation, then REINFORCE on the simulator, with expert iteration (Sec. 5)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.guide import NO_GUIDE, Guide
from doppler.mdp.rollout import Sampling
from doppler.policies.acting import episode_seeds
from doppler.policies.gradients.losses import tensor
from doppler.policies.trainable import Choices, ForwardPass, TrainablePolicy
from doppler.training.config import AnyReinforceConfig, ReinforceConfig, TrainConfig
from doppler.training.exercise_record import ExerciseRecord
from doppler.training.guides import draw_guide, lesson_guides

SMALLEST = 1e-9  # spread of a batch, as a share of the makespan, below which all is the same
IMPOSSIBLE = -30.0  # log-probability from which a choice is none for a policy
LEAST = 1e-3  # share of the vertices of lessons that count, where that is less
CLIP = 3.0  # spreads of the batch beyond which an episode counts no more


def imitate(
    policy: TrainablePolicy, record: ExerciseRecord, config: TrainConfig, share: float, number: int
) -> tuple[Tensor, FloatArray]:
    """The loss of one update of Stage I, and the makespans of its episodes.

    The policy itself plays; at every state it visits, the critical-path heuristic says what it
    would have done.
    """
    forward = policy.on(record.view(policy))
    seeds = episode_seeds(config.seed, 0, number, config.imitation.batch)
    rollouts = forward.play(Sampling(), seeds)
    makespans = record.measure(rollouts, number)
    return forward.select_rule_loss(rollouts) + forward.place_rule_loss(rollouts), makespans


def reinforce(
    policy: TrainablePolicy, record: ExerciseRecord, config: TrainConfig, share: float, number: int
) -> tuple[Tensor, FloatArray]:
    """The loss of one update of Stage II, and the makespans of its episodes.

    `share` of the stage is done.
    """
    stage = config.sim
    sampling = sampling_at(stage, share)
    rng = np.random.default_rng([config.seed, number, 1])
    guide = draw_guide(record, stage.guide, rng)
    forward = policy.on(record.view(policy)).guided_by(guide)
    seeds = episode_seeds(config.seed, 1, number, stage.batch + _num_lessons(stage))
    rollouts = forward.play(sampling, seeds[: stage.batch])
    makespans = record.measure(rollouts, number)
    gains = advantages(record, makespans, stage)[:, None]
    if (states := forward.states(rollouts)) is not None:
        gains = improvements(record, states, stage, number)
    loss = policy_loss(forward.choices(rollouts, sampling), gains, stage)
    if stage.anchor:
        loss = loss + stage.anchor * forward.select_rule_loss(rollouts)
    expert = record.exercise.expert
    if expert is not None and share < expert.config.until:
        devices = forward.instance.expand(rollouts.devices)
        lessons, own = expert.lessons(record.pool, devices, makespans, number)
        if record.pool.best_s < record.best_s and len(lessons):
            record.consider(record.pool.devices[0])
        if len(lessons):  # none where nothing that runs has been found yet
            rest = seeds[stage.batch : stage.batch + len(lessons)]
            loss = loss + _lessons_loss(forward, sampling, record, stage, lessons, own, rest, rng)
    return loss, makespans


def policy_loss(choices: Sequence[Choices], gains: FloatArray, stage: AnyReinforceConfig) -> Tensor:
    """REINFORCE's loss of all choices, per step, less their entropies.

    Gains are (B, 1), or (B, T) where each step has its own.
    """
    return torch.stack([choice_loss(each, gains, stage) for each in choices]).sum()


def choice_loss(choices: Choices, gains: FloatArray, stage: AnyReinforceConfig) -> Tensor:
    """The same of one network."""
    weights = tensor(choices.log_probs, gains).float()
    loss = -stage.reinforce * (weights * choices.log_probs).mean()
    return loss - stage.entropy * choices.entropies.mean()


def _lessons_loss(
    forward: ForwardPass,
    sampling: Sampling,
    record: ExerciseRecord,
    stage: ReinforceConfig,
    lessons: IntArray,
    own: int,
    seeds: IntArray,
    rng: np.random.Generator,
) -> Tensor:
    """The cross-entropy to (L, V) lessons, of which the first `own` are what became of episodes.

    Those keep the guide of the episodes. The others are repaired: see `lesson_guides`.
    """
    guide = lesson_guides(record, lessons[own:], stage.guide, rng)
    if not own or not len(guide.devices):
        return lesson_loss(forward, sampling, lessons, seeds, guide)
    mine = lesson_loss(forward, sampling, lessons[:own], seeds[:own])
    others = lesson_loss(forward, sampling, lessons[own:], seeds[own:], guide)
    return (own * mine + (len(lessons) - own) * others) / len(lessons)


def lesson_loss(
    forward: ForwardPass,
    sampling: Sampling,
    lessons: IntArray,
    seeds: IntArray,
    guide: Guide = NO_GUIDE,
) -> Tensor:
    """The cross-entropy of placing to (L, V) assignments.

    Half of them are met in orders that the policy selects, half in those of the critical path,
    which are the safer ones on graphs unlike these. With a guide for each, only vertices that it
    does not have where the lesson does count.
    """
    parts = []
    for first in range(min(len(lessons), 2)):
        mine, own = lessons[first::2], seeds[: len(lessons)][first::2]
        guides = guide.rows(slice(first, None, 2)) if len(lessons) > 1 else guide
        log_probs = forward.place_log_probs(mine, sampling, own, by_rule=first == 1, guide=guides)
        counted = (log_probs.detach() < 0).float().mean().clamp_min(LEAST) if len(guides[0]) else 1
        # What it takes for impossible by its estimate of memory is nothing to learn from.
        mean = -log_probs.clamp_min(IMPOSSIBLE).mean() / counted
        parts.append(mean * len(mine) / len(lessons))
    return torch.stack(parts).sum()


def improvements(
    record: ExerciseRecord, states: IntArray, stage: ReinforceConfig, number: int
) -> FloatArray:
    """(B, T) how much better than others at the same step an episode got from each step on.

    The reward of a step is by how much it shortens the makespan, so what follows from it is the
    makespan before the step less the one at the end (Addanki et al. 2019). `states` are (B, T + 1,
    n) devices before each step and after the last.
    """
    count, steps = states.shape[:2]
    exercise = record.exercise
    every = exercise.instance.expand(states).reshape(count * steps, -1)
    found = record.penalized(exercise.makespans(every, number)).reshape(count, steps)
    record.consider(every[int(np.argmin(found))])
    left = found[:, :-1] - found[:, -1:]
    if stage.running_mean and count == 1:
        return np.array(left / exercise.instance.tables.scale_s)
    spread_s = left.std(axis=0) + SMALLEST * found.mean()
    gains: FloatArray = np.clip((left - left.mean(axis=0)) / spread_s, -CLIP, CLIP)
    return gains


def advantages(record: ExerciseRecord, makespans: FloatArray, stage: ReinforceConfig) -> FloatArray:
    """(B,) how much better than the baseline each episode was.

    Against the mean of all episodes so far (Sec. 4.1), over the scale of the instance; or against
    the mean of the batch, over its spread.
    """
    mean_s = float(makespans.mean())
    baseline_s = record.mean_s if record.episodes else mean_s
    record.episodes += len(makespans)
    record.mean_s += (mean_s - record.mean_s) * len(makespans) / record.episodes
    if stage.running_mean:
        return np.array((baseline_s - makespans) / record.exercise.instance.tables.scale_s)
    spread_s = makespans.std() + 1e-9 * mean_s
    gain: FloatArray = np.clip((mean_s - makespans) / spread_s, -CLIP, CLIP)
    return gain


def sampling_at(stage: AnyReinforceConfig, share: float) -> Sampling:
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
