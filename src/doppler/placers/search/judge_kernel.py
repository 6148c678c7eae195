"""How a model chooses among random moves, compiled; `judging` is the readable twin."""

from typing import NamedTuple

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import by_reference, compiled, inlined
from doppler.placers.search.judging import (
    FEW,
    FINEST,
    LEAST_EXEC,
    MOVE_FEATURES,
    SLICES,
    SPREAD,
    URGENT,
)
from doppler.placers.search.moves_kernel import (
    NUM_KINDS,
    SECONDS,
    Chain,
    Neighbourhood,
    propose,
    take_back,
)
from doppler.sim.state_kernel import Arrays, Scratch, transfer_s

SIZES = (1, 2, 6, 24)  # most vertices of the moves of a class; and one for larger ones
NUM_CLASSES = NUM_KINDS * (len(SIZES) + 1)
MEMORY = 0.01  # weight of a move in the share of its class that made the makespan shorter
AT_FIRST = 0.02  # what that share begins with
FEATURES = len(MOVE_FEATURES)


class Judge(NamedTuple):
    """A model of moves, candidates to choose from, and the assignment that they would change."""

    # The model: one layer of rectified units. All chains read the same.
    inner: FloatArray  # (F, H)
    inner_bias: FloatArray  # (H,)
    outer: FloatArray  # (H,)
    outer_bias: float
    random_share: float  # of the moves that are not chosen

    # Candidates.
    features: FloatArray  # (K, F)
    vertices: IntArray  # (K, V) that a move changes
    devices: IntArray  # (K, V) where they go
    counts: IntArray  # (K,) of them
    classes: IntArray  # (K,) by kind and size
    cuts: FloatArray  # (2,) transfers of the one that is looked at, before and after it
    rates: FloatArray  # (C,) share of the moves of a class that made the makespan shorter, of late

    # The assignment of the chain, as it was simulated.
    now: IntArray  # (V,) devices
    begin_s: FloatArray  # (V,)
    end_s: FloatArray  # (V,)
    slack_s: FloatArray  # (V,) that its end may be later, by what reads its results
    wait_s: FloatArray  # (V,) for its device, once its inputs were there
    busy: FloatArray  # (D, SLICES) share of each slice
    load: FloatArray  # (D,) share of the makespan
    link_load: FloatArray  # (L,) the same, of all transfers
    held: FloatArray  # (D,) share of its memory that all results made there would take
    makespan_s: FloatArray  # (1,) 0 where nothing is known
    whole: FloatArray  # (3,) mean load, transfers over execution, number of vertices


by_reference(Judge)


@compiled
def look(p: Arrays, c: Chain, s: Scratch, j: Judge) -> None:
    """Note the assignment of a chain, which was simulated to its end a moment ago."""
    vertices, num_devices, makespan_s = len(p.is_input), len(p.memory_bytes), c.lent[SECONDS]
    j.makespan_s[0] = makespan_s
    if makespan_s <= 0.0:
        return
    j.busy[:], j.load[:], j.link_load[:], j.held[:] = 0.0, 0.0, 0.0, 0.0
    exec_s, moving_s, assigned = 0.0, 0.0, 0
    for v in range(vertices):
        d = c.devices[0, v]
        j.now[v] = d
        if p.is_input[v]:
            continue
        assigned += 1
        j.begin_s[v], j.end_s[v] = s.begin_s[v], s.end_s[v]
        j.slack_s[v] = max(makespan_s - s.end_s[v] - s.tail_s[v], 0.0)
        j.wait_s[v] = max(s.begin_s[v] - s.ready_s[v], 0.0)
        exec_s += s.end_s[v] - s.begin_s[v]
        j.load[d] += (s.end_s[v] - s.begin_s[v]) / makespan_s
        fill_busy(j, d, s.begin_s[v] / makespan_s * SLICES, s.end_s[v] / makespan_s * SLICES)
        for o in range(p.output_ptr[v], p.output_ptr[v + 1]):
            if p.memory_bytes[d] < np.inf:
                j.held[d] += p.whole_bytes[p.output_tensor[o]] / p.memory_bytes[d]
    for k in range(s.transfer_ptr[len(p.producer)]):
        link = s.resource[vertices + k] - num_devices
        took_s = transfer_s(p, 0, s.transfer_tensor[k], link, s.transfer_target[k])
        j.link_load[link] += took_s / makespan_s
        moving_s += took_s
    j.whole[0] = exec_s / makespan_s / num_devices
    j.whole[1] = moving_s / max(exec_s, LEAST_EXEC * makespan_s)
    j.whole[2] = assigned


