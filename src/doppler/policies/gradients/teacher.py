"""The teacher of Stage I, the critical-path heuristic: losses of imitating it (Sec. 5)."""

import numpy as np
import torch
from torch import Tensor

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import Rollouts
from doppler.policies.dual import Scores
from doppler.policies.gradients.log_sums import log_sums
from doppler.policies.gradients.losses import selected_values


def select_miss(instance: Instance, scores: Scores, rollouts: Rollouts) -> Tensor:
    """SEL's cross-entropy to the teacher, at the states of some episodes."""
    values = selected_values(scores, rollouts)
    urgent = urgent_since(instance.tables.bottom_s[rollouts.order], rollouts.since)
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
