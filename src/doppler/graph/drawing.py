"""A graph as a small SVG: its layers, or where it is large, how many vertices each level has."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from doppler.base.svg import boxes, legend, lines, picture, text
from doppler.graph.layering import layer_graph
from doppler.graph.levels import widths

if TYPE_CHECKING:
    from doppler.graph.graph import Graph

WIDTH, HEIGHT = 640, 160
MAX_VERTICES = 300  # drawn one by one
MAX_BARS = 320


def graph_svg(graph: "Graph") -> str:
    """Vertices by kind in layers from left to right; of a large graph, its width by level."""
    if graph.num_vertices > MAX_VERTICES:
        return _profile(graph)
    found = layer_graph(graph)
    x = 8 + (WIDTH - 20) * (found.layer / max(int(found.layer.max(initial=0)), 1))
    y = 8 + (HEIGHT - 16) * (found.offset / max(float(found.offset.max(initial=0.0)), 1.0))
    x, y = np.round(x, 1), np.round(y, 1)
    source, target = graph.tensor_producer[graph.edge_tensor], graph.edge_reader
    columns = (x[source], y[source], x[target], y[target])
    parts = [lines(zip(*(column.tolist() for column in columns), strict=True))]
    rank = {kind: i for i, (kind, _) in enumerate(Counter(graph.kinds).most_common())}
    places = defaultdict(list)
    for v, (left, top) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        number = -1 if graph.is_input[v] else rank[graph.kinds[v]]
        places[number].append((left - 3, top - 2.5, 6, 5))
    parts += [boxes(number, places[number]) for number in sorted(places)]
    parts += legend(0, HEIGHT + 14, ((i, kind) for kind, i in rank.items() if kind != "input"))
    return picture(WIDTH, HEIGHT + 20, "graph", parts)


def _profile(graph: "Graph") -> str:
    count = widths(graph)
    bars = min(len(count), MAX_BARS)
    most = [int(part.max()) for part in np.array_split(count, bars)] if bars else []
    top, step = max(most, default=1), WIDTH / max(bars, 1)
    rows = [
        (round(i * step, 1), HEIGHT - 16 - 120 * n / top, round(step * 0.9, 1), 120 * n / top)
        for i, n in enumerate(most)
    ]
    label = f"vertices by level: {len(count)} levels of at most {top}"
    return picture(WIDTH, HEIGHT, label, [boxes(0, rows), text(0, HEIGHT - 3, label, longest=80)])
