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

    Prints the simulated makespan, a lower bound that no assignment can beat, and the gap: where
    there is none, the assignment is proven optimal.

    Example: dop place graph.json --topology p100x4 -o assignment.json
    """
    from doppler.assignment import write_assignment
    from doppler.compiling import clock
    from doppler.formats import load_graph
    from doppler.placers import ask, gap, is_optimal, lower_bounds, make_placer
    from doppler.sim import simulate
    from doppler.topology import load_topology

    chosen = make_placer(placer, budget_s=budget)
    topology = load_topology(topology_name)
    graph = load_graph(graph_file)
    with showing_progress():
        began = clock()
        answer = ask(chosen, graph, topology, seed=seed)
        took = clock() - began
        makespan = simulate(graph, topology, answer.assignment, seed=seed).makespan_s
        bound = answer.bound_s or lower_bounds(graph, topology).best_s
    optimal = is_optimal(makespan, bound)
    if output:
        write_assignment(answer.assignment, output)
    if as_json:
        print_json(
            {
                "makespan_s": makespan,
                "lower_bound_s": bound,
                "gap": gap(makespan, bound),
                "optimal": optimal,
                "placer": placer,
                "won": answer.won,
                "seconds": took,
                "topology": topology.name,
                "graph": graph.name,
                "assignment": str(output) if output else None,
            }
        )
        return
    who = placer if answer.won == placer else f"{placer} ({answer.won})"
    proven = ", proven optimal" if optimal else ""
    stdout().print(
        f"{who} on {topology.name}: makespan {seconds(makespan)}, lower bound {seconds(bound)}, "
        f"gap {percent(gap(makespan, bound))}{proven} (placed in {seconds(took)})"
    )
    if output:
        stdout().print(f"wrote {output}")
