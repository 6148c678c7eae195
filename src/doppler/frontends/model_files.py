"""Files of models: recognised by their bytes, and found again by a graph that was made from one."""

import hashlib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from doppler.base.files import source_name
from doppler.errors import ConfigError, FormatError, ModelError
from doppler.graph.graph import Graph
from doppler.sharding.evaluate import kernel_of, output_of

READERS = {  # format, in the provenance of a graph: module with `digest_of` and `read_again`
    "pt2": "doppler.frontends.archive",
    "onnx": "doppler.frontends.onnx.onnx_import",
}


class ImportedModel(Protocol):
    """A model as a graph, and its weights."""

    @property
    def graph(self) -> Graph:
        """What the model computes."""

    @property
    def weights(self) -> Mapping[str, Any]:
        """Tensors by the names of resident inputs."""


def model_inputs(
    graph: Graph, folder: Path | None, given: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Inputs of an imported graph: the weights of its model, those given, and random ones.

    The model's file is as seen from `folder`, and must not have changed; without a folder, weights
    are random too. None for a graph that was not imported, if no inputs are given.
    """
    provenance = graph.provenance
    if provenance.get("format") not in READERS:
        return None if given is None else dict(given)
    if folder is None:
        return {**_random(graph), **(given or {})}
    path, reader = folder / provenance.get("file", ""), READERS[provenance["format"]]
    module = importlib.import_module(reader)
    if module.digest_of(path) != provenance.get("sha256"):
        raise ModelError(
            f"{source_name(path)} has changed since graph `{graph.name}` was made from it",
            hint="import it again, or run with --random-weights",
        )
    model: ImportedModel = module.read_again(path, provenance)
    if model.graph.digest() != graph.digest():
        raise ModelError(
            f"graph `{graph.name}` is not what {source_name(path)} gives with this version of "
            f"{module.LIBRARY}",
            hint="import it again",
        )
    return {**_random(graph), **model.weights, **(given or {})}


def import_modules(names: Sequence[str]) -> None:
    """Import modules by name, those in the current folder too; a `ConfigError` where one fails."""
    here = str(Path.cwd())
    if names and "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # what a module raises may be anything
            raise ConfigError(f"module `{name}` cannot be imported: {why(error)}") from error


def grain_of(provenance: Mapping[str, str]) -> str | int:
    """How a graph was coarsened."""
    coarsen = provenance.get("coarsen", "pieces")
    return int(coarsen) if coarsen.isdecimal() else coarsen


def seen_from(folder: str | Path, path: str | Path) -> str:
    """A path relative to a folder, as a text that a graph's file can hold."""
    try:
        found = os.path.relpath(path, folder or ".")
    except ValueError:  # another drive
        found = str(path)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise FormatError(
            f"{source_name(path)} has a name that is not UTF-8, so no graph can refer to it",
            hint="rename the file, or its folder",
        ) from None
    return found


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a regular file, in hexadecimal."""
    if Path(path).exists() and not Path(path).is_file():
        raise FormatError(f"{source_name(path)} is no regular file")
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise FormatError(f"no file {source_name(path)}", hint="check the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"cannot read {source_name(path)}: {reason}") from None


def why(error: BaseException) -> str:
    """What another library's exception says, in a line."""
    first = (str(error).strip() or "no reason given").split("\n")[0]
    return f"{type(error).__name__}: {first[:200]}"


def _random(graph: Graph) -> dict[str, Any]:
    from doppler.engine.loaded import random_blocks

    blocks, inputs = random_blocks(graph), np.flatnonzero(graph.is_input).tolist()
    return {graph.meta_ops[v]: blocks[output_of(graph, v)] for v in inputs if kernel_of(graph, v)}
