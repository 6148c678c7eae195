"""GDP (Zhou et al. 2019): a graph embedding, and attention over the vertices in order."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import relu, scaled_dot_product_attention

from doppler.base.arrays import FloatArray
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import Roller, Sampling
from doppler.policies.configs import GdpConfig
from doppler.policies.rivals.base import (
    NUM_KINDS,
    RivalPolicy,
    RivalView,
    apart_at_first,
    costs_and_sizes,
    fixed_order,
    kinds_of,
    ordered_edges,
    pick,
    spread,
)
from doppler.policies.rivals.rival_pass import RivalPass

NUM_FEATURES = 4  # cost and output size, spread
NUM_WAVES = 20  # of the position in the order
KIND_WIDTH = 8  # of what is learned about each kind


@dataclass(frozen=True, slots=True)
class GdpView(RivalView):
    """What GDP reads; vertices are numbered by their place in the order."""

    features: Tensor  # (n, 4) cost and output size
    kinds: Tensor  # (n,) numbers of the kinds
    waves: Tensor  # (n, 20) the place in the order; 0 where it is not shown
    source: Tensor  # (2m,) edges both ways
    target: Tensor  # (2m,)
    logits: Tensor | None = None  # (n, D) in a forward pass: the same for all its episodes


class Sage(nn.Module):
    r"""A layer of GraphSAGE with max aggregation: (n, H) → (n, H).

    .. math::
        h_{N(v)} = max_{u ∈ N(v)} σ(W h_u + b), \quad h_v' = norm(h_v + f([h_v ‖ h_{N(v)}]))

    with σ the sigmoid, N(v) the producers and readers of v, and f linear with ReLU.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.send = nn.Linear(width, width)
        self.update = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, h: Tensor, view: GdpView) -> Tensor:
        """The vertices after hearing from their neighbours."""
        sent = self.send(h).sigmoid()[view.source]
        to = view.target.unsqueeze(1).expand_as(sent)
        heard = torch.zeros_like(h).scatter_reduce(0, to, sent, "amax")  # what is sent is above 0
        result: Tensor = self.norm(h + relu(self.update(torch.cat([h, heard], dim=1))))
        return result


class Attention(nn.Module):
    r"""A layer of the placer on one segment: (S, H) → (S, H), after Transformer-XL.

    .. math::
        y = norm(x + attend(x, [m ‖ x])), \quad x' = norm(y + FFN(y))

    m is what this layer was given for the segment before, through which no gradients flow. There
    are no positional embeddings, as in the publication.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.merge = (nn.Linear(width, width) for _ in range(2))
        self.memory = nn.Linear(width, 2 * width)
        self.inner = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.first, self.second = (nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """The vertices of a segment after attending to it and to (M, H) of the one before."""
        key, value = self.memory(torch.cat([memory, x])).chunk(2, dim=1)
        query, key, value = (self._by_head(t) for t in (self.query(x), key, value))
        seen = scaled_dot_product_attention(query, key, value).transpose(0, 1).flatten(1)
        y = self.first(x + self.merge(seen))
        result: Tensor = self.second(y + self.inner(y))
        return result

    def _by_head(self, t: Tensor) -> Tensor:
        return t.view(len(t), self.heads, -1).transpose(0, 1)


class GdpPolicy(RivalPolicy):
    r"""Logits of all devices for all vertices, in one forward pass.

    .. math::
        x^{(0)} = SAGE(G, X), \quad x^{(l+1)} = g^{(l)}(c(x^{(0)}) ⊙ x^{(l)}), \quad
        π(d | v) = softmax(W x_v^{(L)})

    with :math:`g^{(l)}` the layers of attention and c, the superposition, linear: it lets several
    graphs share the rest of the placer. Given the graph, vertices choose independently.
    """

    kind = GdpConfig.kind

    def __init__(self, config: GdpConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.kinds = nn.Embedding(NUM_KINDS, KIND_WIDTH)
        self.embed = nn.Linear(NUM_FEATURES + KIND_WIDTH + NUM_WAVES, width)
        self.sage = nn.ModuleList(Sage(width) for _ in range(config.layers))
        self.superposition = nn.Linear(width, width)
        nn.init.ones_(self.superposition.bias)  # it changes little at first
        self.placer = nn.ModuleList(Attention(width, config.heads) for _ in range(config.attention))
        self.out = apart_at_first(nn.Linear(width, config.devices))

    def view(self, instance: Instance, device: str = "cpu", *, threads: int = 1) -> GdpView:
        """What the policy reads of an instance."""
        self.check_machine(instance.num_devices, instance.topology.name)
        order, n = fixed_order(instance), instance.num_vertices
        edges = torch.as_tensor(ordered_edges(instance, order), device=device)
        waves = waves_of(n) if self.config.positions else np.zeros((n, NUM_WAVES))
        return GdpView(
            order=order,
            roller=Roller(instance, threads=threads),
            step=np.argsort(order),
            first=np.arange(n),
            features=spread(costs_and_sizes(instance)[order], device),
            kinds=torch.as_tensor(kinds_of(instance)[order], device=device),
            waves=torch.as_tensor(waves.astype(np.float32), device=device),
            source=torch.cat([edges[0], edges[1]]),
            target=torch.cat([edges[1], edges[0]]),
        )

    def on(self, view: GdpView) -> RivalPass:
        """What training asks of the policy on one instance."""
        return RivalPass(self, replace(view, logits=self(view)))

    def act(
        self, view: GdpView, count: int, sampling: Sampling, generator: torch.Generator
    ) -> Tensor:
        """(B, n) the devices of `count` sampled episodes, without gradients."""
        with torch.no_grad():
            logits = self(view).detach()
        return pick(logits.expand(count, *logits.shape), sampling, generator)

    def log_probs(self, view: GdpView, taken: Tensor, temperature: float = 1.0) -> Tensor:
        """(B, n, D) log-probability of every device; the same for all episodes."""
        log_probs: Tensor = (self(view) / temperature).log_softmax(dim=1)
        return log_probs.expand(len(taken), *log_probs.shape)

    def forward(self, view: GdpView) -> Tensor:
        """(n, D) logits."""
        if view.logits is not None:
            return view.logits
        parts = [view.features, self.kinds(view.kinds), view.waves]
        h = relu(self.embed(torch.cat(parts, dim=1)))
        for layer in self.sage:
            h = layer(h, view)
        context = self.superposition(h)
        memories = [h[:0] for _ in self.placer]
        placed = []
        for x, c in zip(*(t.split(self.config.segment) for t in (h, context)), strict=True):
            y = x
            for i, layer in enumerate(self.placer):
                y = c * y
                y, memories[i] = layer(y, memories[i]), y.detach()
            placed.append(y)
        logits: Tensor = self.out(torch.cat(placed) if placed else h)
        return logits


def waves_of(n: int) -> FloatArray:
    """(n, 20) sines and cosines that tell apart the places in an order of n."""
    share = np.arange(n)[:, None] / max(n, 1)
    phase = 2 * np.pi * share * 2.0 ** np.arange(NUM_WAVES // 2)
    return np.concatenate([np.sin(phase), np.cos(phase)], axis=1)
