"""Compiled longest paths: `levels.bottom_levels`, `top_levels` and `depths`, number for number."""

from typing import NamedTuple

from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.base.jit import by_reference, compiled


class LevelArrays(NamedTuple):
    """A graph in one direction: from vertices to tensors, and from these to the next vertices."""

    order: IntArray  # (V,) in which the next vertices of a vertex come before it
    is_input: BoolArray  # (V,)
    tensor_ptr: IntArray  # (V+1,) CSR: tensors of a vertex
    tensor: IntArray
    next_ptr: IntArray  # (T+1,) CSR: the next vertices of a tensor
    next: IntArray
    exec_s: FloatArray  # (V,)
    transfer_s: FloatArray  # (T,)


class Paths(NamedTuple):
    """The longest path of each vertex, inputs left out."""

    rest_s: FloatArray  # (V,) its length without the vertex itself
    length_s: FloatArray  # (V,) and with it
    via: IntArray  # (V,) the next vertex on it, the lowest of several; -1 at the end


by_reference(LevelArrays, Paths)


@compiled
def follow(g: LevelArrays, p: Paths) -> None:
    """Find the longest paths; `p` is all zeros before."""
    for i in range(len(g.order)):
        v = g.order[i]
        p.via[v] = -1
        if g.is_input[v]:
            continue
        best_s, via = 0.0, -1
        for j in range(g.tensor_ptr[v], g.tensor_ptr[v + 1]):
            t = g.tensor[j]
            for k in range(g.next_ptr[t], g.next_ptr[t + 1]):
                w = g.next[k]
                if g.is_input[w]:
                    continue
                reach_s = g.transfer_s[t] + p.length_s[w]
                if via < 0 or reach_s > best_s or (reach_s == best_s and w < via):
                    best_s, via = reach_s, w
        p.rest_s[v], p.length_s[v], p.via[v] = best_s, g.exec_s[v] + best_s, via
