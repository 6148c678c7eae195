"""Doppler's own graph file, so that every reader of graphs goes through one door."""

import re

from doppler.formats.registry import GraphFormat
from doppler.graph.io import read_graph

FORMAT = GraphFormat(
    name="doppler",
    description="doppler's own JSON",
    matches=lambda head: re.match(r"\s*\{", head) is not None,
    read=read_graph,
)
