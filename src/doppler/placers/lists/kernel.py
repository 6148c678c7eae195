"""Compiled list scheduling by rank: `lists.reference.place_by_rank`, vertex for vertex.

Ready vertices are in a heap by their place in the sequence, so a graph takes
O(V (log V + D G W) + E D) for D devices, G gaps and a window of W.
"""

from typing import NamedTuple

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.base.jit import by_reference, compiled, inlined
from doppler.placers.lists.rules import PlanArrays


class ListState(NamedTuple):
    """What has been placed."""

    missing: IntArray  # (V,) producers that are not placed
    arrival_s: FloatArray  # (V, D) when all inputs made so far are on a device
    slot_free_s: FloatArray  # (S,)
    devices: IntArray  # (V,) -1 until placed
    order: IntArray  # (V,)
    begin_s: FloatArray  # (V,)
    end_s: FloatArray  # (V,)


class Queue(NamedTuple):
    """Ready vertices by place in the sequence, and the idle gaps of the slots."""

    place: IntArray  # (V,) of each vertex in the sequence
    window: IntArray  # (W,) the least places that are ready
    heap: IntArray  # (V,) the other places that are ready
    gap: FloatArray  # (S, G, 2) begin and end, in order of time
    num_gaps: IntArray  # (S,)


by_reference(PlanArrays, ListState, Queue)


def make_state(p: PlanArrays) -> ListState:
    """Nothing placed."""
    vertices = len(p.exec_s)
    return ListState(
        missing=p.num_reads.copy(),
        arrival_s=p.arrival_s.copy(),
        slot_free_s=np.zeros(int(p.slot_ptr[-1])),
        devices=np.full(vertices, -1),
        order=np.zeros(vertices, np.int64),
        begin_s=np.zeros(vertices),
        end_s=np.zeros(vertices),
    )


def make_queue(p: PlanArrays, window: int, max_gaps: int) -> Queue:
    """Working memory of `place_by_rank`."""
    vertices, slots = len(p.num_reads), int(p.slot_ptr[-1])
    return Queue(
        place=np.zeros(vertices, np.int64),
        window=np.zeros(window, np.int64),
        heap=np.zeros(vertices, np.int64),
        gap=np.zeros((slots, max_gaps, 2)),
        num_gaps=np.zeros(slots, np.int64),
    )


@compiled
def place_by_rank(
    p: PlanArrays, sequence: IntArray, bias_s: FloatArray, draws: FloatArray, s: ListState, q: Queue
) -> int:
    """Follow a `RankRule`; returns how many vertices were placed."""
    count, in_window, in_heap = 0, 0, 0
    for i in range(len(sequence)):
        q.place[sequence[i]] = i
    for v in range(len(sequence)):
        if s.missing[v] == 0:
            in_window, in_heap = enqueue(q, q.place[v], in_window, in_heap)
    while in_window > 0:
        chosen = 0
        if in_window > 1:
            chosen = latest(p, sequence, bias_s, s, q, in_window)
        v = sequence[q.window[chosen]]
        in_window -= 1
        q.window[chosen] = q.window[in_window]
        if in_heap > 0:
            q.window[in_window] = pop_place(q.heap, in_heap)
            in_window, in_heap = in_window + 1, in_heap - 1
        d = best_device(p, bias_s, draws[v], s, q, v)
        begin_s, slot, gap = earliest(p, s, q, v, d)
        occupy(s, q, slot, gap, begin_s, begin_s + p.exec_s[v, d])
        put(p, s, v, d, begin_s)
        s.order[count] = v
        count += 1
        for e in range(p.edge_ptr[v], p.edge_ptr[v + 1]):
            r = p.edge_reader[e]
            s.missing[r] -= 1
            if s.missing[r] == 0:
                in_window, in_heap = enqueue(q, q.place[r], in_window, in_heap)
    return count


@inlined
def enqueue(q: Queue, place: int, in_window: int, in_heap: int) -> tuple[int, int]:
    """Add a ready place; the sizes of the window and of the heap after that."""
    if in_window < len(q.window):
        q.window[in_window] = place
        return in_window + 1, in_heap
    last = 0
    for i in range(1, in_window):
        if q.window[i] > q.window[last]:
            last = i
    if place < q.window[last]:
        place, q.window[last] = q.window[last], place
    push_place(q.heap, in_heap, place)
    return in_window, in_heap + 1


@inlined
def push_place(heap: IntArray, size: int, place: int) -> None:
    """Add a place to a heap of `size`."""
    i = size
    while i > 0 and heap[(i - 1) >> 1] > place:
        heap[i] = heap[(i - 1) >> 1]
        i = (i - 1) >> 1
    heap[i] = place


@inlined
def pop_place(heap: IntArray, size: int) -> int:
    """Take the least place off a heap of `size`."""
    first, place = heap[0], heap[size - 1]
    i, down = 0, 1
    while down < size - 1:
        if down + 1 < size - 1 and heap[down + 1] < heap[down]:
            down += 1
        if heap[down] >= place:
            break
        heap[i] = heap[down]
        i, down = down, 2 * down + 1
    heap[i] = place
    return first


@inlined
def latest(
    p: PlanArrays, sequence: IntArray, bias_s: FloatArray, s: ListState, q: Queue, in_window: int
) -> int:
    """Where in the window the vertex is whose best score is largest."""
    chosen, largest_s = 0, -1.0
    for i in range(in_window):
        v, best_s = sequence[q.window[i]], np.inf
        for d in range(p.exec_s.shape[1]):
            best_s = min(best_s, earliest(p, s, q, v, d)[0] + bias_s[v, d])
        if best_s > largest_s or (best_s == largest_s and q.window[i] < q.window[chosen]):
            chosen, largest_s = i, best_s
    return chosen


