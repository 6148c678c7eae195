"""Results that pieces make: whole tensors, or blocks that are put together after a run.

The kernel of a piece may have the attribute `blocks`, with an entry for each output: null, or the
`block` of the result that it is, as ranges of the `atoms`, which are the factors of the dimensions
of the `whole`.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch

from doppler.errors import EngineError
from doppler.graph.graph import Graph
from doppler.sharding.evaluate import kernel_of


def join_blocks(
    graph: Graph, names: Mapping[int, str], values: Mapping[int, Any]
) -> dict[str, torch.Tensor]:
    """The results by name, from the tensors that are results or blocks of them."""
    found: dict[str, Any] = {}
    shapes: dict[str, list[int]] = {}
    for t, value in sorted(values.items()):
        name, block = names[t], _block(graph, t)
        if block is None:
            found[name] = value
            continue
        ranges, atoms, whole = block
        if name not in found:
            found[name], shapes[name] = torch.empty(atoms, dtype=value.dtype), whole
        place = tuple(slice(low, high) for low, high in ranges)
        try:
            found[name][place] = value.reshape([high - low for low, high in ranges])
        except (RuntimeError, IndexError) as error:
            raise EngineError(f"result `{name}` has a block that does not fit: {error}") from None
    return {name: x.reshape(shapes[name]) if name in shapes else x for name, x in found.items()}


def _block(graph: Graph, tensor: int) -> tuple[list[list[int]], list[int], list[int]] | None:
    """Where in a result a tensor is: ranges of the factors, these, and the shape of the whole."""
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
        fits = all(type(n) is int and n > 0 for n in (*atoms, *whole))
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
    return ranges, atoms, whole
