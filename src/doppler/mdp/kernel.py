"""Compiled episodes: `Episode` under a policy whose networks are plain matrices, many at a time.

SEL's scores do not change within an episode (Sec. 4.3), and PLC's first layer is linear in its
parts, so only the part of the device features is left to compute at each step.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.base.arrays import BoolArray, FloatArray, IntArray, on_cache_lines
from doppler.base.jit import KERNEL, by_reference, compiled, inlined, njit, uint64
from doppler.mdp.features import (
    EARLIEST,
    EXTRA_END,
    EXTRA_START,
    GUIDE_OUTPUT,
    GUIDED,
    HOST_TIME,
    MEMORY_SHARE,
    MOST_SHARE,
    NUM_FEATURES,
    NUM_STATIC,
    OVERFULL,
    SAME,
    SCORED_BY,
    SHARE,
    SQUEEZE,
    SQUEEZED_ONE,
    TIE,
    UNUSED,
    WEIGHT_OF_END,
    WEIGHT_OF_OVERFULL,
)
from doppler.mdp.guide import Guide
from doppler.mdp.instance import Tables
from doppler.mdp.rollout import NO_GROUP, UNASSIGNED, PartialAssignments

Floats = npt.NDArray[np.float32]

# Optimised on its own, so that the order of its sums is the same whoever calls it.
summing: Any = njit(
    fastmath={"reassoc", "contract"},
    forceinline=True,
    no_cpython_wrapper=True,
    no_cfunc_wrapper=True,
    **KERNEL,
)
LEAK = np.float32(0.01)  # slope of LeakyReLU below zero
LEAST_WEIGHT = 1e-280  # of all candidates together; below, rounding shows
# In `State.tally`: devices that something is on, work that is placed, all work, when the host is
# free after starting all that is planned, the end of that, and vertices that the guide has.
USED, PLACED, WORK, HOST, END, GUIDES = range(6)
MOST = 600.0  # logarithm of the largest weight of a candidate


class Weights(NamedTuple):
    """A policy on one instance: SEL's scores, and PLC with all that is static multiplied out."""

    score: FloatArray  # (n,) SEL's score of each vertex
    vertex: Floats  # (n, H) the vertex's part of PLC's first layer
    placed: Floats  # (n, H) what a vertex adds to that layer for the device it is on
    feature: Floats  # (30, H) the device features' part of that layer
    hidden: Floats  # (H, K)
    hidden_bias: Floats  # (K,)
    out: Floats  # (K,)
    crowded: Floats  # (1,) what the logit of a device loses by `overfull`
    most: IntArray  # (1,) devices that are scored for a vertex, see `find_scored`; 0: all


class Choice(NamedTuple):
    """How actions follow from scores."""

    select_temperature: float  # of SEL; 0: the best, lowest id first
    place_temperature: float  # of PLC
    epsilon: float  # probability of a random action instead
    alike: bool  # devices with the same logit are one choice
    place_early: bool  # the critical-path rule places, ties at random, instead of PLC


class State(NamedTuple):
    """An episode under way, and working memory."""

    missing: IntArray  # (n,) producers that are not placed
    candidate: IntArray  # (n,)
    entered: IntArray  # (n,) the step since which a vertex is a candidate
    weight: FloatArray  # (2p,) sum tree that SEL samples from: see `weigh_all`
    best: IntArray  # (2p,) likewise, for the greedy
    begin_s: FloatArray  # (n,)
    end_s: FloatArray  # (n,)
    slot_free_s: FloatArray  # (S,)
    device_work: FloatArray  # (D,)
    group_device: IntArray  # (n,) of a group that is placed together, or UNASSIGNED
    device: IntArray  # (n,) where the placed ones are
    arrival_s: FloatArray  # (D,) when the inputs of the vertex in hand are on a device
    added_bytes: FloatArray  # (D,) bytes of what the vertex in hand reads and is not yet there
    held_bytes: FloatArray  # (D,)
    has_input: BoolArray  # (inputs, D) whether an input that takes memory is on a device
    unread: IntArray  # (tensors,) edges whose reader is not placed
    there_s: FloatArray  # (tensors, D) when a tensor is on a device it was moved to; -1 if not
    arrived_s: FloatArray  # (arriving, D) the same for what comes from the host
    link_free_s: FloatArray  # (L,)
    read_edge: IntArray  # (m,) as in the tables, those of the vertex in hand as they are moved
    moving_link: (
        IntArray  # (1 + most reads,) of each transfer for the vertex in hand, the host's first
    )
    moving_end_s: FloatArray  # (1 + most reads,) when it leaves a lane of that link
    read_bytes: FloatArray  # (n, D) mean transfer seconds of what meets at a vertex, by device
    read_count: FloatArray  # (n, D) how many tensors that is
    features: FloatArray  # (D, 30)
    tally: FloatArray  # (6,) see USED and those after it
    last_step: IntArray  # (D,) that placed something on a device, or -1
    scored: IntArray  # (D,) the devices that are scored for the vertex in hand, ascending
    is_scored: BoolArray  # (D,) whether a device is one of those
    moves: IntArray  # (D,) transfers that the vertex in hand needs to run on a device
    near: FloatArray  # (3, D) siblings' bytes and counts on each device, and distances
    guide: IntArray  # (n,) where the guide has each vertex, or UNASSIGNED
    guide_end_s: FloatArray  # (n,) when a vertex ends with it; -1 where that is not known
    guide_slack_s: FloatArray  # (n,)
    guide_work: FloatArray  # (D,) exec seconds that it has on a device of what is not placed
    looked: IntArray  # (tensors, D) when a tensor was last seen to go to a device, by `looks`
    looks: IntArray  # (1,) vertices that were observed so far, in all episodes
    layer: Floats  # (H,)
    deep: Floats  # (K,)
    device_sum: Floats  # (D, H)
    logits: FloatArray  # (D,) of the devices that are scored
    same: FloatArray  # (D,) how many of them have the same logit


