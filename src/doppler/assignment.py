"""Assignment: a device for every vertex, and where there is one, the order of all tasks."""

import csv
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from doppler.base.arrays import IntArray, integers, reals
from doppler.base.files import check_header, check_keys, parse_json, read_text, source_name, to_json
from doppler.base.notebook import brief, html_table
from doppler.base.svg import boxes, legend, picture
from doppler.base.writing import write_text
from doppler.errors import AssignmentError, FormatError, WrongTypeError
from doppler.graph.graph import Graph
from doppler.memory_plan import MemoryPlan, plan_document, plan_from_document
from doppler.schedule import (
    Schedule,
    numbers_or_null,
    schedule_document,
    schedule_from_document,
    whole_numbers,
)
from doppler.tasks import enumerate_tasks, with_moves
from doppler.topology.topology import Topology

FORMAT, VERSION = "doppler-assignment", 2
STRIP, STRIP_UNITS = 320, 640  # pieces of a drawing in a notebook, and how wide it is
CSV = ".csv"  # the ending of a plan for spreadsheets
_TEXTS = ("graph", "topology", "placer", "problem")
_NAMES = ("vertex_names", "device_names")
_SECOND = (*_NAMES, "problem", "lower_bound_s", "schedule", "memory")  # since version 2


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """A device for every vertex.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> assignment = dp.place(graph, "p100x4", "round-robin")
    >>> assignment.devices.tolist()[-3:]
    [1, 3, 0]
    >>> sorted(set(assignment.by_name().values()))
    ['gpu0', 'gpu1', 'gpu2', 'gpu3']
    """

    devices: IntArray  # (V,) device of each vertex, -1 for inputs
    order: IntArray | None = None  # (assigned,) vertices as they were chosen, if there was an order
    placer: str = ""
    topology: str = ""  # name of the topology it was made for
    graph: str = ""  # digest of the graph it was made for
    vertex_names: tuple[str, ...] = ()  # (V,) names of that graph's vertices, where known
    device_names: tuple[str, ...] = ()  # (D,) names of that topology's devices, where known
    bound_s: float = 0.0  # the best lower bound that its placer proved; 0 where it proved none
    problem: str = ""  # digest of the graph, topology and costs that it proved it for
    schedule: Schedule | None = None  # the order of its tasks, where that is fixed
    memory: MemoryPlan | None = None  # moves to and from the host, where it does not fit otherwise

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", whole_numbers(self.devices, "devices"))
        if self.order is not None:
            object.__setattr__(self, "order", whole_numbers(self.order, "order"))
        if self.schedule is not None and not isinstance(self.schedule, Schedule):
            raise WrongTypeError("schedule", self.schedule, "a Schedule or None")
        if self.memory is not None and not isinstance(self.memory, MemoryPlan):
            raise WrongTypeError("memory", self.memory, "a MemoryPlan or None")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Assignment):
            return NotImplemented
        mine, theirs = (self.order, other.order)
        same_order = mine is theirs or (
            mine is not None and theirs is not None and np.array_equal(mine, theirs)
        )
        same_devices = np.array_equal(self.devices, other.devices)
        same_schedule = self.schedule == other.schedule and self.memory == other.memory
        return same_order and same_devices and same_schedule

    def __hash__(self) -> int:
        return hash(self.devices.tobytes())

    def by_name(
        self, graph: Graph | None = None, topology: Topology | None = None
    ) -> dict[str, str]:
        """The name of the device of each vertex, by the vertex's name; inputs have none.

        Without a graph or a topology, the names are those that the assignment was made with.
        """
        vertices = self.vertex_names if graph is None else graph.vertex_names
        devices = self.device_names
        if topology is not None:
            devices = tuple(device.name for device in topology.devices)
        if graph is not None and topology is not None:
            self.check(graph, topology)
        elif len(vertices) != len(self.devices) or self.devices.max(initial=-1) >= len(devices):
            raise AssignmentError(
                "the assignment does not know the names of its vertices and devices",
                hint="give its graph and its topology: assignment.by_name(graph, topology)",
            )
        rows = zip(vertices, self.devices.tolist(), strict=True)
        return {vertex: devices[device] for vertex, device in rows if device >= 0}

    def __repr__(self) -> str:
        by = f" by {brief(self.placer)}" if self.placer else ""
        on = f" on {brief(self.topology)}" if self.topology else ""
        placed = self.devices[self.devices >= 0]
        order = "" if self.schedule is None else f", {len(self.schedule.tasks)} tasks in order"
        moves = "" if self.memory is None else f", {self.memory.num_moves} moves with the host"
        used = len(np.unique(placed))
        return f"<Assignment{by}{on}: {len(placed)} vertices on {used} devices{order}{moves}>"

    def _repr_html_(self) -> str:
        devices, count = np.unique(self.devices[self.devices >= 0], return_counts=True)
        names = [self.device_names[d] if self.device_names else str(d) for d in devices.tolist()]
        rows = zip(names, map(str, count.tolist()), strict=True)
        table = html_table(repr(self), ("device", "vertices"), rows, count=len(devices))
        return table + self._svg()

    def _svg(self) -> str:
        """The device of each vertex as a strip, in the order they were chosen or of the graph."""
        placed = self.devices[self.devices >= 0 if self.order is None else self.order]
        parts = np.array_split(placed, min(len(placed), STRIP)) if len(placed) else []
        shown = [int(part[0]) for part in parts]
        step = STRIP_UNITS / max(len(shown), 1)
        found: dict[int, list[tuple[float, float, float, float]]] = {}
        for i, device in enumerate(shown):
            box = (round(i * step, 2), 0, round(step, 2), 20)
            found.setdefault(device, []).append(box)
        names = ((d, self.device_names[d] if self.device_names else str(d)) for d in sorted(found))
        strip = [boxes(d, found[d]) for d in sorted(found)]
        return picture(STRIP_UNITS, 40, "devices", strip + legend(0, 34, names))

    def check(self, graph: Graph, topology: Topology) -> None:
        """Raise an `AssignmentError` unless this fits the graph and the topology."""
        other = bool(self.graph) and self.graph != graph.digest()
        if other or (self.vertex_names and self.vertex_names != graph.vertex_names):
            raise AssignmentError(
                f"the assignment was made for another graph than `{graph.name}`",
                hint="place this graph again",
            )
        check_devices(graph, topology.num_devices, self.devices)
        if self.order is not None:
            _check_order(graph, self.order)
        if self.schedule is None and self.memory is None:
            return
        tasks = enumerate_tasks(graph, topology, self.devices)
        if self.memory is not None:
            self.memory.check(graph, topology, tasks)
        if self.schedule is not None:
            tasks = with_moves(topology, tasks, self.memory)
            self.schedule.check(graph, topology, tasks, self.memory)


