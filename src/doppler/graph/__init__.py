"""The sharded dataflow graph: its value, its builder, its levels and its file."""

from doppler.graph.builder import GraphBuilder, build_graph
from doppler.graph.graph import Graph, Kernel
from doppler.graph.io import graph_from_json, graph_to_json, write_graph
from doppler.graph.levels import Levels, bottom_levels, depths, top_levels, widths
from doppler.graph.ops import InputKind, OpKind

__all__ = [
    "Graph",
    "GraphBuilder",
    "InputKind",
    "Kernel",
    "Levels",
    "OpKind",
    "bottom_levels",
    "build_graph",
    "depths",
    "graph_from_json",
    "graph_to_json",
    "top_levels",
    "widths",
    "write_graph",
]
