"""Stage I: imitation of the critical-path heuristic (Sec. 5)."""

import numpy as np
import torch
from torch import Tensor

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.features import early
from doppler.mdp.rollout import Rollouts, Sampling
from doppler.policies.acting import episode_seeds
from doppler.policies.dual import DualPolicy, Scores
from doppler.training.config import TrainConfig
from doppler.training.exercise import Exercise
from doppler.training.gradients.log_sums import log_sums
from doppler.training.gradients.losses import place_log_probs, selected_values, tensor


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
        right = tensor(scores.select, early(rollouts.features))
        loss = loss + miss(place_log_probs(policy, scores, rollouts), right)
    return loss, makespans


def select_miss(exercise: Exercise, scores: Scores, rollouts: Rollouts) -> Tensor:
    """SEL's cross-entropy to the teacher, at the states of some episodes."""
    values = selected_values(scores, rollouts)
    urgent = urgent_since(exercise.instance.tables.bottom_s[rollouts.order], rollouts.since)
    every, right = (log_sums(values, since)[0] for since in (rollouts.since, urgent))
    return (every - right).mean().to(scores.select)


def urgent_since(bottom_s: FloatArray, since: IntArray) -> IntArray:
    """(B, n) from when on each vertex is one of the teacher's choices; n if it never is.

    Those are the candidates with the longest path to an exit; `bottom_s` is (B, n) its length, of
    the vertices as they were selected. No path grows along an edge, so the longest of all that are
    left is a candidate's, and never longer than before: a choice remains one until it is selected.
    """
    longest = np.maximum.accumulate(bottom_s[:, ::-1], axis=1)[:, ::-1]
    steps = np.arange(bottom_s.shape[1])
    shrank = np.diff(longest, axis=1, prepend=longest[:, :1]) != 0
    began = np.maximum.accumulate(np.where(shrank, steps, 0), axis=1)
    return np.where(bottom_s == longest, np.maximum(since, began), len(steps))


def miss(log_probs: Tensor, right: Tensor) -> Tensor:
    """Mean cross-entropy where several choices may be right, and any of them will do."""
    return -log_probs.masked_fill(~right, -torch.inf).logsumexp(dim=2).mean()
