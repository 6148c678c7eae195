"""Calibration: what measured traces say about kernels, links and the host of a machine."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray
from doppler.errors import ConfigError
from doppler.graph.graph import Graph
from doppler.graph.signatures import signatures
from doppler.machine.robust import (
    Samples,
    differ,
    equal,
    least_absolute_line,
    typical_s,
    weighted_median,
)
from doppler.problem import Problem
from doppler.topology.topology import Device, Host, Link, Topology
from doppler.trace import Trace

KEPT = 512  # newest samples kept of each kernel on each device and of each size on each link
KEPT_OF_HOST = 8192
# For kernels an assignment counts by that power of how close it comes to the best: they slow each
# other down where all devices are busy, and what matters are assignments that keep them so.
QUALITY = 2.0
STRAIGHT = 0.01  # share that transfers may be off a line of their bytes
AT_ONCE = 1.5  # times dispatch_s within which a host that is not busy starts a task
TRANSFER, ALL = "transfer", "all"  # beside the kinds of vertices, in errors by kind


class Measured(NamedTuple):
    """An assignment and its measured makespan."""

    assignment: Assignment
    makespan_s: float  # mean


class Refined(NamedTuple):
    """A topology fitted to measured makespans, and how far their predictions are off."""

    topology: Topology
    before: float  # in runs that were not fitted, as a share
    after: float


def calibrate(topology: Topology, graph: Graph, traces: Iterable[Trace]) -> Topology:
    """The topology with the seconds of kernels, links and host that traces of a graph show.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64, dtype="float32"), parts=2)
    >>> assignment = dp.place(graph, "cpu2", "round-robin")
    >>> trace = dp.execute(graph, "cpu2", assignment).trace
    >>> measured = dp.calibrate(dp.Topology.preset("cpu2"), graph, [trace])
    >>> len(measured.exec_s) > 0
    True
    """
    calibration = Calibration(topology, graph)
    for trace in traces:
        calibration.add(trace)
    return calibration.topology()


class Calibration:
    """What the traces of one graph say about the machine; grows with every trace.

    A kernel's seconds on a device are the mean of its samples there without stalls, those of good
    assignments first of all. Devices that are alike share their samples, so that a kernel seen on
    one is priced on all, but for devices that are measurably different. The newest samples count,
    so a machine that changes is followed.

    >>> calibration = Calibration(topology, graph)
    >>> calibration.add(engine.run(graph, assignment))
    >>> better = calibration.topology()
    """

    def __init__(self, topology: Topology, graph: Graph) -> None:
        self._topology, self._graph = topology, graph
        self._signatures = signatures(graph)
        self._runs: dict[bytes, tuple[int, list[float]]] = {}  # by assignment: number, makespans
        # Seconds by signature and device, with the number of the assignment; by link and bytes.
        self._execs: dict[tuple[str, int], deque[tuple[float, int]]] = {}
        self._moves: dict[tuple[int, float], deque[float]] = {}
        # Of tasks whose device or link was idle: from when they were ready, and from when their
        # last input ended, until they began.
        self._starts: deque[tuple[float, float]] = deque(maxlen=KEPT_OF_HOST)

    def add(self, trace: Trace) -> None:
        """Take in what a run of the graph on the topology's devices showed."""
        self._check(trace)
        number, makespans = self._runs.setdefault(_assignment(trace), (len(self._runs), []))
        makespans.append(trace.makespan_s)
        seconds = (trace.end_s - trace.begin_s).tolist()
        rows = zip(
            *(trace.vertex.tolist(), trace.device.tolist(), trace.link.tolist()),
            *(trace.moved_bytes.tolist(), seconds),
            strict=True,
        )
        for vertex, device, link, size, took in rows:
            if link >= 0:
                _append(self._moves, (link, size), took)
            elif signature := self._signatures[vertex]:
                _append(self._execs, (signature, device), (took, number))
        for row in _idle_starts(trace):
            begin_s, after = trace.begin_s[row], int(trace.after[row])
            since_input = begin_s - trace.end_s[after] if after >= 0 else np.nan
            self._starts.append((begin_s - trace.ready_s[row], since_input))

    def topology(self) -> Topology:
        """The topology with what was found; what no trace shows stays as it was."""
        links, extra = self._links()
        return replace(
            self._topology,
            links=links,
            extra_transfer_s=extra,
            host=self._host(),
            exec_s={**self._topology.exec_s, **self._exec_table()},
        )

    def _check(self, trace: Trace) -> None:
        names = tuple(device.name for device in self._topology.devices)
        if trace.vertex_names != self._graph.vertex_names:
            raise ConfigError(f"a trace of graph `{trace.graph}` is not one of this graph")
        if tuple(d.name for d in trace.devices) != names or len(trace.links) != len(
            self._topology.links
        ):
            raise ConfigError(f"a trace on topology `{trace.topology}` has other devices or links")

    def _exec_table(self) -> dict[str, tuple[float, ...]]:
        """The seconds of every signature on every device."""
        alike, weight = _alike([_essence(d) for d in self._topology.devices]), self._qualities()

        def samples_on(signature: str, devices: Iterable[int]) -> Samples:
            found = [self._execs.get((signature, d), ()) for d in devices]
            pairs = np.array([pair for samples in found for pair in samples]).reshape(-1, 2)
            return Samples(pairs[:, 0], weight[pairs[:, 1].astype(np.int64)])

        known = dict.fromkeys(signature for signature, _ in self._execs)
        shared: dict[tuple[str, int], float] = {}  # by signature and first device of a kind
        for signature in known:
            for kind in dict.fromkeys(alike):
                samples = samples_on(signature, (d for d, k in enumerate(alike) if k == kind))
                if len(samples.seconds):
                    shared[signature, kind] = typical_s(*samples)
        table: dict[str, tuple[float, ...]] = {}
        for signature in known:
            row = []
            for d, kind in enumerate(alike):
                own = samples_on(signature, [d])
                rest = [e for e, k in enumerate(alike) if k == kind and e != d]
                if (signature, kind) not in shared:
                    row.append(_from_others(signature, kind, shared))
                elif differ(own, samples_on(signature, rest)):
                    row.append(typical_s(*own))
                else:
                    row.append(shared[signature, kind])
            table[signature] = tuple(row)
        return table

    def _qualities(self) -> FloatArray:
        """(assignments,) how much each counts: by all its runs, since a lucky one is no better."""
        whole_s = np.array([typical_s(makespans) for _, makespans in self._runs.values()])
        weight: FloatArray = (whole_s.min(initial=np.inf) / np.maximum(whole_s, 1e-12)) ** QUALITY
        return weight

    def _links(self) -> tuple[tuple[Link, ...], tuple[tuple[float, float], ...]]:
        """The links, and what transfers take beyond them by bytes.

        Links that are alike share their samples, but for those that are different. Only where all
        are alike is it known by size what transfers take: it belongs to no link.
        """
        links = self._topology.links
        alike = _alike([replace(link, name="") for link in links])
        result: list[Link] = []
        extra: tuple[tuple[float, float], ...] = ()
        for i, (link, kind) in enumerate(zip(links, alike, strict=True)):
            shared: dict[float, list[float]] = {}
            for (j, size), took in sorted(self._moves.items()):
                if alike[j] == kind:
                    shared.setdefault(size, []).extend(took)
            if not shared:
                result.append(link)
                continue
            samples = {size: equal(took) for size, took in shared.items()}
            if len(set(alike)) == 1:
                fitted, extra = tabulate_link(link, samples)
            else:
                fitted = fit_link(link, samples)
            own = self._ratios(fitted, extra, [i])
            others = [j for j, k in enumerate(alike) if k == kind and j != i]
            if differ(own, self._ratios(fitted, extra, others)):
                fitted = _slowed(fitted, typical_s(*own))
            result.append(fitted)
        return tuple(result), extra or self._topology.extra_transfer_s

    def _ratios(
        self, link: Link, extra: Sequence[tuple[float, float]], numbers: Sequence[int]
    ) -> Samples:
        """What transfers over some links took, relative to one, by whose seconds they count."""
        beyond = dict(extra)
        rows = [
            (took / usual_s, usual_s)
            for (number, size), samples in self._moves.items()
            if number in numbers and (usual_s := _transfer_s(link, size) + beyond.get(size, 0.0))
            for took in samples
        ]
        return Samples(*np.array(rows).reshape(-1, 2).T)

    def _host(self) -> Host:
        """Its costs; one that is known stays.

        From tasks that waited for nothing else: they begin `dispatch_s` after they are ready, if
        the host is not busy, and `completion_s` more after their last input ended.
        """
        host = self._topology.host
        since_ready, since_input = np.array(self._starts).reshape(-1, 2).T
        if len(since_ready) and host.dispatch_s == 0:
            host = replace(host, dispatch_s=max(0.0, float(np.quantile(since_ready, 0.25))))
        at_once = (since_ready <= AT_ONCE * host.dispatch_s) & np.isfinite(since_input)
        if at_once.any() and host.completion_s == 0:
            gap = float(np.median(since_input[at_once]))
            host = replace(host, completion_s=max(0.0, gap - host.dispatch_s))
        return host


