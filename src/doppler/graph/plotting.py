"""A graph as a matplotlib figure: layers, and devices by colour and marker."""

from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.base.arrays import BoolArray, IntArray
from doppler.base.figures import new_axes, settings
from doppler.base.notebook import cut
from doppler.base.palette import colour
from doppler.graph.layering import layer_graph

if TYPE_CHECKING:
    from doppler.graph.graph import Graph

WIDTH, HEIGHT = 7.0, 4.0  # inches
MARKERS = "osD^vP*X<>pHh8d"
MAX_NAMES = 40  # vertices that are named


def plot_graph(
    graph: "Graph", devices: IntArray | None, names: tuple[str, ...], ax: Any = None
) -> Any:
    """The matplotlib figure of a graph, with its vertices on (V,) devices where they have some."""
    found = layer_graph(graph)
    x, y = found.layer.astype(np.float64), found.offset
    on = np.full(graph.num_vertices, -1) if devices is None else devices
    source, target = graph.tensor_producer[graph.edge_tensor], graph.edge_reader
    crosses = (on[source] >= 0) & (on[source] != on[target])
    size = 20 if graph.num_vertices <= 300 else 6
    with settings():
        axes = new_axes(WIDTH, HEIGHT, ax)
        _edges(axes, x, y, source, target, ~crosses, {"color": "#b5bcc5", "linewidths": 0.4})
        _edges(axes, x, y, source, target, crosses, {"color": "black", "linewidths": 0.9})
        inputs = graph.is_input
        axes.scatter(x[inputs], y[inputs], size / 2, "white", edgecolors="gray", label="input")
        rest = ~inputs & (on < 0)
        if rest.any():
            axes.scatter(x[rest], y[rest], size, "#5b6570", label="operation")
        for d in np.unique(on[on >= 0]).tolist():
            name = cut(names[d], 24) if d < len(names) else f"device {d}"
            style = {"marker": MARKERS[d % len(MARKERS)], "label": name, "edgecolors": "black"}
            axes.scatter(x[on == d], y[on == d], size, colour(d), linewidths=0.3, zorder=2, **style)
        if graph.num_vertices <= MAX_NAMES:
            for v, name in enumerate(graph.vertex_names):
                where = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center"}
                axes.annotate(cut(name, 16), (x[v], y[v]), fontsize=6, **where)
        axes.set_axis_off()
        crossing = f", {int(crosses.sum())} of {graph.num_edges} edges cross devices (black)"
        axes.set_title(
            f"{cut(graph.name, 40)}: {graph.num_vertices} vertices"
            + (crossing if devices is not None else ""),
            fontsize="medium",
            loc="left",
        )
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=6, frameon=False)
    return axes.figure


def _edges(
    axes: Any, x: Any, y: Any, source: IntArray, target: IntArray, rows: BoolArray, style: Any
) -> None:
    from matplotlib.collections import LineCollection

    begin = np.column_stack([x[source[rows]], y[source[rows]]])
    end = np.column_stack([x[target[rows]], y[target[rows]]])
    segments = list(np.stack([begin, end], axis=1))
    axes.add_collection(LineCollection(segments, zorder=1, **style))
