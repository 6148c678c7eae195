"""A trace as a timeline in the terminal."""

import numpy as np
from rich.text import Text

from doppler.base.arrays import BoolArray, FloatArray
from doppler.base.text import visible
from doppler.cli.output import percent, seconds
from doppler.trace import Trace

SHADES = " ▁▂▃▄▅▆▇█"
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


def timeline(trace: Trace, width: int) -> Text:
    """Two rows per device: how busy it computes, and how busily tensors arrive.

    Two more where tensors move between it and the host: what it loads and what it evicts. The
    height of a character is the busy share of the interval it stands for.
    """
    labels = [visible(device.name) for device in trace.devices]
    moves, host = trace.is_transfer, len(trace.devices)
    loads, evicts = moves & (trace.source == host), moves & (trace.device == host)
    wide = 6 if loads.any() or evicts.any() else 4  # of the names of the rows
    margin = max((len(label) for label in labels), default=0) + 1 + wide
    cells = max(10, min(width, 120) - margin - 9)
    text, utilization = Text(), trace.utilization()
    for d, label in enumerate(labels):
        here = trace.device == d
        colour = COLOURS[d % len(COLOURS)]
        execs = here & ~moves
        busy = f" {percent(utilization[d]):>7}"
        text.append(f"{label:<{margin - wide - 1}} {'run':<{wide}}")
        text.append(_shades(_filled(trace, execs, cells, trace.devices[d].slots)), colour)
        text.append(busy + "\n")
        lines = [("in", here & moves & ~loads)]
        if wide > 4:
            lines += [("load", here & loads), ("evict", evicts & (trace.source == d))]
        for name, rows in lines:
            text.append(f"{'':<{margin - wide}}{name:<{wide}}")
            text.append(_shades(_filled(trace, rows, cells, 1)), "dim")
            text.append("\n")
    end = seconds(trace.makespan_s)
    text.append(" " * margin + "0" + " " * max(cells - 1 - len(end), 1) + end)
    return text


def _filled(trace: Trace, rows: BoolArray, cells: int, capacity: int) -> FloatArray:
    """(cells,) share of each stretch of time that the rows fill, at most 1."""
    if trace.makespan_s == 0:
        return np.zeros(cells)
    edges = np.linspace(0.0, trace.makespan_s, cells + 1)
    begin, end = trace.begin_s[rows], trace.end_s[rows]

    def done_by(time: FloatArray) -> FloatArray:
        """Seconds of the rows' work done by each time."""
        spent = np.clip(time[:, None] - begin[None, :], 0.0, (end - begin)[None, :])
        return np.asarray(spent.sum(axis=1))

    filled = np.diff(done_by(edges)) / (capacity * trace.makespan_s / cells)
    return np.minimum(filled, 1.0)


def _shades(filled: FloatArray) -> str:
    steps = np.ceil(filled * (len(SHADES) - 1) - 1e-9).astype(int)
    return "".join(SHADES[i] for i in steps)
