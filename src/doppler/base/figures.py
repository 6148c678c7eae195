"""Figures of matplotlib: made without its global state, and written so that they never change."""

from io import BytesIO
from pathlib import Path
from typing import Any

from doppler.base.writing import write_bytes
from doppler.errors import ConfigError, MissingExtraError

FORMATS = ("svg", "png", "pdf")
DPI = 200  # of a PNG
SETTINGS = {
    "font.size": 8,
    "hatch.linewidth": 0.4,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "doppler",
    "text.parse_math": False,  # names are data: a dollar is a dollar
    "axes.unicode_minus": False,
}


def new_axes(width: float, height: float, ax: Any = None) -> Any:
    """Axes of a figure of its own, of that many inches, unless there are some already."""
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "drawing a figure", extra="plot") from None
    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def settings() -> Any:
    """A context in which figures are made and written."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise MissingExtraError("matplotlib", "drawing a figure", extra="plot") from None
    return rc_context(SETTINGS)


def figure_kind(path: str | Path) -> str:
    """The format that a path's ending names: svg, png or pdf."""
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ConfigError(
            f"`{path}` does not say how to draw: its ending is `{Path(path).suffix}`",
            hint=f"end it in .{', .'.join(FORMATS)}",
        )
    return kind


def write_figure(figure: Any, path: str | Path, *, force: bool = False) -> None:
    """Write a figure as SVG, PNG or PDF, by the ending; without a date, so that it stays equal."""
    kind = figure_kind(path)
    data = BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    with settings():
        figure.savefig(data, format=kind, dpi=DPI, metadata=dates[kind])
    write_bytes(path, data.getvalue(), kind=kind, force=force)
