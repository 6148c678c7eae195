"""`dop place`: an assignment, and how good it is."""

from pathlib import Path
from typing import Annotated

import typer

from doppler.cli.options import DEFAULT_TOPOLOGY, AsJson, GraphFile, Seed, TopologyName
from doppler.cli.output import percent, print_json, seconds, showing_progress, stdout


def place(
    graph_file: GraphFile,
    topology_name: TopologyName = DEFAULT_TOPOLOGY,
    placer: Annotated[
        str, typer.Option("--placer", "-p", metavar="NAME", help="From `dop list placers`.")
    ] = "auto",
    budget: Annotated[
        float, typer.Option(min=0.01, metavar="SECONDS", help="For placers that search.")
    ] = 10.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Assignment file to write.")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Give every vertex of a graph a device.

    Prints the simulated makespan, a lower bound that no assignment can beat, and the gap.

    Example: dop place graph.json --topology p100x4 -o assignment.json
    """
    from time import perf_counter

    from doppler.assignment import write_assignment
    from doppler.formats import load_graph
    from doppler.placers import gap, lower_bounds, make_placer
    from doppler.placers.auto import AutoPlacer
    from doppler.sim import simulate
    from doppler.topology import load_topology

    chosen = make_placer(placer, budget_s=budget)
    topology = load_topology(topology_name)
    graph = load_graph(graph_file)
    with showing_progress():
        began = perf_counter()
        won = placer
        if isinstance(chosen, AutoPlacer):
            result = chosen.run(graph, topology, seed=seed)
            assignment, won = result.assignment, result.won
        else:
            assignment = chosen.place(graph, topology, seed=seed)
        took = perf_counter() - began
        makespan = simulate(graph, topology, assignment, seed=seed).makespan_s
    bound = lower_bounds(graph, topology).best_s
    if output:
        write_assignment(assignment, output)
    if as_json:
        print_json(
            {
                "makespan_s": makespan,
                "lower_bound_s": bound,
                "gap": gap(makespan, bound),
                "placer": placer,
                "won": won,
                "seconds": took,
                "topology": topology.name,
                "graph": graph.name,
                "assignment": str(output) if output else None,
            }
        )
        return
    who = placer if won == placer else f"{placer} ({won})"
    stdout().print(
        f"{who} on {topology.name}: makespan {seconds(makespan)}, lower bound "
        f"{seconds(bound)}, gap {percent(gap(makespan, bound))} (placed in {seconds(took)})"
    )
    if output:
        stdout().print(f"wrote {output}")
