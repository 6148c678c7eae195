"""SEL's losses where every step lists all vertices: what `log_sums` makes in n log n.

Step t of an episode is row t of (B, n, n), and column u the vertex that is selected at step u.
"""

import numpy as np
import torch
from torch import Tensor

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.rollout import Rollouts
from doppler.policies.dual import Scores
from doppler.policies.gradients.losses import entropy


def possible(since: IntArray) -> Tensor:
    """(B, n, n) whether the vertex of a column is a candidate."""
    steps = np.arange(since.shape[1])
    return torch.as_tensor((since[:, None, :] <= steps[:, None]) & (steps >= steps[:, None]))


def listed_log_probs(scores: Scores, rollouts: Rollouts, temperature: float = 1.0) -> Tensor:
    """(B, n, n) log-probability of every vertex at every step; not candidates: -inf."""
    raw = scores.select[torch.as_tensor(rollouts.order)].unsqueeze(1) / temperature
    return raw.masked_fill(~possible(rollouts.since), -torch.inf).log_softmax(dim=2)


def listed_select(scores: Scores, rollouts: Rollouts, temperature: float) -> tuple[Tensor, Tensor]:
    """As `select_log_probs`."""
    log_probs = listed_log_probs(scores, rollouts, temperature)
    return log_probs.diagonal(dim1=1, dim2=2), entropy(log_probs)


def listed_urgent(bottom_s: FloatArray, rollouts: Rollouts) -> Tensor:
    """(B, n, n) whether a candidate has the longest path to an exit: the teacher's choices."""
    level = torch.as_tensor(bottom_s[rollouts.order]).unsqueeze(1)
    level = level.masked_fill(~possible(rollouts.since), -torch.inf)
    return level == level.amax(dim=2, keepdim=True)


def listed_miss(bottom_s: FloatArray, scores: Scores, rollouts: Rollouts) -> Tensor:
    """As `select_miss`."""
    right = listed_urgent(bottom_s, rollouts)
    log_probs = listed_log_probs(scores, rollouts)
    return -log_probs.masked_fill(~right, -torch.inf).logsumexp(dim=2).mean()
