"""The file formats a graph can be read from: one file each, told apart by content."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from doppler.errors import FormatError, UnknownNameError
from doppler.files import read_head
from doppler.graph.graph import Graph

_MODULES = {  # name of a format: module with its FORMAT
    "doppler": "doppler.formats.doppler_json",
    "reference-text": "doppler.formats.reference_text",
}


@dataclass(frozen=True, slots=True)
class GraphFormat:
    """A way to write down a graph."""

    name: str
    description: str
    matches: Callable[[str], bool]  # whether a file that begins with this text is one
    read: Callable[[Path], Graph]


def graph_format(name: str) -> GraphFormat:
    """The format of that name."""
    if name not in _MODULES:
        raise UnknownNameError("format", name, _MODULES)
    found: GraphFormat = import_module(_MODULES[name]).FORMAT
    return found


def graph_formats() -> list[GraphFormat]:
    """All formats, in the order in which they are tried."""
    return [graph_format(name) for name in _MODULES]


def load_graph(path: str | Path, *, format_name: str | None = None) -> Graph:
    """The graph in a file of any known format; which one is told by its content."""
    path = Path(path)
    if format_name is not None:
        return graph_format(format_name).read(path)
    head = read_head(path)
    if not head.strip():
        raise FormatError(f"`{path}` is empty")
    for candidate in graph_formats():
        if candidate.matches(head):
            return candidate.read(path)
    raise FormatError(
        f"`{path}` is in no format known here: it begins {head.lstrip()[:40]!r}",
        hint=f"known formats: {', '.join(_MODULES)}; name one with --format",
    )
