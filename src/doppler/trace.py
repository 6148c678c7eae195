"""Trace: every begin and end of every exec and transfer, and what follows from them."""

from bisect import bisect_right
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray, frozen, integers, plain, reals
from doppler.base.files import check_header, check_keys, parse_json, read_text, source_name, to_json
from doppler.base.notebook import brief, html_table, number
from doppler.base.writing import write_text
from doppler.errors import FormatError
from doppler.graph.graph import Graph
from doppler.tasks import Tasks
from doppler.topology.topology import Topology

FORMAT, VERSION = "doppler-trace", 1
TOO_LARGE = 1e200  # for a time or a size: no graph on any topology comes to so much
SAME_DEVICE, SAME_GROUP, ACROSS_GROUPS = "same-device", "same-group", "across-groups"


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
    source: IntArray  # (N,) device it leaves, -1 for an exec
    device: IntArray  # (N,) device it runs on, or goes to
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
        return html_table(repr(self), columns, rows, count=len(self.devices))

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
        """Bytes moved between devices."""
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
        """Bytes read where they were made, moved within a group, and moved across groups."""
        rows = self.is_transfer
        groups = np.unique([d.group for d in self.devices], return_inverse=True)[1]
        same = groups[self.source[rows]] == groups[self.device[rows]]
        moved = self.moved_bytes[rows]
        return {
            SAME_DEVICE: self.local_bytes,
            SAME_GROUP: float(moved[same].sum()),
            ACROSS_GROUPS: float(moved[~same].sum()),
        }

    def overlap(self) -> float:
        """Share of the transfer time during which some device computes; 1 with no transfers."""
        moves = self.is_transfer
        moving = _covered(self.begin_s[moves], self.end_s[moves])
        computing = _covered(self.begin_s[~moves], self.end_s[~moves])
        either = _covered(self.begin_s, self.end_s)
        return 1.0 if moving == 0 else min(1.0, max(0.0, (moving + computing - either) / moving))

    def critical_chain(self) -> list[ChainStep]:
        """The tasks that led to the last end, first to last, each with what held it back.

        A task waited for its device or link if another task on it ended after the task was
        ready; otherwise for its last input.
        """
        if not len(self.end_s):
            return []
        neighbours = self._rows_by_resource()
        steps: list[ChainStep] = []
        row = int(np.argmax(self.end_s))
        while row >= 0:
            before, reason = self._held_back_by(row, neighbours)
            wait = self.begin_s[row] - (self.end_s[before] if before >= 0 else 0.0)
            steps.append(ChainStep(row, reason, float(wait)))
            row = before
        return steps[::-1]

    def _rows_by_resource(self) -> list[IntArray]:
        """The rows on each device, then on each link, by end."""
        resource = np.where(self.is_transfer, len(self.devices) + self.link, self.device)
        order = np.lexsort((self.end_s, resource))
        size = len(self.devices) + len(self.links)
        return np.split(order, np.searchsorted(resource[order], np.arange(1, size)))

    def _held_back_by(self, row: int, neighbours: list[IntArray]) -> tuple[int, str]:
        is_transfer = bool(self.is_transfer[row])
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


def build_trace(
    graph: Graph,
    topology: Topology,
    tasks: Tasks,
    times: tuple[FloatArray, FloatArray, FloatArray],
    *,
    placer: str = "",
) -> Trace:
    """The Trace of tasks with these (ready, begin, end) seconds, indexed by task.

    The one way executors make a trace.
    """
    ready, begin, end = times
    size = graph.num_vertices
    task = np.concatenate([graph.assigned, size + np.arange(tasks.num_transfers)])
    position = np.argsort(graph.topological_order)
    rank = np.concatenate([2 * position, 2 * position[graph.tensor_producer[tasks.tensor]] + 1])
    task = task[np.lexsort((task, rank[task], begin[task]))]
    moves = task >= size
    k = np.where(moves, task - size, 0)
    pick = _picker(moves, k)
    vertex = np.where(moves, pick(graph.tensor_producer[tasks.tensor]), task)
    return Trace(
        graph=graph.name,
        topology=topology.name,
        placer=placer,
        vertex_names=graph.vertex_names,
        vertex_kinds=graph.kinds,
        devices=tuple(TraceDevice(d.name, d.group, d.slots) for d in topology.devices),
        links=tuple(TraceLink(link.name, link.lanes) for link in topology.links),
        local_bytes=_local_bytes(graph, tasks),
        vertex=frozen(vertex),
        tensor=frozen(pick(tasks.tensor)),
        source=frozen(pick(tasks.source)),
        device=frozen(np.where(moves, pick(tasks.target), tasks.devices[vertex])),
        link=frozen(pick(tasks.link)),
        moved_bytes=frozen(np.where(moves, pick(graph.tensor_bytes[tasks.tensor]), 0.0)),
        ready_s=frozen(ready[task]),
        begin_s=frozen(begin[task]),
        end_s=frozen(end[task]),
        after=frozen(_last_inputs(graph, tasks, end, task)),
    )


