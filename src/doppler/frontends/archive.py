"""Files of exported programs (.pt2): read without running anything that is in them.

`torch.export.load` unpickles parts of some archives, and a pickle can run code. So an archive is
read only if it is of plain parts: tensors as bytes, the program as JSON, and the sample inputs,
which torch loads with its restricted unpickler.
"""

import ast
import json
import logging
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from doppler.base.files import source_name, title_of
from doppler.errors import DopplerError, FormatError
from doppler.frontends.coarsen import PIECES, check_coarsening
from doppler.frontends.lifting.cut_rules import PAPER, choose_cuts
from doppler.frontends.model_files import grain_of, seen_from, sha256_of, why
from doppler.frontends.torch_export import check_parts, from_functional, make_functional
from doppler.frontends.torch_model import TorchModel

PT2 = "pt2"  # format, in the provenance of a graph
LIBRARY = f"torch ({torch.__version__})"
_PART = re.compile(
    r"[^/]+/(archive_format|archive_version|byteorder|version|\.data/[\w.]+|models/model\.json"
    r"|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt|extra/[^/]+)"
)
_EXPRESSIONS = (
    *(ast.Expression, ast.Call, ast.Name, ast.Constant, ast.keyword, ast.Load, ast.UnaryOp),
    *(ast.BinOp, ast.Compare, ast.unaryop, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv),
    *(ast.Mod, ast.cmpop),
)
_MAX_PROGRAM_BYTES = 1 << 29
_SAFE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def read_model(
    path: str | Path,
    *,
    coarsen: str | int = PIECES,
    parts: int | None = None,
    method: str = PAPER,
    folder: str | Path = "",
) -> TorchModel:
    """The model in a .pt2 file, its graph with a reference to the file as seen from a folder."""
    cut = choose_cuts(method)
    source, digest = source_name(path), digest_of(path)
    program = read_program(path)
    provenance = {"format": PT2, "file": seen_from(folder, path), "sha256": digest}
    provenance["coarsen"] = str(coarsen)
    if parts is not None:
        provenance |= {"parts": str(parts), "method": method}
    try:
        check_coarsening(coarsen)
        check_parts(parts)
        program = make_functional(program)
        return from_functional(
            program,
            coarsen=coarsen,
            parts=parts,
            method=cut,
            name=title_of(path),
            provenance=provenance,
        )
    except DopplerError as error:
        raise type(error)(f"{source}: {error.message}", hint=error.hint) from error
    except Exception as error:  # a program that was not written by torch may cause anything
        raise FormatError(
            f"{source} holds no program that can be imported: {why(error)}"
        ) from error


def read_again(path: Path, provenance: Mapping[str, str]) -> TorchModel:
    """The model in a file, as it was imported when a graph with this provenance was made."""
    parts = provenance.get("parts", "")
    count = int(parts) if parts.isdecimal() and len(parts) < 9 else None
    method = provenance.get("method", PAPER)
    return read_model(path, coarsen=grain_of(provenance), parts=count, method=method)


def digest_of(path: str | Path) -> str:
    """The SHA-256 of a file."""
    return sha256_of(path)


def read_program(path: str | Path) -> ExportedProgram:
    """The exported program in a .pt2 file."""
    source = source_name(path)
    _check_parts(path, source)
    with _safely(), torch.no_grad():
        try:
            return torch.export.load(path)
        except Exception as error:  # as above
            raise FormatError(
                f"{source} cannot be loaded: {why(error)}",
                hint="an operation or a structure that torch does not know is in a module that "
                "--import can name; else export the model again with this version of torch",
            ) from error


