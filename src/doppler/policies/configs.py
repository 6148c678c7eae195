"""The shapes of all kinds of policies, by name. Nothing here needs torch."""

from dataclasses import dataclass, replace
from typing import ClassVar

from doppler.base.arrays import unbox_fields
from doppler.errors import ConfigError, UnknownNameError
from doppler.policies.arrays.config import PolicyConfig

FORMS = ("pass", "improve")


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalConfig:
    """What the shapes of all rivals have in common."""

    kind: ClassVar[str]

    devices: int = 0  # outputs; 0 until it is known on which machine the policy is trained


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacetoConfig(RivalConfig):
    """The shape of Placeto's policy."""

    kind: ClassVar[str] = "placeto"

    width: int = 16  # H, of all embeddings
    rounds: int = 8  # of message passing, each way; as in the released code
    # `pass`: nothing is placed at first, and only the end counts (as in the DOPPLER paper);
    # `improve`: all is on the first device at first, and every step counts (Addanki et al., Sec. 3)
    form: str = "pass"

    def __post_init__(self) -> None:
        unbox_fields(self)
        if self.width < 2 or self.rounds < 0 or self.devices < 0:
            raise ConfigError("width must be at least 2, rounds and devices not negative")
        if self.form not in FORMS:
            raise UnknownNameError("form of Placeto", self.form, FORMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class GdpConfig(RivalConfig):
    """The shape of GDP's policy."""

    kind: ClassVar[str] = "gdp"

    width: int = 64  # H, of all embeddings
    layers: int = 3  # of the graph embedding
    attention: int = 2  # layers of the placer
    heads: int = 4
    segment: int = 128  # vertices that the placer attends to at a time, and remembers
    positions: bool = True  # whether vertices tell where in the order they are

    def __post_init__(self) -> None:
        unbox_fields(self)
        if min(self.width, self.heads, self.segment) < 1 or self.width % self.heads:
            raise ConfigError("width must be a multiple of heads, and segment at least 1")
        if min(self.layers, self.attention, self.devices) < 0:
            raise ConfigError("layers, attention and devices must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seq2SeqConfig(RivalConfig):
    """The shape of the sequence placer's policy."""

    kind: ClassVar[str] = "seq2seq"

    width: int = 64  # H, of all embeddings and states
    groups: int = 256  # the longest sequence: a graph with more vertices is grouped

    def __post_init__(self) -> None:
        unbox_fields(self)
        if self.width < 1 or self.groups < 1 or self.devices < 0:
            raise ConfigError("width and groups must be at least 1, devices not negative")


AnyConfig = PolicyConfig | PlacetoConfig | GdpConfig | Seq2SeqConfig

CONFIGS: dict[str, type[AnyConfig]] = {
    config.kind: config for config in (PolicyConfig, PlacetoConfig, GdpConfig, Seq2SeqConfig)
}


def for_devices(config: AnyConfig, num_devices: int) -> AnyConfig:
    """The config with outputs for this number of devices, unless it has one."""
    if isinstance(config, RivalConfig) and not config.devices:
        return replace(config, devices=num_devices)
    return config


def small(config: AnyConfig) -> AnyConfig:
    """A policy that runs the same compiled code, in less time."""
    if isinstance(config, PolicyConfig):
        return replace(config, width=2, rounds=min(config.rounds, 1))
    return config


def max_layers(config: AnyConfig) -> int:
    """The largest number of layers of one sort that a policy of that shape has weights for."""
    if isinstance(config, PlacetoConfig):  # all rounds have the same
        return 1
    return max(getattr(config, name, 0) for name in ("rounds", "layers", "attention"))


def largest(config: AnyConfig) -> int:
    """The largest size that a policy of that shape has weights for."""
    return max(getattr(config, name, 0) for name in ("width", "groups", "devices"))
