"""Log-probabilities of what episodes did, and losses of imitating the critical path (Sec. 5)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import Rollouts
from doppler.policies.dual import DualPolicy, Scores
from doppler.policies.gradients.log_sums import log_sums
from doppler.policies.plc import Steps, place_log_softmax


def select_log_probs(
    scores: Scores, rollouts: Rollouts, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(B, n) log-probability of the vertex that each step selected, and entropy of its choice."""
    values = selected_values(scores, rollouts) / temperature
    log_sum, mean = log_sums(values, rollouts.since)
    return (values - log_sum).to(scores.select), (log_sum - mean).to(scores.select)


def selected_values(scores: Scores, rollouts: Rollouts) -> Tensor:
    """(B, n) SEL's scores of the vertices as they were selected, for `log_sums`."""
    return scores.select.cpu().double()[torch.as_tensor(rollouts.order)]


def place_log_probs(
    policy: DualPolicy,
    scores: Scores,
    rollouts: Rollouts,
    temperature: float = 1.0,
    *,
    alike: bool = True,
) -> Tensor:
    """(B, n, C) log-probability of every device that was scored, at every step."""
    logits: Tensor = policy.place(scores.place, steps_of(scores.select, rollouts))
    return place_log_softmax(logits, temperature, alike=alike)


def steps_of(like: Tensor, rollouts: Rollouts) -> Steps:
    """Recorded episodes, on the device of another tensor."""
    return Steps(
        order=tensor(like, rollouts.order),
        devices=tensor(like, went(rollouts)),
        features=tensor(like, rollouts.features),
        last_step=tensor(like, rollouts.last_step),
    )


def chosen(log_probs: Tensor, rollouts: Rollouts) -> Tensor:
    """(B, n) of (B, n, C) the log-probability of the device that each step chose."""
    place = (rollouts.scored < went(rollouts)[:, :, None]).sum(axis=2)
    return log_probs.gather(2, tensor(log_probs, place).unsqueeze(2)).squeeze(2)


def went(rollouts: Rollouts) -> IntArray:
    """(B, n) the device that each step chose."""
    return np.take_along_axis(rollouts.devices, rollouts.order, axis=1)


def entropy(log_probs: Tensor) -> Tensor:
    """(B, n) entropy over the last axis, where impossible choices are -inf."""
    possible = log_probs > -torch.inf
    finite = log_probs.masked_fill(~possible, 0.0)
    return -(finite.exp() * finite * possible).sum(dim=2)


def tensor(like: Tensor, array: Any) -> Tensor:
    """An array on the device of another tensor."""
    return torch.as_tensor(array, device=like.device)


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
