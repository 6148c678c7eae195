"""The kinds of policies by name."""

import torch

from doppler.policies.baseline import BaselinePolicy
from doppler.policies.configs import AnyConfig, GdpConfig, PlacetoConfig, Seq2SeqConfig
from doppler.policies.dual import DualPolicy
from doppler.policies.gdp import GdpPolicy
from doppler.policies.placeto import PlacetoPolicy
from doppler.policies.seq2seq import Seq2SeqPolicy

Policy = DualPolicy | BaselinePolicy


def empty_policy(config: AnyConfig) -> Policy:
    """A policy of that shape with whatever weights torch draws for it."""
    if isinstance(config, PlacetoConfig):
        return PlacetoPolicy(config)
    if isinstance(config, GdpConfig):
        return GdpPolicy(config)
    if isinstance(config, Seq2SeqConfig):
        return Seq2SeqPolicy(config)
    return DualPolicy(config)


def make_any(config: AnyConfig, seed: int) -> Policy:
    """A policy that has learned nothing; the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return empty_policy(config)
