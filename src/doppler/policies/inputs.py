"""Inputs: what the networks read of an instance, as tensors."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from doppler.mdp.features import VERTEX_STATE
from doppler.mdp.instance import Instance
from doppler.policies.arrays.config import NUM_STATE_COLUMNS as NUM_STATE_COLUMNS


@dataclass(frozen=True, slots=True)
class Inputs:
    """The state that message passing starts from: X_G of Sec. 4.1.

    Vertices carry the columns of VERTEX_STATE too, as they are when nothing is placed; `with_state`
    exchanges them.
    """

    vertices: Tensor  # (n, 13) float32, every feature as log1p and as square root, then the state
    edges: Tensor  # (m, 2) float32, likewise
    source: Tensor  # (m,) int64 producer of each edge
    target: Tensor  # (m,) int64 its reader
    entry_paths: tuple[Tensor, ...]  # as `doubled` makes them
    exit_paths: tuple[Tensor, ...]
    entry_length: Tensor  # (n, 1) vertices on the longest path to an entry
    exit_length: Tensor  # (n, 1)
    num_devices: int
    copies: int = 1  # that this is of a graph, side by side

    @property
    def num_vertices(self) -> int:
        """Number of assigned vertices."""
        return len(self.vertices)

    @property
    def share(self) -> float:
        """Devices per vertex of one copy."""
        return self.num_devices * self.copies / max(self.num_vertices, 1)


def make_inputs(instance: Instance, device: str = "cpu") -> Inputs:
    """The tensors of an instance on a torch device."""

    def tensor(array: object) -> Tensor:
        return torch.as_tensor(array, device=device)

    entry, exit_ = doubled(tensor(instance.entry_path)), doubled(tensor(instance.exit_path))
    state = np.zeros((instance.num_vertices, NUM_STATE_COLUMNS), np.float32)
    state[:, VERTEX_STATE.index("candidate")] = instance.tables.num_reads == 0
    ones = torch.ones(instance.num_vertices, 1, device=device)
    return Inputs(
        vertices=torch.cat([_spread(tensor(instance.vertex_features)), tensor(state)], dim=1),
        edges=_spread(tensor(instance.edge_features)),
        source=tensor(instance.edges[0].copy()),
        target=tensor(instance.edges[1].copy()),
        entry_paths=entry,
        exit_paths=exit_,
        entry_length=path_sums(ones, entry),
        exit_length=path_sums(ones, exit_),
        num_devices=instance.num_devices,
    )


def with_state(inputs: Inputs, state: Tensor) -> Inputs:
    """The inputs in another state of the episode: (n, 3) the columns of VERTEX_STATE."""
    static = inputs.vertices[:, :-NUM_STATE_COLUMNS]
    return replace(inputs, vertices=torch.cat([static, state], dim=1))


def replicate(inputs: Inputs, copies: int) -> Inputs:
    """`copies` copies of a graph side by side: copy b has the vertices from b * n on."""
    n = inputs.num_vertices
    first = n * torch.arange(copies, device=inputs.source.device).unsqueeze(1)  # (copies, 1)

    def moved(jump: Tensor) -> Tensor:
        return torch.where(jump < n, first + jump, copies * n).flatten()

    return replace(
        inputs,
        vertices=inputs.vertices.repeat(copies, 1),
        edges=inputs.edges.repeat(copies, 1),
        source=(first + inputs.source).flatten(),
        target=(first + inputs.target).flatten(),
        entry_paths=tuple(moved(jump) for jump in inputs.entry_paths),
        exit_paths=tuple(moved(jump) for jump in inputs.exit_paths),
        entry_length=inputs.entry_length.repeat(copies, 1),
        exit_length=inputs.exit_length.repeat(copies, 1),
        copies=inputs.copies * copies,
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
