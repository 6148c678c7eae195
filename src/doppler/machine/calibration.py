"""Calibration: what measured traces say about kernels, links and the host of a machine."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import BoolArray, FloatArray
from doppler.errors import ConfigError
from doppler.graph.graph import Graph
from doppler.graph.signatures import signatures
from doppler.machine.evidence import Evidence, Timed
from doppler.machine.fitting import fit_link, slowed, tabulate_link, transfer_s
from doppler.machine.robust import Samples, differ, equal, joined, typical_s
from doppler.problem import Problem
from doppler.topology.topology import Device, Host, Link, Topology
from doppler.trace import Trace

KEPT_OF_HOST = 8192
# For kernels an assignment counts by that power of how close it comes to the best: they slow each
# other down where all devices are busy, and what matters are assignments that keep them so.
QUALITY = 2.0
AT_ONCE = 1.5  # times dispatch_s within which a host that is not busy starts a task
ODD = 0.1  # share by which a device is slower or faster in all its kernels than others like it
TRANSFER, ALL = "transfer", "all"  # beside the kinds of vertices, in errors by kind


Moves = Mapping[tuple[int, float], Sequence[float]]  # seconds by link and bytes


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
        self._evidence = Evidence(topology.num_devices, topology.num_links)
        # Of tasks whose device or link was idle: from when they were ready, and from when their
        # last input ended, until they began.
        self._starts: deque[tuple[float, float]] = deque(maxlen=KEPT_OF_HOST)

    def add(self, trace: Trace, counts: BoolArray | None = None) -> None:
        """Take in what a run of the graph on the topology's devices showed.

        `counts` says of every row whether its seconds are of the machine as it is now.
        """
        self._check(trace)
        number, makespans = self._runs.setdefault(_assignment(trace), (len(self._runs), []))
        makespans.append(trace.makespan_s)
        columns = (trace.vertex, trace.device, trace.link, trace.moved_bytes)
        seconds = (trace.end_s - trace.begin_s).tolist()
        which = [True] * len(seconds) if counts is None else counts.tolist()
        rows = []
        for vertex, device, link, size, took, now in zip(
            *(column.tolist() for column in columns), seconds, which, strict=True
        ):
            if link >= 0 and now:
                rows.append((Timed("", link, size), took))
            elif link < 0 and now and (signature := self._signatures[vertex]):
                rows.append((Timed(signature, device, 0.0), took))
        self._evidence.add(rows, number)
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
        found: dict[tuple[str, int], Samples] = {}
        for source, samples in self._evidence.samples.items():
            if source.signature:
                rows = np.array([(sample.seconds, sample.assignment) for sample in samples])
                each = Samples(rows[:, 0], weight[rows[:, 1].astype(np.int64)])
                found[source.signature, source.place] = each
        odd = _odd_devices(found, alike)

        def samples_on(signature: str, devices: Iterable[int]) -> Samples:
            scaled = [
                Samples(each.seconds / odd.get(d, 1.0), each.weight)
                for d in devices
                if (each := found.get((signature, d))) is not None
            ]
            return joined(scaled)

        known = dict.fromkeys(signature for signature, _ in found)
        shared: dict[tuple[str, int], float] = {}  # by signature and first device of a kind
        for signature in known:
            for kind in dict.fromkeys(alike):
                pooled = samples_on(signature, (d for d, k in enumerate(alike) if k == kind))
                if len(pooled.seconds):
                    shared[signature, kind] = typical_s(*pooled)
        table: dict[str, tuple[float, ...]] = {}
        for signature in known:
            row = []
            for d, kind in enumerate(alike):
                own = samples_on(signature, [d])
                rest = [e for e, k in enumerate(alike) if k == kind and e != d]
                if (signature, kind) not in shared:
                    seconds = _from_others(signature, kind, shared)
                elif differ(own, samples_on(signature, rest)):
                    seconds = typical_s(*own)
                else:
                    seconds = shared[signature, kind]
                row.append(seconds * odd.get(d, 1.0))
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
        links, moves = self._topology.links, self._moves()
        alike = _alike([replace(link, name="") for link in links])
        result: list[Link] = []
        extra: tuple[tuple[float, float], ...] = ()
        for i, (link, kind) in enumerate(zip(links, alike, strict=True)):
            kin = [j for j, k in enumerate(alike) if k == kind]
            if not any(j in kin for j, _ in moves):
                result.append(link)
                continue
            fitted, extra = _fit(link, moves, kin, tabulated=len(set(alike)) == 1)
            own = _ratios(moves, fitted, extra, [i])
            others = _ratios(moves, fitted, extra, [j for j in kin if j != i])
            if differ(own, others):
                fitted = slowed(fitted, typical_s(*own))
            result.append(fitted)
        return tuple(result), extra or self._topology.extra_transfer_s

    def _moves(self) -> dict[tuple[int, float], list[float]]:
        """The seconds of transfers by link and bytes."""
        found = sorted(self._evidence.samples.items())
        return {
            (x.place, x.size): [y.seconds for y in took] for x, took in found if not x.signature
        }

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


def _fit(
    link: Link, moves: Moves, numbers: Sequence[int], *, tabulated: bool
) -> tuple[Link, tuple[tuple[float, float], ...]]:
    """A link like this from the transfers over some, and what they take beyond it by bytes."""
    shared: dict[float, list[float]] = {}
    for (number, size), took in moves.items():
        if number in numbers:
            shared.setdefault(size, []).extend(took)
    samples = {size: equal(took) for size, took in shared.items()}
    return tabulate_link(link, samples) if tabulated else (fit_link(link, samples), ())


def _ratios(
    moves: Moves, link: Link, extra: Sequence[tuple[float, float]], numbers: Sequence[int]
) -> Samples:
    """What transfers over some links took, relative to one, by whose seconds they count."""
    beyond = dict(extra)
    rows = [
        (took / usual_s, usual_s)
        for (number, size), samples in moves.items()
        if number in numbers and (usual_s := transfer_s(link, size) + beyond.get(size, 0.0))
        for took in samples
    ]
    return Samples(*np.array(rows).reshape(-1, 2).T)


def _assignment(trace: Trace) -> bytes:
    """The devices of the vertices, as a key."""
    devices, execs = np.full(len(trace.vertex_names), -1), ~trace.is_transfer
    devices[trace.vertex[execs]] = trace.device[execs]
    return devices.tobytes()


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


def _odd_devices(
    found: Mapping[tuple[str, int], Samples], alike: Sequence[int]
) -> dict[int, float]:
    """By how much devices are slower, in all their kernels, than others that are like them.

    So a kernel that never ran on such a device since it became slower is priced there as well. The
    device in the middle, or the faster of two, is what others are compared with.
    """
    usual: dict[tuple[str, int], float] = {}  # by signature and first device of a kind
    for signature, d in found:
        if (signature, alike[d]) not in usual:
            kind = [
                s for (name, e), s in found.items() if name == signature and alike[e] == alike[d]
            ]
            usual[signature, alike[d]] = typical_s(*joined(kind))
    ratios: dict[int, list[Samples]] = {}
    for (signature, d), samples in found.items():
        if (expected := usual[signature, alike[d]]) > 0:
            each = Samples(samples.seconds / expected, samples.weight * expected)
            ratios.setdefault(d, []).append(each)
    levels = {d: joined(rows) for d, rows in sorted(ratios.items())}
    odd: dict[int, float] = {}
    for first in dict.fromkeys(alike):
        ranked = sorted((typical_s(*levels[d]), d) for d in levels if alike[d] == first)
        for level, d in ranked:
            middle, reference = ranked[(len(ranked) - 1) // 2]
            apart = abs(level / middle - 1.0) > ODD if middle > 0 else False
            if apart and differ(levels[d], levels[reference]):
                odd[d] = _times_as_long(found, d, reference) or level / middle
    return odd


def _times_as_long(
    found: Mapping[tuple[str, int], Samples], device: int, reference: int
) -> float | None:
    """The seconds of the kernels that ran on both devices on one, over those on the other."""
    names = [s for s, d in found if d == device and (s, reference) in found]
    ours, theirs = (sum(typical_s(*found[s, d]) for s in names) for d in (device, reference))
    return ours / theirs if theirs > 0 else None


def _from_others(signature: str, kind: int, typical: Mapping[tuple[str, int], float]) -> float:
    """The seconds on devices of a kind that never ran a kernel, from those of another kind."""
    other, seconds = next((k, s) for (name, k), s in typical.items() if name == signature)
    ratios = [
        s / typical[name, other]
        for (name, k), s in typical.items()
        if k == kind and typical.get((name, other), 0.0) > 0
    ]
    return seconds * (float(np.median(ratios)) if ratios else 1.0)
