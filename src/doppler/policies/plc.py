"""PLC: on which device (Sec. 4.2)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, one_hot

from doppler.mdp.features import CROWDED, DEVICE_FEATURES, FEATURE_SETS, OVERFULL, TIE

# Pairs of a step and a device at a time: what the layers make of them fits a cache of a CPU.
CHUNK = 8192


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """PLC's first layer on one graph, multiplied out for every vertex."""

    vertex: Tensor  # (n, H) of the vertex that is to be placed
    placed: Tensor  # (n, H) what a vertex adds for the device it is on


class Place(nn.Module):
    r"""Logits of all devices for a vertex.

    .. math::
        h_{v,d} = [H[v] ‖ h_d ‖ Y[d] ‖ Z[v]], \quad
        Q_D(d) = softmax(FFNN(LeakyReLU(FFNN(h_{v,d}))))

    with :math:`h_d` the sum of H over the vertices already on d, over n / D, and
    :math:`Y = FFNN(X_D)`. The first FFNN is linear in its parts, so those that do not depend on
    the step are multiplied out once per graph, and Y's own matrix is part of it. The second has
    a hidden layer of half the width. A device that the vertex would overfill more than another
    loses so much of its logit that it is the last resort.
    """

    def __init__(self, width: int, features: str) -> None:
        super().__init__()
        names = FEATURE_SETS[features]
        self.columns = [DEVICE_FEATURES.index(name) for name in names]
        self.crowded = CROWDED if OVERFULL in self.columns else 0.0
        self.vertex = nn.Linear(2 * width, width)
        self.placed = nn.Linear(width, width, bias=False)
        self.feature = nn.Linear(len(names), width, bias=False)
        self.hidden = nn.Linear(width, width // 2)
        self.out = nn.Linear(width // 2, 1, bias=False)

    def first_layer(self, h: Tensor, z: Tensor, share: float) -> FirstLayer:
        """The first layer's static parts from (n, H) embeddings and features; `share` is D / n."""
        return FirstLayer(self.vertex(torch.cat([h, z], dim=1)), self.placed(h) * share)

    def forward(
        self, parts: FirstLayer, order: Tensor, devices: Tensor, features: Tensor
    ) -> Tensor:
        """(B, n, D) logits at every step of B episodes.

        `order` is (B, n) the vertices as they were selected, `devices` (B, n) where each of them
        went, `features` (B, n, D, 15) what was seen before.
        """
        rows = max(len(features), 1)
        if features.device.type == "cpu":
            rows = max(CHUNK // max(features.shape[1] * features.shape[2], 1), 1)
        chunks = zip(*(torch.split(t, rows) for t in (order, devices, features)), strict=True)
        return torch.cat([self._logits(parts, *chunk) for chunk in chunks])

    def _logits(
        self, parts: FirstLayer, order: Tensor, devices: Tensor, features: Tensor
    ) -> Tensor:
        went = one_hot(devices, features.shape[2]).to(features.dtype)  # (B, n, D)
        added = went.unsqueeze(3) * parts.placed[order].unsqueeze(2)  # (B, n, D, H)
        before = added.cumsum(1) - added
        return self.logits(parts.vertex[order], before, features)

    def logits(self, vertex: Tensor, placed: Tensor, features: Tensor) -> Tensor:
        """(…, D) logits from (…, H) and (…, D, H) sums of `FirstLayer`, and (…, D, 15)."""
        layer = placed + vertex.unsqueeze(-2) + self.feature(features[..., self.columns])
        logits: Tensor = self.out(leaky_relu(self.hidden(leaky_relu(layer))))
        overfull = features[..., OVERFULL]
        return logits.squeeze(-1) - self.crowded * (overfull - overfull.amin(-1, keepdim=True))


def place_log_softmax(logits: Tensor, temperature: float, *, alike: bool = True) -> Tensor:
    """(…, D) log-probabilities at a temperature above 0, as `mdp.kernel.sample` draws by."""
    if temperature == 1.0 or not alike:
        return (logits / temperature).log_softmax(dim=-1)
    same = log_same(logits)
    return ((logits + same) / temperature - same).log_softmax(dim=-1)


def log_same(logits: Tensor) -> Tensor:
    """(…, D) the logarithm of how many devices have the same logit as each."""
    apart = (logits.unsqueeze(-1) - logits.unsqueeze(-2)).detach().abs()
    return (apart <= TIE).sum(dim=-1).log()
