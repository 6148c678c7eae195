"""Doppler's own graph file, as one of the formats."""

import re

from doppler.formats.registry import GraphFormat
from doppler.graph.io import graph_from_json, graph_to_json

FORMAT = GraphFormat(
    name="doppler",
    description="doppler's own JSON",
    matches=lambda head: re.match(r"\s*\{", head) is not None,
    read=lambda text, source, _: graph_from_json(text, source=source),
    write=graph_to_json,
)
