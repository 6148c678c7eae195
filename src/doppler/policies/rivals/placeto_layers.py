"""The layers of Placeto's policy."""

from typing import Any

import torch
from torch import Tensor, nn

from doppler.policies.rivals.placeto_plan import Average

LEAST_VARIANCE = 1e-3  # of what is normalised
MEMORY = 0.05  # share of the last update in what it is normalised by


class Averaged(torch.autograd.Function):
    """An `Average` of (b, c), with gradients for that."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, dense: Tensor) -> Tensor:
        """(a, c)."""
        ctx.save_for_backward(transposed)
        return matrix @ dense

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, None, Tensor]:
        """Nothing for the matrix."""
        (transposed,) = ctx.saved_tensors
        return None, None, transposed @ grads[0]


def averaged(average: Average, x: Tensor) -> Tensor:
    """(a, B, H) of (b, B, H)."""
    found: Tensor = Averaged.apply(*average, x.flatten(1))  # type: ignore[no-untyped-call]
    return found.view(-1, *x.shape[1:])


class TwoLinear(nn.Module):
    """Two linear layers with ReLU, one for each way: (…, H) → (…, H)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [nn.Linear(width, width) for _ in range(2)]  # for their random weights
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, x: Tensor, way: int) -> Tensor:
        """One of the two."""
        flat = torch.addmm(self.bias[way], x.view(-1, x.shape[-1]), self.weight[way])
        return flat.relu_().view(x.shape)


class Normal(nn.Module):
    """(…, c) less its mean, over its spread, in the episodes of the last updates.

    As batch normalisation, but the same for acting and for gradients: it changes between updates.
    """

    center: Tensor
    spread: Tensor
    batches: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.register_buffer("batches", torch.zeros(1))
        self._noted: list[tuple[int, Tensor, Tensor]] = []

    def forward(self, z: Tensor) -> Tensor:
        """The same shape; what gradients are wanted for is noted."""
        if torch.is_grad_enabled():
            flat = z.detach().flatten(0, -2)
            self._noted.append((len(flat), flat.sum(dim=0), flat.square().sum(dim=0)))
        return (z - self.center) / self.spread

    def settle(self) -> None:
        """Follow what was noted since the last time."""
        if not self._noted:
            return
        count = sum(count for count, _, _ in self._noted)
        mean = torch.stack([total for _, total, _ in self._noted]).sum(dim=0) / count
        squares = torch.stack([square for _, _, square in self._noted]).sum(dim=0)
        spread = (squares / count - mean.square()).clamp(min=0.0).add(LEAST_VARIANCE).sqrt()
        share = max(MEMORY, 1.0 / (float(self.batches) + 1.0))
        self.center = self.center + share * (mean - self.center)
        self.spread = self.spread + share * (spread - self.spread)
        self.batches = self.batches + 1.0
        self._noted.clear()


def even_at_first(layer: nn.Module) -> None:
    """First weights as in the released code: Glorot and Bengio's, and no bias."""
    if isinstance(layer, (nn.Linear, TwoLinear)):
        bound = (6 / sum(layer.weight.shape[-2:])) ** 0.5
        nn.init.uniform_(layer.weight, -bound, bound)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
