"""Charts and drawings of findings as matplotlib figures."""

from pathlib import Path
from typing import Any

import numpy as np

from doppler.base.figures import new_axes, settings, write_figure
from doppler.graph.plotting import plot_graph
from doppler.reproduce.findings import AssignmentDrawing, Chart, Finding, LineChart
from doppler.reproduce.placements import problem_of, trace_of

WIDTH, HEIGHT = 4.5, 3.0  # inches


def draw(chart: Chart) -> Any:
    """A figure of a chart or of an assignment."""
    return _assignment(chart) if isinstance(chart, AssignmentDrawing) else _lines(chart)


def _assignment(drawing: AssignmentDrawing) -> Any:
    problem = problem_of(drawing.machine, drawing.graph)
    if drawing.timeline:
        figure = trace_of(problem, drawing.devices).plot()
    else:
        names = tuple(device.name for device in problem.topology.devices)
        figure = plot_graph(problem.graph, np.array(drawing.devices), names)
    with settings():
        figure.suptitle(drawing.title)
    return figure


def _lines(chart: LineChart) -> Any:
    with settings():
        axes = new_axes(WIDTH, HEIGHT)
        for name, (x, y) in chart.lines.items():
            axes.plot(x, y, ".-" if chart.log else "." if chart.points else "-", label=name)
        if chart.log:
            axes.set_xscale("log")
            axes.set_yscale("log")
        axes.set_xlabel(chart.x)
        axes.set_ylabel(chart.y)
        axes.set_title(chart.title)
        axes.legend()
        return axes.figure


def write_charts(finding: Finding, folder: Path) -> list[Path]:
    """Write the charts of a finding as SVG files."""
    written = []
    for number, chart in enumerate(finding.charts):
        path = folder / f"{finding.label}-{number}.svg"
        write_figure(draw(chart), path, force=True)
        written.append(path)
    return written
