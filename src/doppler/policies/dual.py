"""DualPolicy: SEL and PLC over one encoder."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from doppler.base.arrays import on_cache_lines
from doppler.mdp.features import NUM_FEATURES
from doppler.mdp.instance import Instance
from doppler.policies.arrays.config import NUM_STATE_COLUMNS, NUM_VERTEX_COLUMNS
from doppler.policies.arrays.config import PolicyConfig as PolicyConfig
from doppler.policies.inputs import Inputs
from doppler.policies.mpnn import Encoder
from doppler.policies.plc import FirstLayer, Place
from doppler.policies.sel import Select
from doppler.policies.threads import one_thread
from doppler.policies.trainable import TrainablePolicy

if TYPE_CHECKING:
    from doppler.policies.acting import Actor, DualPass


@dataclass(frozen=True, slots=True)
class Scores:
    """A policy on one graph: all that one pass of message passing gives."""

    select: Tensor  # (n,) SEL's scores
    place: FirstLayer


class DualPolicy(TrainablePolicy):
    """SEL and PLC (Sec. 4.2), for any graph and any number of devices."""

    kind = PolicyConfig.kind
    config: PolicyConfig

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.width, config.rounds)
        self.features = nn.Linear(NUM_VERTEX_COLUMNS, config.width)  # Z = FFNN(X_V)
        self.select = Select(config.width)
        self.place = Place(config.width, config.features)
        # The state of an episode counts for nothing at first, so that a policy begins the same
        # (and stays so after imitation) whether messages are passed per episode or per step.
        for layer in (self.encoder.embed, self.features):
            layer.weight.data[:, -NUM_STATE_COLUMNS:] = 0.0

    def forward(self, inputs: Inputs) -> Scores:
        """One pass of message passing: enough for whole episodes (Sec. 4.3)."""
        h, z = self.encoder(inputs), self.features(inputs.vertices)
        return Scores(self.select(h, z, inputs), self.place.first_layer(h, z, inputs.share))

    def scores(self, inputs: Inputs) -> Scores:
        """The same, for acting only."""
        with torch.no_grad(), one_thread():
            found: Scores = self(inputs)
        return found

    @property
    def learns_to_place(self) -> bool:
        """Whether PLC is learned."""
        return self.config.place

    def view(self, instance: Instance, device: str = "cpu", *, threads: int = 1) -> "Actor":
        """What plays episodes of an instance by this policy."""
        from doppler.policies.acting import Actor

        return Actor(instance, device, threads=threads)

    def on(self, view: "Actor") -> "DualPass":
        """A forward pass: one pass of message passing."""
        from doppler.policies.acting import DualPass

        return DualPass(self, view)

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
            "crowded": torch.tensor([place.crowded]),
        }
        arrays = {k: on_cache_lines(t.detach().float().cpu().numpy()) for k, t in tensors.items()}
        return {
            "score": np.array(scores.select.detach().cpu().numpy(), np.float64),
            **arrays,
            "most": np.array([self.config.most_devices], np.int64),
        }


def make_policy(config: PolicyConfig, seed: int) -> DualPolicy:
    """A policy that has learned nothing; the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DualPolicy(config)