def _picker(moves: BoolArray, k: IntArray) -> Any:
    def pick(column: Any) -> Any:
        return np.where(moves, column[k], -1) if len(column) else np.full(len(moves), -1)

    return pick


def _local_bytes(graph: Graph, tasks: Tasks) -> float:
    producer = graph.tensor_producer[graph.edge_tensor]
    local = ~graph.is_input[producer] & (
        tasks.devices[producer] == tasks.devices[graph.edge_reader]
    )
    return float(graph.tensor_bytes[np.unique(graph.edge_tensor[local])].sum())


def _last_inputs(graph: Graph, tasks: Tasks, end: FloatArray, task: IntArray) -> IntArray:
    """(N,) row of the task each row's last input came from; ties go to the lowest task."""
    size = graph.num_vertices
    num_devices = int(tasks.devices.max(initial=0)) + 1
    edges = np.flatnonzero(~graph.is_input[graph.tensor_producer[graph.edge_tensor]])
    tensor, reader = graph.edge_tensor[edges], graph.edge_reader[edges]
    giver = graph.tensor_producer[tensor]
    remote = tasks.devices[giver] != tasks.devices[reader]
    keys = tasks.tensor * num_devices + tasks.target
    wanted = tensor * num_devices + tasks.devices[reader]
    giver = np.where(remote, size + np.searchsorted(keys, wanted), giver)
    order = np.lexsort((-giver, end[giver], reader))  # the last of each reader's run wins
    last = np.full(size + tasks.num_transfers, -1, np.int64)
    last[reader[order]] = giver[order]
    last[size:] = graph.tensor_producer[tasks.tensor]
    row_of = np.full(size + tasks.num_transfers + 1, -1, np.int64)
    row_of[task] = np.arange(len(task))
    return row_of[last[task]]


_INTEGERS = ("vertex", "tensor", "source", "device", "link", "after")
_REALS = ("moved_bytes", "ready_s", "begin_s", "end_s")


def write_trace(trace: Trace, path: str | Path, *, force: bool = False) -> None:
    """Write a `doppler-trace` file; over a file of another kind only with `force`.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> trace = dp.simulate(graph, "p100x4", dp.place(graph, "p100x4", "heft"))
    >>> dp.write_trace(trace, "trace.json")
    """
    write_text(path, trace_to_json(trace), kind=FORMAT, force=force)


def trace_to_json(trace: Trace) -> str:
    """The JSON text of a trace; `makespan_s` is there for other readers."""
    return to_json(
        {
            "format": FORMAT,
            "version": VERSION,
            "makespan_s": trace.makespan_s,
            "graph": trace.graph,
            "topology": trace.topology,
            "placer": trace.placer,
            "local_bytes": trace.local_bytes,
            "devices": [d._asdict() for d in trace.devices],
            "links": [link._asdict() for link in trace.links],
            "vertices": {"name": list(trace.vertex_names), "kind": list(trace.vertex_kinds)},
            "tasks": {c: plain(getattr(trace, c)) for c in _INTEGERS + _REALS},
        }
    )


def read_trace(path: str | Path) -> Trace:
    """The trace in a `doppler-trace` file.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> trace = dp.simulate(graph, "p100x4", dp.place(graph, "p100x4", "heft"))
    >>> dp.write_trace(trace, "trace.json")
    >>> dp.read_trace("trace.json").makespan_s == trace.makespan_s
    True
    """
    return trace_from_json(read_text(path), source_name(path))


