"""`dop view`: a page in the browser that answers to changes, and follows training runs."""

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.options import (
    AsJson,
    Force,
    Mode,
    TopologyName,
    complete_placer,
)
from doppler.cli.output import note, print_json, stdout
from doppler.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from doppler.assignment import Assignment
    from doppler.graph import Graph
    from doppler.topology import Topology
    from doppler.trace import Trace
    from doppler.view.config import ViewConfig
    from doppler.view.session import ViewContent, ViewSession
    from doppler.view.web_server import ViewServer
    from doppler.view.what_if import WhatIf

FAST = "critical-path"  # places a graph that comes without an assignment


def view(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|RUN…",
            help="Traces, an assignment (with --graph) or a graph; directories of training runs.",
        ),
    ],
    graph_file: Annotated[
        Path | None,
        typer.Option("--graph", metavar="FILE", help="Graph of the traces or the assignment."),
    ] = None,
    topology_name: TopologyName = None,
    placer: Annotated[
        str,
        typer.Option(
            "--placer",
            "-p",
            metavar="NAME",
            autocompletion=complete_placer,
            help="For a graph without an assignment.",
        ),
    ] = FAST,
    mode: Mode = "dynamic",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            "--save",
            metavar="FILE",
            help="Where the page saves its assignment; if left out, a new file beside the first.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: one that is free.")
    ] = 0,
    opens: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show a page that can be changed: what if this ran over there?

    Serves the page of `dop report` on this machine only. With a graph, vertices can be moved to
    other devices, and devices and links be made faster or slower; makespan, timeline, bound and gap
    follow at once, and the assignment can be saved. Training runs are followed while they run, and
    compared. Ctrl-C ends it.

    Example: dop view cp.json --graph graph.json
    """
    from doppler.view.config import ViewConfig
    from doppler.view.session import ViewSession
    from doppler.view.web_server import ViewServer

    _check_output(output, (*files, graph_file, topology_name), force)
    given = _read(files, graph_file)
    content, what_if = _content(given, topology_name, placer, _config(ViewConfig(), mode))
    save = None if what_if is None else output or _free_name(files[0])
    session = ViewSession(content, what_if, save=save, force=force)
    with ViewServer(session, port=port) as server:
        if as_json:
            print_json({"url": server.url, "port": server.server_port, "save": save and str(save)})
        else:
            stdout().print(server.url)
        sys.stdout.flush()  # whoever reads it waits for it
        if opens:
            _open(server.url)
        _serve(server, session, save)


def _serve(server: "ViewServer", session: "ViewSession", save: Path | None) -> None:
    """Serve until Ctrl-C, which is the way to end it."""
    note("serving this machine only; Ctrl-C ends it")
    try:
        server.serve_forever(poll_interval=0.2)
    except (Interrupted, KeyboardInterrupt):
        note("stopped")
    if session.has_unsaved:
        where = f" to {save}" if save else ""
        note(f"changes were not saved and are lost: Save on the page writes them{where}")


def _open(url: str) -> None:
    """Show the page in the browser of this desktop, if there is one; nobody waits for it."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def _config(config: "ViewConfig", mode: str) -> "ViewConfig":
    return replace(config, simulation=replace(config.simulation, mode=mode))


def _check_output(output: Path | None, inputs: tuple[Any, ...], force: bool) -> None:
    from doppler.assignment import output_kind
    from doppler.base.writing import check_output, is_stdout

    if output is not None and is_stdout(output):
        raise ConfigError("the page saves to a file, not to stdout", hint="name a file with -o")
    kind = None if output is None else output_kind(output)
    check_output(output, kind=kind, inputs=inputs, force=force)


def _free_name(beside: Path) -> Path | None:
    """A file beside another that is not there yet; None where nothing can be written."""
    from doppler.base.files import is_pipe

    folder = Path() if is_pipe(beside) or beside.is_dir() else beside.parent
    if not os.access(folder, os.W_OK):
        note(f"nothing can be saved in {folder}: name a file with -o")
        return None
    stem = "graph" if is_pipe(beside) else beside.name.removesuffix(".json")
    names = (folder / f"{stem}.what-if{n}.json" for n in ("", *(f"-{i}" for i in range(2, 10**6))))
    return next(name for name in names if not os.path.lexists(name))


@dataclass
class _Given:
    """What the files hold."""

    traces: "dict[str, Trace]" = field(default_factory=dict)
    graph: "Graph | None" = None
    assignment: "Assignment | None" = None
    topology: "Topology | None" = None  # where the files have one
    name: str = ""  # of the assignment or the graph
    runs: dict[str, Path] = field(default_factory=dict)


