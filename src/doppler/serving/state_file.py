"""The state of an online placer as a file."""

from pathlib import Path

from doppler.assignment import Assignment
from doppler.base.files import check_header, check_keys, parse_json, read_text, to_json
from doppler.base.writing import write_text
from doppler.errors import ConfigError, DopplerError, FormatError
from doppler.graph.graph import Graph
from doppler.serving.exploration import Exploration
from doppler.topology.topology import Topology

FORMAT, VERSION = "doppler-online", 1


def write_state(path: Path, graph: Graph, topology: Topology, exploration: Exploration) -> None:
    """Write a `doppler-online` file, whole or not at all."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "graph": graph.digest(),
        "topology": topology.name,
        "exploration": exploration.state(),
    }
    write_text(path, to_json(document), kind=FORMAT, durable=True)


def read_state(path: Path, graph: Graph, topology: Topology, exploration: Exploration) -> None:
    """Let an exploration resume where a `doppler-online` file was written."""
    source = f"`{path}`"
    document = parse_json(read_text(path), source)
    check_header(document, format_name=FORMAT, version=VERSION, source=source)
    keys = ("format", "version", "graph", "topology", "exploration")
    check_keys(document, required=keys, source=source)
    if document["graph"] != graph.digest():
        raise ConfigError(
            f"{source} is of another graph than `{graph.name}`",
            hint="give each graph a state of its own",
        )
    try:
        exploration.load_state(document["exploration"])
        incumbent = exploration.incumbent
        rows = [incumbent.first, incumbent.challenger, *exploration.queue]
        for row in [exploration.devices, *rows]:
            if row is not None:
                Assignment(row).check(graph, topology)
    except (DopplerError, LookupError, TypeError, ValueError) as error:
        reason = error.message if isinstance(error, DopplerError) else error
        raise FormatError(
            f"{source} does not fit: {reason}", hint="remove it to start again"
        ) from None
