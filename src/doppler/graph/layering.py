"""A layered drawing of a directed acyclic graph: where each vertex goes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from doppler.base.arrays import FloatArray, IntArray, csr, frozen
from doppler.graph.graph import Graph
from doppler.graph.levels import depths

SWEEPS = 6  # passes over the layers, forward and back, for the order and for the positions


@dataclass(frozen=True, slots=True)
class Layering:
    """Positions of vertices; edges lead from a layer to a later one."""

    layer: IntArray  # (V,) from 0
    offset: FloatArray  # (V,) position within the layer, at least 1 from any other there


def layer_graph(graph: Graph) -> Layering:
    """A drawing of a graph; inputs are one layer before their first reader."""
    source, target = graph.tensor_producer[graph.edge_tensor], graph.edge_reader
    depth = depths(graph)
    first = np.full(graph.num_vertices, graph.num_vertices)
    np.minimum.at(first, source, depth[target])
    first = np.where(first == graph.num_vertices, 0, first)  # inputs that nothing reads
    layer = np.where(graph.is_input, first - 1, depth)
    return layered(layer - layer.min(initial=0), source, target)


def layered(layer: IntArray, source: IntArray, target: IntArray) -> Layering:
    """A drawing of vertices with given layers and edges, with few crossings (Sugiyama 1981).

    Each layer is ordered by the mean position of its neighbours, in sweeps over the layers; then
    each vertex is moved as close to that mean as the order allows.
    """
    size = len(layer)
    if not size:
        return Layering(layer, np.zeros(0))
    before, after = csr(target, source, size), csr(source, target, size)
    order = np.argsort(layer, kind="stable")
    layers = np.split(order, np.searchsorted(layer[order], np.arange(1, layer.max() + 1)))
    offset = np.zeros(size)
    for rows in layers:
        offset[rows] = np.arange(len(rows)) - (len(rows) - 1) / 2
    for _ in range(SWEEPS):
        for side, sequence in ((before, range(len(layers))), (after, range(len(layers))[::-1])):
            for i in sequence:
                _reorder(layers, i, side, offset)
    for sweep in range(SWEEPS):
        for i in range(len(layers)) if sweep % 2 == 0 else reversed(range(len(layers))):
            wanted = (_means(layers[i], before, offset) + _means(layers[i], after, offset)) / 2
            offset[layers[i]] = spaced(wanted)
    return Layering(frozen(layer), frozen(offset - offset.min()))


def _means(rows: IntArray, side: tuple[IntArray, IntArray], offset: FloatArray) -> FloatArray:
    """Mean position of the neighbours of each row on one side; its own where it has none."""
    pointers, neighbours = side
    begin, end = pointers[rows], pointers[rows + 1]
    sums = np.concatenate([[0.0], np.cumsum(offset[neighbours])])
    count = end - begin
    mean: FloatArray = np.where(
        count > 0, (sums[end] - sums[begin]) / np.maximum(count, 1), offset[rows]
    )
    return mean


def _reorder(
    layers: list[IntArray], i: int, side: tuple[IntArray, IntArray], offset: FloatArray
) -> None:
    rows = layers[i]
    rows = rows[np.argsort(_means(rows, side, offset), kind="stable")]
    offset[rows] = np.arange(len(rows)) - (len(rows) - 1) / 2
    layers[i] = rows


def spaced(wanted: Sequence[float] | FloatArray) -> FloatArray:
    """The positions closest to those wanted, by squares, that are at least 1 apart in their order.

    >>> spaced([0.0, 0.0, 5.0]).tolist()
    [-0.5, 0.5, 5.0]
    """
    # With the space before each taken off, the best positions that never decrease are means over
    # blocks; neighbouring blocks are joined while they are in the wrong order.
    blocks: list[tuple[float, int]] = []  # mean, members
    for i, position in enumerate(np.asarray(wanted).tolist()):
        mean, members = position - i, 1
        while blocks and blocks[-1][0] >= mean:
            other, count = blocks.pop()
            mean = (mean * members + other * count) / (members + count)
            members += count
        blocks.append((mean, members))
    means = np.repeat([m for m, _ in blocks], [n for _, n in blocks])
    return np.asarray(means + np.arange(len(means)), np.float64)
