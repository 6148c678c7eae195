"""The graph as the page draws it: every vertex, or groups of them where there are too many."""

from typing import Any

import numpy as np

from doppler.base.arrays import IntArray
from doppler.base.notebook import cut
from doppler.graph.graph import Graph
from doppler.graph.layering import Layering, layer_graph, layered
from doppler.graph.levels import depths

LONGEST = 200  # characters of a name
DIGITS = 3  # of positions
MAX_BANDS = 40  # ranges of levels, of vertices without meta-ops


def graph_view(graph: Graph, max_vertices: int, longest: int = LONGEST) -> dict[str, Any]:
    """The nodes to draw, vertices or meta-ops, where they go, and what each vertex reads."""
    if graph.num_vertices <= max_vertices:
        node_of, names = np.zeros(0, np.int64), list[str]()
        layering, bare = layer_graph(graph), _without_inputs(graph)
    else:
        node_of, names = _groups(graph, max_vertices)
        layering = _layer_groups(graph, node_of, len(names))
        bare = layering
    return {
        "name": cut(graph.name, LONGEST),
        "grouped": bool(names),
        "nodeOf": node_of.tolist(),
        "nodeNames": [cut(name, longest) for name in names],
        "layer": layering.layer.tolist(),
        "offset": np.round(layering.offset, DIGITS).tolist(),
        "bareLayer": bare.layer.tolist(),
        "bareOffset": np.round(bare.offset, DIGITS).tolist(),
        "isInput": graph.is_input.astype(int).tolist(),
        "reads": [
            np.diff(graph.read_ptr).tolist(),
            graph.tensor_producer[graph.read_tensor].tolist(),
        ],
    }


def _without_inputs(graph: Graph) -> Layering:
    """A drawing of the graph without its inputs, which are then nowhere in particular."""
    number = np.cumsum(~graph.is_input) - 1
    source, target = graph.tensor_producer[graph.edge_tensor], graph.edge_reader
    kept = ~graph.is_input[source]
    found = layered(depths(graph)[graph.assigned], number[source[kept]], number[target[kept]])
    layer, offset = np.zeros(graph.num_vertices, np.int64), np.zeros(graph.num_vertices)
    layer[graph.assigned], offset[graph.assigned] = found.layer, found.offset
    return Layering(layer, offset)


def _groups(graph: Graph, most: int) -> tuple[IntArray, list[str]]:
    """The group of each vertex, and their names: meta-ops, or else kinds on ranges of levels."""
    if all(meta or is_input for meta, is_input in zip(graph.meta_ops, graph.is_input, strict=True)):
        labels = [meta or "inputs" for meta in graph.meta_ops]
        if len(set(labels)) <= most:
            return _numbered(labels)
    depth = depths(graph)
    bands = min(int(depth.max(initial=0)) + 1, max(most // len(set(graph.kinds)), 1), MAX_BANDS)
    band = depth * bands // (int(depth.max(initial=0)) + 1)
    first = [int(-(-b * (depth.max() + 1) // bands)) for b in range(bands)]
    labels = [
        "inputs" if b < 0 else f"{kind}, levels from {first[b]}"
        for kind, b in zip(graph.kinds, band.tolist(), strict=True)
    ]
    return _numbered(labels)


def _numbered(labels: list[str]) -> tuple[IntArray, list[str]]:
    number = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return np.array([number[label] for label in labels], np.int64), list(number)


def _layer_groups(graph: Graph, node_of: IntArray, count: int) -> Layering:
    """Groups by the mean level of their vertices; few levels, as edges may lead back."""
    depth = depths(graph)
    mean = np.bincount(node_of, depth, count) / np.maximum(np.bincount(node_of, minlength=count), 1)
    layer = np.unique(np.round(mean).astype(np.int64), return_inverse=True)[1].astype(np.int64)
    a, b = (
        node_of[graph.tensor_producer[graph.edge_tensor]],
        node_of[graph.edge_reader],
    )
    pairs = np.unique(a * count + b)
    return layered(layer, pairs // count, pairs % count)
