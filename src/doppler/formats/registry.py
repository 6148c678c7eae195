"""The file formats a graph can be read from: one file each, recognised by content."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from doppler.base.files import read_text, source_name, title_of
from doppler.errors import ConfigError, FormatError, UnknownNameError
from doppler.graph.graph import Graph

_MODULES = {  # name of a format: module with its FORMAT; the more particular come first
    "wfformat": "doppler.formats.wfformat",
    "doppler": "doppler.formats.doppler_json",
    "stg": "doppler.formats.stg",
    "reference-text": "doppler.formats.reference_text",
    "dot": "doppler.formats.dot",
}


@dataclass(frozen=True, slots=True)
class GraphFormat:
    """A way to write down a graph."""

    name: str
    description: str
    matches: Callable[[str], bool]  # whether a text is one
    read: Callable[[str, str, str], Graph]  # of a text, what errors call it, and a name for it
    write: Callable[[Graph], str] | None = None  # None where graphs cannot be written in it


def graph_format(name: str) -> GraphFormat:
    """The format of that name."""
    if name not in _MODULES:
        raise UnknownNameError("format", name, _MODULES)
    found: GraphFormat = import_module(_MODULES[name]).FORMAT
    return found


def graph_to_text(graph: Graph, format_name: str) -> str:
    """The text of a graph in a format; what the format has no place for is left out.

    >>> import doppler as dp
    >>> graph = dp.from_networkx(__import__("networkx").DiGraph([("load", "train")]))
    >>> print(graph_to_text(graph, "dot").splitlines()[1].strip())
    "load" [kind="unknown"]
    """
    found = graph_format(format_name)
    if found.write is None:
        known = ", ".join(each.name for each in graph_formats() if each.write is not None)
        raise ConfigError(
            f"graphs cannot be written in the format `{format_name}`", hint=f"known: {known}"
        )
    return found.write(graph)


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
