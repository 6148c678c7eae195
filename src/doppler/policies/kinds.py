"""The kinds of policies by name."""

from collections.abc import Callable
from typing import Any

import torch

from doppler.policies.configs import AnyConfig
from doppler.policies.dual import DualPolicy
from doppler.policies.rivals.gdp import GdpPolicy
from doppler.policies.rivals.placeto import PlacetoPolicy
from doppler.policies.rivals.seq2seq import Seq2SeqPolicy
from doppler.policies.trainable import TrainablePolicy

NETWORKS: dict[str, Callable[[Any], TrainablePolicy]] = {
    policy.kind: policy for policy in (DualPolicy, PlacetoPolicy, GdpPolicy, Seq2SeqPolicy)
}


def empty_policy(config: AnyConfig) -> TrainablePolicy:
    """A policy of that shape with whatever weights torch draws for it."""
    return NETWORKS[config.kind](config)


def make_any(config: AnyConfig, seed: int) -> TrainablePolicy:
    """A policy that has learned nothing; the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return empty_policy(config)
