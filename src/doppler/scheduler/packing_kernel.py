"""Compiled packing: `packing.put_down`, buffer for buffer."""

from doppler.base.arrays import IntArray
from doppler.base.jit import compiled


@compiled
def put_down(
    begin: IntArray,
    end: IntArray,
    size: IntArray,
    order: IntArray,
    most: int,
    offset: IntArray,
    low: IntArray,
) -> int:
    """Put every buffer, in this order, into the smallest gap that holds it; the bytes of all.

    It ends with the first that ends behind `most`. `offset` (B,) is the result; `low` (B,) is
    working memory: buffers that have a place, by offset.
    """
    top, placed = 0, 0
    for n in range(len(order)):
        i = order[n]
        offset[i] = 0
        if size[i] == 0:
            continue
        floor, best, best_gap = 0, -1, 0
        for k in range(placed):
            j = low[k]
            if begin[j] > end[i] or end[j] < begin[i]:
                continue
            gap = offset[j] - floor
            if gap >= size[i] and (best < 0 or gap < best_gap):
                best, best_gap = floor, gap
            floor = max(floor, offset[j] + size[j])
        offset[i] = best if best >= 0 else floor
        top = max(top, offset[i] + size[i])
        if top > most:
            break
        k = placed
        while k > 0 and offset[low[k - 1]] > offset[i]:
            low[k] = low[k - 1]
            k -= 1
        low[k] = i
        placed += 1
    return top
