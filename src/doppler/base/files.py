"""Reading files: bounded, decoded, and each read once, so that a pipe will do."""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppler.base.text import json_visible
from doppler.errors import FormatError

STANDARD_STREAM = "-"  # as a path: the standard input, or the standard output

MAX_BYTES = 1 << 29  # a graph of 10^6 vertices takes about 150 MB
SNIFF_BYTES = 1 << 16
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # halves of pairs parse, but are not text


def source_name(path: str | Path) -> str:
    """What errors call a file."""
    return "the standard input" if str(path) == STANDARD_STREAM else f"`{path}`"


def title_of(path: str | Path) -> str:
    """A name for what is in a file: the file's own, without its ending.

    Bytes in it that are not UTF-8, which no file could hold as text, are written as escapes.
    """
    if str(path) == STANDARD_STREAM:
        return "graph"
    return os.fsencode(Path(path).stem).decode("utf-8", "backslashreplace")


def is_pipe(path: str | Path) -> bool:
    """Whether a path is `-` or a FIFO, such as `<(…)` in a shell: what can be read only once."""
    return str(path) == STANDARD_STREAM or Path(path).is_fifo()


def read_text(path: str | Path) -> str:
    """The text of a file; `FormatError` where it is missing, huge, empty, binary or not UTF-8."""
    return decoded(read_bytes(path), path)


def decoded(data: bytes, path: str | Path) -> str:
    """The text of the bytes of a file; `FormatError` where it is empty, binary or not UTF-8."""
    source = source_name(path)
    if not data.strip():
        twice = "is it named twice?" if str(path) == STANDARD_STREAM else None
        raise FormatError(f"{source} is empty", hint=twice)
    if b"\0" in data[:SNIFF_BYTES]:
        is_model = Path(path).suffix in (".onnx", ".pt2")
        hint = "make a graph of the model first: dop import" if is_model else None
        raise FormatError(f"{source} is a binary file", hint=hint)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{source} is not UTF-8 text (byte {error.start})") from None


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file, or of the standard input for `-`; a `FormatError` that says why not."""
    source = source_name(path)
    try:
        if str(path) == STANDARD_STREAM:
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise FormatError(f"no file {source}", hint="check the path") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FormatError(f"cannot read {source}: {why}") from None
    if len(data) > MAX_BYTES:
        raise FormatError(
            f"{source} is larger than {MAX_BYTES >> 20} MiB",
            hint="is this the right file? no graph, topology or trace is that large",
        )
    return data


def parse_json(text: str, source: str) -> Any:
    """The value a JSON text holds; `source` names it in errors."""
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise FormatError(f"{source} is not valid JSON: half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise FormatError(
            f"{source} is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})",
            hint="was the file cut off while it was written?",
        ) from None
    except (RecursionError, ValueError) as error:
        raise FormatError(f"{source} is not valid JSON: {error}") from None
    return value


def check_header(
    document: Any, *, format_name: str, version: int | tuple[int, ...], source: str
) -> None:
    """Raise unless `document` is an object of this format and version, or one of these."""
    versions = version if isinstance(version, tuple) else (version,)
    if not isinstance(document, dict):
        raise FormatError(f"{source} holds a JSON {type(document).__name__}, not an object")
    if document.get("format") != format_name:
        raise FormatError(
            f"{source}: `format` is {document.get('format')!r}, expected {format_name!r}"
        )
    found = document.get("version")
    if type(found) is not int or found not in versions:
        known = " and ".join(map(str, versions))
        raise FormatError(
            f"{source}: `version` is {found!r}, this reader knows {known}",
            hint="a newer version of doppler may have written it",
        )


def check_keys(
    table: Any, *, required: tuple[str, ...] = (), optional: tuple[str, ...] = (), source: str
) -> None:
    """Raise unless `table` is an object with the required keys and no unknown ones."""
    if not isinstance(table, dict):
        raise FormatError(f"{source} must be an object, not {type(table).__name__}")
    for key in table:
        if key not in required and key not in optional:
            known = ", ".join((*required, *optional))
            raise FormatError(f"{source}: unknown key `{key}`", hint=f"known keys: {known}")
    for key in required:
        if key not in table:
            raise FormatError(f"{source}: key `{key}` is missing")


def to_json(document: Mapping[str, Any]) -> str:
    """JSON text with one line per entry of the two outer levels: columns stay readable."""
    lines = []
    for key, value in document.items():
        if isinstance(value, dict) and value:
            inner = ",\n  ".join(f"{json.dumps(k)}: {_compact(v)}" for k, v in value.items())
            lines.append(f"{json.dumps(key)}: {{\n  {inner}}}")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n  ".join(_compact(row) for row in value)
            lines.append(f"{json.dumps(key)}: [\n  {rows}]")
        else:
            lines.append(f"{json.dumps(key)}: {_compact(value)}")
    return json_visible("{" + ",\n ".join(lines) + "}\n")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
