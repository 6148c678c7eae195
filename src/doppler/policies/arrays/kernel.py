"""Compiled layers of the encoder and of the heads: float32, on one core, without the GIL.

Sums run in one order whatever the machine and however many rows there are, so that equal vertices
have equal scores. A BLAS would not promise that, nor to leave the other cores alone.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import KERNEL, by_reference, njit, part
from doppler.mdp.instance import Tables
from doppler.mdp.kernel import LEAK

Floats = npt.NDArray[np.float32]

_OPTIONS: Any = {"fastmath": {"contract"}, **KERNEL}
compiled: Any = njit(cache=True, no_cfunc_wrapper=True, **_OPTIONS)
called: Any = part(forceinline=False, **_OPTIONS)
BLOCK = 32  # vertices at a time: what they hear stays in a cache
EPSILON = 1e-5  # of torch's LayerNorm

by_reference(Tables)


class Round(NamedTuple):
    """The layers of one round of message passing; matrices are (from, to)."""

    ends: Floats  # (H, 4H)
    ends_bias: Floats  # (4H,)
    edge: Floats  # (2, 2H)
    update: Floats  # (3H, H)
    update_bias: Floats  # (H,)
    norm: Floats  # (H,)
    norm_bias: Floats  # (H,)


@called
def multiply(x: Floats, count: int, matrix: Floats, bias: Floats, out: Floats) -> None:
    """Fill in the first rows of `out`: those of `x` times a matrix, plus a bias.

    Two rows by four columns of `x` at a time: a row of the matrix that is read serves both, and a
    row of `out` is written a quarter as often.
    """
    size, to = matrix.shape
    whole = size - size % 4
    for first in range(0, count, 2):
        second = first + 1
        for i in range(first, min(first + 2, count)):
            for j in range(to):
                out[i, j] = bias[j]
        if second < count:
            for k in range(0, whole, 4):
                a0, a1, a2, a3 = x[first, k], x[first, k + 1], x[first, k + 2], x[first, k + 3]
                b0, b1, b2, b3 = x[second, k], x[second, k + 1], x[second, k + 2], x[second, k + 3]
                for j in range(to):
                    m0, m1 = matrix[k, j], matrix[k + 1, j]
                    m2, m3 = matrix[k + 2, j], matrix[k + 3, j]
                    out[first, j] = out[first, j] + a0 * m0 + a1 * m1 + a2 * m2 + a3 * m3
                    out[second, j] = out[second, j] + b0 * m0 + b1 * m1 + b2 * m2 + b3 * m3
        else:
            for k in range(0, whole, 4):
                a0, a1, a2, a3 = x[first, k], x[first, k + 1], x[first, k + 2], x[first, k + 3]
                for j in range(to):
                    m0, m1 = matrix[k, j], matrix[k + 1, j]
                    m2, m3 = matrix[k + 2, j], matrix[k + 3, j]
                    out[first, j] = out[first, j] + a0 * m0 + a1 * m1 + a2 * m2 + a3 * m3
        for i in range(first, min(first + 2, count)):
            for k in range(whole, size):
                value = x[i, k]
                for j in range(to):
                    out[i, j] = out[i, j] + value * matrix[k, j]


@compiled
def linear(x: Floats, matrix: Floats, bias: Floats, out: Floats) -> None:
    """Fill in (n, b) `out` = (n, a) `x` times an (a, b) matrix, plus a bias."""
    multiply(x, len(x), matrix, bias, out)


class LayerScratch(NamedTuple):
    """Working memory for n vertices."""

    wide: Floats  # (n, 4H)
    heard: Floats  # (32, 3H) of the vertices in hand: themselves, and from both directions
    narrow: Floats  # (32, H)
    sums: FloatArray  # (n, H) along paths
    length: IntArray  # (n,) of those paths; 0 while unknown
    stack: IntArray  # (n,)


def make_scratch(size: int, width: int) -> LayerScratch:
    """Working memory for a number of vertices."""
    return LayerScratch(
        wide=np.empty((size, 4 * width), np.float32),
        heard=np.empty((BLOCK, 3 * width), np.float32),
        narrow=np.empty((BLOCK, width), np.float32),
        sums=np.empty((size, width)),
        length=np.empty(size, np.int64),
        stack=np.empty(size, np.int64),
    )


@compiled
def pass_messages(
    t: Tables, columns: Floats, r: Round, h: Floats, s: LayerScratch, out: Floats
) -> None:
    """Fill in (n, H) what the vertices are after a round that they were `h` before.

    Edges have (m, 2) columns.
    """
    n, width = h.shape
    multiply(h, n, r.ends, r.ends_bias, s.wide)
    for first in range(0, n, BLOCK):
        count = min(BLOCK, n - first)
        for i in range(count):
            hear(t, columns, r, h, s, first + i, i)
        multiply(s.heard, count, r.update, r.update_bias, s.narrow)
        for i in range(count):
            for j in range(width):
                value = s.narrow[i, j]
                s.narrow[i, j] = h[first + i, j] + (value if value > 0.0 else LEAK * value)
            normalize(s.narrow[i], r.norm, r.norm_bias, out[first + i])


@called
def hear(
    t: Tables, columns: Floats, r: Round, h: Floats, s: LayerScratch, v: int, row: int
) -> None:
    """Fill in a row of `heard`: a vertex, what its producers send and what its readers return."""
    width = h.shape[1]
    heard, own = s.heard[row], s.wide[v]
    for j in range(width):
        heard[j] = h[v, j]
        heard[width + j] = 0.0
        heard[2 * width + j] = 0.0
    for i in range(t.read_ptr[v], t.read_ptr[v + 1]):
        edge = t.read_edge[i]
        other = s.wide[t.edge_producer[edge]]
        a, b = columns[edge, 0], columns[edge, 1]
        for j in range(width):
            sent = other[j] + own[width + j] + (a * r.edge[0, j] + b * r.edge[1, j])
            heard[width + j] += sent if sent > 0.0 else LEAK * sent
    for edge in range(t.edge_ptr[v], t.edge_ptr[v + 1]):
        other = s.wide[t.edge_reader[edge]]
        a, b = columns[edge, 0], columns[edge, 1]
        for j in range(width):
            against = a * r.edge[0, width + j] + b * r.edge[1, width + j]
            sent = other[2 * width + j] + own[3 * width + j] + against
            heard[2 * width + j] += sent if sent > 0.0 else LEAK * sent


@called
def normalize(x: Floats, scale: Floats, bias: Floats, out: Floats) -> None:
    """Fill in `x` with a mean of 0 and a variance of 1, scaled and moved."""
    mean, variance = 0.0, 0.0
    for j in range(len(x)):
        mean += x[j]
    mean /= len(x)
    for j in range(len(x)):
        variance += (x[j] - mean) ** 2
    variance /= len(x)
    middle, factor = np.float32(mean), np.float32(1.0 / np.sqrt(variance + EPSILON))
    for j in range(len(x)):
        out[j] = (x[j] - middle) * factor * scale[j] + bias[j]


@compiled
def means_along(following: IntArray, h: Floats, s: LayerScratch, at: int) -> None:
    """Fill in, from column `at` of `wide` on, the means of `h` along the path of every vertex."""
    n, width = h.shape
    for v in range(n):
        s.length[v] = 0
    for v in range(n):
        depth, u = 0, v
        while u >= 0 and s.length[u] == 0:
            s.stack[depth] = u
            depth += 1
            u = following[u]
        while depth > 0:  # from where sums are known, or the path ends, back to v
            depth -= 1
            u = s.stack[depth]
            after = following[u]
            s.length[u] = 1 if after < 0 else s.length[after] + 1
            for j in range(width):
                before = 0.0 if after < 0 else s.sums[after, j]
                s.sums[u, j] = before + h[u, j]
                s.wide[u, at + j] = s.sums[u, j] / s.length[u]


@compiled
def score(
    s: LayerScratch, matrix: Floats, bias: Floats, last: Floats, end: float, out: Any
) -> None:
    """Fill in (n,) the scores of two layers with a LeakyReLU between, on the rows of `wide`."""
    n = len(s.wide)
    for first in range(0, n, BLOCK):
        count = min(BLOCK, n - first)
        multiply(s.wide[first : first + count], count, matrix, bias, s.narrow)
        for i in range(count):
            total = np.float32(end)
            for j in range(len(last)):
                value = s.narrow[i, j]
                total += (value if value > 0.0 else LEAK * value) * last[j]
            out[first + i] = total
