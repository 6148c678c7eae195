"""`dop show`: what is in a file."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.options import AsJson, DeviceMapFile, Force, Probe, complete_topology
from doppler.cli.output import (
    amount,
    announce,
    factors,
    percent,
    print_json,
    seconds,
    stdout,
    table,
    take_stdout,
)
from doppler.cli.plan_files import PlannedRun, check_outputs, write_outputs
from doppler.cli.topologies import HERE, assumed_topology, find_topology
from doppler.errors import ConfigError

if TYPE_CHECKING:
    from doppler.assignment import Assignment
    from doppler.graph import Graph
    from doppler.topology import Device, Topology

TOPOLOGY, TRACE, ASSIGNMENT = "doppler-topology", "doppler-trace", "doppler-assignment"
SNIFF_CHARACTERS = 1 << 16  # of a file, to tell its format by


def show(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME",
            autocompletion=complete_topology,
            help="A graph, topology, assignment, trace or checkpoint file (- for the standard "
            "input), or a topology's name.",
        ),
    ],
    topology_name: Annotated[
        str | None,
        typer.Option(
            "--topology",
            "-t",
            metavar="NAME|FILE|here",
            autocompletion=complete_topology,
            help="Machine for a graph's lower bounds, or for an assignment's plan.",
        ),
    ] = None,
    graph_file: Annotated[
        Path | None,
        typer.Option("--graph", "-g", metavar="GRAPH", help="The graph of an assignment."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="List every vertex of an assignment.")
    ] = False,
    operations: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Of an assignment with its graph: write what each operation does, where and when "
            "(simulated), as .csv or .json.",
        ),
    ] = None,
    device_map: DeviceMapFile = None,
    force: Force = False,
    probe: Probe = False,
    as_json: AsJson = False,
) -> None:
    """Summarise a graph, a topology, an assignment, a trace or a policy's checkpoint.

    Example: dop show p100x4
    """
    from doppler.base.files import STANDARD_STREAM, decoded, read_bytes, source_name, title_of
    from doppler.topology import PRESETS

    is_name = target in (*PRESETS, HERE) or target.startswith("reference:")
    could_be = Path(target).suffix == "" and "/" not in target and target != STANDARD_STREAM
    if is_name or (could_be and not _exists(target)):
        _show_topology(find_topology(target, probe_again=probe), as_json)
        return
    data = read_bytes(target)
    if data[8:9] == b"{":  # safetensors: eight bytes of length, then JSON
        _show_checkpoint(Path(target), data, as_json)
        return
    text, source = decoded(data, target), source_name(target)
    kind = _kind(text, target)
    outputs = (operations, device_map)
    if kind != ASSIGNMENT and (graph_file is not None or full or any(outputs)):
        hint = "leave out --graph, --full, --operations and --device-map"
        raise ConfigError(f"{source} is no assignment", hint=hint)
    if kind == TOPOLOGY:
        from doppler.topology import topology_from_text

        _show_topology(topology_from_text(text, source), as_json)
    elif kind == TRACE:
        _show_trace(text, source, as_json)
    elif kind == ASSIGNMENT:
        from doppler.assignment import assignment_from_json

        assignment = assignment_from_json(text, source)
        take_stdout(*outputs, as_json=as_json)
        check_outputs(*outputs, assignment=target, graph=graph_file, force=force)
        planned = _show_assignment(assignment, graph_file, topology_name, full, probe, as_json)
        write_outputs(planned, *outputs, force=force)
        announce(*(() if as_json else outputs))
    else:
        from doppler.formats import graph_from_text

        graph = graph_from_text(text, source, title_of(target))
        if topology_name is None:
            topology = assumed_topology(graph)
        else:
            topology = find_topology(topology_name, graph, probe_again=probe)
        _show_graph(graph, topology, as_json)


def _exists(target: str) -> bool:
    try:
        return Path(target).exists()
    except (OSError, ValueError):
        return False


def _kind(text: str, target: str) -> str:
    """The format a file says it has; graphs in other formats do not say."""
    found = re.search(r'"?format"?\s*[:=]\s*"(doppler-[a-z]+)"', text[:SNIFF_CHARACTERS])
    if found:
        return found[1]
    return TOPOLOGY if Path(target).suffix == ".toml" else ""


def _show_topology(topology: "Topology", as_json: bool) -> None:
    from doppler.topology import topology_to_json

    if as_json:
        print(topology_to_json(topology), end="")
    else:
        _print_topology(topology)


def _show_checkpoint(path: Path, data: bytes, as_json: bool) -> None:
    """What a policy's checkpoint says about itself."""
    from doppler.policies.arrays.checkpoint import read_metadata

    metadata = read_metadata(path, data)
    if as_json:
        print_json(metadata)
        return
    shown = table("policy", "", left=2)
    for key, value in metadata.items():
        shown.add_row(key, value if isinstance(value, str) else json.dumps(value))
    stdout().print(shown)