class Record(NamedTuple):
    """What came of B episodes; what has an empty array is left out."""

    order: IntArray  # (B, n) vertices as they were selected
    devices: IntArray  # (B, n) of each vertex
    features: Floats  # (B, n, C, 30) seen at each step, of the devices that were scored
    since: IntArray  # (B, n) from when on the vertex selected at each step was a candidate
    scored: IntArray  # (B, n, C) those devices, ascending
    last_step: IntArray  # (B, n, C) that placed something on each of them before, or -1


by_reference(Tables, Weights, Choice, Guide, PartialAssignments, State, Record)


def make_state(t: Tables, w: Weights) -> State:
    """Working memory for an instance and a policy."""
    n, d = t.exec_s.shape
    width, depth = w.hidden.shape
    slots = 1 << max(n - 1, 0).bit_length()
    return State(
        missing=np.zeros(n, np.int64),
        candidate=np.zeros(n, np.int64),
        entered=np.zeros(n, np.int64),
        weight=np.zeros(2 * slots),
        best=np.zeros(2 * slots, np.int64),
        begin_s=np.zeros(n),
        end_s=np.zeros(n),
        slot_free_s=np.zeros(int(t.slot_ptr[-1])),
        device_work=np.zeros(d),
        group_device=np.zeros(n, np.int64),
        device=np.zeros(n, np.int64),
        arrival_s=np.zeros(d),
        added_bytes=np.zeros(d),
        held_bytes=np.zeros(d),
        has_input=np.zeros((len(t.input_bytes), d), np.bool_),
        unread=np.zeros(len(t.tensor_reads), np.int64),
        there_s=np.zeros((len(t.tensor_reads), d)),
        arrived_s=np.zeros((len(t.arriving_s), d)),
        link_free_s=np.zeros(len(t.lanes)),
        read_edge=t.read_edge.copy(),
        moving_link=np.zeros(1 + int(t.num_reads.max(initial=0)), np.int64),
        moving_end_s=np.zeros(1 + int(t.num_reads.max(initial=0))),
        read_bytes=np.zeros((n, d)),
        read_count=np.zeros((n, d)),
        features=np.zeros((d, NUM_FEATURES)),
        tally=np.zeros(6),
        last_step=np.zeros(d, np.int64),
        scored=np.zeros(d, np.int64),
        is_scored=np.zeros(d, np.bool_),
        moves=np.zeros(d, np.int64),
        near=np.zeros((3, d)),
        guide=np.zeros(n, np.int64),
        guide_end_s=np.zeros(n),
        guide_slack_s=np.zeros(n),
        guide_work=np.zeros(d),
        looked=np.zeros((len(t.tensor_reads), d), np.int64),
        looks=np.zeros(1, np.int64),
        layer=on_cache_lines(np.zeros(width, np.float32)),
        deep=on_cache_lines(np.zeros(depth, np.float32)),
        device_sum=on_cache_lines(np.zeros((d, width), np.float32)),
        logits=np.zeros(d),
        same=np.zeros(d),
    )


@compiled
def roll_out(
    t: Tables,
    w: Weights,
    c: Choice,
    p: PartialAssignments,
    seeds: IntArray,
    s: State,
    r: Record,
) -> None:
    """Play one episode per seed, which completes a partial assignment."""
    for b in range(len(seeds)):
        play(t, w, c, p, np.uint64(seeds[b]), s, r, b)


