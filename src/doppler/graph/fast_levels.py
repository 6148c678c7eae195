"""The functions of `levels` for those who run compiled code anyway: large graphs take a kernel.

Others need not load numba for them: on 20,000 vertices the readable ones take less time than that.
"""

from typing import TYPE_CHECKING

import numpy as np

from doppler.base.arrays import FloatArray, IntArray, frozen
from doppler.graph import levels
from doppler.graph.graph import Graph
from doppler.graph.levels import Levels

if TYPE_CHECKING:
    from doppler.graph.kernel import Paths

LARGE = 1000  # vertices and edges, for which the readable ones take about a millisecond


def bottom_levels(
    graph: Graph, exec_s: FloatArray, transfer_s: FloatArray, *, large: int = LARGE
) -> Levels:
    """Those of `levels.bottom_levels`."""
    if _size(graph) < large:
        return levels.bottom_levels(graph, exec_s, transfer_s)
    paths = _paths_down(graph, exec_s, transfer_s)
    return Levels(frozen(paths.length_s), frozen(paths.via))


def top_levels(
    graph: Graph, exec_s: FloatArray, transfer_s: FloatArray, *, large: int = LARGE
) -> Levels:
    """Those of `levels.top_levels`."""
    if _size(graph) < large:
        return levels.top_levels(graph, exec_s, transfer_s)
    paths = _paths_up(graph, exec_s, transfer_s)
    return Levels(frozen(paths.rest_s), frozen(paths.via))


def depths(graph: Graph, *, large: int = LARGE) -> IntArray:
    """Those of `levels.depths`: vertices on the longest path from an entry, the own left out."""
    if _size(graph) < large:
        return levels.depths(graph)
    paths = _paths_up(graph, np.ones(graph.num_vertices), np.zeros(graph.num_tensors))
    return frozen(np.where(graph.is_input, -1, paths.rest_s.astype(np.int64)))


def _size(graph: Graph) -> int:
    return graph.num_vertices + graph.num_edges


def _paths_down(graph: Graph, exec_s: FloatArray, transfer_s: FloatArray) -> "Paths":
    """Longest paths to an exit."""
    tensors, readers = (graph.output_ptr, graph.output_tensor), (graph.reader_ptr, graph.reader)
    return _paths(graph, graph.topological_order[::-1], (*tensors, *readers), exec_s, transfer_s)


def _paths_up(graph: Graph, exec_s: FloatArray, transfer_s: FloatArray) -> "Paths":
    """Longest paths from an entry."""
    producers = np.arange(graph.num_tensors + 1), graph.tensor_producer  # one of each tensor
    tensors = graph.read_ptr, graph.read_tensor
    return _paths(graph, graph.topological_order, (*tensors, *producers), exec_s, transfer_s)


def _paths(
    graph: Graph,
    order: IntArray,
    neighbours: tuple[IntArray, IntArray, IntArray, IntArray],
    exec_s: FloatArray,
    transfer_s: FloatArray,
) -> "Paths":
    from doppler.graph.kernel import LevelArrays, Paths, follow

    size, seconds = graph.num_vertices, (exec_s, transfer_s)
    costs = (np.ascontiguousarray(column, np.float64) for column in seconds)
    arrays = LevelArrays(np.ascontiguousarray(order), graph.is_input, *neighbours, *costs)
    paths = Paths(np.zeros(size), np.zeros(size), np.zeros(size, np.int64))
    follow(arrays, paths)
    return paths
