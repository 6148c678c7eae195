"""Assignment: a device for every vertex, and the order in which they were chosen."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler.arrays import IntArray, frozen, integers
from doppler.errors import AssignmentError, FormatError
from doppler.files import check_header, check_keys, parse_json, read_text, to_json, write_text
from doppler.graph.graph import Graph
from doppler.notebook import brief, html_table
from doppler.topology.topology import Topology

FORMAT, VERSION = "doppler-assignment", 1


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """A device for every vertex."""

    devices: IntArray  # (V,) device of each vertex, -1 for inputs
    order: IntArray | None = None  # (assigned,) vertices as they were chosen, if there was an order
    placer: str = ""
    topology: str = ""  # name of the topology it was made for
    graph: str = ""  # digest of the graph it was made for

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", _whole_numbers(self.devices, "devices"))
        if self.order is not None:
            object.__setattr__(self, "order", _whole_numbers(self.order, "order"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Assignment):
            return NotImplemented
        mine, theirs = (self.order, other.order)
        same_order = mine is theirs or (
            mine is not None and theirs is not None and np.array_equal(mine, theirs)
        )
        return same_order and np.array_equal(self.devices, other.devices)

    def __hash__(self) -> int:
        return hash(self.devices.tobytes())

    def __repr__(self) -> str:
        by = f" by {brief(self.placer)}" if self.placer else ""
        on = f" on {brief(self.topology)}" if self.topology else ""
        placed = self.devices[self.devices >= 0]
        return f"<Assignment{by}{on}: {len(placed)} vertices on {len(np.unique(placed))} devices>"

    def _repr_html_(self) -> str:
        devices, count = np.unique(self.devices[self.devices >= 0], return_counts=True)
        rows = zip(map(str, devices.tolist()), map(str, count.tolist()), strict=True)
        return html_table(repr(self), ("device", "vertices"), rows, count=len(devices))

    def check(self, graph: Graph, topology: Topology) -> None:
        """Raise an `AssignmentError` unless this fits the graph and the topology."""
        if self.graph and self.graph != graph.digest():
            raise AssignmentError(
                f"the assignment was made for another graph than `{graph.name}`",
                hint="place this graph again",
            )
        check_devices(graph, topology.num_devices, self.devices)
        if self.order is not None:
            _check_order(graph, self.order)


def _whole_numbers(values: Any, column: str) -> IntArray:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise AssignmentError(f"{column} must be a list of whole numbers, not {values!r}")
    return frozen(array.astype(np.int64, copy=False))


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
    """The assignment in a `doppler-assignment` file."""
    path = Path(path)
    source = f"`{path}`"
    document = parse_json(read_text(path), source)
    check_header(document, format_name=FORMAT, version=VERSION, source=source)
    check_keys(
        document,
        required=("format", "version", "devices"),
        optional=("graph", "topology", "placer", "order"),
        source=source,
    )
    texts = {key: document.get(key, "") for key in ("graph", "topology", "placer")}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise FormatError(f"{source}: `{key}` must be text, not {value!r}")
    return Assignment(
        devices=_device_column(document["devices"], source),
        order=_order_column(document.get("order"), source),
        **texts,
    )


def _device_column(values: Any, source: str) -> IntArray:
    if not isinstance(values, list):
        raise FormatError(f"{source}: `devices` must be a list")
    negative = next((v for v in values if type(v) is int and v < 0), None)
    devices = integers([-1 if v is None else v for v in values])
    if devices is None or negative is not None:
        bad = next(
            v for v in values if v is not None and (type(v) is not int or not 0 <= v < 2**63)
        )
        raise FormatError(
            f"{source}: `devices` holds {bad!r}", hint="a device number ≥ 0, or null for an input"
        )
    return devices


def _order_column(values: Any, source: str) -> IntArray | None:
    if values is None:
        return None
    order = integers(values)
    if order is None:
        raise FormatError(f"{source}: `order` must be a list of vertex numbers")
    return order


def write_assignment(assignment: Assignment, path: str | Path) -> None:
    """Write a `doppler-assignment` file."""
    write_text(Path(path), to_json(assignment_document(assignment)))


def assignment_document(assignment: Assignment) -> dict[str, Any]:
    """The JSON object of an assignment."""
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    texts = {key: getattr(assignment, key) for key in ("graph", "topology", "placer")}
    document |= {key: value for key, value in texts.items() if value}
    document["devices"] = [None if d < 0 else d for d in assignment.devices.tolist()]
    if assignment.order is not None:
        document["order"] = assignment.order.tolist()
    return document