@inlined
def play(
    t: Tables, w: Weights, c: Choice, p: PartialAssignments, seed: int, s: State, r: Record, b: int
) -> None:
    """Play episode b.

    Unless it is recorded, what is seen of a vertex is left out where it has a device already, and
    all but the order once no vertex is unassigned.
    """
    n, recorded = len(t.exec_s), len(r.features) > 0
    rng, unassigned = uint64(seed), count_unassigned(p, b, n)
    count, even = begin(t, s), 0.0
    follow_guide(t, p, s, b)
    has_order = len(p.orders) > 0
    if not has_order:
        even = weigh_all(w, c, s, count)
    for step in range(n):
        rng, drawn = uniform(rng)
        rng, chance = uniform(rng)
        if has_order:
            v = p.orders[b, step]
        else:
            v, even = take_candidate(w, c, s, count, even, drawn, chance)
            count -= 1
        if len(r.since):
            r.since[b, step] = s.entered[v]
        device = p.devices[b, v] if len(p.devices) else UNASSIGNED
        is_choice, group = device == UNASSIGNED, NO_GROUP
        if is_choice and len(p.groups):
            group = p.groups[v]
            if group != NO_GROUP:
                device = s.group_device[group]
        if recorded or device == UNASSIGNED:
            observe(t, s, v)
        elif unassigned > 0:
            sort_reads(t, s, v)
        if device != UNASSIGNED and group != NO_GROUP and is_crowded(t, s, v, device):
            device = UNASSIGNED
            if not recorded:
                observe(t, s, v)
        rng, drawn = uniform(rng)
        rng, chance = uniform(rng)
        if recorded or device == UNASSIGNED:
            count_scored, last = find_scored(w, s)
            if device == UNASSIGNED:
                device = choose(t, w, c, s, v, count_scored, drawn, chance)
            if recorded:
                include_device(s, device, last)
                record_step(s, r, b, step)
        r.order[b, step] = v
        r.devices[b, v] = device
        if recorded or unassigned > 0:
            put(t, w, s, v, device, step)
        unassigned -= is_choice
        if group != NO_GROUP:
            s.group_device[group] = device
        for e in range(t.edge_ptr[v], t.edge_ptr[v + 1]):
            reader = t.edge_reader[e]
            s.missing[reader] -= 1
            if s.missing[reader] == 0:
                s.entered[reader] = step + 1
                if not has_order:
                    even = add_candidate(w, c, s, reader, count, even)
                    count += 1


@inlined
def count_unassigned(p: PartialAssignments, b: int, n: int) -> int:
    """How many of the n vertices have no device before episode b."""
    count = n
    if len(p.devices):
        for v in range(n):
            count -= p.devices[b, v] != UNASSIGNED
    return count


@inlined
def take_candidate(
    w: Weights, c: Choice, s: State, count: int, even: float, drawn: float, chance: float
) -> tuple[int, float]:
    """SEL's choice, which is a candidate no longer, and the score that has the weight 1."""
    if c.select_temperature > 0.0 and s.weight[1] < LEAST_WEIGHT:
        even = weigh_all(w, c, s, count)
    at = select(c, s, count, drawn, chance)
    v = s.candidate[at]
    leave(w, c, s, at, count - 1)
    return v, even


@inlined
def add_candidate(w: Weights, c: Choice, s: State, v: int, count: int, even: float) -> float:
    """Make v a candidate besides `count` others; the score that has the weight 1."""
    s.candidate[count] = v
    if c.select_temperature > 0.0 and w.score[v] - even > MOST * c.select_temperature:
        return weigh_all(w, c, s, count + 1)
    enter(w, c, s, count, even)
    return even


@inlined
def find_scored(w: Weights, s: State) -> tuple[int, int]:
    """Note which devices are scored for the vertex that was observed: how many, and the least.

    All, if there are no more than the policy scores. Otherwise the best by one feature after the
    other, as `SCORED_BY` has them: the guide's, those that could end it first, that are near to its
    inputs, siblings or readers, that could begin it first or have the least to do. The least is the
    one that was noted last.
    """
    num_devices, most, last = len(s.last_step), w.most[0], -1
    everything = most <= 0 or num_devices <= most
    for d in range(num_devices):
        s.is_scored[d] = everything
    if not everything:
        for turn in range(most):
            f = SCORED_BY[turn % len(SCORED_BY)]
            best, least = -1, np.inf
            for d in range(num_devices):
                if not s.is_scored[d]:
                    value = -s.features[d, f] if f in (SHARE, GUIDED) else s.features[d, f]
                    value += WEIGHT_OF_END * s.features[d, EXTRA_END]
                    value += WEIGHT_OF_OVERFULL * s.features[d, OVERFULL]
                    if best < 0 or value < least - SAME:
                        best, least = d, value
            s.is_scored[best], last = True, best
    return list_scored(s), last


@inlined
def list_scored(s: State) -> int:
    """Fill in the devices that are scored; their number."""
    count = 0
    for d in range(len(s.is_scored)):
        if s.is_scored[d]:
            s.scored[count] = d
            count += 1
    return count


@inlined
def include_device(s: State, device: int, last: int) -> None:
    """Let a device that was given be one of those that are scored, in place of the last."""
    if not s.is_scored[device]:
        s.is_scored[last], s.is_scored[device] = False, True
        list_scored(s)


