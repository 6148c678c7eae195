"""Inputs: what the networks read of an instance, as tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from doppler.mdp.instance import VERTEX_FEATURES, Instance

NUM_VERTEX_COLUMNS = 2 * len(VERTEX_FEATURES)
NUM_EDGE_COLUMNS = 2


@dataclass(frozen=True, slots=True)
class Inputs:
    """The static part of the state: X_G of Sec. 4.1."""

    vertices: Tensor  # (n, 10) float32, every feature as log1p and as square root
    edges: Tensor  # (m, 2) float32, likewise
    source: Tensor  # (m,) int64 producer of each edge
    target: Tensor  # (m,) int64 its reader
    entry_paths: tuple[Tensor, ...]  # as `doubled` makes them
    exit_paths: tuple[Tensor, ...]
    entry_length: Tensor  # (n, 1) vertices on the longest path to an entry
    exit_length: Tensor  # (n, 1)
    num_devices: int

    @property
    def num_vertices(self) -> int:
        """Number of assigned vertices."""
        return len(self.vertices)


def make_inputs(instance: Instance, device: str = "cpu") -> Inputs:
    """The tensors of an instance on a torch device."""

    def tensor(array: object) -> Tensor:
        return torch.as_tensor(array, device=device)

    entry, exit_ = doubled(tensor(instance.entry_path)), doubled(tensor(instance.exit_path))
    ones = torch.ones(instance.num_vertices, 1, device=device)
    return Inputs(
        vertices=_spread(tensor(instance.vertex_features)),
        edges=_spread(tensor(instance.edge_features)),
        source=tensor(instance.edges[0].copy()),
        target=tensor(instance.edges[1].copy()),
        entry_paths=entry,
        exit_paths=exit_,
        entry_length=path_sums(ones, entry),
        exit_length=path_sums(ones, exit_),
        num_devices=instance.num_devices,
    )


def doubled(following: Tensor) -> tuple[Tensor, ...]:
    """Where paths lead after 1, 2, 4, … vertices, (n,) each; n where they have ended.

    With them a sum along every path takes a logarithmic number of steps: `path_sums`.
    """
    end = len(following)
    following = torch.cat([following, following.new_tensor([end])])
    following[following < 0] = end
    jumps = []
    while bool((following[:end] < end).any()):
        jumps.append(following[:end])
        following = following[following]
    return tuple(jumps)


def path_sums(values: Tensor, jumps: tuple[Tensor, ...]) -> Tensor:
    """(n, c) sums of (n, c) values along the path of every vertex, itself included."""
    nothing = values.new_zeros(1, values.shape[1])
    for jump in jumps:
        values = values + torch.cat([values, nothing])[jump]
    return values


def _spread(values: Tensor) -> Tensor:
    """Every column twice: as log1p, for the large, and as square root, for the small."""
    return torch.cat([torch.log1p(values), torch.sqrt(values)], dim=1)