def _read(files: list[Path], graph_file: Path | None) -> _Given:
    from doppler.assignment import FORMAT as ASSIGNMENT
    from doppler.assignment import assignment_from_json
    from doppler.base.files import read_text, source_name, title_of
    from doppler.base.writing import format_of
    from doppler.formats import graph_from_text, read_graph
    from doppler.trace import FORMAT as TRACE
    from doppler.trace import trace_from_json

    given = _Given(graph=None if graph_file is None else read_graph(graph_file))
    for path in files:
        if path.is_dir():
            given.runs[str(path)] = _checked_run(path)
            continue
        text, source, title = read_text(path), source_name(path), title_of(path)
        kind = format_of(text)
        if kind == TRACE:
            name = title.removesuffix(".trace")
            given.traces[_unused(name, given.traces)] = trace_from_json(text, source)
        elif given.name:
            raise ConfigError("two plans are named", hint="dop view shows one plan, and traces")
        elif kind == ASSIGNMENT:
            given.assignment, given.name = assignment_from_json(text, source), title
        elif given.graph is not None:
            raise ConfigError("two graphs are named", hint="dop view GRAPH, or --graph GRAPH")
        else:
            given.graph, given.name = graph_from_text(text, source, title), title
    if given.assignment is not None and given.graph is None:
        raise ConfigError(
            "an assignment has no graph in it", hint=f"dop view {files[0]} --graph GRAPH"
        )
    if len(given.runs) == len(files) == 1 and given.graph is None:
        _read_best(files[0], given)
    return given


def _unused(name: str, names: "dict[str, Any]") -> str:
    number = sum(other == name or other.startswith(f"{name} (") for other in names)
    return f"{name} ({number + 1})" if number else name


def _checked_run(folder: Path) -> Path:
    if not any((folder / name).is_file() for name in ("config.json", "metrics.jsonl")):
        raise ConfigError(f"`{folder}` holds no training run", hint="name a file, or a run")
    return folder


def _read_best(folder: Path, given: _Given) -> None:
    """The best assignment of a run so far, if it is for one graph on one machine."""
    from doppler.assignment import read_assignment
    from doppler.formats import read_graph
    from doppler.topology import read_topology

    best = sorted((folder / "best").glob("*.assignment.json"))
    graphs, machines = (sorted((folder / f).glob("*.json")) for f in ("graphs", "topologies"))
    if len(best) == len(graphs) == len(machines) == 1:
        given.graph, given.assignment = read_graph(graphs[0]), read_assignment(best[0])
        measured = best[0].with_name(best[0].name.replace(".assignment.", ".topology."))
        given.topology = read_topology(str(measured if measured.is_file() else machines[0]))
        given.name = "best of the run"
    elif best:
        note(f"the run has several graphs or machines: dop view {best[0]} --graph {graphs[0]}")


def _content(
    given: _Given, topology_name: str | None, placer: str, config: "ViewConfig"
) -> "tuple[ViewContent, WhatIf | None]":
    """What is shown, and what can be changed where there is a graph and a machine."""
    from doppler.cli.reporting import bounds_of_traces
    from doppler.view.session import ViewContent
    from doppler.view.what_if import WhatIf

    graph, topology = given.graph, _machine(given, topology_name)
    content = ViewContent(_title(given), given.traces, graph, topology, runs=given.runs)
    if graph is None or topology is None:
        message = "" if not given.traces else _missing(graph)
        if message:
            note(message)
        return replace(content, message=message), None
    problem, assignment = _plan(given, graph, topology, placer)
    what_if = WhatIf(problem, assignment, config)
    traces = dict(given.traces) or {_start_name(given, assignment): what_if.outcome.trace}
    known = dict.fromkeys(traces, assignment)
    mode = config.simulation.mode
    bounds_s = bounds_of_traces(traces, problem, known, mode)
    return (
        replace(content, traces=traces, assignments=known, lower_bounds_s=bounds_s),
        what_if,
    )


def _missing(graph: "Graph | None") -> str:
    if graph is None:
        return "The trace has no graph in it: with --graph FILE, it is drawn and can be changed."
    return "The machine of the trace is not known: with --topology, it can be changed."


def _machine(given: _Given, name: str | None) -> "Topology | None":
    """The machine that is named, that of the run or the assignment, or a preset of the traces."""
    from doppler.cli.reporting import topology_of_traces
    from doppler.cli.topologies import find_topology

    if name is None and given.topology is not None:
        return given.topology
    if given.graph is None or (name is None and given.traces and given.assignment is None):
        return topology_of_traces(given.traces, name)
    return find_topology(name, given.graph, given.assignment)


def _plan(given: _Given, graph: "Graph", topology: "Topology", placer: str) -> Any:
    """The problem, and the assignment to start with."""
    from doppler.assignment import assignment_for
    from doppler.placers import make_placer, solve
    from doppler.problem import Problem
    from doppler.report.data import devices_of

    problem, assignment = Problem(graph, topology), given.assignment
    if assignment is None and given.traces:
        trace = next(iter(given.traces.values()))
        if trace.vertex_names != graph.vertex_names:
            raise ConfigError(f"the trace is of another graph than `{graph.name}`")
        devices = devices_of(trace)
        assignment = assignment_for(graph, topology, devices, placer=trace.placer)
    if assignment is None:
        assignment = solve(make_placer(placer), problem).assignment
    return problem, assignment


def _start_name(given: _Given, assignment: "Assignment") -> str:
    return assignment.placer if given.assignment is None else given.name


def _title(given: _Given) -> str:
    from doppler.base.notebook import cut

    if given.graph is not None:
        return cut(given.graph.name, 200)
    first = next(iter(given.traces.values()), None)
    return "Training" if first is None else f"{cut(first.graph, 60)} on {cut(first.topology, 60)}"