@inlined
def record_step(s: State, r: Record, b: int, step: int) -> None:
    """Record what was observed at a step of episode b, of the devices that are scored."""
    for i in range(r.scored.shape[2]):
        d = s.scored[i]
        r.scored[b, step, i], r.last_step[b, step, i] = d, s.last_step[d]
        for f in range(NUM_FEATURES):
            r.features[b, step, i, f] = s.features[d, f]


@inlined
def choose(
    t: Tables, w: Weights, c: Choice, s: State, v: int, count: int, drawn: float, chance: float
) -> int:
    """The device that is chosen for v, which has been observed, of those that are scored."""
    if c.place_early:
        return place_early(s, t.exec_s.shape[1], drawn)
    if chance < c.epsilon:
        return s.scored[min(int(drawn * count), count - 1)]
    score_devices(w, s, v, count)
    return s.scored[sample(s, count, c.place_temperature, c.alike, drawn)]


@inlined
def is_crowded(t: Tables, s: State, v: int, d: int) -> bool:
    """Whether d has no room for v, the inputs of which are sorted."""
    arrive(t, s, v, d, False)
    return running_bytes(t, s, v, d) > t.memory_bytes[d]


@inlined
def running_bytes(t: Tables, s: State, v: int, d: int) -> float:
    """Bytes on d while v, the inputs of which are there, runs there."""
    return s.held_bytes[d] + t.made_bytes[v] + t.temporary_bytes[v] + s.added_bytes[d]


@inlined
def uniform(state: Any) -> tuple[Any, float]:
    """The next state of SplitMix64, and a number in [0, 1)."""
    state = uint64(state + uint64(0x9E3779B97F4A7C15))
    z = uint64((state ^ (state >> uint64(30))) * uint64(0xBF58476D1CE4E5B9))
    z = uint64((z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB))
    z = z ^ (z >> uint64(31))
    return state, float(z >> uint64(11)) * (1.0 / 9007199254740992.0)


@inlined
def begin(t: Tables, s: State) -> int:
    """Forget the last episode; the number of candidates."""
    n, num_devices = t.exec_s.shape
    count = 0
    for v in range(n):
        s.missing[v] = t.num_reads[v]
        s.group_device[v] = UNASSIGNED
        if t.num_reads[v] == 0:
            s.candidate[count] = v
            s.entered[v] = 0
            count += 1
        for d in range(num_devices):
            s.read_bytes[v, d] = 0.0
            s.read_count[v, d] = 0.0
    s.tally[:] = 0.0
    for v in range(n):
        s.tally[WORK] += t.work_s[v]
    for d in range(num_devices):
        s.device_work[d] = 0.0
        s.held_bytes[d] = 0.0
        s.last_step[d] = -1
        for x in range(len(t.input_bytes)):
            s.has_input[x, d] = False
        for j in range(s.device_sum.shape[1]):
            s.device_sum[d, j] = 0.0
    for slot in range(len(s.slot_free_s)):
        s.slot_free_s[slot] = 0.0
    for tensor in range(s.there_s.shape[0]):
        s.unread[tensor] = t.tensor_reads[tensor]
        for d in range(num_devices):
            s.there_s[tensor, d] = -1.0
    for x in range(s.arrived_s.shape[0]):
        for d in range(num_devices):
            s.arrived_s[x, d] = -1.0
    for link in range(len(s.link_free_s)):
        s.link_free_s[link] = 0.0
    return count


@inlined
def follow_guide(t: Tables, p: PartialAssignments, s: State, b: int) -> None:
    """Note the guide of episode b, and the work that it has on each device."""
    devices, times = p.guide.devices, p.guide.times
    row, timed = min(b, len(devices) - 1), min(b, len(times) - 1)
    s.guide_work[:] = 0.0
    for v in range(len(t.exec_s)):
        s.guide[v] = devices[row, v] if row >= 0 else UNASSIGNED
        s.guide_end_s[v] = times[timed, 0, v] if timed >= 0 else -1.0
        s.guide_slack_s[v] = times[timed, 1, v] if timed >= 0 else 0.0
        if s.guide[v] != UNASSIGNED:
            s.guide_work[s.guide[v]] += t.exec_s[v, s.guide[v]]
            s.tally[GUIDES] += 1.0


@inlined
def weigh_all(w: Weights, c: Choice, s: State, count: int) -> float:
    """Make the sum tree of the candidates; the score that has the weight 1, the best of theirs.

    It is a binary tree over the slots of the candidates: node 1 is the root, 2i and 2i + 1 are
    below i, and p + slot is a slot, with p the next power of 2. A node has the sum of what is
    below it: nothing is ever subtracted. For the greedy it has the best slot below it, or -1.
    """
    even, slots = -np.inf, len(s.weight) >> 1
    for slot in range(count):
        even = max(even, w.score[s.candidate[slot]])
    for slot in range(slots):
        s.weight[slots + slot], s.best[slots + slot] = 0.0, -1
        if slot < count:
            s.weight[slots + slot] = weight_of(w, c, s, slot, even)
            s.best[slots + slot] = slot
    for i in range(slots - 1, 0, -1):
        sum_up(w, c, s, i)
    return even