def duration_errors(topology: Topology, graph: Graph, traces: Sequence[Trace]) -> dict[str, float]:
    """How far a topology's seconds are off those of traces, by kind of vertex, and for all.

    The mean of |predicted - measured| / measured, each task weighted by its measured seconds.
    """
    costs = Problem(graph, topology).costs
    off: dict[str, float] = {}
    total: dict[str, float] = {}
    for trace in traces:
        moves = trace.is_transfer
        tensor, link = np.maximum(trace.tensor, 0), np.maximum(trace.link, 0)
        predicted = np.where(moves, 0.0, costs.exec_s[trace.vertex, trace.device])
        if moves.any():
            each = costs.fixed_s[tensor] + costs.latency_s[link]
            each = each + graph.tensor_bytes[tensor] * costs.s_per_byte[link]
            predicted = np.where(moves, each, predicted)
        measured = trace.end_s - trace.begin_s
        for row, (want, got) in enumerate(zip(measured, predicted, strict=True)):
            kind = TRANSFER if moves[row] else graph.kinds[trace.vertex[row]]
            for key in (kind, ALL):
                off[key] = off.get(key, 0.0) + abs(float(got - want))
                total[key] = total.get(key, 0.0) + float(want)
    kinds = sorted(total, key=lambda kind: (kind == ALL, -total[kind], kind))
    return {kind: off[kind] / total[kind] for kind in kinds if total[kind] > 0}


