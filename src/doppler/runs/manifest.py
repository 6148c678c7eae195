"""Manifest: what a run trains, and where it comes from: config.json, graphs and topologies."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

from doppler.base.files import check_header, check_keys, parse_json, read_text
from doppler.base.writing import sync_folder, write_text
from doppler.datasets import DrawnProblem
from doppler.datasets.recipe import Recipe, recipe_from, recipe_to
from doppler.errors import ConfigError, FormatError
from doppler.formats import read_graph
from doppler.graph.graph import Graph
from doppler.graph.io import write_graph
from doppler.topology.io import topology_to_json, write_topology
from doppler.topology.presets import read_topology
from doppler.topology.topology import Topology
from doppler.training.config import TrainConfig
from doppler.training.config_io import config_from, config_to

FORMAT, VERSION = "doppler-run", 1
FILE = "config.json"
GRAPHS, TOPOLOGIES = "graphs", "topologies"
RECIPE, EXTENSIONS = "recipe", "extensions"
MAX_NAME = 80  # characters of a file's name

Named = TypeVar("Named", Graph, Topology)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that a run was started with.

    Every graph is trained on every topology; or a recipe draws problems, which are not copied.
    """

    config: TrainConfig
    graphs: tuple[Graph, ...] = ()  # no two of one name
    topologies: tuple[Topology, ...] = ()
    recipe: Recipe | None = None  # of a pretraining, with its digest
    problems: tuple[DrawnProblem, ...] = ()  # that it draws
    command: str = ""  # that started it
    parent: Mapping[str, Any] | None = None  # where the policy came from that it started with
    extensions: tuple[Mapping[str, Any], ...] = ()  # of the config, each as `extended` notes it
    run_id: str = field(default_factory=lambda: token_hex(8))

    @property
    def pairs(self) -> list[tuple[Graph, Topology]]:
        """What the policy is trained on."""
        if self.recipe is not None:
            return [(problem.graph, problem.topology) for problem in self.problems]
        return list(product(self.graphs, self.topologies))

    def files(self) -> dict[str, list[str]]:
        """Where the copies of graphs and topologies are, within the run's directory."""
        names = {
            GRAPHS: [graph.name for graph in self.graphs],
            TOPOLOGIES: [topology.name for topology in self.topologies],
        }
        return {
            key: [f"{key}/{name}.json" for name in file_names(own)] for key, own in names.items()
        }

    def extended(self, config: TrainConfig, *, steps: int, command: str) -> "Manifest":
        """The same with a config that trains for longer; what it was, and when, is noted.

        `steps` updates were made with the config that this one has.
        """
        stage = self.config.stages[-1]
        before = {"seconds": self.config.seconds, "episodes": getattr(self.config, stage).episodes}
        note = {"command": command, "steps": steps, "before": before}
        return replace(self, config=config, extensions=(*self.extensions, note))

    def provenance(self) -> dict[str, Any]:
        """JSON values: where a policy of this run comes from."""
        from doppler import __version__

        values = {
            "doppler": __version__,
            "run": self.run_id,
            "command": self.command,
            "parent": None if self.parent is None else dict(self.parent),
            "graphs": [{"name": g.name, "digest": g.digest()} for g in self.graphs],
            "topologies": [{"name": t.name, "digest": _digest(t)} for t in self.topologies],
        }
        if self.extensions:
            values[EXTENSIONS] = [dict(note) for note in self.extensions]
        return values if self.recipe is None else values | {RECIPE: recipe_to(self.recipe)}


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write copies of graphs and topologies, then config.json: a folder with that is a run."""
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION} | manifest.provenance()
    for key, files in manifest.files().items():
        if files:
            (folder / key).mkdir(exist_ok=True)
        for row, file in zip(document[key], files, strict=True):
            row["file"] = file
    for graph, file in zip(manifest.graphs, manifest.files()[GRAPHS], strict=True):
        write_graph(graph, folder / file)
    for topology, file in zip(manifest.topologies, manifest.files()[TOPOLOGIES], strict=True):
        write_topology(topology, folder / file)
    for key in (GRAPHS, TOPOLOGIES):
        sync_folder(folder / key)
    document["config"] = config_to(manifest.config)
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(folder / FILE, text + "\n", durable=True)


def read_manifest(folder: Path) -> Manifest:
    """What the run in a folder was started with."""
    source = f"`{folder / FILE}`"
    document = parse_json(read_text(folder / FILE), source)
    check_header(document, format_name=FORMAT, version=VERSION, source=source)
    keys = ("doppler", "run", "command", "parent", GRAPHS, TOPOLOGIES, "config")
    required = ("format", "version", *keys)
    check_keys(document, required=required, optional=(RECIPE, EXTENSIONS), source=source)
    config = document["config"]
    if not isinstance(config, dict):
        raise FormatError(f"{source}: `config` must be an object")
    graphs = tuple(read_graph(folder / row["file"]) for row in _rows(document, GRAPHS, source))
    for graph, row in zip(graphs, document[GRAPHS], strict=True):
        if row.get("digest") != graph.digest():
            raise FormatError(
                f"`{folder / row['file']}` is not the graph that the run was started with",
                hint="put that one back, or start a new run with --from",
            )
    rows = _rows(document, TOPOLOGIES, source)
    topologies = tuple(read_topology(folder / row["file"]) for row in rows)
    for topology, row in zip(topologies, rows, strict=True):
        if row.get("digest") != _digest(topology):
            raise FormatError(
                f"`{folder / row['file']}` is not the topology that the run was started with",
                hint="put that one back, or start a new run with --from",
            )
    extensions = document.get(EXTENSIONS, [])
    if not isinstance(extensions, list) or not all(isinstance(note, dict) for note in extensions):
        raise FormatError(f"{source}: `{EXTENSIONS}` must be a list of objects")
    recipe = recipe_from(document[RECIPE], source) if RECIPE in document else None
    return Manifest(
        config=config_from(config, TrainConfig(), source=source),
        graphs=graphs,
        topologies=topologies,
        recipe=recipe,
        problems=() if recipe is None else recipe.draw_again(),
        command=str(document["command"]),
        parent=document["parent"] if isinstance(document["parent"], dict) else None,
        extensions=tuple(extensions),
        run_id=str(document["run"]),
    )


def _digest(topology: Topology) -> str:
    """`sha256:…` of all that a topology's file says."""
    return f"sha256:{hashlib.sha256(topology_to_json(topology).encode()).hexdigest()}"