@inlined
def enter(w: Weights, c: Choice, s: State, slot: int, even: float) -> None:
    """Add the candidate at a slot to the sum tree."""
    slots = len(s.weight) >> 1
    s.weight[slots + slot] = weight_of(w, c, s, slot, even)
    s.best[slots + slot] = slot
    settle(w, c, s, slot)


@inlined
def leave(w: Weights, c: Choice, s: State, at: int, last: int) -> None:
    """Take the candidate at a slot out; the first goes there, and the last to the first slot."""
    slots = len(s.weight) >> 1
    s.candidate[at], s.weight[slots + at] = s.candidate[0], s.weight[slots]
    s.candidate[0], s.weight[slots] = s.candidate[last], s.weight[slots + last]
    s.weight[slots + last], s.best[slots + last] = 0.0, -1
    settle(w, c, s, last)
    settle(w, c, s, at)
    settle(w, c, s, 0)


@inlined
def settle(w: Weights, c: Choice, s: State, slot: int) -> None:
    """Bring the nodes above a slot up to date."""
    i = ((len(s.weight) >> 1) + slot) >> 1
    while i > 0:
        sum_up(w, c, s, i)
        i >>= 1


@inlined
def sum_up(w: Weights, c: Choice, s: State, i: int) -> None:
    """Bring a node up to date with the two below it."""
    if c.select_temperature > 0.0:
        s.weight[i] = s.weight[2 * i] + s.weight[2 * i + 1]
        return
    left, right = s.best[2 * i], s.best[2 * i + 1]
    s.best[i] = left
    if right >= 0:
        v, u = s.candidate[right], s.candidate[left]
        if left < 0 or w.score[v] > w.score[u] or (w.score[v] == w.score[u] and v < u):
            s.best[i] = right


@inlined
def weight_of(w: Weights, c: Choice, s: State, slot: int, even: float) -> float:
    """The weight of a candidate, where a score of `even` has 1; the greedy have no use for it."""
    if c.select_temperature > 0.0:
        return np.exp((w.score[s.candidate[slot]] - even) / c.select_temperature)
    return 1.0


@inlined
def select(c: Choice, s: State, count: int, drawn: float, chance: float) -> int:
    """The slot of SEL's choice."""
    if chance < c.epsilon:
        return min(int(drawn * count), count - 1)
    if c.select_temperature <= 0.0:
        return s.best[1]
    slots = len(s.weight) >> 1
    i, left = 1, drawn * s.weight[1]
    while i < slots:
        i *= 2
        if left >= s.weight[i] and s.weight[i + 1] > 0.0:
            left -= s.weight[i]
            i += 1
    return i - slots


@inlined
def sort_reads(t: Tables, s: State, v: int) -> None:
    """Put the inputs of v in the order of their ends, then of their bytes, the large first."""
    first = t.read_ptr[v]
    for i in range(first, t.read_ptr[v + 1]):
        e, j = t.read_edge[i], i
        while j > first and goes_before(t, s, e, s.read_edge[j - 1]):
            s.read_edge[j] = s.read_edge[j - 1]
            j -= 1
        s.read_edge[j] = e


@inlined
def goes_before(t: Tables, s: State, e: int, other: int) -> bool:
    """Whether the tensor of an edge is moved before that of another, which has a lower id."""
    end_s, other_s = s.end_s[t.edge_producer[e]], s.end_s[t.edge_producer[other]]
    return end_s < other_s or (end_s == other_s and t.edge_bytes[e] > t.edge_bytes[other])


@inlined
def arrive(t: Tables, s: State, v: int, d: int, commit: bool) -> float:
    """When v can begin on d but for its slots, with the bytes of copies; `commit`: move them there.

    That is when all inputs are there, and the host has started what is planned and these transfers.
    """
    s.moves[d] = 0
    first, latest_s = t.read_ptr[v] - 1, come_from_host(t, s, v, d, commit)
    s.added_bytes[d] = 0.0
    for i in range(t.input_ptr[v], t.input_ptr[v + 1]):
        x = t.input[i]
        if not s.has_input[x, d]:
            s.added_bytes[d] += t.input_bytes[x]
            s.has_input[x, d] = commit
    for i in range(first + 1, t.read_ptr[v + 1]):
        e = s.read_edge[i]
        u, tensor = t.edge_producer[e], t.edge_tensor[e]
        source = s.device[u]
        s.moving_link[i - first] = -1
        at_s = s.end_s[u] + t.hop_s
        if source != d and s.there_s[tensor, d] >= 0.0:
            at_s = s.there_s[tensor, d]
        elif source != d:
            link = t.route[source, d]
            begin_s = max(at_s, s.link_free_s[link], host_s(t, s, d))
            s.moves[d] += 1
            s.added_bytes[d] += t.tensor_bytes[tensor]
            for j in range(i - first):
                if s.moving_link[j] == link:
                    begin_s = max(begin_s, s.moving_end_s[j])
            took_s = move_s(t, e, source, d)
            at_s = begin_s + took_s + t.hop_s
            if t.lanes[link] > 0:
                s.moving_link[i - first] = link
                s.moving_end_s[i - first] = begin_s + took_s / t.lanes[link]
            if commit:
                s.there_s[tensor, d] = at_s
                if t.lanes[link] > 0:
                    s.link_free_s[link] = s.moving_end_s[i - first]
        latest_s = max(latest_s, at_s)
    return max(latest_s, host_s(t, s, d))


