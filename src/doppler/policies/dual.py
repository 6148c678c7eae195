"""DualPolicy: SEL and PLC over one encoder."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from doppler.errors import ConfigError, UnknownNameError
from doppler.mdp.features import FEATURE_SETS, NUM_FEATURES
from doppler.policies.inputs import NUM_STATE_COLUMNS, NUM_VERTEX_COLUMNS, Inputs
from doppler.policies.mpnn import Encoder
from doppler.policies.plc import Parts, Place
from doppler.policies.sel import Select
from doppler.policies.threads import one_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """The shape of a policy."""

    kind: ClassVar[str] = "doppler"

    width: int = 64  # H, of all embeddings
    rounds: int = 6  # K, of message passing
    features: str = "default"  # device features: `paper` (App. E) or `default`
    select: bool = True  # whether SEL selects, or the critical-path rule (Table 3)
    place: bool = True  # whether PLC places, or the critical-path rule

    def __post_init__(self) -> None:
        if self.width < 2 or self.rounds < 0:
            raise ConfigError("width must be at least 2, rounds not negative")
        if not (self.select or self.place):
            raise ConfigError("a policy must select or place", hint="that is `critical-path`")
        if self.features not in FEATURE_SETS:
            raise UnknownNameError("feature set", self.features, FEATURE_SETS)


@dataclass(frozen=True, slots=True)
class Scores:
    """A policy on one graph: all that one pass of message passing gives."""

    select: Tensor  # (n,) SEL's scores
    place: Parts


class DualPolicy(nn.Module):
    """SEL and PLC (Sec. 4.2), for any graph and any number of devices."""

    kind = PolicyConfig.kind

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.width, config.rounds)
        self.features = nn.Linear(NUM_VERTEX_COLUMNS, config.width)  # Z = FFNN(X_V)
        self.select = Select(config.width)
        self.place = Place(config.width, config.features)
        # The state of an episode counts for nothing at first, so that a policy begins the same
        # (and goes on so after imitation) whether messages are passed per episode or per step.
        for layer in (self.encoder.embed, self.features):
            layer.weight.data[:, -NUM_STATE_COLUMNS:] = 0.0

    def forward(self, inputs: Inputs) -> Scores:
        """One pass of message passing: enough for whole episodes (Sec. 4.3)."""
        h, z = self.encoder(inputs), self.features(inputs.vertices)
        return Scores(self.select(h, z, inputs), self.place.parts(h, z, inputs.share))

    def scores(self, inputs: Inputs) -> Scores:
        """The same, for acting only."""
        with torch.no_grad(), one_thread():
            found: Scores = self(inputs)
        return found

    def arrays(self, scores: Scores) -> dict[str, np.ndarray]:
        """The fields of `mdp.kernel.Weights`: the policy on one graph as plain matrices."""
        place = self.place
        feature = torch.zeros(NUM_FEATURES, self.config.width, device=place.feature.weight.device)
        feature[place.columns] = place.feature.weight.detach().T
        tensors = {
            "vertex": scores.place.vertex,
            "placed": scores.place.placed,
            "feature": feature,
            "hidden": place.hidden.weight.T,
            "hidden_bias": place.hidden.bias,
            "out": place.out.weight[0],
        }
        arrays = {
            k: np.array(t.detach().cpu().numpy(), np.float32, order="C") for k, t in tensors.items()
        }
        return {"score": np.array(scores.select.detach().cpu().numpy(), np.float64), **arrays}


def make_policy(config: PolicyConfig, seed: int) -> DualPolicy:
    """A policy that has learned nothing; the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DualPolicy(config)