def check_run(folder: Path) -> None:
    """Raise unless a folder is that of a run."""
    if not (folder / FILE).is_file():
        raise ConfigError(
            f"`{folder}` is not a training run: it has no {FILE}",
            hint="leave out --resume to start one",
        )


def is_pretraining(folder: Path) -> bool:
    """Whether a folder is that of a run that draws its problems."""
    try:
        document = json.loads((folder / FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and RECIPE in document


def distinct(values: Sequence[Named]) -> tuple[Named, ...]:
    """Graphs or topologies with names of their own: the second `x` becomes `x-2`."""
    names = _numbered([value.name for value in values])
    return tuple(
        value if value.name == name else replace(value, name=name)
        for value, name in zip(values, names, strict=True)
    )


def file_names(names: Sequence[str]) -> list[str]:
    """A file name for each, without an extension; no two the same."""
    return _numbered([re.sub(r"[^\w.@+-]+", "-", name)[:MAX_NAME].strip("-.") for name in names])


def _numbered(names: Sequence[str]) -> list[str]:
    """The names, numbered from the second of each on; some systems take `a` and `A` for one."""
    result: list[str] = []
    taken: set[str] = set()
    for name in names:
        number, own = 1, name or "unnamed"
        while own.casefold() in taken:
            number += 1
            own = f"{name}-{number}"
        taken.add(own.casefold())
        result.append(own)
    return result


def _rows(document: dict[str, Any], key: str, source: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = document[key]
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and isinstance(row.get("file"), str) for row in rows
    ):
        raise FormatError(f"{source}: `{key}` must be a list of objects with a `file`")
    return rows
