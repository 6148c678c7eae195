"""Reading and writing files: bounded and decoded on the way in, atomic on the way out."""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from doppler.errors import FormatError

MAX_BYTES = 1 << 29  # a graph of 10^6 vertices takes about 150 MB
SNIFF_BYTES = 1 << 16
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # halves of pairs parse, but are not text


def read_text(path: Path) -> str:
    """The text of a file; `FormatError` where it is missing, huge, binary or not UTF-8."""
    with opened(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise FormatError(
            f"`{path}` is larger than {MAX_BYTES >> 20} MiB",
            hint="is this the right file? no graph, topology or trace is that large",
        )
    if not data.strip():
        raise FormatError(f"`{path}` is empty")
    return decode(data, path)


def read_head(path: Path) -> str:
    """The first 64 KiB of a file as text, to tell its format by."""
    with opened(path) as file:
        data = file.read(SNIFF_BYTES)
    return decode(data, path, partial=len(data) == SNIFF_BYTES)


def decode(data: bytes, path: Path, *, partial: bool = False) -> str:
    """The UTF-8 text of `data`; a character cut at the end is forgiven when `partial`."""
    if b"\0" in data[:SNIFF_BYTES]:
        raise FormatError(f"`{path}` is a binary file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if partial and error.end >= len(data) - 3:
            return data[: error.start].decode("utf-8-sig")
        raise FormatError(f"`{path}` is not UTF-8 text (byte {error.start})") from None


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """An open file, or a `FormatError` that says why there is none."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise FormatError(f"no file `{path}`", hint="check the path") from None
    except OSError as error:
        raise FormatError(f"cannot read `{path}`: {error.strerror}") from None


def parse_json(text: str, source: str) -> Any:
    """The value a JSON text holds; `source` names it in errors."""
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise FormatError(
            f"{source} is not valid JSON: half of a surrogate pair, such as \\ud800"
        ) from None
    except json.JSONDecodeError as error:
        raise FormatError(
            f"{source} is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})",
            hint="was the file cut off while it was written?",
        ) from None
    except (RecursionError, ValueError) as error:
        raise FormatError(f"{source} is not valid JSON: {error}") from None
    return value


def check_header(document: Any, *, format_name: str, version: int, source: str) -> None:
    """Raise unless `document` is an object of this format and version."""
    if not isinstance(document, dict):
        raise FormatError(f"{source} holds a JSON {type(document).__name__}, not an object")
    if document.get("format") != format_name:
        raise FormatError(
            f"{source}: `format` is {document.get('format')!r}, expected {format_name!r}"
        )
    if document.get("version") != version or isinstance(document.get("version"), bool):
        raise FormatError(
            f"{source}: `version` is {document.get('version')!r}, this reader knows {version}",
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


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: to a temporary name first, then renamed."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise FormatError(
            f"cannot write `{path}`: {error.strerror}",
            hint="does the folder exist, and may you write there?",
        ) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise FormatError(f"cannot write `{path}`: {error.strerror}") from None
        raise


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
    return "{" + ",\n ".join(lines) + "}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
