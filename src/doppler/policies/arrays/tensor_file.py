"""Reading safetensors files with nothing but numpy.

Eight bytes say how long the header is, little-endian. The header is a JSON object: for every tensor
its dtype, shape and where it begins and ends in what follows, and `__metadata__`, texts by name.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from doppler.base.files import is_pipe, read_bytes
from doppler.errors import CheckpointError

Floats = npt.NDArray[np.float32]

FLOAT = "F32"  # the dtype of all weights
MOST_HEADER_BYTES = 100_000_000  # as the safetensors library has it
MOST_AXES = 8


class _BrokenError(Exception):
    """What is wrong with the file."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor as the header describes it."""

    dtype: str  # "F32" and so on
    shape: tuple[int, ...]
    begin: int  # in bytes after the header
    end: int


@dataclass(frozen=True, slots=True)
class TensorFile:
    """An open file, its header read and found in order."""

    entries: Mapping[str, Entry]
    texts: Mapping[str, str]
    _file: IO[bytes]
    _start: int  # where the header ends

    def metadata(self) -> dict[str, str]:
        """What the file says about itself."""
        return dict(self.texts)

    def floats(self, name: str) -> Floats:
        """A tensor of dtype F32."""
        entry = self.entries[name]
        self._file.seek(self._start + entry.begin)
        data = self._file.read(entry.end - entry.begin)
        if entry.dtype != FLOAT or len(data) != 4 * math.prod(entry.shape):
            raise _BrokenError(f"tensor `{name}` is not what the header says")
        return np.frombuffer(data, "<f4").reshape(entry.shape).astype(np.float32)


@contextmanager
def reading(path: Path, broken: type[Exception]) -> Iterator[None]:
    """Turn what goes wrong inside into a `CheckpointError`; `broken` is about what is in the file.

    There must be a file.
    """
    if not path.is_file() and not is_pipe(path):
        found = "is not a file" if path.exists() else "does not exist"
        raise CheckpointError(f"checkpoint `{path}` {found}", hint="check the path")
    try:
        yield
    except broken as error:
        raise CheckpointError(
            f"`{path}` is not a safetensors file, or not all of one: {error}",
            hint="was it cut off while it was written or copied? use an earlier checkpoint",
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"cannot read `{path}`: {error.strerror or error}", hint="may you read it?"
        ) from None


@contextmanager
def opened(path: Path, data: bytes | None = None) -> Iterator[TensorFile]:
    """An open safetensors file; a `CheckpointError` where there is none, or a broken one.

    `data` is what is in it, where that was read already: a pipe can be read only once.
    """
    with reading(path, _BrokenError), _seekable(path, data) as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MOST_HEADER_BYTES):
            raise _BrokenError("its header is longer than the file, or than any header is")
        entries, texts = _parsed(file.read(length))
        _check_offsets(entries, size - 8 - length)
        yield TensorFile(entries, texts, file, 8 + length)


def _seekable(path: Path, data: bytes | None) -> IO[bytes]:
    if data is None and is_pipe(path):
        data = read_bytes(path)
    return path.open("rb") if data is None else BytesIO(data)


def _parsed(header: bytes) -> tuple[dict[str, Entry], dict[str, str]]:
    try:
        values = json.loads(header.decode(), object_pairs_hook=_distinct)
    except (ValueError, RecursionError):
        raise _BrokenError("its header is not JSON") from None
    if not isinstance(values, dict):
        raise _BrokenError("its header is not a JSON object")
    texts = values.pop("__metadata__", {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise _BrokenError("its metadata are not texts")
    return {name: _entry(name, value) for name, value in values.items()}, texts


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise _BrokenError("its header has a name twice")
    return values


def _entry(name: str, value: Any) -> Entry:
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end], **rest}:
            numbers = [*shape, begin, end]
            counts = all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
            if counts and begin <= end and len(shape) <= MOST_AXES and not rest:
                return Entry(dtype, tuple(shape), begin, end)
    raise _BrokenError(f"its header does not describe tensor `{name}`")


def _check_offsets(entries: Mapping[str, Entry], size: int) -> None:
    """Raise unless the tensors follow each other, without gaps, to the end of the file."""
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != at:
            raise _BrokenError(f"tensor `{name}` does not begin where the one before it ends")
        if entry.dtype == FLOAT and entry.end - at != 4 * math.prod(entry.shape):
            raise _BrokenError(f"tensor `{name}` has another size than its shape")
        at = entry.end
    if at != size:
        raise _BrokenError(f"it has {size} bytes of tensors, its header describes {at}")
