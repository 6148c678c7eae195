"""Trace: every begin and end of every exec and transfer, and what follows from them."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.base.notebook import brief, html_table, number
from doppler.graph.graph import Graph
from doppler.trace.drawing import trace_svg
from doppler.trace.memory import MemoryUse, memory_use

SAME_DEVICE, SAME_GROUP, ACROSS_GROUPS = "same-device", "same-group", "across-groups"
HOST = "host"
REASONS = ("start", "input", "device", "link")  # what holds a task back


class TraceDevice(NamedTuple):
    """What a trace says of a device."""

    name: str
    group: str
    slots: int


class TraceLink(NamedTuple):
    """What a trace says of a link."""

    name: str
    lanes: int  # 0 = any number


class ChainStep(NamedTuple):
    """A task on the critical chain, and what it waited for."""

    row: int  # of the trace
    waited_for: str  # "start", "input", "device" or "link": what held it back last
    wait_s: float  # from the end of the step before until this one began
    before: int  # row of the step before, -1 at the start


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What happened when, one row per task, by begin and then in topological order.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> trace = dp.simulate(graph, "p100x4", dp.place(graph, "p100x4", "heft"))
    >>> trace.makespan_s > 0
    True
    >>> trace.utilization().shape
    (4,)
    """

    graph: str  # name
    topology: str  # name
    placer: str
    vertex_names: tuple[str, ...]  # (V,)
    vertex_kinds: tuple[str, ...]  # (V,)
    devices: tuple[TraceDevice, ...]
    links: tuple[TraceLink, ...]
    local_bytes: float  # of tensors read on the device that made them
    vertex: IntArray  # (N,) vertex executed, or producer of the tensor moved
    tensor: IntArray  # (N,) tensor moved, -1 for an exec
    source: IntArray  # (N,) device it leaves, D for the host, -1 for an exec
    device: IntArray  # (N,) device it runs on, or goes to; D for the host
    link: IntArray  # (N,) link it takes, -1 for an exec
    moved_bytes: FloatArray  # (N,) 0 for an exec
    ready_s: FloatArray  # (N,) when the last of its inputs was there
    begin_s: FloatArray  # (N,)
    end_s: FloatArray  # (N,)
    after: IntArray  # (N,) row of the input that arrived last, -1 if it needs none

    def __repr__(self) -> str:
        transfers = int(self.is_transfer.sum())
        by = f" by {brief(self.placer)}" if self.placer else ""
        return (
            f"<Trace of {brief(self.graph)} on {brief(self.topology)}{by}: "
            f"{len(self.vertex) - transfers} execs, {transfers} transfers, "
            f"makespan {number(self.makespan_s)} s>"
        )

    def _repr_html_(self) -> str:
        columns = ("device", "busy s", "utilization")
        numbers = zip(self.busy_s().tolist(), self.utilization().tolist(), strict=True)
        rows = (
            (device.name, number(busy_s), f"{share:.1%}")
            for device, (busy_s, share) in zip(self.devices, numbers, strict=True)
        )
        table = html_table(repr(self), columns, rows, count=len(self.devices))
        return table + trace_svg(self)

    def plot(self, ax: Any = None, *, links: bool = True) -> Any:
        """The timeline as a matplotlib figure, for print; into `ax` where axes are given."""
        from doppler.trace.plotting import plot_trace

        return plot_trace(self, ax, links=links)

    @property
    def makespan_s(self) -> float:
        """Seconds until the last task ended: the paper's ExecTime."""
        return float(self.end_s.max(initial=0.0))

    @property
    def is_transfer(self) -> BoolArray:
        """(N,) whether a row is a transfer."""
        return self.tensor >= 0

    @property
    def bytes_moved(self) -> float:
        """Bytes moved between devices, and between them and the host."""
        return float(self.moved_bytes.sum())

    def busy_s(self) -> FloatArray:
        """(D,) seconds of exec on each device, summed over its slots."""
        execs = ~self.is_transfer
        seconds = (self.end_s - self.begin_s)[execs]
        return np.bincount(self.device[execs], seconds, len(self.devices)).astype(np.float64)

    def idle_s(self) -> FloatArray:
        """(D,) slot-seconds each device spent without an exec."""
        slots = np.array([d.slots for d in self.devices])
        return np.maximum(self.makespan_s * slots - self.busy_s(), 0.0)

    def utilization(self) -> FloatArray:
        """(D,) share of each device's slots and time that execs filled."""
        slots = np.array([d.slots for d in self.devices], np.float64)
        if self.makespan_s == 0:
            return np.zeros(len(slots))
        share: FloatArray = self.busy_s() / (self.makespan_s * slots)
        return share

    def link_utilization(self) -> FloatArray:
        """(L,) share of each link's lanes and time in use; of the time alone if unlimited."""
        busy = np.zeros(len(self.links))
        for i, link in enumerate(self.links):
            rows = self.link == i
            if link.lanes:
                busy[i] = (self.end_s - self.begin_s)[rows].sum() / link.lanes
            else:
                busy[i] = _covered(self.begin_s[rows], self.end_s[rows])
        return busy / self.makespan_s if self.makespan_s else busy

    def bytes_by_link(self) -> FloatArray:
        """(L,) bytes moved over each link."""
        rows = self.is_transfer
        moved = np.bincount(self.link[rows], self.moved_bytes[rows], len(self.links))
        return moved.astype(np.float64)

    def bytes_by_class(self) -> dict[str, float]:
        """Bytes read where they were made, moved within a group, across groups, and with the host.

        The last only where there are some.
        """
        rows = self.is_transfer
        groups = np.unique([d.group for d in self.devices], return_inverse=True)[1]
        groups = np.append(groups, -1)  # of the host
        source, target = groups[self.source[rows]], groups[self.device[rows]]
        moved, with_host = self.moved_bytes[rows], (source < 0) | (target < 0)
        bytes_of = {
            SAME_DEVICE: self.local_bytes,
            SAME_GROUP: float(moved[(source == target) & ~with_host].sum()),
            ACROSS_GROUPS: float(moved[(source != target) & ~with_host].sum()),
        }
        return bytes_of | ({HOST: float(moved[with_host].sum())} if with_host.any() else {})

    def overlap(self) -> float:
        """Share of the transfer time during which some device computes; 1 with no transfers."""
        moves = self.is_transfer
        moving = _covered(self.begin_s[moves], self.end_s[moves])
        computing = _covered(self.begin_s[~moves], self.end_s[~moves])
        either = _covered(self.begin_s, self.end_s)
        return 1.0 if moving == 0 else min(1.0, max(0.0, (moving + computing - either) / moving))

    def memory(self, graph: Graph, *, is_planned: bool | None = None) -> list[MemoryUse]:
        """Bytes in use over time on each device, in a run of this graph.

        With a memory plan inputs leave after their last use; None: as the trace shows.
        """
        return memory_use(graph, self, is_planned=is_planned)

    def critical_chain(self) -> list[ChainStep]:
        """The tasks that led to the last end, first to last, each with what held it back.

        A task waited for its device or link if another task on it ended after the task was
        ready; otherwise for its last input.
        """
        if not len(self.end_s):
            return []
        neighbours = self._rows_by_resource()
        steps = [self._step(int(np.argmax(self.end_s)), neighbours)]
        while (row := steps[-1].before) >= 0:
            steps.append(self._step(row, neighbours))
        return steps[::-1]

    def waits(self) -> list[ChainStep]:
        """(N,) what held each task back, as in the critical chain."""
        before, reason = self.held_back()
        wait_s = self.begin_s - np.where(before >= 0, self.end_s[before], 0.0)
        steps = zip(reason.tolist(), wait_s.tolist(), before.tolist(), strict=True)
        return [ChainStep(row, REASONS[r], *step) for row, (r, *step) in enumerate(steps)]

    def held_back(self) -> tuple[IntArray, IntArray]:
        """(N,) row that held each task back, -1 where none did; (N,) why, of `REASONS`."""
        before, waited = self.after.copy(), np.zeros(len(self.after), np.bool_)
        neighbours, moves = self._rows_by_resource(), self.is_transfer
        lanes = [1] * len(self.devices) + [link.lanes for link in self.links]
        for rows in (rows for rows, limit in zip(neighbours, lanes, strict=True) if limit):
            last = np.searchsorted(self.end_s[rows], self.begin_s[rows], side="right") - 1
            later = (last >= 0) & (rows[last] >= rows)
            while later.any():
                last -= later
                later = (last >= 0) & (rows[last] >= rows)
            held = (last >= 0) & (self.end_s[rows[last]] > self.ready_s[rows])
            before[rows[held]] = rows[last[held]]
            waited[rows[held]] = True
        no_wait = np.where(before >= 0, REASONS.index("input"), REASONS.index("start"))
        wait = np.where(moves, REASONS.index("link"), REASONS.index("device"))
        return before, np.where(waited, wait, no_wait)

    def _step(self, row: int, neighbours: list[IntArray]) -> ChainStep:
        before, reason = self._held_back_by(row, neighbours)
        wait = self.begin_s[row] - (self.end_s[before] if before >= 0 else 0.0)
        return ChainStep(row, reason, float(wait), before)

    def _rows_by_resource(self) -> list[IntArray]:
        """The rows on each device, then on each link, by end."""
        resource = np.where(self.is_transfer, len(self.devices) + self.link, self.device)
        order = np.lexsort((self.end_s, resource))
        size = len(self.devices) + len(self.links)
        return np.split(order, np.searchsorted(resource[order], np.arange(1, size)))

    def _held_back_by(self, row: int, neighbours: list[IntArray]) -> tuple[int, str]:
        is_transfer = bool(self.tensor[row] >= 0)
        if not is_transfer or self.links[self.link[row]].lanes:
            place = len(self.devices) + self.link[row] if is_transfer else self.device[row]
            rows = neighbours[place]
            last = bisect_right(rows, self.begin_s[row], key=self.end_s.__getitem__) - 1
            # Rows are by begin, so only earlier rows can have held this one back; `after` is
            # earlier too, so the chain has an end.
            while last >= 0 and rows[last] >= row:
                last -= 1
            if last >= 0 and self.end_s[rows[last]] > self.ready_s[row]:
                return int(rows[last]), "link" if is_transfer else "device"
        after = int(self.after[row])
        return (after, "input") if after >= 0 else (-1, "start")


def _covered(begin: FloatArray, end: FloatArray) -> float:
    """Length of the union of intervals."""
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    if not len(begin):
        return 0.0
    reach = np.maximum.accumulate(end)
    gaps = np.maximum(begin[1:] - reach[:-1], 0.0).sum()
    return float(reach[-1] - begin[0] - gaps)
