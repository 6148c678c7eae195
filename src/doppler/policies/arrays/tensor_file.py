"""Safetensors files: read as arrays, and with a checksum."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize

from doppler.base.files import is_pipe, read_bytes
from doppler.errors import CheckpointError, FormatError

Floats = npt.NDArray[np.float32]

CHECKSUM = "checksum"  # in the metadata
FLOAT = "F32"  # the dtype of all weights


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in a file."""

    dtype: str  # "F32" and so on
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The content of a safetensors file."""

    entries: Mapping[str, Entry]
    texts: Mapping[str, str]

    def metadata(self) -> dict[str, str]:
        """What the file says about itself."""
        return dict(self.texts)

    def floats(self, name: str) -> Floats:
        """A copy of a tensor of dtype F32."""
        entry = self.entries[name]
        return np.frombuffer(entry.data, "<f4").reshape(entry.shape).astype(np.float32)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise a `CheckpointError` if there is no file, or if reading it fails inside."""
    if not path.is_file() and not is_pipe(path):
        found = "is not a file" if path.exists() else "does not exist"
        raise CheckpointError(f"checkpoint `{path}` {found}", hint="check the path")
    try:
        yield
    except SafetensorError as error:
        raise CheckpointError(
            f"`{path}` is not a safetensors file, or not all of one: {error}",
            hint="was it cut off while it was written or copied? use an earlier checkpoint",
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"cannot read `{path}`: {error.strerror or error}", hint="may you read it?"
        ) from None


def read_tensor_file(path: Path, data: bytes | None = None) -> TensorFile:
    """The content of a file; a `CheckpointError` if there is none, or it is damaged.

    `data` are the file's bytes if they were read already: a pipe can be read only once.
    """
    with reading(path):
        try:
            data = read_bytes(path) if data is None else data
        except FormatError as error:
            raise CheckpointError(error.message, hint=error.hint or "may you read it?") from None
        tensors = deserialize(data)  # type: ignore[no-untyped-call]
        check_sum(data, path)
        entries = {
            name: Entry(tensor["dtype"], tuple(tensor["shape"]), bytes(tensor["data"]))
            for name, tensor in tensors
        }
        return TensorFile(entries, _texts(data))


def _texts(data: bytes) -> dict[str, str]:
    """The metadata of a file that is known to be valid; the library reads them only from a path."""
    length = int.from_bytes(data[:8], "little")
    try:
        return json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    except ValueError as error:  # an unknown key with a number that is too long for Python
        raise SafetensorError(f"its header cannot be read: {error}") from None


def with_checksum(data: bytes) -> bytes:
    """A safetensors file with its header sorted, and a checksum of the rest in its metadata.

    So the same tensors make the same file, and one that was damaged is noticed.
    """
    header, body = _parts(data)
    header.setdefault("__metadata__", {})[CHECKSUM] = _digest(header, body)
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)  # tensors stay aligned
    return len(text).to_bytes(8, "little") + text + body


def check_sum(data: bytes, path: Path) -> None:
    """Raise a `CheckpointError` where a valid file is not as it was written; old ones may be."""
    texts = _texts(data)
    if CHECKSUM in texts and texts[CHECKSUM] != _digest(*_parts(data)):
        raise CheckpointError(
            f"`{path}` is damaged: its checksum is not that of what is in it",
            hint="use an earlier checkpoint, or a copy",
        )


def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    start = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:start]), data[start:]


def _digest(header: dict[str, Any], body: bytes) -> str:
    texts = {k: v for k, v in header.get("__metadata__", {}).items() if k != CHECKSUM}
    sha = hashlib.sha256(json.dumps(header | {"__metadata__": texts}, sort_keys=True).encode())
    sha.update(body)
    return f"sha256:{sha.hexdigest()}"
