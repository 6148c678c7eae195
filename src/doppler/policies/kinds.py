"""The kinds of policies by name."""

from dataclasses import replace
from typing import TypeVar

import torch

from doppler.policies.baseline import BaselinePolicy
from doppler.policies.dual import DualPolicy, PolicyConfig
from doppler.policies.gdp import GdpConfig, GdpPolicy
from doppler.policies.placeto import PlacetoConfig, PlacetoPolicy
from doppler.policies.seq2seq import Seq2SeqConfig, Seq2SeqPolicy

Policy = DualPolicy | BaselinePolicy
AnyConfig = PolicyConfig | PlacetoConfig | GdpConfig | Seq2SeqConfig
Config = TypeVar("Config", PolicyConfig, PlacetoConfig, GdpConfig, Seq2SeqConfig)

CONFIGS: dict[str, type[AnyConfig]] = {
    config.kind: config for config in (PolicyConfig, PlacetoConfig, GdpConfig, Seq2SeqConfig)
}


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


def for_devices(config: AnyConfig, num_devices: int) -> AnyConfig:
    """The config with outputs for so many devices, where it does not say how many."""
    if isinstance(config, PolicyConfig) or config.devices:
        return config
    return replace(config, devices=num_devices)


def most_layers(config: AnyConfig) -> int:
    """The most layers of one sort that a policy of that shape has weights for."""
    if isinstance(config, PlacetoConfig):  # all rounds have the same
        return 1
    return max(getattr(config, name, 0) for name in ("rounds", "layers", "attention"))


def largest(config: AnyConfig) -> int:
    """The largest size that a policy of that shape has weights for."""
    return max(getattr(config, name, 0) for name in ("width", "groups", "devices"))
