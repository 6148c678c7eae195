"""SEL: which vertex next (Sec. 4.2)."""

import torch
from torch import Tensor, nn

from doppler.policies.inputs import Inputs, path_sums


class Select(nn.Module):
    r"""Scores of all vertices, the same throughout an episode.

    .. math::
        h_v = [H[v] ‖ h_{v,b} ‖ h_{v,t} ‖ Z[v]], \quad Q_G(v) = softmax(FFNN(h_v))

    with :math:`h_{v,b}` and :math:`h_{v,t}` the means of H along the longest paths of v to an
    entry and to an exit. The softmax is over the candidates, and so left to the caller.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(4 * width, width), nn.LeakyReLU(), nn.Linear(width, 1))

    def forward(self, h: Tensor, z: Tensor, inputs: Inputs) -> Tensor:
        """(n,) scores from (n, H) embeddings `h` and features `z`."""
        to_entry = path_sums(h, inputs.entry_paths) / inputs.entry_length
        to_exit = path_sums(h, inputs.exit_paths) / inputs.exit_length
        scores: Tensor = self.head(torch.cat([h, to_entry, to_exit, z], dim=1))
        return scores.squeeze(1)
