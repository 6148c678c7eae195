"""`dop compare`: every placer, side by side."""

from dataclasses import asdict
from math import isnan
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.options import DEFAULT_TOPOLOGY, AsJson, GraphFile, Seed, TopologyName
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
    from doppler.placers.comparison import Row


def compare(
    graph_file: GraphFile,
    topology_name: TopologyName = DEFAULT_TOPOLOGY,
    placers: Annotated[
        str, typer.Option("--placers", metavar="A,B,…", help="Placers to compare; all if left out.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Draws of the noise.")] = 10,
    noise: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="Sigma of the noise on execs and transfers.")
    ] = 0.05,
    budget: Annotated[
        float, typer.Option(min=0.01, metavar="SECONDS", help="For each placer that searches.")
    ] = 10.0,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Place a graph with every placer and compare the results, best first.

    Each runs in a process of its own, several at a time, which share out the cores; one that fails
    does not stop the others.

    Example: dop compare graph.json --topology p100x4 --budget 5
    """
    from doppler.formats import load_graph
    from doppler.placers import make_placer, placer_names
    from doppler.placers.comparison import CompareConfig, ranked
    from doppler.placers.comparison import compare as compare_placers
    from doppler.sim import Noise
    from doppler.topology import load_topology

    names = [name.strip() for name in placers.split(",") if name.strip()] or placer_names()
    if len(set(names)) < len(names):
        raise ConfigError("a placer is named twice")
    for name in names:
        make_placer(name)
    topology, graph = load_topology(topology_name), load_graph(graph_file)
    config = CompareConfig(seeds=seeds, noise=Noise(noise, noise), budget_s=budget, seed=seed)
    rows = []
    with showing_progress():
        for row in compare_placers(graph, topology, names, config):
            rows.append(row)
    rows = ranked(rows)
    if as_json:
        print_json([_without_nan(asdict(row)) for row in rows])
    else:
        _print(rows)


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and isnan(v) else v for k, v in row.items()}


def _print(rows: "list[Row]") -> None:
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
