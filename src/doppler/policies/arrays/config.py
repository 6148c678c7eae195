"""PolicyConfig: the shape of a policy, and of what it reads."""

from dataclasses import dataclass
from typing import ClassVar

from doppler.base.arrays import unbox_fields
from doppler.errors import ConfigError, UnknownNameError
from doppler.mdp.features import FEATURE_SETS, VERTEX_STATE
from doppler.mdp.instance import VERTEX_FEATURES

NUM_STATE_COLUMNS = len(VERTEX_STATE)
NUM_VERTEX_COLUMNS = 2 * len(VERTEX_FEATURES) + NUM_STATE_COLUMNS
NUM_EDGE_COLUMNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """The shape of a policy."""

    kind: ClassVar[str] = "doppler"

    width: int = 64  # H, of all embeddings
    rounds: int = 6  # K, of message passing
    features: str = "default"  # device features: `paper` (App. E) or `default`
    # Devices that PLC scores for a vertex, at most; 0: all. On machines with more devices, scoring
    # all of them takes most of the time, and nearly all of them are out of the question.
    most_devices: int = 12
    select: bool = True  # whether SEL selects, or the critical-path rule (Table 3)
    place: bool = True  # whether PLC places, or the critical-path rule

    def __post_init__(self) -> None:
        unbox_fields(self)
        if self.width < 2 or self.rounds < 0:
            raise ConfigError("width must be at least 2, rounds not negative")
        if self.most_devices < 0:
            raise ConfigError(f"most_devices is {self.most_devices}, must not be negative")
        if not (self.select or self.place):
            raise ConfigError("a policy must select or place", hint="that is `critical-path`")
        if self.features not in FEATURE_SETS:
            raise UnknownNameError("feature set", self.features, FEATURE_SETS)

    @property
    def reads_guide(self) -> bool:
        """Whether device features compare with a guide."""
        return "guided" in FEATURE_SETS[self.features]
