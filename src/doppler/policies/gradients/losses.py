"""Log-probabilities of what episodes did, for the gradients of both policies."""

from typing import Any

import torch
from torch import Tensor

from doppler.mdp.rollout import Rollouts
from doppler.policies.dual import DualPolicy, Scores
from doppler.policies.gradients.log_sums import log_sums
from doppler.policies.plc import place_log_softmax


def select_log_probs(
    scores: Scores, rollouts: Rollouts, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(B, n) log-probability of the vertex that each step selected, and entropy of its lottery."""
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
    """(B, n, D) log-probability of every device at every step."""
    order, features = (tensor(scores.select, a) for a in (rollouts.order, rollouts.features))
    logits: Tensor = policy.place(scores.place, order, went(scores.select, rollouts), features)
    return place_log_softmax(logits, temperature, alike=alike)


def chosen(log_probs: Tensor, rollouts: Rollouts) -> Tensor:
    """(B, n) of (B, n, D) the log-probability of the device that each step chose."""
    return log_probs.gather(2, went(log_probs, rollouts).unsqueeze(2)).squeeze(2)


def went(like: Tensor, rollouts: Rollouts) -> Tensor:
    """(B, n) the device that each step chose."""
    return tensor(like, rollouts.devices).gather(1, tensor(like, rollouts.order))


def entropy(log_probs: Tensor) -> Tensor:
    """(B, n) entropy over the last axis, where impossible choices are -inf."""
    possible = log_probs > -torch.inf
    finite = log_probs.masked_fill(~possible, 0.0)
    return -(finite.exp() * finite * possible).sum(dim=2)


def tensor(like: Tensor, array: Any) -> Tensor:
    """An array on the device of another tensor."""
    return torch.as_tensor(array, device=like.device)