def _show_assignment(
    assignment: "Assignment",
    graph_file: Path | None,
    topology_name: str | None,
    full: bool,
    probe: bool,
    as_json: bool,
) -> "PlannedRun | None":
    """Which device each vertex gets; with its graph, also its plan and makespan, and these."""
    from doppler.cli.plans import (
        memory_document,
        order_note,
        plan_document,
        print_memory_plan,
        print_plan,
        show_without_graph,
    )

    if graph_file is None:
        if topology_name is not None:
            raise ConfigError("--topology is for an assignment with its graph", hint="add --graph")
        show_without_graph(assignment, full=full, as_json=as_json)
        return None
    from doppler.formats import read_graph
    from doppler.placers import gap, proven_bound_s
    from doppler.plan import device_loads
    from doppler.problem import Problem
    from doppler.scheduler.choose import DYNAMIC, FIXED
    from doppler.sim import SimConfig, Simulator

    graph = read_graph(graph_file)
    is_fixed = assignment.schedule is not None and assignment.memory is None
    mode = FIXED if is_fixed else DYNAMIC
    topology = find_topology(topology_name, graph, assignment, probe_again=probe)
    problem = Problem(graph, topology)
    trace = Simulator(problem, SimConfig(mode=mode)).run(graph, assignment)
    plan, loads = (
        assignment.by_name(graph, topology),
        device_loads(graph, topology, trace, is_planned=assignment.memory is not None),
    )
    makespan, bound = trace.makespan_s, proven_bound_s(problem, assignment, mode)
    if as_json:
        summary: dict[str, Any] = {
            "makespan_s": makespan,
            "lower_bound_s": bound,
            "gap": gap(makespan, bound),
            "mode": mode,
        }
        summary |= {"placer": assignment.placer, "topology": topology.name, "graph": graph.name}
        print_json(summary | memory_document(assignment, graph) | plan_document(plan, loads))
        return PlannedRun(assignment, problem, trace)
    print_plan(graph, plan, loads, full=full)
    by = f"{assignment.placer} " if assignment.placer else ""
    stdout().print(
        f"{by}on {topology.name}: makespan {seconds(makespan)}, lower bound {seconds(bound)}, "
        f"gap {percent(gap(makespan, bound))}{order_note(assignment, mode)}"
    )
    print_memory_plan(assignment, graph)
    return PlannedRun(assignment, problem, trace)


def _print_topology(topology: "Topology") -> None:
    out = stdout()
    out.print(f"{topology.name}  {topology.description.strip()}", style="bold")
    devices = table("devices", "group", "fp16", "fp32", "memory", "capacity", "slots", "launch")
    for names, d in _alike(topology):
        rates = [d.flops_per_s.get(c) for c in ("float16", "float32")]
        devices.add_row(
            names,
            d.group,
            *("–" if r is None else amount(r, "F/s") for r in rates),
            amount(d.memory_bytes_per_s, "B/s"),
            amount(d.memory_bytes, "B"),
            str(d.slots),
            seconds(d.launch_s),
        )
    out.print(devices)
    pairs = Counter(topology.route[topology.route >= 0].tolist())
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, link in enumerate(topology.links):
        key = (link.name.split(" ")[0], link.bandwidth_bytes_per_s, link.latency_s, link.lanes)
        groups.setdefault((*key, pairs[i] > 1), []).append(i)
    links = table("links", "count", "pairs", "bandwidth", "latency", "lanes")
    for (name, bandwidth, latency, lanes, shared), members in groups.items():
        links.add_row(
            name + (" (shared)" if shared else ""),
            str(len(members)),
            str(sum(pairs[i] for i in members) or "host"),
            amount(bandwidth, "B/s"),
            seconds(latency),
            str(lanes or "no limit"),
        )
    out.print(links)
    host = topology.host
    out.print(
        f"host: {seconds(host.dispatch_s)} to start a task, one at a time, "
        f"{host.ahead} ahead; "
        f"{seconds(host.completion_s)} until an end is seen"
    )
    if topology.exec_s:
        out.print(f"kernels: {len(topology.exec_s)} measured")
    if topology.contention:
        out.print(f"kernels where all devices are busy: {factors(topology.contention)}")


def _alike(topology: "Topology") -> list[tuple[str, "Device"]]:
    """Runs of devices that differ but in name and address: first … last, and one of them."""
    runs: list[list[Device]] = []
    for device in topology.devices:
        first = runs[-1][0] if runs else None
        if first and replace(device, name="", address="") == replace(first, name="", address=""):
            runs[-1].append(device)
        else:
            runs.append([device])
    return [(r[0].name if len(r) == 1 else f"{r[0].name} … {r[-1].name}", r[0]) for r in runs]


