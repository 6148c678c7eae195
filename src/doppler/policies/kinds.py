"""The kinds of policies by name."""

import torch

from doppler.policies.configs import AnyConfig, GdpConfig, PlacetoConfig, Seq2SeqConfig
from doppler.policies.dual import DualPolicy
from doppler.policies.rivals.gdp import GdpPolicy
from doppler.policies.rivals.placeto import PlacetoPolicy
from doppler.policies.rivals.seq2seq import Seq2SeqPolicy
from doppler.policies.trainable import TrainablePolicy


def empty_policy(config: AnyConfig) -> TrainablePolicy:
    """A policy of that shape with whatever weights torch draws for it."""
    if isinstance(config, PlacetoConfig):
        return PlacetoPolicy(config)
    if isinstance(config, GdpConfig):
        return GdpPolicy(config)
    if isinstance(config, Seq2SeqConfig):
        return Seq2SeqPolicy(config)
    return DualPolicy(config)


def make_any(config: AnyConfig, seed: int) -> TrainablePolicy:
    """A policy that has learned nothing; the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return empty_policy(config)
