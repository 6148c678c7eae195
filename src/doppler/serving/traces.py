"""TraceWindow: the latest traces of the latest assignments, and which of their rows still count."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.graph.graph import Graph
from doppler.machine.calibration import Calibration
from doppler.serving.incumbent import digest
from doppler.serving.watch import DEVICE, KIND, LINK, Change
from doppler.tasks import enumerate_tasks
from doppler.topology.topology import Topology
from doppler.trace import Trace, build_trace

# Assignments whose latest traces are kept. Many of one would tell nothing of kernels on devices
# where it has none.
WINDOW = 32
LONGER, LONGEST = 1.5, 3.0  # times as long until the next doubt, up to that many times `stale`

Place = tuple[str, int]  # a device or a link, by number


@dataclass(frozen=True, slots=True)
class Dated:
    """A trace, and the number of requests when it was taken."""

    devices: IntArray  # (V,)
    trace: Trace
    at: int


class TraceWindow:
    """Traces of one graph on one machine that may change.

    Rows of a device or link from before a change do not count. Neither do those of one that no
    trace has shown for `stale` requests, where others like it were seen since: it may be as they
    are, or as it was before its change, and only a run there can tell. The next such doubt takes
    longer to come.
    """

    def __init__(
        self, graph: Graph, topology: Topology, *, repeats: int = 1, stale: float = inf
    ) -> None:
        """`repeats` traces are kept of each assignment."""
        self.graph, self.topology, self._repeats, self._stale = graph, topology, repeats, stale
        self._kept: dict[str, deque[Dated]] = {}  # by digest, the latest last
        self._since: dict[Place, int] = {}  # of the last change
        self._kind_since: dict[str, int] = {}
        self._seen: dict[Place, int] = {}
        self._period: dict[Place, float] = {}
        self._number = {
            **{(DEVICE, d.name): (DEVICE, i) for i, d in enumerate(topology.devices)},
            **{(LINK, link.name): (LINK, i) for i, link in enumerate(topology.links)},
        }
        plain = [replace(d, name="", address="", group="") for d in topology.devices]
        links = [replace(link, name="") for link in topology.links]
        self._alike: dict[Place, list[Place]] = {}  # the others that are like each
        for kind, things in ((DEVICE, plain), (LINK, links)):
            for i, thing in enumerate(things):
                same = [(kind, j) for j, other in enumerate(things) if other == thing and j != i]
                self._alike[kind, i] = same

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def __iter__(self) -> Iterator[Dated]:
        """All traces, the oldest first."""
        every = (dated for rows in self._kept.values() for dated in rows)
        return iter(sorted(every, key=lambda dated: dated.at))

    def add(self, devices: IntArray, trace: Trace, now: int) -> None:
        """Take a trace of (V,) devices."""
        for place in self._places(trace.device[~trace.is_transfer], trace.link):
            if self._is_stale(place, now):
                self._since[place] = now
                self._doubt_later(place)
            self._seen[place] = now
        rows = self._kept.pop(key := digest(devices), deque(maxlen=self._repeats))
        rows.append(Dated(devices, trace, now))
        self._kept[key] = rows
        if len(self._kept) > WINDOW:
            del self._kept[next(iter(self._kept))]

    def changed(self, change: Change, since: int, now: int) -> None:
        """The machine has changed at places, as those of `Watch` say, or in kinds of vertices."""
        places = [self._number[name] for name in change.ratios if name in self._number]
        for place in places:
            self._since[place], self._seen[place] = since, now
            self._period.pop(place, None)
        if not places:
            self._kind_since |= {name: since for kind, name in change.ratios if kind == KIND}

    def unanswered(self, devices: IntArray, now: int) -> None:
        """A run of (V,) devices was given up: where it went, what was last seen still holds."""
        tasks = enumerate_tasks(self.graph, self.topology, devices)
        for place in self._places(devices[devices >= 0], tasks.link):
            if self._is_stale(place, now):
                self._seen[place] = now
                self._doubt_later(place)

    def doubts(self, now: int) -> tuple[Place, ...]:
        """The places that no trace has shown for long."""
        return tuple(place for place in self._alike if self._is_stale(place, now))

    def calibrated(self, now: int) -> Topology:
        """The topology with the costs that the rows which count show."""
        calibration = Calibration(self.topology, self.graph)
        for dated in self:
            calibration.add(dated.trace, self._counts(dated, now))
        return calibration.topology()

    def _counts(self, dated: Dated, now: int) -> BoolArray:
        trace = dated.trace
        devices, links = self.topology.num_devices, self.topology.num_links
        on_device = np.array([self._holds((DEVICE, d), dated.at, now) for d in range(devices)])
        on_link = np.array([self._holds((LINK, i), dated.at, now) for i in range(links)], np.bool_)
        moves, counts = trace.is_transfer, np.ones(len(trace.vertex), np.bool_)
        counts[~moves] = on_device[trace.device[~moves]]
        counts[moves] = on_link[trace.link[moves]]
        for kind, since in self._kind_since.items():
            if dated.at < since:
                of_kind = np.array([each == kind for each in trace.vertex_kinds])
                counts &= moves | ~of_kind[trace.vertex]
        return counts

    def _holds(self, place: Place, at: int, now: int) -> bool:
        """Whether what was seen at a place then counts now."""
        since = self._since.get(place, -1)
        if not self._is_stale(place, now):
            return at >= since
        return at < since and not self._has_fresh_kin(place, now)

    def _is_stale(self, place: Place, now: int) -> bool:
        """Whether a place was not seen for long, but others like it were, or it changed before."""
        if place not in self._seen or self._rests(place, now):
            return False
        return place in self._since or self._has_fresh_kin(place, now)

    def _has_fresh_kin(self, place: Place, now: int) -> bool:
        """Whether another one like it was seen lately."""
        return any(other in self._seen and self._rests(other, now) for other in self._alike[place])

    def _rests(self, place: Place, now: int) -> bool:
        return now - self._seen[place] <= self._period.get(place, self._stale)

    def _doubt_later(self, place: Place) -> None:
        longer = LONGER * self._period.get(place, self._stale)
        self._period[place] = min(longer, LONGEST * self._stale)

    def _places(self, devices: IntArray, links: IntArray) -> list[Place]:
        used = [(DEVICE, int(d)) for d in np.unique(devices)]
        return [*used, *((LINK, int(i)) for i in np.unique(links) if i >= 0)]


def times_of(graph: Graph, topology: Topology, trace: Trace) -> FloatArray:
    """(3, N) when each task of a trace was ready, began and ended, by the number of the task."""
    tasks = enumerate_tasks(graph, topology, devices_of(graph, trace))
    size, width = graph.num_vertices, topology.num_devices
    moves = trace.is_transfer
    keys = tasks.tensor * width + tasks.target  # ascending
    task = trace.vertex.copy()
    task[moves] = size + np.searchsorted(keys, (trace.tensor * width + trace.device)[moves])
    times = np.zeros((3, size + tasks.num_transfers))
    times[:, task] = trace.ready_s, trace.begin_s, trace.end_s
    return times


def devices_of(graph: Graph, trace: Trace) -> IntArray:
    """(V,) the device that ran each vertex."""
    execs = ~trace.is_transfer
    devices = np.full(graph.num_vertices, -1, np.int64)
    devices[trace.vertex[execs]] = trace.device[execs]
    return devices


def trace_from(
    graph: Graph, topology: Topology, devices: IntArray, times: FloatArray, placer: str = ""
) -> Trace:
    """The trace of (V,) devices with the times that `times_of` gave."""
    tasks = enumerate_tasks(graph, topology, devices)
    return build_trace(graph, topology, tasks, (times[0], times[1], times[2]), placer=placer)
