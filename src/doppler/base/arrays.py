"""Array helpers shared by the value types: read-only arrays and CSR indices."""

from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# What the numbers of graphs and topologies may be, other than 0. Sums of them over a graph of any
# size, quotients of any two, such as flops over a rate, and sums and quotients of these are then
# far from the 1.8e308 at which a float64 becomes infinite. No machine needs others: 1e30 seconds
# are 3e22 years.
SMALLEST, LARGEST, RANGE = 1e-30, 1e30, "between 1e-30 and 1e30"
CACHE_LINE = 64  # bytes, of every x86 and most ARM processors


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only, contiguous array with the same values."""
    if array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
        array.setflags(write=False)
    return array


def on_cache_lines(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy that begins with a cache line, so that kernels read vectors from one line each."""
    memory = np.empty(array.nbytes + CACHE_LINE, np.uint8)
    begin = -memory.ctypes.data % CACHE_LINE
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def csr(keys: IntArray, values: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """Values grouped by key, in their given order: those of key k are `out[ptr[k]:ptr[k+1]]`."""
    pointers = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=size), out=pointers[1:])
    grouped = values[np.argsort(keys, kind="stable")]
    return frozen(pointers), frozen(grouped.astype(np.int64))


def rows(pointers: IntArray, values: IntArray) -> list[list[int]]:
    """A CSR index as a list of lists, for Python loops."""
    flat, bounds = values.tolist(), pointers.tolist()
    return [flat[a:b] for a, b in pairwise(bounds)]


def plain(array: npt.NDArray[Any]) -> list[Any]:
    """A list for JSON; floats without a fraction are written as integers."""
    if array.dtype.kind == "f" and np.all(array == np.trunc(array)) and np.all(abs(array) < 2**53):
        return list(array.astype(np.int64).tolist())
    return list(array.tolist())


def in_range(array: FloatArray) -> BoolArray:
    """Where the numbers are 0, or between `SMALLEST` and `LARGEST`."""
    found: BoolArray = (array == 0) | ((array >= SMALLEST) & (array <= LARGEST))
    return found


def unboxed(value: Any) -> Any:
    """The value with every numpy scalar in it, also in tuples, lists and dicts, as a plain number.

    JSON and TOML hold no others, and compiled code is compiled again for every type of numpy's.
    """
    kind = type(value)
    if kind in _UNBOXED or (kind is tuple and _UNBOXED.issuperset(map(type, value))):
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        is_number = value.ndim == 0 and value.dtype.kind in "biuf"
        # Not `.item()`, which leaves a long double as it is.
        return _PLAIN[value.dtype.kind](value) if is_number else value
    if kind in (tuple, list):
        return kind(map(unboxed, value))
    if kind is dict:
        return {key: unboxed(item) for key, item in value.items()}
    return value


_UNBOXED = frozenset({bool, int, float, str, type(None)})
_PLAIN: dict[str, Any] = {"b": bool, "i": int, "u": int, "f": float}


def unbox_fields(instance: Any) -> None:
    """Make the numpy scalars in the fields of a frozen dataclass plain numbers."""
    for field in fields(instance):
        value = getattr(instance, field.name)
        if (plain_value := unboxed(value)) is not value:
            object.__setattr__(instance, field.name, plain_value)


def integers(values: Sequence[Any] | npt.NDArray[Any]) -> IntArray | None:
    """The values as int64, or None unless every one is a whole number that fits."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "iu" or values.ndim != 1 or (values > _MAX_INT).any():
            return None
        return values.astype(np.int64)
    if not _all_of(values, {int}):
        values = unboxed(values)
    if not _all_of(values, {int}):
        return None
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return None


_MAX_INT = np.iinfo(np.int64).max


def reals(values: Sequence[Any] | npt.NDArray[Any]) -> FloatArray | None:
    """The values as float64, or None unless every one is a number (bool and text are not)."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "iuf" or values.ndim != 1:
            return None
        with np.errstate(over="ignore"):  # a long double beyond 1.8e308
            return values.astype(np.float64)
    if not _all_of(values, {int, float}):
        values = unboxed(values)
    if not _all_of(values, {int, float}):
        return None
    try:
        return np.array(values, np.float64)
    except OverflowError:  # an integer beyond 1.8e308
        return np.array([_to_float(v) for v in values])


def _to_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _all_of(values: Any, types: set[type]) -> bool:
    return isinstance(values, (list, tuple)) and set(map(type, values)) <= types
