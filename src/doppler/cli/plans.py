"""A plan for people: what each device gets, and which device each vertex gets."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any

from doppler.cli.output import amount, note, seconds, stdout, table

if TYPE_CHECKING:
    from doppler.assignment import Assignment
    from doppler.graph import Graph
    from doppler.plan import DeviceLoad

MAX_LISTED = 40  # vertices up to which each is listed without being asked for


def print_plan(
    graph: "Graph", plan: Mapping[str, str], loads: Sequence["DeviceLoad"], *, full: bool
) -> None:
    """Print a table by device and, for small graphs or with `full`, every vertex's device."""
    out = stdout()
    if full or 0 < len(plan) <= MAX_LISTED:
        kinds = dict(zip(graph.vertex_names, graph.kinds, strict=True))
        print_vertices(plan, kinds)
    elif plan:
        note(f"{len(plan)} vertices are not listed; see them with --full, or write -o plan.csv")
    shown = table("device", "operations", "busy", "in", "out", "peak memory")
    for load in loads:
        limit = f" of {amount(load.memory_bytes, 'B')}" if isfinite(load.memory_bytes) else ""
        shown.add_row(
            load.device,
            str(load.operations),
            seconds(load.exec_s),
            amount(load.bytes_in, "B"),
            amount(load.bytes_out, "B"),
            amount(load.peak_bytes, "B") + limit,
        )
    out.print(shown)


def print_vertices(plan: Mapping[str, str], kinds: Mapping[str, str] | None = None) -> None:
    """Print every vertex with its device."""
    shown = table("vertex", *(["kind"] if kinds else []), "device", left=3)
    for vertex, device in plan.items():
        shown.add_row(vertex, *([kinds[vertex]] if kinds else []), device)
    stdout().print(shown)


def order_note(assignment: "Assignment") -> str:
    """What to add to a line about an assignment that has a schedule."""
    if assignment.schedule is None:
        return ""
    return f", {len(assignment.schedule.tasks)} tasks in a fixed order"


def plan_document(plan: Mapping[str, str], loads: Sequence["DeviceLoad"]) -> dict[str, Any]:
    """JSON values: what each device gets, and the device of each vertex, by name."""
    rows = [asdict(load) for load in loads]
    for row in rows:
        if not isfinite(row["memory_bytes"]):
            row["memory_bytes"] = None
    return {"devices": rows, "plan": dict(plan)}
