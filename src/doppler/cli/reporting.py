"""`dop report`: traces to look at."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.options import AsJson, Force, Mode, complete_topology
from doppler.cli.output import announce, note, print_json, take_stdout
from doppler.errors import ConfigError, DopplerError

if TYPE_CHECKING:
    from doppler.assignment import Assignment
    from doppler.graph import Graph
    from doppler.problem import Problem
    from doppler.topology import Topology
    from doppler.trace import Trace

REPORT, PERFETTO = "report.html", ".json"


def report(
    trace_files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TRACE…", help="Trace files, shown in this order."),
    ] = None,
    graph_file: Annotated[
        Path | None,
        typer.Option("--graph", metavar="FILE", help="Graph of the traces, to be drawn too."),
    ] = None,
    assignment_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--assignment",
            metavar="FILE",
            help="Assignment of some of the traces: adds the order in which vertices were chosen "
            "and what its placer proved. May be repeated.",
        ),
    ] = None,
    run_folders: Annotated[
        list[Path] | None,
        typer.Option(
            "--run", metavar="DIR", help="Training run whose curves to show. May be repeated."
        ),
    ] = None,
    topology_name: Annotated[
        str | None,
        typer.Option(
            "--topology",
            "-t",
            metavar="NAME|FILE|here",
            autocompletion=complete_topology,
            help="The machine of the traces, for bounds and sizes; if left out, a preset of the "
            "name that the trace gives.",
        ),
    ] = None,
    mode: Mode = "dynamic",
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write: a page, or events for Perfetto if it ends in `.json`.",
        ),
    ] = Path(REPORT),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a page of timelines, graph and causes that a browser opens from disk.

    Several traces are shown on one time axis; two of the same assignment, such as a simulated and a
    measured one, can be laid over each other. With --graph, the page draws it, and says how far
    each trace is from a lower bound. --run adds training curves. A file that ends in `.json` is for
    https://ui.perfetto.dev instead.

    Example: dop report cp.trace.json rr.trace.json --graph graph.json -o report.html
    """
    from doppler.assignment import read_assignment
    from doppler.base.writing import check_output
    from doppler.formats import read_graph
    from doppler.report.page import KIND, write_report
    from doppler.report.perfetto import KIND as PERFETTO_KIND
    from doppler.report.perfetto import write_perfetto

    take_stdout(output, as_json=as_json)
    is_page = output.suffix != PERFETTO
    if not trace_files and (not run_folders or not is_page):
        raise ConfigError("no trace is named", hint="dop report TRACE…, or --run DIR for a page")
    inputs = (*(trace_files or ()), graph_file, *(assignment_files or ()), topology_name)
    check_output(output, kind=KIND if is_page else PERFETTO_KIND, inputs=inputs, force=force)
    traces = read_traces(trace_files or [])
    graph = None if graph_file is None else read_graph(graph_file)
    if topology_name is not None and graph is None:
        raise ConfigError("--topology is given without --graph", hint="add --graph FILE")
    topology = topology_of_traces(traces, topology_name)
    given = [read_assignment(path) for path in assignment_files or ()]
    assignments = {name: _assignment_of(trace, given) for name, trace in traces.items()}
    bounds_s = _bounds(traces, graph, assignments, topology, mode)
    if is_page:
        write_report(
            traces,
            output,
            graph=graph,
            topology=topology,
            assignments={name: found for name, found in assignments.items() if found is not None},
            lower_bounds_s=bounds_s,
            runs={str(folder): folder for folder in run_folders or ()},
            force=force,
        )
    else:
        write_perfetto(traces, output, graph=graph, force=force)
    if as_json:
        print_json({"report": str(output), "traces": _rows(traces, bounds_s)})
    else:
        announce(output)


def _rows(traces: "dict[str, Trace]", bounds_s: dict[str, float]) -> list[dict[str, Any]]:
    """What the page says of each trace, for machines."""
    from doppler.placers import gap
    from doppler.report.causes import chain_time

    rows = []
    for name, trace in traces.items():
        bound_s = bounds_s.get(name)
        row: dict[str, Any] = {"name": name, "makespan_s": trace.makespan_s}
        row |= {"lower_bound_s": bound_s, "critical_chain": chain_time(trace)._asdict()}
        row["gap"] = None if bound_s is None else gap(trace.makespan_s, bound_s)
        rows.append(row)
    return rows


def read_traces(paths: list[Path]) -> "dict[str, Trace]":
    """The traces in files, by the names of the files without their endings."""
    from doppler.base.files import title_of
    from doppler.trace import read_trace

    traces: dict[str, Trace] = {}
    for path in paths:
        name = title_of(path).removesuffix(".trace")
        number = sum(other == name or other.startswith(f"{name} (") for other in traces)
        traces[f"{name} ({number + 1})" if number else name] = read_trace(path)
    return traces


def _assignment_of(trace: "Trace", given: "list[Assignment]") -> "Assignment | None":
    import numpy as np

    from doppler.report.data import devices_of

    devices = devices_of(trace)
    return next((one for one in given if np.array_equal(one.devices, devices)), None)


def topology_of_traces(traces: "dict[str, Trace]", name: str | None) -> "Topology | None":
    """The machine that is named, or the preset that all traces name; None where there is none."""
    from doppler.cli.topologies import find_topology
    from doppler.topology import preset

    if name is not None:
        return find_topology(name)
    named = {trace.topology: None for trace in traces.values()}
    try:
        return preset(next(iter(named))) if len(named) == 1 else None
    except DopplerError:
        return None  # a name in a file must not make us open another


def _bounds(
    traces: "dict[str, Trace]",
    graph: "Graph | None",
    assignments: "dict[str, Assignment | None]",
    topology: "Topology | None",
    mode: str,
) -> dict[str, float]:
    """A lower bound for each trace, where the machine is known."""
    from doppler.problem import Problem

    if graph is None or not traces:
        return {}
    if topology is None:
        note("no lower bounds, as the machine is not known: name it with --topology")
        return {}
    return bounds_of_traces(traces, Problem(graph, topology), assignments, mode)


def bounds_of_traces(
    traces: "Mapping[str, Trace]",
    problem: "Problem",
    assignments: "Mapping[str, Assignment | None]",
    mode: str,
) -> dict[str, float]:
    """A lower bound for each trace that is not shorter.

    A measured or noisy run may be; there a bound says nothing.
    """
    from doppler.placers import proven_bound_s

    bounds_s = {name: proven_bound_s(problem, assignments[name], mode) for name in traces}
    return {n: s for n, s in bounds_s.items() if 0 < s <= traces[n].makespan_s * (1 + 1e-9)}
