"""Array helpers."""

import numpy as np

from doppler.base.arrays import CACHE_LINE, on_cache_lines


def test_an_array_begins_with_a_cache_line():
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    for array in (matrix, matrix.T):
        copy = on_cache_lines(array)
        assert copy.ctypes.data % CACHE_LINE == 0
        assert copy.flags.c_contiguous
        assert copy.dtype == array.dtype
        assert np.array_equal(copy, array)


def test_an_empty_array_keeps_its_shape():
    assert on_cache_lines(np.empty((0, 4), np.float32)).shape == (0, 4)
