"""`dop show`: what is in a file."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.options import AsJson
from doppler.cli.output import amount, percent, print_json, seconds, stdout, table

if TYPE_CHECKING:
    from doppler.graph import Graph
    from doppler.topology import Device, Topology


def show(
    target: Annotated[
        str, typer.Argument(help="A graph, topology or trace file, or a topology's name.")
    ],
    topology_name: Annotated[
        str | None,
        typer.Option(
            "--topology",
            "-t",
            metavar="NAME|FILE",
            help="Machine for a graph's lower bounds; by default p100x4, or reference:4 for a "
            "graph that brings its own costs.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Summarise a graph, a topology or a trace.

    Example: dop show p100x4
    """
    from doppler.files import read_head
    from doppler.topology import PRESETS, load_topology, topology_to_json

    is_name = target in PRESETS or target.startswith("reference:")
    is_name |= not Path(target).exists() and Path(target).suffix == "" and "/" not in target
    kind = "doppler-topology" if is_name else _kind(read_head(Path(target)))
    if kind == "doppler-topology":
        topology = load_topology(target)
        if as_json:
            print(topology_to_json(topology), end="")
        else:
            _print_topology(topology)
    elif kind == "doppler-trace":
        _show_trace(Path(target), as_json)
    else:
        _show_graph(Path(target), topology_name, as_json)


def _kind(head: str) -> str:
    """The format a file says it has; graphs in other formats do not say."""
    import re

    found = re.search(r'"?format"?\s*[:=]\s*"(doppler-[a-z]+)"', head)
    return found.group(1) if found else ""


def _print_topology(topology: "Topology") -> None:
    out = stdout()
    out.print(f"[bold]{topology.name}[/bold]  {topology.description.strip()}")
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
            str(sum(pairs[i] for i in members)),
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


def _show_graph(path: Path, topology_name: str | None, as_json: bool) -> None:
    from doppler.formats import load_graph
    from doppler.topology import load_topology

    graph = load_graph(path)
    explicit = graph.exec_s is not None
    width = graph.exec_s.shape[1] if graph.exec_s is not None else 1
    default = f"reference:{width if width > 1 else 4}" if explicit else "p100x4"
    summary = _graph_summary(graph, load_topology(topology_name or default))
    if as_json:
        print_json(summary)
    else:
        _print_graph(summary)


def _graph_summary(graph: "Graph", topology: "Topology") -> dict[str, Any]:
    import numpy as np

    from doppler.cost import DefaultCostModel
    from doppler.graph import bottom_levels, widths
    from doppler.placers import lower_bounds

    assigned = graph.assigned
    width = widths(graph).tolist()
    costs = DefaultCostModel().costs(graph, topology)
    fastest = costs.exec_s.min(axis=1)
    path = float(
        bottom_levels(graph, fastest, np.zeros(graph.num_tensors)).length_s.max(initial=0.0)
    )
    bounds = lower_bounds(graph, topology)
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
        },
        "lower_bound_s": bounds.best_s,
    }


def _print_graph(s: dict[str, Any]) -> None:
    out = stdout()
    out.print(
        f"[bold]{s['name']}[/bold]  {s['vertices']} vertices ({s['inputs']} inputs, "
        f"{s['assigned']} to assign), {s['tensors']} tensors, {s['edges']} edges"
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
    shown = {k: v for k, v in s["lower_bounds_s"].items() if v or k != "memory"}
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


def _show_trace(path: Path, as_json: bool) -> None:
    from doppler.cli.timeline import timeline
    from doppler.trace import read_trace

    trace = read_trace(path)
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
        f"[bold]{trace.graph}[/bold] on {trace.topology}"
        + (f", placed by {trace.placer}" if trace.placer else "")
        + f": makespan {seconds(trace.makespan_s)}, mean utilization "
        + percent(float(trace.utilization().mean()))
    )
    out.print(timeline(trace, out.width))