@inlined
def best_device(
    p: PlanArrays, bias_s: FloatArray, drawn: float, s: ListState, q: Queue, v: int
) -> int:
    """The device with the least score; of several, the drawn one."""
    best_s, ties, device = np.inf, 0, 0
    for d in range(p.exec_s.shape[1]):
        score_s = earliest(p, s, q, v, d)[0] + bias_s[v, d]
        if score_s < best_s:
            best_s, ties, device = score_s, 0, d
        if score_s == best_s:
            ties += 1
    skip = int(drawn * ties)
    while skip > 0:
        device += 1
        if earliest(p, s, q, v, device)[0] + bias_s[v, device] == best_s:
            skip -= 1
    return device


@inlined
def earliest(p: PlanArrays, s: ListState, q: Queue, v: int, d: int) -> tuple[float, int, int]:
    """When v can begin on d, on which slot, and in which of its gaps; -1 behind them all."""
    best_s, best_slot, best_gap = np.inf, 0, -1
    arrival_s, exec_s = s.arrival_s[v, d], p.exec_s[v, d]
    for slot in range(p.slot_ptr[d], p.slot_ptr[d + 1]):
        begin_s, gap = max(s.slot_free_s[slot], arrival_s), -1
        for g in range(q.num_gaps[slot]):
            inserted_s = max(q.gap[slot, g, 0], arrival_s)
            if inserted_s + exec_s <= q.gap[slot, g, 1]:
                begin_s, gap = inserted_s, g
                break
        if begin_s < best_s:
            best_s, best_slot, best_gap = begin_s, slot, gap
    return best_s, best_slot, best_gap


@inlined
def occupy(s: ListState, q: Queue, slot: int, gap: int, begin_s: float, end_s: float) -> None:
    """Take time on a slot, and note the gaps that remain."""
    size = q.num_gaps[slot]
    if gap < 0:
        if begin_s > s.slot_free_s[slot]:
            insert_gap(q, slot, size, s.slot_free_s[slot], begin_s)
        s.slot_free_s[slot] = end_s
        return
    first_s, last_s = q.gap[slot, gap, 0], q.gap[slot, gap, 1]
    if first_s < begin_s:
        q.gap[slot, gap, 1] = begin_s
        if end_s < last_s:
            insert_gap(q, slot, gap + 1, end_s, last_s)
    elif end_s < last_s:
        q.gap[slot, gap, 0] = end_s
    else:
        for g in range(gap, size - 1):
            q.gap[slot, g, 0], q.gap[slot, g, 1] = q.gap[slot, g + 1, 0], q.gap[slot, g + 1, 1]
        q.num_gaps[slot] = size - 1


@inlined
def insert_gap(q: Queue, slot: int, at: int, begin_s: float, end_s: float) -> None:
    """Note a gap before gap number `at`; where there is no room for it, the first goes."""
    size = q.num_gaps[slot]
    if q.gap.shape[1] == 0:
        return
    if size == q.gap.shape[1]:
        for g in range(at - 1):
            q.gap[slot, g, 0], q.gap[slot, g, 1] = q.gap[slot, g + 1, 0], q.gap[slot, g + 1, 1]
        at -= 1
    else:
        for g in range(size, at, -1):
            q.gap[slot, g, 0], q.gap[slot, g, 1] = q.gap[slot, g - 1, 0], q.gap[slot, g - 1, 1]
        q.num_gaps[slot] = size + 1
    q.gap[slot, at, 0], q.gap[slot, at, 1] = begin_s, end_s


@inlined
def put(p: PlanArrays, s: ListState, v: int, d: int, begin_s: float) -> None:
    """Place v on d, and tell its readers when its outputs arrive where."""
    end_s = begin_s + p.exec_s[v, d]
    s.devices[v], s.begin_s[v], s.end_s[v] = d, begin_s, end_s
    for e in range(p.edge_ptr[v], p.edge_ptr[v + 1]):
        t, r = p.edge_tensor[e], p.edge_reader[e]
        for k in range(p.exec_s.shape[1]):
            at_s = end_s
            if k != d:
                at_s += p.fixed_s[t] + p.latency_s[d, k] + p.tensor_bytes[t] * p.s_per_byte[d, k]
            s.arrival_s[r, k] = max(s.arrival_s[r, k], at_s)


@compiled
def fill_optimistic(
    p: PlanArrays, topological_order: IntArray, move_s: FloatArray, table: FloatArray
) -> None:
    """Fill PEFT's (V, D) optimistic cost table, from the exits."""
    for i in range(len(topological_order) - 1, -1, -1):
        v = topological_order[i]
        for e in range(p.edge_ptr[v], p.edge_ptr[v + 1]):
            r, moved_s = p.edge_reader[e], np.inf
            for d in range(table.shape[1]):
                moved_s = min(moved_s, table[r, d] + p.exec_s[r, d])
            moved_s += move_s[p.edge_tensor[e]]
            for d in range(table.shape[1]):
                stay_s = table[r, d] + p.exec_s[r, d]
                table[v, d] = max(table[v, d], min(stay_s, moved_s))


@compiled
def choose_favourites(
    producer: IntArray,
    reader: IntArray,
    edge_s: FloatArray,
    favourite: IntArray,
    awake_s: FloatArray,
    taken: BoolArray,
) -> None:
    """Fill (V,) m-SCT's favourites and seconds from edges in this order; `taken` is all false."""
    for e in range(len(producer)):
        v, r = producer[e], reader[e]
        if favourite[v] < 0 and not taken[r]:
            favourite[v], awake_s[v], taken[r] = r, edge_s[e], True