def fit_link(link: Link, samples: Mapping[float, Samples]) -> Link:
    """A link whose `latency + bytes / bandwidth` comes closest to samples of seconds by bytes.

    In the sum of absolute errors, since it is seconds that a link is busy. With one size only, the
    latency stays what it was, if it can.
    """
    size = np.array(list(samples), np.float64)
    took = np.maximum([typical_s(*samples[s]) for s in samples], 1e-9)
    count = np.array([samples[s].weight.sum() for s in samples])
    if size.max() == 0:
        return replace(link, latency_s=float(np.average(took, weights=count)))
    if size.max() < 1.5 * size.min():
        latency = min(link.latency_s, float(took.min()) / 2)
        slope = float(np.average((took - latency) / size, weights=count))
        return replace(link, latency_s=latency, bandwidth_bytes_per_s=1.0 / slope)
    latency, slope = least_absolute_line(size, took, count)
    if latency < 0:
        moved = size > 0
        latency, slope = 0.0, weighted_median((took / size.clip(1))[moved], (count * size)[moved])
    slope = max(slope, 1e-16)
    return replace(link, latency_s=latency, bandwidth_bytes_per_s=1.0 / slope)


def tabulate_link(
    link: Link, samples: Mapping[float, Samples]
) -> tuple[Link, tuple[tuple[float, float], ...]]:
    """A link that no sample of seconds by bytes is faster than, and what they take beyond it.

    Transfers in chunks take no straight line of their bytes. Where they do, the link is that line
    and there is nothing beyond it.
    """
    fitted = fit_link(link, samples)
    size = np.array(sorted(samples), np.float64)
    took = np.maximum([typical_s(*samples[s]) for s in size.tolist()], 1e-9)
    slope = 1.0 / fitted.bandwidth_bytes_per_s
    if np.allclose(fitted.latency_s + slope * size, took, rtol=STRAIGHT):
        return fitted, ()
    slope = min(slope, float((took[size > 0] / size[size > 0]).min()))
    beyond = took - slope * size
    latency = max(float(beyond.min()), 0.0)
    table = zip(size.tolist(), np.maximum(beyond - latency, 0.0).tolist(), strict=True)
    return replace(link, latency_s=latency, bandwidth_bytes_per_s=1.0 / slope), tuple(table)


def _assignment(trace: Trace) -> bytes:
    """The devices of the vertices, as a key."""
    devices, execs = np.full(len(trace.vertex_names), -1), ~trace.is_transfer
    devices[trace.vertex[execs]] = trace.device[execs]
    return devices.tobytes()


def _append(samples: dict[Any, deque[Any]], key: Any, value: Any) -> None:
    if key not in samples:
        samples[key] = deque(maxlen=KEPT)
    samples[key].append(value)


def _idle_starts(trace: Trace) -> list[int]:
    """The rows of tasks whose device or link had nothing else to do since they were ready."""
    busy_until: dict[tuple[bool, int], float] = {}
    found = []
    places = np.where(trace.is_transfer, trace.link, trace.device).tolist()
    rows = zip(trace.is_transfer.tolist(), places, strict=True)
    ready, end = trace.ready_s.tolist(), trace.end_s.tolist()
    for row, place in enumerate(rows):
        if busy_until.get(place, 0.0) <= ready[row]:
            found.append(row)
        busy_until[place] = max(busy_until.get(place, 0.0), end[row])
    return found


def _essence(device: Device) -> Any:
    """What devices that are alike have in common: all but where they are."""
    plain = replace(device, name="", address="", group="", flops_per_s={})
    return plain, tuple(sorted(device.flops_per_s.items()))


def _alike(essences: Sequence[Any]) -> list[int]:
    """For each the first that is equal to it."""
    return [essences.index(one) for one in essences]


def _from_others(signature: str, kind: int, typical: Mapping[tuple[str, int], float]) -> float:
    """The seconds on devices of a kind that never ran a kernel, from those of another kind."""
    other, seconds = next((k, s) for (name, k), s in typical.items() if name == signature)
    ratios = [
        s / typical[name, other]
        for (name, k), s in typical.items()
        if k == kind and typical.get((name, other), 0.0) > 0
    ]
    return seconds * (float(np.median(ratios)) if ratios else 1.0)


def _transfer_s(link: Link, size: float) -> float:
    return link.latency_s + size / link.bandwidth_bytes_per_s


def _slowed(link: Link, ratio: float) -> Link:
    return replace(
        link,
        latency_s=link.latency_s * ratio,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / ratio,
    )
