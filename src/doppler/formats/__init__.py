"""Graphs from other people's files and libraries."""

from doppler.formats.networkx_graphs import from_networkx, to_networkx
from doppler.formats.registry import (
    GraphFormat,
    graph_format,
    graph_formats,
    graph_from_text,
    graph_to_text,
    read_graph,
)

__all__ = [
    "GraphFormat",
    "from_networkx",
    "graph_format",
    "graph_formats",
    "graph_from_text",
    "graph_to_text",
    "read_graph",
    "to_networkx",
]