def _check_parts(path: str | Path, source: str) -> None:
    """Raise a `FormatError` unless a file is an archive of plain parts, none of them a bomb."""
    try:
        size = Path(path).stat().st_size
        with Path(path).open("rb") as file:
            begin = file.read(2)
        if begin[:1] == b"\x80":
            raise _pickled(source)
        with zipfile.ZipFile(path) as archive:
            _check_entries(archive, size, source)
            for kind in ("weights", "constants"):
                _check_payloads(archive, kind, source)
            _check_program(archive, source)
            if broken := archive.testzip():
                raise FormatError(f"{source} is corrupt: `{broken}` is not what was written")
    except FileNotFoundError:
        raise FormatError(f"no file {source}", hint="check the path") from None
    except OSError as error:
        raise FormatError(f"cannot read {source}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, DopplerError):
            raise
        raise FormatError(
            f"{source} is no .pt2 file, or was cut off: {why(error)}",
            hint="write one with torch.export.save(torch.export.export(module, args), path)",
        ) from None


def _check_entries(archive: zipfile.ZipFile, size: int, source: str) -> None:
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if any(name.endswith(("data.pkl", "constants.pkl")) for name in names):
        raise _pickled(source)
    if sum(entry.file_size for entry in entries) > size:
        raise FormatError(
            f"{source} is compressed, or its parts overlap, which those of a .pt2 file never do",
            hint="write it with torch.export.save",
        )
    if strange := next((name for name in names if not _PART.fullmatch(name)), None):
        raise FormatError(
            f"{source} has the part `{strange[:80]}`, which is no plain part of a .pt2 file",
            hint="pickled objects and compiled code are not loaded, since they can run anything",
        )


def _check_payloads(archive: zipfile.ZipFile, kind: str, source: str) -> None:
    """Raise if a tensor is pickled, or is none at all."""
    found = _document(archive, f"data/{kind}/model_{kind}_config.json", source)
    entries = found.get("config", {})
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if not isinstance(entry, dict) or entry.get("use_pickle"):
            raise FormatError(
                f"{source}: `{name[:80]}` is pickled, and so is not loaded: it could run code",
                hint="only plain tensors are; export a model without custom objects",
            )


def _check_program(archive: zipfile.ZipFile, source: str) -> None:
    """Raise if an expression of a size is more than one: torch evaluates it."""
    pending: list[Any] = [_document(archive, "models/model.json", source)]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            text = value.get("expr_str", "0")
            if not isinstance(text, str) or not _is_expression(text):
                raise FormatError(f"{source} has a size that is no expression: {text!r:.80}")
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _is_expression(text: str) -> bool:
    """Whether a text is an expression of sizes: `LessThan(Symbol('s0', integer=True), Integer(8))`.

    It calls nothing but what is named like a class of sympy: `Symbol`, `FloorDiv`, `Max`.
    """
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(
        isinstance(node, _EXPRESSIONS)
        and (not isinstance(node, ast.Call) or _names(node.func, r"[A-Z]\w*"))
        and (not isinstance(node, ast.Name) or _names(node, r"[A-Za-z]\w*"))
        and (not isinstance(node, ast.Constant) or re.fullmatch(r"[\w.-]*", str(node.value)))
        for node in nodes
    )


def _names(node: ast.expr, pattern: str) -> bool:
    return isinstance(node, ast.Name) and re.fullmatch(pattern, node.id) is not None


def _document(archive: zipfile.ZipFile, part: str, source: str) -> dict[str, Any]:
    names = [name for name in archive.namelist() if name.partition("/")[2] == part]
    if len(names) != 1:
        raise FormatError(
            f"{source} is no .pt2 file: it has {len(names)} parts `{part}`",
            hint="write one with torch.export.save(torch.export.export(module, args), path)",
        )
    if archive.getinfo(names[0]).file_size > _MAX_PROGRAM_BYTES:
        raise FormatError(f"{source}: `{part}` is larger than {_MAX_PROGRAM_BYTES >> 20} MiB")
    try:
        found = json.loads(archive.read(names[0]))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{source}: `{part}` is not JSON: {why(error)}") from None
    if not isinstance(found, dict):
        raise FormatError(f"{source}: `{part}` holds no object")
    return found


def _pickled(source: str) -> FormatError:
    return FormatError(
        f"{source} is a pickle, as torch.save writes: it is not loaded, since it could run code",
        hint="export the module and save that: torch.export.save(torch.export.export(module, "
        "args), 'model.pt2')",
    )


@contextmanager
def _safely() -> Iterator[None]:
    """Torch unpickles only tensors and plain containers, and says nothing about what fails."""
    before, loggers = os.environ.get(_SAFE), [logging.getLogger("torch")]
    levels = [each.level for each in loggers]
    os.environ[_SAFE] = "1"
    try:
        for each in loggers:
            each.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
        if before is None:
            del os.environ[_SAFE]
        else:
            os.environ[_SAFE] = before
