"""Results that pieces make: whole tensors, or blocks that are put together after a run.

The kernel of a piece may have the attribute `blocks`, with an entry for each output: null, or the
`block` of the result that it is, as ranges of the `atoms`, which are the factors of the dimensions
of the `whole`.
"""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import torch

from doppler.errors import EngineError
from doppler.graph.graph import Graph
from doppler.sharding.evaluate import kernel_of


def join_blocks(
    graph: Graph, names: Mapping[int, str], values: Mapping[int, Any]
) -> dict[str, torch.Tensor]:
    """The results by name, from the tensors that are results or blocks of them."""
    found: dict[str, Any] = {}
    blocks: dict[str, list[tuple[_Block, torch.Tensor]]] = {}
    for t, value in sorted(values.items()):
        block = _block(graph, t)
        if block is None:
            found[names[t]] = value
        else:
            blocks.setdefault(names[t], []).append((block, value))
    return found | {name: _joined(name, parts) for name, parts in blocks.items()}


class _Block(NamedTuple):
    """Where in a result a tensor is."""

    ranges: list[list[int]]  # of the factors
    atoms: list[int]  # the factors
    whole: list[int]  # shape of the result

    @property
    def sizes(self) -> list[int]:
        return [high - low for low, high in self.ranges]


def _joined(name: str, parts: list[tuple[_Block, torch.Tensor]]) -> torch.Tensor:
    first, like = parts[0]
    if sum(prod(block.sizes) for block, _ in parts) != prod(first.atoms):
        raise EngineError(f"result `{name}` of shape {first.whole} lacks blocks, or has too many")
    try:
        made = torch.empty(first.atoms, dtype=like.dtype)
        for block, value in parts:
            made[tuple(slice(low, high) for low, high in block.ranges)] = value.reshape(block.sizes)
        return made.reshape(first.whole)
    except (RuntimeError, IndexError) as error:
        why = str(error).splitlines()[0]
        raise EngineError(f"result `{name}` cannot be put together: {why}") from None


def _block(graph: Graph, tensor: int) -> _Block | None:
    """Where in a result a tensor is; None where it is all of it."""
    v = int(graph.tensor_producer[tensor])
    blocks = kernel_of(graph, v).attributes.get("blocks")
    if blocks is None:
        return None
    made = graph.output_tensor[graph.output_ptr[v] : graph.output_ptr[v + 1]].tolist()
    try:
        entry = blocks[made.index(tensor)]
        if entry is None:
            return None
        ranges, atoms, whole = entry["block"], entry["atoms"], entry["whole"]
        fits = all(type(n) is int and 0 < n < 1 << 62 for n in (*atoms, *whole))
        fits = fits and prod(atoms) == prod(whole)
        fits = fits and all(
            0 <= low < high <= n for (low, high), n in zip(ranges, atoms, strict=True)
        )
    except (IndexError, KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise EngineError(
            f"vertex `{graph.vertex_names[v]}` has result blocks that are none: {blocks!r:.80}"
        )
    return _Block(ranges, atoms, whole)
