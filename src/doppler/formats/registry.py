"""The file formats a graph can be read from: one file each, recognised by content."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from doppler.base.files import read_text, source_name, title_of
from doppler.errors import FormatError, UnknownNameError
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
    matches: Callable[[str], bool]  # whether a text is one
    read: Callable[[str, str, str], Graph]  # of a text, what errors call it, and a name for it


def graph_format(name: str) -> GraphFormat:
    """The format of that name."""
    if name not in _MODULES:
        raise UnknownNameError("format", name, _MODULES)
    found: GraphFormat = import_module(_MODULES[name]).FORMAT
    return found


def graph_formats() -> list[GraphFormat]:
    """All formats, in the order in which they are tried."""
    return [graph_format(name) for name in _MODULES]


def read_graph(path: str | Path, *, format_name: str | None = None) -> Graph:
    """The graph in a file of any known format; which one is recognised by its content.

    >>> import doppler as dp
    >>> dp.write_graph(dp.programs.random_dag(vertices=4, depth=2), "graph.json")
    >>> len(dp.read_graph("graph.json").assigned)
    4
    """
    text = read_text(path)
    return graph_from_text(text, source_name(path), title_of(path), format_name=format_name)


def graph_from_text(
    text: str, source: str, name: str = "graph", *, format_name: str | None = None
) -> Graph:
    """The graph in a text of any known format; `source` is what errors call the text.

    `name` becomes the graph's name where the format has none.
    """
    if format_name is not None:
        return graph_format(format_name).read(text, source, name)
    for candidate in graph_formats():
        if candidate.matches(text):
            return candidate.read(text, source, name)
    raise FormatError(
        f"{source} is in no format known here: it begins {text.lstrip()[:40]!r}",
        hint=f"known formats: {', '.join(_MODULES)}; name one with --format",
    )