@inlined
def host_s(t: Tables, s: State, d: int) -> float:
    """When the host has started all that is planned, and the transfers to d so far."""
    return s.tally[HOST] + s.moves[d] * t.dispatch_s


@inlined
def come_from_host(t: Tables, s: State, v: int, d: int, commit: bool) -> float:
    """When all that v reads from the host is on d; `commit`: let it come."""
    latest_s = 0.0
    s.moving_link[0] = -1
    for i in range(t.arriving_ptr[v], t.arriving_ptr[v + 1]):
        x, link = t.arriving[i], t.host_links[d]
        at_s = s.arrived_s[x, d]
        if at_s < 0.0:
            begin_s = s.moving_end_s[0] if s.moving_link[0] == link else s.link_free_s[link]
            begin_s = max(begin_s, host_s(t, s, d))
            s.moves[d] += 1
            at_s = begin_s + t.arriving_s[x, d] + t.hop_s
            if t.lanes[link] > 0:
                s.moving_link[0] = link
                s.moving_end_s[0] = begin_s + t.arriving_s[x, d] / t.lanes[link]
            if commit:
                s.arrived_s[x, d] = at_s
                if t.lanes[link] > 0:
                    s.link_free_s[link] = s.moving_end_s[0]
        latest_s = max(latest_s, at_s)
    return latest_s


@inlined
def earliest_slot(t: Tables, s: State, d: int) -> int:
    """The first slot of a device on which the vertex in hand can begin soonest."""
    best = t.slot_ptr[d]
    for slot in range(best + 1, t.slot_ptr[d + 1]):
        if s.slot_free_s[slot] < s.slot_free_s[best] and s.slot_free_s[best] > s.arrival_s[d]:
            best = slot
    return best


@inlined
def observe(t: Tables, s: State, v: int) -> None:
    """Fill in the features of all devices for v."""
    num_devices = t.exec_s.shape[1]
    find_siblings(t, s, v)
    find_producers(t, s, v)
    sort_reads(t, s, v)
    least_work, least_start, least_end = np.inf, np.inf, np.inf
    for d in range(num_devices):
        s.arrival_s[d] = arrive(t, s, v, d, False)
        start = max(s.slot_free_s[earliest_slot(t, s, d)], s.arrival_s[d])
        s.features[d, 0] = s.device_work[d]
        s.features[d, EARLIEST] = start
        s.features[d, 5] = s.near[0, d]
        s.features[d, 6] = s.near[1, d] / max(t.num_siblings[v], 1.0)
        s.features[d, 7] = s.near[2, d]
        s.features[d, 8] = t.exec_s[v, d]
        share = running_bytes(t, s, v, d) / t.memory_bytes[d]
        s.features[d, MEMORY_SHARE] = min(share, MOST_SHARE)
        s.features[d, OVERFULL] = s.features[d, MEMORY_SHARE] if share > 1.0 else 0.0
        least_work = min(least_work, s.device_work[d])
        least_start = min(least_start, start)
        least_end = min(least_end, start + t.exec_s[v, d])
    find_guide(t, s, v)
    used_share = s.tally[USED] / num_devices
    placed_share = s.tally[PLACED] / s.tally[WORK] if s.tally[WORK] > 0.0 else 0.0
    host_load = s.tally[HOST] / s.tally[END] if s.tally[END] > 0.0 else 0.0
    for d in range(num_devices):
        s.features[d, UNUSED] = 1.0 if s.last_step[d] < 0 else 0.0
        s.features[d, UNUSED + 1] = used_share
        s.features[d, UNUSED + 2] = placed_share
        s.features[d, HOST_TIME] = s.moves[d] * t.dispatch_s
        s.features[d, HOST_TIME + 1] = host_load
        for i in range(NUM_STATIC):
            s.features[d, HOST_TIME + 2 + i] = t.outlook[i]
        s.features[d, 10] = s.features[d, 0] - least_work
        s.features[d, EXTRA_START] = s.features[d, EARLIEST] - least_start
        s.features[d, EXTRA_END] = s.features[d, EARLIEST] + t.exec_s[v, d] - least_end
        for f in range(HOST_TIME + 1):
            if f != SHARE and (f < MEMORY_SHARE or f == HOST_TIME):
                s.features[d, f] = squeezed(t, s.features[d, f])
        for f in range(GUIDE_OUTPUT, NUM_FEATURES):
            s.features[d, f] = squeezed(t, s.features[d, f])