@inlined
def fill_busy(j: Judge, device: int, first: float, last: float) -> None:
    """Note that a device is busy from one time to another, in slices."""
    a, b = min(int(first), SLICES - 1), min(int(last), SLICES - 1)
    if a == b:
        j.busy[device, a] += last - first
        return
    j.busy[device, a] += a + 1 - first
    j.busy[device, b] += last - b
    for i in range(a + 1, b):
        j.busy[device, i] += 1.0


@inlined
def choose_move(
    p: Arrays, n: Neighbourhood, c: Chain, j: Judge, temperature: float
) -> tuple[int, int]:
    """Make one of K random moves, the likelier the better the model finds it.

    How many vertices it changed, which are logged, and which candidate it is. A share of the moves
    is random: for them there is one candidate.
    """
    chosen, highest = -1, -np.inf
    candidates = 1 if np.random.random() < j.random_share else len(j.counts)
    for k in range(candidates):
        count, kind = propose(n, c, len(p.memory_bytes))
        if count == 0:
            continue
        j.counts[k], j.classes[k] = count, class_of(kind, count)
        describe(p, c, j, k, count, kind, temperature)
        for i in range(count):
            j.vertices[k, i] = c.log_vertex[i]
            j.devices[k, i] = c.devices[0, c.log_vertex[i]]
        take_back(c, count)
        key = score(j, k) - np.log(-np.log(np.random.random()))  # so it is drawn from a softmax
        if chosen < 0 or key > highest:
            chosen, highest = k, key
    if chosen < 0:
        return 0, chosen
    for i in range(j.counts[chosen]):
        v = j.vertices[chosen, i]
        c.log_vertex[i], c.log_device[i] = v, c.devices[0, v]
        c.devices[0, v] = j.devices[chosen, i]
    return j.counts[chosen], chosen


@inlined
def learn_rate(j: Judge, chosen: int, is_shorter: bool) -> None:
    """Note whether a move made the makespan shorter."""
    rate = j.rates[j.classes[chosen]]
    j.rates[j.classes[chosen]] = rate + MEMORY * ((1.0 if is_shorter else 0.0) - rate)


@inlined
def class_of(kind: int, count: int) -> int:
    """The class of a move, by its kind and size."""
    size = 0
    for most in SIZES:
        if count > most:
            size += 1
    return kind * (len(SIZES) + 1) + size


@inlined
def score(j: Judge, k: int) -> float:
    """How good the model finds a candidate: the log odds that it makes the makespan shorter."""
    total = j.outer_bias
    for h in range(len(j.outer)):
        unit = j.inner_bias[h]
        for i in range(FEATURES):
            unit += j.features[k, i] * j.inner[i, h]
        if unit > 0.0:
            total += unit * j.outer[h]
    return total


@inlined
def squash(x: float) -> float:
    """A share of the makespan, of any size, as a number that is seldom above 2."""
    return SPREAD * np.log1p(FINEST * x) if x >= 0.0 else -SPREAD * np.log1p(-FINEST * x)