def assignment_for(
    graph: Graph,
    topology: Topology,
    devices: IntArray,
    *,
    order: IntArray | None = None,
    placer: str = "",
) -> Assignment:
    """An Assignment of (V,) `devices` that knows for what it was made, by digest and by names."""
    return Assignment(
        devices=devices,
        order=order,
        placer=placer,
        topology=topology.name,
        graph=graph.digest(),
        vertex_names=graph.vertex_names,
        device_names=tuple(device.name for device in topology.devices),
    )


def check_devices(graph: Graph, num_devices: int, devices: IntArray) -> None:
    """Raise unless `devices` gives every vertex but the inputs a device that exists."""
    if len(devices) != graph.num_vertices:
        raise AssignmentError(
            f"the assignment has {len(devices)} devices, "
            f"graph `{graph.name}` has {graph.num_vertices} vertices"
        )
    placed = np.flatnonzero(graph.is_input & (devices != -1))
    if len(placed):
        raise AssignmentError(
            f"vertex {placed[0]} `{graph.vertex_names[placed[0]]}` is an input "
            f"but has device {devices[placed[0]]}",
            hint="inputs are ready everywhere; write null",
        )
    bad = np.flatnonzero(~graph.is_input & ((devices < 0) | (devices >= num_devices)))
    if len(bad):
        value = "none" if devices[bad[0]] == -1 else devices[bad[0]]
        raise AssignmentError(
            f"vertex {bad[0]} `{graph.vertex_names[bad[0]]}` has device {value}, "
            f"but the topology has devices 0 to {num_devices - 1}"
        )


def _check_order(graph: Graph, order: IntArray) -> None:
    if not np.array_equal(np.sort(order), graph.assigned):
        raise AssignmentError(
            f"the order of the assignment does not name each of the "
            f"{len(graph.assigned)} assigned vertices once"
        )


def read_assignment(path: str | Path) -> Assignment:
    """The assignment in a `doppler-assignment` file.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> assignment = dp.place(graph, "p100x4", "single")
    >>> dp.write_assignment(assignment, "example.json")
    >>> dp.read_assignment("example.json") == assignment
    True
    """
    if Path(path).suffix == CSV:
        raise FormatError(
            f"{source_name(path)} is a plan for people and spreadsheets, which is not read again",
            hint="keep the assignment as a .json file beside it",
        )
    return assignment_from_json(read_text(path), source_name(path))


