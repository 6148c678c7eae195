"""A plan for people: what each device gets, and which device each vertex gets."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler.cli.output import amount, note, print_json, seconds, stdout, table
from doppler.errors import AssignmentError, ConfigError, OutOfMemoryError

if TYPE_CHECKING:
    from doppler.assignment import Assignment
    from doppler.graph import Graph
    from doppler.plan import DeviceLoad
    from doppler.problem import Problem
    from doppler.sim import SimConfig
    from doppler.topology import Topology

MAX_SPLIT = 8  # modules that are named where they are split
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
        shown.add_row(
            load.device,
            str(load.operations),
            seconds(load.exec_s),
            amount(load.bytes_in, "B"),
            amount(load.bytes_out, "B"),
            peak_memory(load),
        )
    out.print(shown)


def peak_memory(load: "DeviceLoad") -> str:
    """The most memory that a device uses, and how much it has where there is a limit."""
    limit = f" of {amount(load.memory_bytes, 'B')}" if isfinite(load.memory_bytes) else ""
    return amount(load.peak_bytes, "B") + limit


def cold_graph(graph: "Graph", topology: "Topology") -> "Graph":
    """The graph at a cold start; a `ConfigError` where no links bring its inputs to the devices."""
    if not topology.has_host_links:
        raise ConfigError(
            "--cold needs links between the host and the devices, "
            f"and topology `{topology.name}` has none",
            hint="name them in its file: `[[links]]` with the host",
        )
    return graph.cold()


def fitting(assignment: "Assignment", problem: "Problem") -> "Assignment":
    """The assignment, without a schedule that is not one of this graph's tasks.

    A memory plan that is not one of theirs is made again.
    """
    from doppler.placers.planned_search import planned

    try:
        assignment.check(problem.graph, problem.topology)
    except AssignmentError:
        if assignment.memory is None:
            return replace(assignment, schedule=None)
        return planned(problem, assignment)[0]
    return assignment


def cold_makespan_s(
    problem: "Problem", config: "SimConfig", assignment: "Assignment", seed: int
) -> float | None:
    """The makespan of a cold start; None where that is no other or it is not known how."""
    from doppler.problem import Problem
    from doppler.sim import Simulator

    if not (problem.graph.is_resident.any() and problem.topology.has_host_links):
        return None
    cold = Problem(problem.graph.cold(), problem.topology, problem.cost_model)
    try:
        assignment = fitting(assignment, cold)
    except OutOfMemoryError:
        return inf
    return float(Simulator(cold, config).makespans(cold.graph, [assignment], seed=seed)[0])


def print_vertices(plan: Mapping[str, str], kinds: Mapping[str, str] | None = None) -> None:
    """Print every vertex with its device."""
    shown = table("vertex", *(["kind"] if kinds else []), "device", left=3)
    for vertex, device in plan.items():
        shown.add_row(vertex, *([kinds[vertex]] if kinds else []), device)
    stdout().print(shown)


def order_note(assignment: "Assignment", mode: str = "fixed") -> str:
    """What to add to a line about an assignment that has a schedule, kept to in mode `fixed`."""
    if assignment.schedule is None or mode != "fixed":
        return ""
    return f", {len(assignment.schedule.tasks)} tasks in a fixed order"


def print_memory_plan(assignment: "Assignment", graph: "Graph") -> None:
    """Print a line about the memory plan of an assignment, if it has one."""
    if assignment.memory is not None:
        out, back = assignment.memory.moved_bytes(graph)
        stdout().print(
            f"a memory plan makes it fit: {amount(out, 'B')} are moved to the host, "
            f"{amount(back, 'B')} from it, in {assignment.memory.num_moves} moves"
        )


def memory_document(assignment: "Assignment", graph: "Graph") -> dict[str, Any]:
    """JSON values: what a memory plan moves; nothing where there is none."""
    if assignment.memory is None:
        return {}
    out, back = assignment.memory.moved_bytes(graph)
    moves = assignment.memory.num_moves
    return {"memory_plan": {"moves": moves, "evicted_bytes": out, "loaded_bytes": back}}


def print_cold_start(cold_s: float | None) -> None:
    """Print a line about a cold start, if it takes another time."""
    if cold_s is not None:
        takes = seconds(cold_s) if isfinite(cold_s) else "more memory than there is"
        stdout().print(f"a cold start, which loads resident inputs first, takes {takes}")


def plan_document(plan: Mapping[str, str], loads: Sequence["DeviceLoad"]) -> dict[str, Any]:
    """JSON values: what each device gets, and the device of each vertex, by name."""
    rows = [asdict(load) for load in loads]
    for row in rows:
        if not isfinite(row["memory_bytes"]):
            row["memory_bytes"] = None
    return {"devices": rows, "plan": dict(plan)}


def check_device_map(path: Path | None, graph: "Graph") -> None:
    """An error where a device map is asked for that no assignment of the graph has."""
    from doppler.frontends.device_map import check_modules

    if path is not None:
        check_modules(graph)


def write_device_map(
    assignment: "Assignment", problem: "Problem", path: Path | None, *, force: bool
) -> None:
    """Write which device each module of a model gets, and say which modules are split."""
    from doppler.frontends import device_map as maps

    if path is None:
        return
    found = maps.device_map(problem.graph, assignment, problem.topology)
    maps.write_device_map(found, path, force=force)
    if found.split:
        some = ", ".join(found.split[:MAX_SPLIT])
        more = f" and {len(found.split) - MAX_SPLIT} more" if len(found.split) > MAX_SPLIT else ""
        note(
            f"{path} has whole modules: {some}{more} have operations on several devices, and get "
            "the one that does most"
        )


def show_without_graph(assignment: "Assignment", *, full: bool, as_json: bool) -> None:
    """Which device each vertex gets, by name where the file has names."""
    plan = _plan(assignment)
    if as_json:
        print_json(
            {
                "placer": assignment.placer,
                "topology": assignment.topology,
                "graph": assignment.graph,
                "lower_bound_s": assignment.bound_s or None,
                "scheduled": assignment.schedule is not None,
                "planned": assignment.memory is not None,
                "plan": plan,
            }
        )
        return
    if full or len(plan) <= MAX_LISTED:
        print_vertices(plan)
    shown = table("device", "operations")
    devices = assignment.device_names or tuple(dict.fromkeys(plan.values()))
    counts = Counter(plan.values())
    for device in devices:
        shown.add_row(device, str(counts[device]))
    out = stdout()
    out.print(shown)
    made = " ".join(
        f"{word} {value}"
        for word, value in (("by", assignment.placer), ("for", assignment.topology))
        if value
    )
    assigned = f"{len(plan)} operations assigned{' ' + made if made else ''}"
    out.print(assigned + order_note(assignment))
    note("--graph shows its plan and makespan")


def _plan(assignment: "Assignment") -> dict[str, str]:
    """Devices by vertex; numbers where the file has no names."""
    devices = assignment.devices.tolist()
    vertices = assignment.vertex_names or [f"vertex {v}" for v in range(len(devices))]
    names = assignment.device_names or {d: f"device {d}" for d in devices}
    return {v: names[d] for v, d in zip(vertices, devices, strict=True) if d >= 0}
