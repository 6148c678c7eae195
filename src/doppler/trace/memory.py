"""The memory that a run takes on each device, as a trace shows it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.graph.graph import Graph

if TYPE_CHECKING:
    from doppler.trace.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class MemoryUse:
    """Bytes in use on one device: `used_bytes[i]` from `time_s[i]` on."""

    time_s: FloatArray  # (N,) ascending, from 0 on
    used_bytes: FloatArray  # (N,)

    @property
    def peak_bytes(self) -> float:
        """The most at any time."""
        return float(self.used_bytes.max(initial=0.0))


def memory_use(graph: Graph, trace: "Trace", *, is_planned: bool | None = None) -> list[MemoryUse]:
    """The memory of each device in a run of this graph, simulated or measured.

    As in `scheduler.memory`: an output is there from the begin of its exec, a copy from the begin
    of its transfer, until the last task that uses it there ends, or uses it before it is brought
    again; temporaries are there while their vertex runs. Results and inputs that stay do so to
    the end. Inputs that take memory and are not brought are there from the beginning.

    In a run with a memory plan inputs do not stay, nor do results that are evicted. `is_planned`
    says whether it is one; None: if something is evicted, or loaded that was in place.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> trace = dp.simulate(graph, "p100x4", dp.place(graph, "p100x4", "single"))
    >>> [use.peak_bytes > 0 for use in trace.memory(graph)]
    [True, False, False, False]
    """
    if is_planned is None:
        is_planned = _shows_a_plan(graph, trace)
    tensor, device, begin_s, end_s = _copies(graph, trace, is_planned=is_planned)
    execs = ~trace.is_transfer
    device = np.append(device, trace.device[execs])
    size = np.append(
        np.ceil(graph.tensor_bytes)[tensor], np.ceil(graph.temporary_bytes)[trace.vertex[execs]]
    )
    begin_s, end_s = np.append(begin_s, trace.begin_s[execs]), np.append(end_s, trace.end_s[execs])
    return [
        _steps(begin_s[here], end_s[here], size[here])
        for here in (device == d for d in range(len(trace.devices)))
    ]


def _shows_a_plan(graph: Graph, trace: "Trace") -> bool:
    """Whether a trace has moves between the devices and the host beside inputs that arrive."""
    host, moves = len(trace.devices), trace.is_transfer
    loads = moves & (trace.source == host)
    pairs = np.stack([trace.tensor[loads], trace.device[loads]])
    return bool(
        (moves & (trace.device == host)).any()
        or (~graph.arrives[trace.vertex[loads]]).any()
        or np.unique(pairs, axis=1).shape[1] < pairs.shape[1]
    )


def _copies(
    graph: Graph, trace: "Trace", *, is_planned: bool
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Tensor, device, begin and end of each stay of a tensor in memory; infinity: to the end."""
    size, moves = len(trace.devices), trace.is_transfer
    row = np.full(graph.num_vertices, -1, np.int64)  # of each vertex that ran
    row[trace.vertex[~moves]] = np.flatnonzero(~moves)
    ran = row >= 0
    producer = graph.tensor_producer
    is_counted = (~graph.is_input | graph.arrives | graph.stays)[producer]
    # Who uses what where: vertices that read, and transfers that leave.
    read = is_counted[graph.edge_tensor] & ran[graph.edge_reader]
    reading, leaves = row[graph.edge_reader[read]], np.flatnonzero(moves & (trace.source < size))
    users = np.append(reading, leaves)
    used = np.append(
        graph.edge_tensor[read] * size + trace.device[reading],
        trace.tensor[leaves] * size + trace.source[leaves],
    )
    # What comes where: outputs, copies, and inputs that are there already.
    made, brought = np.flatnonzero(ran[producer]), np.flatnonzero(moves & (trace.device < size))
    home = made * size + trace.device[row[producer[made]]]
    come = np.append(home, trace.tensor[brought] * size + trace.device[brought])
    in_place, rows = np.setdiff1d(used, come), np.append(row[producer[made]], brought)
    if is_planned:  # what is loaded later may be in place as well
        in_place = _used_before(used, trace.begin_s[users], come, trace.begin_s[rows])
    key = np.concatenate([come, in_place])
    begin_s = np.append(trace.begin_s[rows], np.zeros(len(in_place)))
    order = np.lexsort((begin_s, key))
    key, begin_s = key[order], begin_s[order]
    # A use is of the copy that came last before it.
    both_s = np.append(begin_s, trace.begin_s[users])
    is_use = np.repeat([False, True], [len(key), len(used)])
    merged = np.lexsort((is_use, both_s, np.append(key, used)))
    latest = np.empty(len(merged), np.int64)
    latest[merged] = np.cumsum(~is_use[merged]) - 1
    copy = np.maximum(latest[len(key) :], np.searchsorted(key, used))
    end_s = np.full(len(key), -np.inf)
    np.maximum.at(end_s, copy, trace.end_s[users])
    is_last = np.append(key[1:] != key[:-1], True)[: len(key)]
    is_result = graph.is_result.copy()
    if is_planned:
        is_result[trace.tensor[moves & (trace.device == size)]] = False
    stays = np.isin(key, home[is_result[made]])
    if not is_planned:
        stays |= graph.stays[producer][key // size]
    end_s[np.isneginf(end_s) | (is_last & stays)] = np.inf
    return key // size, key % size, begin_s, end_s


def _used_before(
    used: IntArray, used_s: FloatArray, come: IntArray, come_s: FloatArray
) -> IntArray:
    """What is used before it first comes, each once."""
    keys, index = np.unique(np.append(used, come), return_inverse=True)
    first_use_s, first_s = np.full((2, len(keys)), np.inf)
    np.minimum.at(first_use_s, index[: len(used)], used_s)
    np.minimum.at(first_s, index[len(used) :], come_s)
    return keys[first_use_s < first_s]


def _steps(begin_s: FloatArray, end_s: FloatArray, size: FloatArray) -> MemoryUse:
    """The sum of sizes over time; at one instant, what leaves does so before anything comes."""
    time_s = np.concatenate([[0.0], begin_s, end_s])
    change = np.concatenate([[0.0], size, -size])
    order = np.lexsort((change > 0, time_s))
    order = order[np.isfinite(time_s[order]) & ((change[order] != 0) | (order == 0))]
    return MemoryUse(time_s[order], np.cumsum(change[order]))