def assignment_from_json(text: str, source: str) -> Assignment:
    """The assignment in a JSON text; `source` is what errors call it."""
    document = parse_json(text, source)
    check_header(document, format_name=FORMAT, version=(1, VERSION), source=source)
    first = document["version"] == 1
    check_keys(
        document,
        required=("format", "version", "devices"),
        optional=(*_TEXTS[:3], "order", *(() if first else _SECOND)),
        source=source,
    )
    texts = {key: document.get(key, "") for key in _TEXTS}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise FormatError(f"{source}: `{key}` must be text, not {value!r}")
    hint = "a device number ≥ 0, or null for an input"
    devices = numbers_or_null(document["devices"], f"{source}: `devices`", hint=hint)
    names = {key: _name_column(document.get(key, []), f"{source}: `{key}`") for key in _NAMES}
    if names["vertex_names"] and len(names["vertex_names"]) != len(devices):
        raise FormatError(
            f"{source} has {len(names['vertex_names'])} vertex_names, but {len(devices)} devices"
        )
    if names["device_names"] and devices.max(initial=-1) >= len(names["device_names"]):
        raise FormatError(
            f"{source}: `devices` holds {devices.max()}, but there are "
            f"{len(names['device_names'])} device_names"
        )
    return Assignment(
        devices=devices,
        order=_order_column(document.get("order"), source),
        bound_s=_bound(document.get("lower_bound_s", 0.0), source),
        vertex_names=names["vertex_names"],
        device_names=names["device_names"],
        schedule=_schedule(document.get("schedule"), source),
        memory=_memory(document.get("memory"), source),
        **texts,
    )


def _name_column(values: Any, source: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise FormatError(f"{source} must be a list of texts")
    return tuple(values)


def _bound(value: Any, source: str) -> float:
    number = reals([value])
    if number is None or not isfinite(number[0]) or number[0] < 0:
        raise FormatError(f"{source}: `lower_bound_s` must be a finite number ≥ 0, not {value!r}")
    return float(number[0])


def _order_column(values: Any, source: str) -> IntArray | None:
    if values is None:
        return None
    order = integers(values)
    if order is None:
        raise FormatError(f"{source}: `order` must be a list of vertex numbers")
    return order


def _schedule(value: Any, source: str) -> Schedule | None:
    return None if value is None else schedule_from_document(value, f"{source}: `schedule`")


def _memory(value: Any, source: str) -> MemoryPlan | None:
    return None if value is None else plan_from_document(value, f"{source}: `memory`")


def write_assignment(assignment: Assignment, path: str | Path, *, force: bool = False) -> None:
    """Write a `doppler-assignment` file; over a file of another kind only with `force`.

    A path that ends in `.csv` gets a table of vertices and devices by name, for other programs.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> dp.write_assignment(dp.place(graph, "p100x4", "single"), "plan.csv")
    >>> Path("plan.csv").read_text().startswith("vertex,device,device_number")
    True
    """
    kind = output_kind(path)
    text = _csv(assignment) if kind == "csv" else to_json(assignment_document(assignment))
    write_text(path, text, kind=kind, force=force)


def output_kind(path: str | Path) -> str:
    """What `write_assignment` writes to a path: the `kind` that `check_output` takes."""
    return "csv" if Path(path).suffix == CSV else FORMAT


def _csv(assignment: Assignment) -> str:
    """A line for each vertex that has a device, in the order of the graph."""
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("vertex", "device", "device_number"))
    number = dict(zip(assignment.vertex_names, assignment.devices.tolist(), strict=False))
    rows.writerows((v, device, number[v]) for v, device in assignment.by_name().items())
    return text.getvalue()


def assignment_document(assignment: Assignment) -> dict[str, Any]:
    """The JSON object of an assignment."""
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    document |= {key: getattr(assignment, key) for key in _TEXTS if getattr(assignment, key)}
    document |= {"lower_bound_s": assignment.bound_s} if assignment.bound_s else {}
    document |= {key: list(getattr(assignment, key)) for key in _NAMES if getattr(assignment, key)}
    document["devices"] = [None if d < 0 else d for d in assignment.devices.tolist()]
    if assignment.order is not None:
        document["order"] = assignment.order.tolist()
    if assignment.schedule is not None:
        document["schedule"] = schedule_document(assignment.schedule)
    if assignment.memory is not None:
        document["memory"] = plan_document(assignment.memory)
    return document