def trace_from_json(text: str, source: str) -> Trace:
    """The trace in a JSON text; `source` is what errors call it."""
    document = parse_json(text, source)
    check_header(document, format_name=FORMAT, version=VERSION, source=source)
    texts, tables = ("graph", "topology", "placer"), ("devices", "links", "vertices", "tasks")
    required = ("format", "version", "makespan_s", "local_bytes", *texts, *tables)
    check_keys(document, required=required, source=source)
    check_keys(document["vertices"], required=("name", "kind"), source=f"{source}: vertices")
    check_keys(document["tasks"], required=_INTEGERS + _REALS, source=f"{source}: tasks")
    for key in texts:
        if not isinstance(document[key], str):
            raise FormatError(f"{source}: `{key}` must be text, not {document[key]!r}")
    rows = document["tasks"]
    columns: dict[str, Any] = {c: integers(rows[c]) for c in _INTEGERS}
    columns |= {c: reals(rows[c]) for c in _REALS}
    if bad := next((c for c, column in columns.items() if column is None), None):
        raise FormatError(f"{source}: tasks.{bad} must be a list of numbers")
    columns = {c: frozen(column) for c, column in columns.items()}
    local_bytes = reals([document["local_bytes"]])
    if local_bytes is None or not 0 <= local_bytes[0] < TOO_LARGE:
        raise FormatError(f"{source}: `local_bytes` is {document['local_bytes']!r}")
    trace = Trace(
        **{key: document[key] for key in texts},
        local_bytes=float(local_bytes[0]),
        devices=_records(document["devices"], TraceDevice, f"{source}: devices"),
        links=_records(document["links"], TraceLink, f"{source}: links"),
        vertex_names=_texts(document["vertices"]["name"], f"{source}: vertices.name"),
        vertex_kinds=_texts(document["vertices"]["kind"], f"{source}: vertices.kind"),
        **columns,
    )
    _check_rows(trace, source)
    return trace


def _texts(values: Any, source: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise FormatError(f"{source} must be a list of texts")
    return tuple(values)


def _records(rows: Any, kind: Any, source: str) -> tuple[Any, ...]:
    if not isinstance(rows, list):
        raise FormatError(f"{source} must be a list")
    for i, row in enumerate(rows):
        check_keys(row, required=kind._fields, source=f"{source}[{i}]")
        for key, wanted in kind.__annotations__.items():
            least = 1 if key == "slots" else 0
            if type(row[key]) is not wanted or (wanted is int and not least <= row[key] < 2**31):
                raise FormatError(f"{source}[{i}].{key} is {row[key]!r}")
    return tuple(kind(**row) for row in rows)


def _check_rows(trace: Trace, source: str) -> None:
    if not trace.devices:
        raise FormatError(f"{source}: devices is empty")
    if len(trace.vertex_kinds) != len(trace.vertex_names):
        raise FormatError(f"{source}: vertices.name and vertices.kind differ in length")
    size = len(trace.vertex)
    for name in _INTEGERS + _REALS:
        if len(getattr(trace, name)) != size:
            raise FormatError(f"{source}: tasks.{name} does not have {size} entries")
    moves = trace.is_transfer
    least = np.where(moves, 0, -1)  # an exec has no source and no link
    ranges: dict[str, tuple[Any, Any]] = {  # column: least value, and what it must stay below
        "vertex": (0, len(trace.vertex_names)),
        "tensor": (-1, inf),
        "source": (least, np.where(moves, len(trace.devices), 0)),
        "device": (0, len(trace.devices)),
        "link": (least, np.where(moves, len(trace.links), 0)),
        "after": (-1, np.arange(size)),
        "moved_bytes": (0, TOO_LARGE),
        "ready_s": (0, TOO_LARGE),
        "begin_s": (np.concatenate([[0.0], trace.begin_s])[:size], TOO_LARGE),
        "end_s": (trace.begin_s, TOO_LARGE),
    }
    for name, (low, high) in ranges.items():
        column = getattr(trace, name)
        bad = np.flatnonzero(~((column >= low) & (column < high)))
        if len(bad):
            raise FormatError(f"{source}: tasks.{name}[{bad[0]}] is {column[bad[0]]}")
