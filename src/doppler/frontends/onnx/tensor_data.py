"""Weights: tensors of a model, in its file or in files beside it, read when they are needed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import FormatError, MissingExtraError, ModelError
from doppler.frontends.onnx.tensor_types import HANDED_OVER, TensorType, bits_of, is_element

_EXTERNAL = 1  # TensorProto.EXTERNAL
_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_PAIRS = (14, 15)  # complex numbers: two entries each


class Weight:
    """One tensor with values: a TensorProto, an array, or bytes in a file."""

    def __init__(self, name: str, kind: TensorType, source: Any, offset: int = 0) -> None:
        """`source` is a TensorProto, an array, or a path; then with an offset in that file."""
        self.name, self.type = name, kind
        self._source, self._offset = source, offset

    def array(self) -> Any:
        """The values in numpy; types that it lacks are those of ml_dtypes."""
        from onnx import numpy_helper

        if isinstance(self._source, np.ndarray):
            return self._source
        if isinstance(self._source, Path):
            if bits_of(self.type.element) < 8:
                return numpy_helper.to_array(self.proto())
            return self._mapped().view(_numpy_dtype(self.type.element)).reshape(self.type.shape)
        return numpy_helper.to_array(self._source)

    def proto(self) -> Any:
        """The values as a TensorProto, without a name."""
        from onnx import TensorProto, numpy_helper

        if isinstance(self._source, np.ndarray):
            found = numpy_helper.from_array(self._source)
        else:
            found = TensorProto(data_type=self.type.element, dims=self.type.shape)
            if isinstance(self._source, Path):
                found.raw_data = self._mapped().tobytes()
            else:
                found.CopyFrom(self._source)
        for field in ("name", "doc_string", "metadata_props"):
            found.ClearField(field)
        return found

    def tensor(self) -> Any:
        """The values as a tensor of torch."""
        if self.type.element not in HANDED_OVER:
            raise ModelError(
                f"weight `{self.name}` is of dtype {self.type.dtype}, which cannot be run with"
            )
        try:
            import torch
        except ImportError:
            raise MissingExtraError("torch", "weights for a run", extra="torch") from None
        whole = np.ascontiguousarray(self.array())
        if not whole.flags.writeable:
            whole = whole.copy()
        if not whole.size:
            return torch.empty(self.type.shape, dtype=getattr(torch, self.type.dtype))
        plain = torch.from_numpy(whole.reshape(-1).view(np.uint8))
        return plain.view(getattr(torch, self.type.dtype)).reshape(self.type.shape)

    def _mapped(self) -> Any:
        """The bytes in the file, as they are; changes stay in memory."""
        size = self.type.bytes
        if not size:
            return np.empty(0, np.uint8)
        return np.memmap(self._source, np.uint8, "c", offset=self._offset, shape=(size,))


def weight_of(tensor: Any, model: Path, where: str) -> Weight:
    """The weight that a TensorProto describes, of the model in a file."""
    name = f"{where} `{tensor.name[:80]}`"
    if not is_element(tensor.data_type):
        raise ModelError(f"{name} is of element type {tensor.data_type}, not of numbers")
    if any(size < 0 for size in tensor.dims):
        raise FormatError(f"{name} has a negative size: {list(tensor.dims)[:8]}")
    kind = TensorType(tensor.data_type, tuple(tensor.dims))
    if tensor.data_location == _EXTERNAL:
        path, offset = _external(tensor, kind, model, name)
        return Weight(tensor.name, kind, path, offset)
    if tensor.HasField("segment"):
        raise ModelError(f"{name} is cut into segments, which cannot be imported")
    if tensor.HasField("raw_data"):
        found, wanted = len(tensor.raw_data), kind.bytes
        what = "bytes"
    else:
        found = sum(len(getattr(tensor, field)) for field in _FIELDS)
        wanted = kind.size * (2 if kind.element in _PAIRS else 1)
        if bits_of(kind.element) < 8:
            wanted = kind.bytes
        what = "entries"
    if found != wanted:
        raise FormatError(
            f"{name} of shape {kind.shape} needs {wanted} {what} of {kind.dtype} and has {found}",
            hint="was the file cut off?",
        )
    return Weight(tensor.name, kind, tensor)


def check_inside(tensors: Iterable[Any], where: str) -> None:
    """Raise a `ModelError` if a tensor that is no initializer of the graph has external data."""
    for tensor in tensors:
        if tensor.data_location == _EXTERNAL:
            raise ModelError(f"{where}: tensor `{tensor.name[:80]}` has its data in another file")


def external_paths(initializers: Iterable[Any], model: Path) -> list[tuple[str, Path]]:
    """The files that initializers are in beside the model's own, by their locations, in order."""
    found = {}
    for tensor in initializers:
        if tensor.data_location == _EXTERNAL:
            location = _entries(tensor).get("location", "")
            found[location] = _inside(location, model, f"initializer `{tensor.name[:80]}`")
    return sorted(found.items())


def _external(tensor: Any, kind: TensorType, model: Path, name: str) -> tuple[Path, int]:
    """Where in which file the data of a tensor begins."""
    entries = _entries(tensor)
    path = _inside(entries.get("location", ""), model, name)
    numbers = []
    for key, default in (("offset", "0"), ("length", str(kind.bytes))):
        text = entries.get(key, default)
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise FormatError(f"{name}: external data has the {key} {text[:40]!r}")
        numbers.append(int(text))
    offset, length = numbers
    if length != kind.bytes:
        raise FormatError(
            f"{name} of shape {kind.shape} needs {kind.bytes} bytes of {kind.dtype}, and {length} "
            "are given in its external data"
        )
    if offset + length > path.stat().st_size:
        raise FormatError(
            f"{name}: `{path}` has {path.stat().st_size} bytes, and {length} are needed from byte "
            f"{offset} on",
            hint="was that file cut off?",
        )
    return path, offset


def _entries(tensor: Any) -> dict[str, str]:
    return {each.key: each.value for each in tensor.external_data}


def _inside(location: str, model: Path, name: str) -> Path:
    """A file beside the model, links followed: below the model's folder, or, where the model is a
    link itself, as in a cache, below the folder that it leads to.
    """
    given = Path(location)
    if not location or "\0" in location or given.is_absolute() or ".." in given.parts:
        raise FormatError(
            f"{name} has its data in `{location[:200]}`, which is no path below the model's folder"
        )
    try:
        path = (model.parent / given).resolve()
        roots = (model.parent.resolve(), model.resolve().parent)
        if not any(path.is_relative_to(root) for root in roots):
            raise FormatError(
                f"{name} has its data in `{location[:200]}`, a link that leaves the model's folder"
            )
        if not path.is_file():
            raise FormatError(
                f"{name} has its data in `{model.parent / given}`, and there is no such file",
                hint="external data must lie beside the model",
            )
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{name}: cannot read `{location[:200]}`: {error}") from None
    return path


def _numpy_dtype(element: int) -> Any:
    from onnx import helper

    return np.dtype(helper.tensor_dtype_to_np_dtype(element))
