"""`dop demo`: the whole pipeline, nothing to configure."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.options import AsJson, Probe, Seed, TopologyName
from doppler.cli.output import (
    amount,
    note,
    percent,
    print_json,
    seconds,
    showing_progress,
    stdout,
    table,
    take_stdout,
)
from doppler.cli.topologies import DEFAULT, find_topology

if TYPE_CHECKING:
    from doppler.assignment import Assignment
    from doppler.graph import Graph
    from doppler.topology import Topology
    from doppler.trace import Trace

PLACERS = ("single", "random", "round-robin", "critical-path", "doppler")
REPORT = Path("dop-demo.html")


def demo(
    topology_name: TopologyName = DEFAULT,
    probe: Probe = False,
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help=f"Report to write: {REPORT} if left out, none with --json.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Place a Llama transformer block five ways, simulate each, and draw the best.

    Ends with a report of all five to look at in a browser.

    Example: dop demo --topology v100x8
    """
    from doppler.base.writing import check_output
    from doppler.cli.timeline import timeline
    from doppler.programs import llama_block
    from doppler.report.page import DEMO
    from doppler.sharding import shard

    take_stdout(output, as_json=as_json)
    check_output(output, kind=DEMO)
    topology = find_topology(topology_name, probe_again=probe)
    parts = 1 << (topology.num_devices.bit_length() - 1)  # a power of two, at most one each
    graph = shard(llama_block(), parts)
    with showing_progress():
        rows, plans, traces = _compare(graph, topology, seed)
    written = None
    if output is not None or not as_json:
        bounds_s = {row["placer"]: row["lower_bound_s"] for row in rows}
        written = _write(output, traces, graph, topology, plans, bounds_s)
    if as_json:
        print_json(rows)
        return
    out = stdout()
    out.print(
        f"{graph.name}: {len(graph.assigned)} operations to assign, "
        f"{amount(float(graph.flops.sum()), 'FLOP')}, on {topology.name} "
        f"({topology.num_devices} devices)"
    )
    shown = table("placer", "makespan", "gap", "utilization", "moved", "planned in")
    for row in rows:
        shown.add_row(
            row["placer"],
            seconds(row["makespan_s"]),
            percent(row["gap"]),
            percent(row["utilization"]),
            amount(row["bytes_moved"], "B"),
            seconds(row["seconds"]),
        )
    out.print(shown)
    out.print(f"lower bound {seconds(rows[0]['lower_bound_s'])}: no assignment can be faster")
    out.print()
    best = traces[rows[0]["placer"]]
    out.print(f"{best.placer}, simulated (run: computing, in: tensors arriving):")
    out.print(timeline(best, out.width))
    if written is not None:
        out.print(f"look at all five in a browser: {written}")


def _write(
    output: Path | None,
    traces: "dict[str, Trace]",
    graph: "Graph",
    topology: "Topology",
    plans: "dict[str, Assignment]",
    bounds_s: dict[str, float],
) -> Path | None:
    """Write the report, and say where; a remark if it has its own name, and that is taken."""
    from doppler.errors import OutputError
    from doppler.report.page import DEMO, write_report

    try:
        write_report(
            traces,
            output or REPORT,
            graph=graph,
            topology=topology,
            assignments=plans,
            lower_bounds_s=bounds_s,
            title=f"dop demo: {graph.name} on {topology.name}",
            kind=DEMO,
        )
    except OutputError as error:
        if output is not None:
            raise
        note(f"no report: {error.message}; -o FILE writes it elsewhere")
        return None
    return output or REPORT


def _compare(
    graph: "Graph", topology: "Topology", seed: int
) -> "tuple[list[dict[str, Any]], dict[str, Assignment], dict[str, Trace]]":
    """A row, an assignment and a trace per placer, best first."""
    from doppler.base.compiling import clock
    from doppler.base.progress import track
    from doppler.placers import bounds_of, gap, make_placer
    from doppler.placers.warm_up import warm_up
    from doppler.problem import Problem
    from doppler.sim import Simulator

    problem = Problem(graph, topology)
    simulator, bound = Simulator(problem), bounds_of(problem).best_s
    rows: list[dict[str, Any]] = []
    plans, traces = {}, {}
    warm_up()
    for name in track(PLACERS, "placing"):
        began = clock()
        plans[name] = make_placer(name).place(problem, seed=seed)
        took = clock() - began
        trace = traces[name] = simulator.run(graph, plans[name], seed)
        rows.append(
            {
                "placer": name,
                "makespan_s": trace.makespan_s,
                "lower_bound_s": bound,
                "gap": gap(trace.makespan_s, bound),
                "utilization": float(trace.utilization().mean()),
                "bytes_moved": trace.bytes_moved,
                "seconds": took,
            }
        )
    rows.sort(key=lambda row: row["makespan_s"])
    names = [row["placer"] for row in rows]
    return rows, plans, {name: traces[name] for name in names}