def _show_graph(graph: "Graph", topology: "Topology", as_json: bool) -> None:
    summary = _graph_summary(graph, topology)
    if as_json:
        print_json(summary)
    else:
        _print_graph(summary)


def _graph_summary(graph: "Graph", topology: "Topology") -> dict[str, Any]:
    import numpy as np

    from doppler.graph import bottom_levels, widths
    from doppler.placers import bounds_of
    from doppler.problem import Problem

    assigned = graph.assigned
    width = widths(graph).tolist()
    problem = Problem(graph, topology)
    fastest = problem.costs.exec_s.min(axis=1)
    path = float(
        bottom_levels(graph, fastest, np.zeros(graph.num_tensors)).length_s.max(initial=0.0)
    )
    bounds = bounds_of(problem)
    return {
        "name": graph.name,
        "digest": graph.digest(),
        "vertices": graph.num_vertices,
        "inputs": int(graph.is_input.sum()),
        "assigned": len(assigned),
        "tensors": graph.num_tensors,
        "edges": graph.num_edges,
        "edges_between_assigned": int(
            (~graph.is_input[graph.tensor_producer[graph.edge_tensor]]).sum()
        ),
        "kinds": dict(Counter(graph.kinds[v] for v in assigned.tolist()).most_common()),
        "meta_ops": len({m for m in graph.meta_ops if m}),
        "depth": len(width),
        "widths": width,
        "flops": float(graph.flops.sum()),
        "touched_bytes": float(graph.touched_bytes.sum()),
        "tensor_bytes": float(graph.tensor_bytes.sum()),
        "explicit_costs": graph.exec_s is not None,
        "parallelism": float(fastest.sum() / path) if path > 0 else 1.0,
        "topology": topology.name,
        "lower_bounds_s": {
            "path": bounds.path_s,
            "work": bounds.work_s,
            "window": bounds.window_s,
            "host": bounds.host_s,
            "memory": bounds.memory_s,
            "arrival": bounds.arrival_s,
        },
        "lower_bound_s": bounds.best_s,
    }


def _print_graph(s: dict[str, Any]) -> None:
    out = stdout()
    out.print(
        f"{s['name']}  {s['vertices']} vertices ({s['inputs']} inputs, "
        f"{s['assigned']} to assign), {s['tensors']} tensors, {s['edges']} edges",
        style="bold",
    )
    kinds = table("kind", "vertices")
    for kind, count in s["kinds"].items():
        kinds.add_row(kind, str(count))
    out.print(kinds)
    out.print(f"depth {s['depth']}, widths {_runs(s['widths'])}")
    out.print(
        f"work {amount(s['flops'], 'FLOP')}, touches {amount(s['touched_bytes'], 'B')}, "
        f"tensors {amount(s['tensor_bytes'], 'B')}, {s['meta_ops']} meta-ops"
    )
    shown = {k: v for k, v in s["lower_bounds_s"].items() if v or k not in ("memory", "arrival")}
    bounds = ", ".join(f"{name} {seconds(value)}" for name, value in shown.items())
    out.print(
        f"on {s['topology']}: parallelism {s['parallelism']:.3g}, "
        f"lower bound {seconds(s['lower_bound_s'])} ({bounds})"
    )


def _runs(widths: list[int]) -> str:
    """Widths with repeats folded: 16×4, 4, 16×7; long lists are cut."""
    runs: list[tuple[int, int]] = []
    for width in widths:
        if runs and runs[-1][0] == width:
            runs[-1] = (width, runs[-1][1] + 1)
        else:
            runs.append((width, 1))
    shown = [str(w) if n == 1 else f"{w}×{n}" for w, n in runs[:24]]
    return ", ".join(shown) + (", …" if len(runs) > 24 else "")


def _show_trace(text: str, source: str, as_json: bool) -> None:
    from doppler.cli.timeline import timeline
    from doppler.trace import trace_from_json

    trace = trace_from_json(text, source)
    if as_json:
        print_json(
            {
                "makespan_s": trace.makespan_s,
                "utilization": trace.utilization().tolist(),
                "bytes_moved": trace.bytes_moved,
                "overlap": trace.overlap(),
            }
        )
        return
    out = stdout()
    out.print(
        f"{trace.graph} on {trace.topology}"
        + (f", placed by {trace.placer}" if trace.placer else "")
        + f": makespan {seconds(trace.makespan_s)}, mean utilization "
        + percent(float(trace.utilization().mean()))
    )
    out.print(timeline(trace, out.width))
