"""PLC: on which device (Sec. 4.2)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, leaky_relu

from doppler.mdp.features import CROWDED, DEVICE_FEATURES, FEATURE_SETS, OVERFULL, TIE

# Pairs of a step and a device at a time: what the layers make of them fits a cache of a CPU.
CHUNK = 8192


@dataclass(frozen=True, slots=True)
class Steps:
    """What was seen at every step of B episodes, of the C devices that were scored."""

    order: Tensor  # (B, n) vertices as they were selected
    devices: Tensor  # (B, n) where each step placed its vertex
    features: Tensor  # (B, n, C, 30)
    last_step: Tensor  # (B, n, C) the step before that placed something on that device, or -1

    def split(self, rows: int) -> Iterator["Steps"]:
        """Some of the episodes at a time."""
        columns = (self.order, self.devices, self.features, self.last_step)
        for chunk in zip(*(torch.split(each, rows) for each in columns), strict=True):
            yield Steps(*chunk)


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

    def forward(self, parts: FirstLayer, steps: Steps) -> Tensor:
        """(B, n, C) logits at every step of B episodes."""
        features, rows = steps.features, max(len(steps.features), 1)
        if features.device.type == "cpu":
            rows = max(CHUNK // max(features.shape[1] * features.shape[2], 1), 1)
        return torch.cat([self._logits(parts, chunk) for chunk in steps.split(rows)])

    def _logits(self, parts: FirstLayer, steps: Steps) -> Tensor:
        sums = sums_by_device(embedding(steps.order, parts.placed), steps.devices)
        rows = sums.shape[1] * torch.arange(len(sums), device=sums.device)  # of each episode
        before = embedding(rows[:, None, None] + steps.last_step + 1, sums.flatten(0, 1))
        return self.logits(embedding(steps.order, parts.vertex), before, steps.features)

    def logits(self, vertex: Tensor, placed: Tensor, features: Tensor) -> Tensor:
        """(…, C) logits from (…, H) and (…, C, H) sums of `FirstLayer`, and (…, C, 30)."""
        layer = placed + vertex.unsqueeze(-2) + self.feature(features[..., self.columns])
        logits: Tensor = self.out(leaky_relu(self.hidden(leaky_relu(layer))))
        overfull = features[..., OVERFULL]
        return logits.squeeze(-1) - self.crowded * (overfull - overfull.amin(-1, keepdim=True))


def sums_by_device(added: Tensor, devices: Tensor) -> Tensor:
    """(B, n + 1, H) at t + 1: what steps up to t added to the device of step t; zeros at 0.

    `added` is (B, n, H), `devices` (B, n). The steps of a device are summed in their order.
    """
    order = devices.argsort(dim=1, stable=True)
    sorted_devices = devices.gather(1, order)
    every = order.unsqueeze(2).expand_as(added)
    sums = added.gather(1, every).cumsum(1)
    # Less what came before the first step of the device: that is the sum at the place before.
    places = torch.arange(devices.shape[1], device=devices.device).expand_as(devices)
    is_first = torch.ones_like(devices, dtype=torch.bool)
    is_first[:, 1:] = sorted_devices[:, 1:] != sorted_devices[:, :-1]
    first = torch.where(is_first, places, 0).cummax(1).values.unsqueeze(2).expand_as(added)
    nothing = torch.zeros_like(added[:, :1])
    sums = sums - torch.cat([nothing, sums], dim=1).gather(1, first)
    back = torch.empty_like(order).scatter_(1, order, places).unsqueeze(2).expand_as(added)
    return torch.cat([nothing, sums.gather(1, back)], dim=1)


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
