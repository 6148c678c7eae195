"""The message-passing encoder of Sec. 4.2."""

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from doppler.policies.arrays.config import NUM_EDGE_COLUMNS, NUM_VERTEX_COLUMNS
from doppler.policies.inputs import Inputs


class MessageRound(nn.Module):
    r"""One round: (n, H) → (n, H).

    .. math::
        h_v' = norm(h_v + φ(h_v, \sum_{u → v} ψ_{in}(h_u, h_v, e_{uv}),
                            \sum_{v → u} ψ_{out}(h_u, h_v, e_{vu})))

    φ and ψ are linear with LeakyReLU. ψ's matrix product is taken per vertex, not per edge.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ends = nn.Linear(width, 4 * width)  # of both ends, in both directions
        self.edge = nn.Linear(NUM_EDGE_COLUMNS, 2 * width, bias=False)
        self.update = nn.Linear(3 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, h: Tensor, inputs: Inputs) -> Tensor:
        """(n, H) the vertices after hearing from their neighbours."""
        from_source, to_target, from_target, to_source = self.ends(h).chunk(4, dim=1)
        along, against = self.edge(inputs.edges).chunk(2, dim=1)
        s, t = inputs.source, inputs.target
        received = leaky_relu(from_source[s] + to_target[t] + along)
        returned = leaky_relu(from_target[t] + to_source[s] + against)
        nothing = torch.zeros_like(h)
        heard = [h, nothing.index_add(0, t, received), nothing.index_add(0, s, returned)]
        result: Tensor = self.norm(h + leaky_relu(self.update(torch.cat(heard, dim=1))))
        return result


class Encoder(nn.Module):
    """GNN(G, X_G): K rounds of message passing from a linear map of the features."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.embed = nn.Linear(NUM_VERTEX_COLUMNS, width)
        self.rounds = nn.ModuleList(MessageRound(width) for _ in range(rounds))

    def forward(self, inputs: Inputs) -> Tensor:
        """H (n, H): what is known of every vertex."""
        h: Tensor = self.embed(inputs.vertices)
        for one in self.rounds:
            h = one(h, inputs)
        return h