@inlined
def squeezed(t: Tables, seconds: float) -> float:
    """Seconds as `features.squeeze` has them, over the scale."""
    if seconds < 0.0:
        return -np.log1p(SQUEEZE / t.scale_s * -seconds) / SQUEEZED_ONE
    return np.log1p(SQUEEZE / t.scale_s * seconds) / SQUEEZED_ONE if seconds != 0.0 else 0.0


@inlined
def find_guide(t: Tables, s: State, v: int) -> None:
    """Fill in what compares each device with the guide, in seconds."""
    num_devices = t.exec_s.shape[1]
    own, least = s.guide[v], np.inf
    for d in range(num_devices):
        s.features[d, GUIDED] = 1.0 if d == own else 0.0
        s.features[d, GUIDE_OUTPUT] = 0.0
        work = s.device_work[d] + s.guide_work[d] if s.tally[GUIDES] > 0.0 else 0.0
        if d == own:
            work -= t.exec_s[v, d]
        s.features[d, GUIDE_OUTPUT + 1] = max(work, 0.0)
        least = min(least, s.features[d, GUIDE_OUTPUT + 1])
    for d in range(num_devices):
        s.features[d, GUIDE_OUTPUT + 2] = s.features[d, GUIDE_OUTPUT + 1] - least
        end_s = s.features[d, EARLIEST] + t.exec_s[v, d]
        late_s = end_s - s.guide_end_s[v] if s.guide_end_s[v] >= 0.0 else 0.0
        s.features[d, GUIDE_OUTPUT + 3] = late_s
        s.features[d, GUIDE_OUTPUT + 4] = s.guide_slack_s[v]
    s.looks[0] += 1
    for e in range(t.edge_ptr[v], t.edge_ptr[v + 1]):
        to, tensor = s.guide[t.edge_reader[e]], t.edge_tensor[e]
        if to == UNASSIGNED or s.looked[tensor, to] == s.looks[0]:
            continue
        s.looked[tensor, to] = s.looks[0]
        for d in range(num_devices):
            if d != to:
                s.features[d, GUIDE_OUTPUT] += move_s(t, e, d, to)


@inlined
def find_producers(t: Tables, s: State, v: int) -> None:
    """Fill in work, first start and last end of v's producers on each device, and their moves."""
    num_devices = t.exec_s.shape[1]
    for d in range(num_devices):
        s.features[d, 1], s.features[d, 2], s.features[d, 3] = 0.0, np.inf, 0.0
        s.features[d, 9] = 0.0
    for i in range(t.read_ptr[v], t.read_ptr[v + 1]):
        e = t.read_edge[i]
        u = t.edge_producer[e]
        at = s.device[u]
        s.features[at, 1] += t.exec_s[u, at]
        s.features[at, 2] = min(s.features[at, 2], s.begin_s[u])
        s.features[at, 3] = max(s.features[at, 3], s.end_s[u])
        for d in range(num_devices):
            s.features[d, 9] += 0.0 if d == at else move_s(t, e, at, d)
    for d in range(num_devices):
        if s.features[d, 2] == np.inf:
            s.features[d, 2] = 0.0


@inlined
def find_siblings(t: Tables, s: State, v: int) -> None:
    """Fill in bytes and counts of v's siblings on each device, and their mean distance."""
    num_devices = t.exec_s.shape[1]
    for d in range(num_devices):
        s.near[0, d], s.near[1, d], s.near[2, d] = 0.0, 0.0, 0.0
    output, total = -1, 0.0
    for e in range(t.edge_ptr[v], t.edge_ptr[v + 1]):
        meeting = t.edge_meets[e]
        if output < 0 or t.edge_bytes[e] > t.edge_bytes[output]:
            output = e
        for d in range(num_devices):
            s.near[0, d] += s.read_bytes[meeting, d]
            s.near[1, d] += s.read_count[meeting, d]
            total += s.read_count[meeting, d]
    if total == 0.0:
        return
    for d in range(num_devices):
        for k in range(num_devices):
            if k != d and s.near[1, k] > 0.0:
                s.near[2, d] += s.near[1, k] / total * move_s(t, output, d, k)


@inlined
def move_s(t: Tables, e: int, source: int, target: int) -> float:
    """Seconds to move the tensor of an edge to another device."""
    return (
        t.edge_fixed_s[e]
        + t.latency_s[source, target]
        + (t.edge_bytes[e] * t.s_per_byte[source, target])
    )


