"""Reading safetensors files as arrays."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, deserialize

from doppler.base.files import is_pipe, read_bytes
from doppler.errors import CheckpointError, FormatError

Floats = npt.NDArray[np.float32]

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
