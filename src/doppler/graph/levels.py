"""Depths, and longest paths through a graph with the vertices on them, in linear time."""

from dataclasses import dataclass

import numpy as np

from doppler.base.arrays import FloatArray, IntArray, frozen, rows
from doppler.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Levels:
    """Longest paths from every vertex in one direction.

    The paper's text calls the path to an entry "b-level" and the path to an exit "t-level",
    the reverse of common use (Kwok & Ahmad 1999); here the names follow common use.
    """

    length_s: FloatArray  # (V,) length of the longest path
    via: IntArray  # (V,) next vertex on that path, -1 at its end

    def path(self, vertex: int) -> list[int]:
        """The vertices on the longest path of `vertex`, itself first."""
        path = [vertex]
        while (following := int(self.via[path[-1]])) >= 0:
            path.append(following)
        return path


def bottom_levels(graph: Graph, exec_s: FloatArray, transfer_s: FloatArray) -> Levels:
    """Longest path from each vertex to an exit, both ends' exec seconds included.

    `exec_s` is (V,), `transfer_s` (T,). Inputs cost nothing, nor do edges from them.
    """
    readers = rows(graph.reader_ptr, graph.reader)
    outputs = rows(graph.output_ptr, graph.output_tensor)
    inputs = graph.is_input.tolist()
    work, move = exec_s.tolist(), transfer_s.tolist()
    length, via = [0.0] * graph.num_vertices, [-1] * graph.num_vertices
    for v in reversed(graph.topological_order.tolist()):
        if inputs[v]:
            continue
        best, after = 0.0, -1
        for t in outputs[v]:
            for r in readers[t]:
                reach = move[t] + length[r]
                if after < 0 or reach > best or (reach == best and r < after):
                    best, after = reach, r
        length[v], via[v] = work[v] + best, after
    return Levels(frozen(np.array(length, np.float64)), frozen(np.array(via, np.int64)))


def top_levels(graph: Graph, exec_s: FloatArray, transfer_s: FloatArray) -> Levels:
    """Longest path from an entry to each vertex, the vertex's own exec seconds left out.

    So `top + bottom` is the longest path through a vertex. Inputs are not entries: they cost
    nothing and are left out.
    """
    producer = graph.tensor_producer.tolist()
    reads = rows(graph.read_ptr, graph.read_tensor)
    inputs = graph.is_input.tolist()
    work, move = exec_s.tolist(), transfer_s.tolist()
    length, via = [0.0] * graph.num_vertices, [-1] * graph.num_vertices
    for v in graph.topological_order.tolist():
        best, before = 0.0, -1
        for t in reads[v]:
            p = producer[t]
            if inputs[p]:
                continue
            reach = length[p] + work[p] + move[t]
            if before < 0 or reach > best or (reach == best and p < before):
                best, before = reach, p
        length[v], via[v] = best, before
    return Levels(frozen(np.array(length, np.float64)), frozen(np.array(via, np.int64)))


def depths(graph: Graph) -> IntArray:
    """Level of each vertex: 0 for entries, else one past its deepest producer; -1 for inputs."""
    producer = graph.tensor_producer.tolist()
    reads = rows(graph.read_ptr, graph.read_tensor)
    inputs = graph.is_input.tolist()
    depth = [-1] * graph.num_vertices
    for v in graph.topological_order.tolist():
        if not inputs[v]:
            depth[v] = 1 + max((depth[producer[t]] for t in reads[v]), default=-1)
    return frozen(np.array(depth, np.int64))


def widths(graph: Graph) -> IntArray:
    """Number of vertices on each level; their count is the depth of the graph."""
    depth = depths(graph)
    return np.bincount(depth[depth >= 0])
