"""NamedTuples that kernels take as pointers, and helpers that become part of kernels."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.base.jit import by_reference, njit, part

inlined: Any = part(nogil=True, _nrt=False)
compiled: Any = njit(nogil=True, _nrt=False, no_cfunc_wrapper=True)


class Inner(NamedTuple):
    table: npt.NDArray[np.int64]
    flag: bool


class Outer(NamedTuple):
    values: npt.NDArray[np.float64]
    factor: float
    inner: Inner


by_reference(Inner, Outer)


@inlined
def scale(outer: Outer, index: int) -> float:
    return float(outer.values[index] * outer.factor)


@compiled
def fill(outer: Outer) -> float:
    """Write through the references, and read what was written."""
    total = 0.0
    for i in range(len(outer.values)):
        outer.inner.table[i] = i if outer.inner.flag else -i
        outer.values[i] = scale(outer, i)
        total += outer.values[i]
    return total


def make(*, flag: bool) -> Outer:
    return Outer(np.arange(3.0), 2.0, Inner(np.zeros(3, np.int64), flag))


def test_kernels_read_and_write_what_tuples_refer_to() -> None:
    for flag in (True, False):
        outer = make(flag=flag)
        assert fill(outer) == 6
        assert outer.values.tolist() == [0, 2, 4]
        assert outer.inner.table.tolist() == ([0, 1, 2] if flag else [0, -1, -2])
    assert len(fill.signatures) == 1


@compiled
def total(outer: Outer) -> float:
    """Only read."""
    found = 0.0
    for i in range(len(outer.values)):
        found += outer.values[i]
    return found


def test_read_only_arrays_are_not_compiled_for_again() -> None:
    outer = make(flag=True)
    assert total(outer) == 3
    outer.values.setflags(write=False)
    assert total(outer) == 3
    assert len(total.signatures) == 1


def test_other_fields_are_compiled_for_again() -> None:
    values: Any = np.arange(3, dtype=np.float32)
    assert fill(make(flag=True)._replace(values=values)) == 6
    assert len(fill.signatures) == 2


def test_python_sees_the_plain_helper() -> None:
    assert scale(make(flag=True), 1) == 2
    assert scale.__name__ == "scale"
