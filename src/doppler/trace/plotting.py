"""A trace as a matplotlib figure: a timeline for print, legible without colour."""

from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.base.arrays import BoolArray
from doppler.base.figures import new_axes, settings
from doppler.base.notebook import cut
from doppler.base.palette import HATCHES, colour

if TYPE_CHECKING:
    from doppler.trace.trace import Trace

WIDTH = 7.0  # inches: the text of a page
EXEC, TRANSFER = 0.8, 0.4  # of a lane's height
MAX_LEGEND = 12
TRANSFERS = "#9aa3ad"
MAX_VECTORS = 20_000  # tasks; of more, a drawing of vectors is larger than one of pixels


def plot_trace(trace: "Trace", ax: Any = None, *, links: bool = True) -> Any:
    """The matplotlib figure of a timeline: devices and links as lanes, the chain outlined.

    Kinds differ by hatch as well as by colour. `ax` may be axes to draw into.
    """
    used = np.flatnonzero(trace.bytes_by_link() > 0).tolist() if links else []
    labels = [d.name for d in trace.devices] + [trace.links[i].name for i in used]
    with settings():
        axes = new_axes(WIDTH, 1.0 + 0.24 * len(labels), ax)
        for lane in range(len(labels)):
            axes.axhspan(lane - 0.4, lane + 0.4, color="#f0f2f5", zorder=0)
        for number, (kind, rows) in enumerate(_kinds(trace)):
            label = kind if number < MAX_LEGEND else None
            _bars(axes, trace, rows, trace.device, EXEC, label, colour(number), number)
        lane_of = np.full(len(trace.links) + 1, -1)
        lane_of[used] = len(trace.devices) + np.arange(len(used))
        moves = trace.is_transfer & (lane_of[trace.link] >= 0)
        if used:
            lanes = lane_of[trace.link]
            _bars(axes, trace, moves, lanes, TRANSFER, "transfer", TRANSFERS, 0)
        _outline_chain(axes, trace, lane_of)
        _finish(axes, trace, labels)
    return axes.figure


def _kinds(trace: "Trace") -> list[tuple[str, BoolArray]]:
    """The kinds of execs with their rows, those that take most time first."""
    number = {kind: i for i, kind in enumerate(dict.fromkeys(trace.vertex_kinds))}
    kind_of = np.array([number[kind] for kind in trace.vertex_kinds], np.int64)
    execs = ~trace.is_transfer
    kinds = np.where(execs, kind_of[trace.vertex] if len(trace.vertex) else -1, -1)
    time_s = np.bincount(kinds[execs], (trace.end_s - trace.begin_s)[execs], len(number))
    order = np.argsort(-time_s, kind="stable").tolist()
    names = list(number)
    return [(cut(names[k], 40), kinds == k) for k in order if (kinds == k).any()]


def _bars(
    axes: Any,
    trace: "Trace",
    rows: BoolArray,
    lanes: Any,
    height: float,
    label: str | None,
    fill: str,
    number: int,
) -> None:
    spans = np.column_stack([trace.begin_s, trace.end_s - trace.begin_s])
    style = {"facecolor": fill, "edgecolor": "black", "linewidth": 0.15}
    style |= {"hatch": 2 * HATCHES[number % len(HATCHES)] or None}
    style["rasterized"] = len(trace.vertex) > MAX_VECTORS
    for lane in np.unique(lanes[rows]).tolist():
        here = spans[rows & (lanes == lane)]
        axes.broken_barh(here, (lane - height / 2, height), label=label, **style)
        label = None


def _outline_chain(axes: Any, trace: "Trace", lane_of: Any) -> None:
    is_transfer = trace.is_transfer
    for step in trace.critical_chain():
        row, moves = step.row, bool(is_transfer[step.row])
        lane = int(lane_of[trace.link[row]]) if moves else int(trace.device[row])
        if lane >= 0:
            height = TRANSFER if moves else EXEC
            span = (trace.begin_s[row], trace.end_s[row] - trace.begin_s[row])
            where = (lane - height / 2, height)
            axes.broken_barh([span], where, facecolor="none", edgecolor="black", linewidth=1.1)


def _finish(axes: Any, trace: "Trace", labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), [cut(label, 24) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlim(0, trace.makespan_s or 1.0)
    axes.set_xlabel("seconds")
    by = f", placed by {cut(trace.placer, 24)}" if trace.placer else ""
    axes.set_title(
        f"{cut(trace.graph, 32)} on {cut(trace.topology, 32)}{by}: {trace.makespan_s:.4g} s "
        "(outlined: critical chain)",
        fontsize="medium",
        loc="left",
    )
    axes.spines[["top", "right"]].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    if handles:
        below = {"loc": "outside lower center"} if len(axes.figure.axes) == 1 else {}
        axes.figure.legend(handles, names, ncols=4, frameon=False, **below)
