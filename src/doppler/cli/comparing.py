"""`dop compare`: every placer, side by side."""

from dataclasses import asdict
from math import isnan
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.options import MAX_REPEATS, AsJson, GraphFile, Mode, Probe, Seed, TopologyName
from doppler.cli.output import (
    amount,
    percent,
    print_json,
    seconds,
    showing_progress,
    spread,
    stdout,
    table,
)
from doppler.errors import ConfigError

if TYPE_CHECKING:
    from doppler.placers.comparison import ComparisonRow


def compare(
    graph_file: GraphFile,
    topology_name: TopologyName = None,
    placers: Annotated[
        str, typer.Option("--placers", metavar="A,B,…", help="Placers to compare; all if left out.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, max=MAX_REPEATS, help="Draws of the noise.")] = 10,
    noise: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="Sigma of the noise on execs and transfers.")
    ] = 0.05,
    budget: Annotated[
        float,
        typer.Option(min=0.01, max=1e6, metavar="SECONDS", help="For each placer that searches."),
    ] = 10.0,
    mode: Mode = "dynamic",
    probe: Probe = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Place a graph with every placer and compare the results, best first.

    Each runs in a process of its own, several at a time, which share out the cores; one that fails
    does not stop the others.

    Example: dop compare graph.json --topology p100x4 --budget 5
    """
    from doppler.cli.topologies import find_topology
    from doppler.formats import read_graph
    from doppler.placers import make_placer, placer_names
    from doppler.placers.comparison import CompareConfig, compare_in_processes, ranked
    from doppler.problem import Problem
    from doppler.sim import Noise

    names = [name.strip() for name in placers.split(",") if name.strip()] or placer_names()
    if len(set(names)) < len(names):
        raise ConfigError("a placer is named twice")
    for name in names:
        make_placer(name)
    config = CompareConfig(
        seeds=seeds, noise=Noise(noise, noise), budget_s=budget, seed=seed, mode=mode
    )
    graph = read_graph(graph_file)
    topology = find_topology(topology_name, graph, probe_again=probe)
    rows = []
    with showing_progress():
        for row in compare_in_processes(Problem(graph, topology), names, config):
            rows.append(row)
    rows = ranked(rows)
    if as_json:
        print_json([_without_nan(asdict(row)) for row in rows])
    else:
        _print(rows)


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and isnan(v) else v for k, v in row.items()}


def _print(rows: "list[ComparisonRow]") -> None:
    out = stdout()
    shown = table("placer", "makespan", "with noise", "gap", "busy", "moved", "planned")
    for row in rows:
        if row.error:
            shown.add_row(row.placer, "failed", "", "", "", "", seconds(row.seconds))
            continue
        shown.add_row(
            row.placer,
            seconds(row.makespan_s),
            spread(row.mean_s, row.std_s),
            percent(row.gap),
            percent(row.utilization),
            amount(row.bytes_moved, "B"),
            seconds(row.seconds),
        )
    out.print(shown)
    for row in rows:
        if row.error:
            out.print(f"{row.placer}: {row.error}")
    out.print(f"lower bound {seconds(rows[0].lower_bound_s)}: no assignment can be faster")
