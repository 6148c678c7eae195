"""Stage I: imitation of the critical-path heuristic (Sec. 5)."""

import torch
from torch import Tensor

from doppler.arrays import FloatArray
from doppler.mdp.features import DEVICE_FEATURES
from doppler.mdp.rollout import Rollouts, Sampling
from doppler.policies.acting import episode_seeds
from doppler.policies.dual import DualPolicy, Scores
from doppler.training.config import TrainConfig
from doppler.training.exercise import Exercise
from doppler.training.losses import place_log_probs, select_log_probs, tensor

EXTRA_START = DEVICE_FEATURES.index("extra_start")


def imitate(
    policy: DualPolicy, exercise: Exercise, config: TrainConfig, share: float, number: int
) -> tuple[Tensor, FloatArray]:
    """The loss of one update, and the makespans of its episodes.

    The policy itself plays; at every state it visits, the teacher says what it would have done.
    """
    scores = policy(exercise.actor.inputs)
    seeds = episode_seeds(config.seed, 0, number, config.imitation.batch)
    rollouts = exercise.actor.play(policy, scores, Sampling(), seeds)
    makespans = exercise.measure(rollouts, number)
    loss = torch.zeros((), device=scores.select.device)
    if policy.config.select:
        loss = loss + select_miss(exercise, scores, rollouts)
    if policy.config.place:
        early = tensor(scores.select, rollouts.features[..., EXTRA_START] <= 0)
        loss = loss + miss(place_log_probs(policy, scores, rollouts), early)
    return loss, makespans


def select_miss(exercise: Exercise, scores: Scores, rollouts: Rollouts) -> Tensor:
    """SEL's cross-entropy to the teacher, at the states of some episodes."""
    return miss(select_log_probs(scores, rollouts), urgent(exercise, scores, rollouts))


def urgent(exercise: Exercise, scores: Scores, rollouts: Rollouts) -> Tensor:
    """(B, n, C) whether a candidate has the longest path to an exit: the teacher's choices."""
    candidates = tensor(scores.select, rollouts.candidates)
    bottom_s = tensor(scores.select, exercise.instance.tables.bottom_s)
    level = bottom_s[candidates.clamp(min=0)].masked_fill(candidates < 0, -torch.inf)
    return level == level.amax(dim=2, keepdim=True)


def miss(log_probs: Tensor, right: Tensor) -> Tensor:
    """Mean cross-entropy where several choices may be right, and any of them will do."""
    return -log_probs.masked_fill(~right, -torch.inf).logsumexp(dim=2).mean()