@inlined
def place_early(s: State, num_devices: int, drawn: float) -> int:
    """The device on which the vertex that was observed can begin first, of those it overfills the
    least; ties at random.
    """
    least, ties, best = np.inf, 0, -1
    for d in range(num_devices):
        least = min(least, s.features[d, OVERFULL])
    for d in range(num_devices):
        if s.features[d, OVERFULL] > least:
            continue
        if best < 0 or s.features[d, EXTRA_START] < s.features[best, EXTRA_START]:
            best, ties = d, 0
        ties += s.features[d, EXTRA_START] == s.features[best, EXTRA_START]
    skip, device = int(drawn * ties), best
    for d in range(best, num_devices):
        if (
            s.features[d, OVERFULL] == least
            and s.features[d, EXTRA_START] == s.features[best, EXTRA_START]
        ):
            device = d
            if skip == 0:
                break
            skip -= 1
    return device


@summing
def score_devices(w: Weights, s: State, v: int, count: int) -> None:
    """Fill in PLC's logits for v of the devices that are scored, from the observed features."""
    width, depth, least = s.device_sum.shape[1], len(s.deep), np.inf
    for i in range(count):
        least = min(least, s.features[s.scored[i], OVERFULL])
    for i in range(count):
        d = s.scored[i]
        for j in range(width):
            s.layer[j] = w.vertex[v, j] + s.device_sum[d, j]
        for f in range(NUM_FEATURES):
            value = np.float32(s.features[d, f])
            if value != 0.0:
                for j in range(width):
                    s.layer[j] += value * w.feature[f, j]
        for k in range(depth):
            s.deep[k] = w.hidden_bias[k]
        for j in range(width):
            value = s.layer[j]
            value = value if value > 0.0 else LEAK * value
            for k in range(depth):
                s.deep[k] += value * w.hidden[j, k]
        logit = np.float32(0.0)
        for k in range(depth):
            value = s.deep[k]
            logit += (value if value > 0.0 else LEAK * value) * w.out[k]
        s.logits[i] = logit - w.crowded[0] * (s.features[d, OVERFULL] - least)


@inlined
def sample(s: State, num_devices: int, temperature: float, alike: bool, drawn: float) -> int:
    """The place, among devices that are scored, of one drawn by the softmax of the logits at a
    temperature; the best at 0.

    Where devices that cannot be told apart are one choice, the temperature is that of the choice,
    which is then shared among them.
    """
    best = 0
    for d in range(num_devices):
        s.same[d] = 1.0
        if alike:
            for k in range(num_devices):
                if k != d and abs(s.logits[k] - s.logits[d]) <= TIE:
                    s.same[d] += 1.0
    for d in range(num_devices):
        s.logits[d] += np.log(s.same[d])
        if s.logits[d] > s.logits[best] + TIE:
            best = d
    if temperature <= 0.0:
        return best
    top, total = s.logits[best], 0.0
    for d in range(num_devices):
        s.logits[d] = np.exp((s.logits[d] - top) / temperature) / s.same[d]
        total += s.logits[d]
    left, device = drawn * total, 0
    while device < num_devices - 1 and left >= s.logits[device]:
        left -= s.logits[device]
        device += 1
    return device


@inlined
def put(t: Tables, w: Weights, s: State, v: int, d: int, step: int) -> None:
    """Place v, the inputs of which are sorted, on d at a step."""
    s.tally[USED] += s.last_step[d] < 0
    s.tally[PLACED] += t.work_s[v]
    s.last_step[d] = step
    s.arrival_s[d] = arrive(t, s, v, d, True)
    slot = earliest_slot(t, s, d)
    begin_s = max(s.slot_free_s[slot], s.arrival_s[d])
    s.device[v] = d
    end_s = begin_s + t.exec_s[v, d]
    s.begin_s[v], s.end_s[v], s.slot_free_s[slot] = begin_s, end_s, end_s
    s.tally[HOST] += (s.moves[d] + 1) * t.dispatch_s
    s.tally[END] = max(s.tally[END], end_s)
    s.device_work[d] += t.exec_s[v, d]
    if s.guide[v] != UNASSIGNED:
        s.guide_work[s.guide[v]] -= t.exec_s[v, s.guide[v]]
    s.held_bytes[d] += t.made_bytes[v] + s.added_bytes[d]
    forget_read(t, s, v)
    for j in range(s.device_sum.shape[1]):
        s.device_sum[d, j] += w.placed[v, j]
    if t.is_head[v]:
        for e in range(t.edge_ptr[v], t.edge_ptr[v + 1]):
            s.read_bytes[t.edge_meets[e], d] += t.edge_move_s[e]
            s.read_count[t.edge_meets[e], d] += 1.0


@inlined
def forget_read(t: Tables, s: State, v: int) -> None:
    """Free what v was the last to read, wherever it is."""
    for i in range(t.read_ptr[v], t.read_ptr[v + 1]):
        e = t.read_edge[i]
        tensor = t.edge_tensor[e]
        s.unread[tensor] -= 1
        if s.unread[tensor] == 0:
            s.held_bytes[s.device[t.edge_producer[e]]] -= t.tensor_bytes[tensor]
            for d in range(len(s.held_bytes)):
                if s.there_s[tensor, d] >= 0.0:
                    s.held_bytes[d] -= t.tensor_bytes[tensor]
