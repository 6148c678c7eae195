"""Array helpers shared by the value types: read-only arrays and CSR indices."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only, contiguous array with the same values."""
    if array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
        array.setflags(write=False)
    return array


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


def integers(values: Sequence[Any] | npt.NDArray[Any]) -> IntArray | None:
    """The values as int64, or None unless every one is a whole number that fits."""
    if isinstance(values, np.ndarray):
        return values.astype(np.int64) if values.dtype.kind in "iu" and values.ndim == 1 else None
    if not _all_of(values, {int}):
        return None
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return None


def reals(values: Sequence[Any] | npt.NDArray[Any]) -> FloatArray | None:
    """The values as float64, or None unless every one is a number (bool and text are not)."""
    if isinstance(values, np.ndarray):
        return (
            values.astype(np.float64) if values.dtype.kind in "iuf" and values.ndim == 1 else None
        )
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