@inlined
def describe(
    p: Arrays, c: Chain, j: Judge, k: int, count: int, kind: int, temperature: float
) -> None:
    """Fill in the features of the move that is logged, for candidate k: see `judging`.

    A sum over its vertices is that over those looked at, scaled; a transfer counts once for each
    vertex that reads it.
    """
    makespan_s, f = j.makespan_s[0], j.features[k]
    near_s, step = URGENT * makespan_s, 1 + (count - 1) // FEW
    looked, least_slack_s = 0, np.inf
    j.cuts[0], j.cuts[1] = 0.0, 0.0
    for i in range(FEATURES):
        f[i] = 0.0
    for at in range(0, count, step):
        v = c.log_vertex[at]
        a, b = j.now[v], c.devices[0, v]
        looked += 1
        before_s, after_s = p.exec_s[0, v, a], p.exec_s[0, v, b]
        urgency = near_s / (near_s + j.slack_s[v])
        f[7] += after_s - before_s
        f[10] += before_s
        f[11] += urgency * before_s
        f[12] += j.wait_s[v]
        f[14] += j.slack_s[v]
        least_slack_s = min(least_slack_s, j.slack_s[v])
        middle = (slice_of(j.begin_s[v], makespan_s) + slice_of(j.end_s[v], makespan_s)) // 2
        f[15] += j.load[a]
        f[16] += j.load[b]
        f[17] += j.busy[a, middle]
        f[18] += j.busy[b, middle]
        f[22] += j.held[a]
        f[23] += j.held[b]
        ready_before_s, ready_s = 0.0, 0.0
        for i in range(p.read_ptr[v], p.read_ptr[v + 1]):
            t = p.read_tensor[i]
            u = p.producer[t]
            if p.is_input[u]:
                continue
            old_s, old_link = moving(p, t, j.now[u], a)
            new_s, new_link = moving(p, t, c.devices[0, u], b)
            count_read(j, k, urgency, old_s, old_link, new_s, new_link)
            ready_before_s = max(ready_before_s, j.end_s[u] + old_s)
            ready_s = max(ready_s, j.end_s[u] + new_s)
        f[20] += max(ready_s + after_s - j.end_s[v] - j.slack_s[v], 0.0)
        f[21] += ready_s - ready_before_s
        for o in range(p.output_ptr[v], p.output_ptr[v + 1]):
            t = p.output_tensor[o]
            for e in range(p.reader_ptr[t], p.reader_ptr[t + 1]):
                r = p.reader[e]
                if j.now[r] != c.devices[0, r]:
                    continue  # it counts among the inputs of r
                old_s, old_link = moving(p, t, a, j.now[r])
                new_s, new_link = moving(p, t, b, j.now[r])
                urgency = near_s / (near_s + j.slack_s[r])
                count_read(j, k, urgency, old_s, old_link, new_s, new_link)
    finish(p, j, k, count, looked, kind, temperature)
    f[13] = squash(least_slack_s / makespan_s)
    f[30] = (j.cuts[1] - j.cuts[0]) / (j.cuts[1] + j.cuts[0] + 1.0)


@inlined
def count_read(
    j: Judge, k: int, urgency: float, old_s: float, old_link: int, new_s: float, new_link: int
) -> None:
    """Count that a vertex reads a tensor over another link than before, or over none (-1)."""
    f = j.features[k]
    f[8] += new_s - old_s
    f[9] += urgency * (new_s - old_s)
    if old_link >= 0:
        f[19] -= old_s * j.link_load[old_link]
        j.cuts[0] += 1.0
    if new_link >= 0:
        f[19] += new_s * j.link_load[new_link]
        j.cuts[1] += 1.0


@inlined
def slice_of(at_s: float, makespan_s: float) -> int:
    """The slice of the makespan in which a time is."""
    return min(int(at_s / makespan_s * SLICES), SLICES - 1)


@inlined
def moving(p: Arrays, tensor: int, source: int, target: int) -> tuple[float, int]:
    """Seconds to move a tensor between two devices, and the link; 0 and -1 if they are one."""
    if source == target:
        return 0.0, -1
    link = p.route[source, target]
    return transfer_s(p, 0, tensor, link, target), link


@inlined
def finish(
    p: Arrays, j: Judge, k: int, count: int, looked: int, kind: int, temperature: float
) -> None:
    """Turn sums over vertices into features, and add those of the move as a whole."""
    f, one, makespan_s = j.features[k], 1.0 / looked, j.makespan_s[0]
    for i in (7, 8, 9, 10, 11, 19):  # of all vertices
        f[i] = squash(f[i] * count * one / makespan_s)
    for i in (12, 14, 20, 21):  # means
        f[i] = squash(f[i] * one / makespan_s)
    for i in (15, 16, 17, 18, 22, 23):  # means of shares
        f[i] *= one
    f[0] = 0.2 * np.log2(count)
    f[1 + kind] = 1.0
    f[22], f[23] = squash(f[22]), squash(f[23])
    f[24] = 0.2 * np.log(j.rates[j.classes[k]] + 1e-4)
    f[25] = j.whole[0]
    f[26] = squash(j.whole[1])
    f[27] = 0.3 * np.log(len(p.memory_bytes))
    f[28] = 0.2 * np.log(j.whole[2]) - 1.0
    f[29] = squash(temperature)
