"""Charts of findings as matplotlib figures."""

from pathlib import Path
from typing import Any

from doppler.base.figures import new_axes, settings, write_figure
from doppler.reproduce.findings import Finding, LineChart

WIDTH, HEIGHT = 4.5, 3.0  # inches


def draw(chart: LineChart) -> Any:
    """A figure of a chart."""
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
