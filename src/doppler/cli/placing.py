"""`dop place`: an assignment, and how good it is."""

import logging
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.base.torchrun import is_first_rank, num_ranks
from doppler.cli.options import (
    AsJson,
    Cold,
    DeviceMapFile,
    Force,
    GraphFile,
    Mode,
    Probe,
    Seed,
    TopologyName,
    complete_placer,
)
from doppler.cli.output import (
    announce,
    percent,
    print_json,
    seconds,
    showing_progress,
    stdout,
    take_stdout,
)

if TYPE_CHECKING:
    from doppler.placers import Placer, Solution
    from doppler.problem import Problem

PATIENCE_S = 600.0  # that processes wait for one another, beyond the budget

logger = logging.getLogger(__name__)


def place(
    graph_file: GraphFile,
    topology_name: TopologyName = None,
    placer: Annotated[
        str,
        typer.Option(
            "--placer",
            "-p",
            metavar="NAME",
            autocompletion=complete_placer,
            help="From `dop list placers`, or your own: package.module:Class.",
        ),
    ] = "auto",
    budget: Annotated[
        float,
        typer.Option(min=0.01, max=1e6, metavar="SECONDS", help="For placers that search."),
    ] = 10.0,
    mode: Mode = "dynamic",
    cold: Cold = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Assignment to write: .json, or a table as .csv."
        ),
    ] = None,
    device_map: DeviceMapFile = None,
    full: Annotated[
        bool, typer.Option("--full", help="List every vertex, however many there are.")
    ] = False,
    force: Force = False,
    probe: Probe = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Give every vertex of a graph a device.

    Prints the plan, its simulated makespan, a lower bound that no assignment can beat, and the
    gap: where there is none, the assignment is proven optimal. With --mode fixed, the assignment
    gets a schedule too: an order of all tasks, on which a fifth of the budget is spent. With
    --cold, it is placed for a run in which resident inputs are loaded first. Under `torchrun`
    every process searches with a seed of its own, and the first one prints the best.

    Example: dop place graph.json --topology p100x4 -o assignment.json
    """
    from doppler.assignment import output_kind, write_assignment
    from doppler.base.compiling import clock
    from doppler.base.writing import check_output
    from doppler.cli import plans
    from doppler.cli.topologies import find_topology
    from doppler.formats import read_graph
    from doppler.placers import make_placer, proven_bound_s, searches
    from doppler.plan import device_loads
    from doppler.problem import Problem
    from doppler.sim import SimConfig, Simulator

    take_stdout(output, as_json=as_json)
    runtime = SimConfig(mode=mode)
    inputs = (graph_file, topology_name, placer.partition(":")[2] or None)
    if output is not None:
        check_output(output, kind=output_kind(output), inputs=inputs, force=force)
    check_output(device_map, kind="device map", inputs=(*inputs, output), force=force)
    chosen = make_placer(placer)
    graph = read_graph(graph_file)
    plans.check_device_map(device_map, graph)
    topology = find_topology(topology_name, graph, probe_again=probe)
    if cold:
        graph = plans.cold_graph(graph, topology)
    problem = Problem(graph, topology)
    with showing_progress():
        began = clock()
        solution = _solve(chosen, problem, mode, seed, budget if searches(chosen) else None)
        if not is_first_rank():
            return
        took = clock() - began
        assignment = solution.assignment
        trace = Simulator(problem, runtime).run(graph, assignment, seed)
        bound = proven_bound_s(problem, assignment, mode)
        cold_s = plans.cold_makespan_s(problem, runtime, assignment, seed)
    _log_members(solution)
    if output:
        write_assignment(assignment, output, force=force)
    plans.write_device_map(assignment, problem, device_map, force=force)
    times = {"makespan_s": trace.makespan_s, "lower_bound_s": bound, "seconds": took}
    names = {"mode": mode, "placer": placer, "assignment": str(output) if output else None}
    summary = _summary(problem, solution, times, names, cold_s)
    loads = device_loads(graph, topology, trace, is_planned=assignment.memory is not None)
    if as_json:
        print_json(summary | plans.plan_document(assignment.by_name(graph, topology), loads))
        return
    plans.print_plan(graph, assignment.by_name(graph, topology), loads, full=full)
    stdout().print(_sentence(summary, plans.order_note(assignment, mode)))
    plans.print_memory_plan(assignment, graph)
    plans.print_cold_start(cold_s)
    announce(output, device_map)


def _solve(
    chosen: "Placer", problem: "Problem", mode: str, seed: int, budget_s: float | None
) -> "Solution":
    """The solution of a placer; of several processes, the best, each with a seed of its own."""
    from doppler.placers.modes import solve_in_mode

    if num_ranks() == 1:
        return solve_in_mode(chosen, problem, mode, seed=seed, budget_s=budget_s)
    from doppler.engine.ranks.opening import open_group
    from doppler.sim import SimConfig, Simulator

    with open_group(PATIENCE_S + (budget_s or 0.0)) as group:
        assert group is not None
        own = solve_in_mode(chosen, problem, mode, seed=seed + group.rank, budget_s=budget_s)
        trace = Simulator(problem, SimConfig(mode=mode)).run(problem.graph, own.assignment, seed)
        found: list[tuple[float, Solution]] = group.gather((trace.makespan_s, own))
        return min(found, key=lambda each: each[0])[1]


def _summary(
    problem: "Problem",
    solution: "Solution",
    times: dict[str, float],
    names: dict[str, str | None],
    cold_s: float | None,
) -> dict[str, Any]:
    """JSON values: how good the assignment is, who made it, and for what."""
    from doppler.cli import plans
    from doppler.placers import gap, is_optimal

    both = times["makespan_s"], times["lower_bound_s"]
    return {
        "makespan_s": both[0],
        "lower_bound_s": both[1],
        "gap": gap(*both),
        "optimal": is_optimal(*both),
        "mode": names["mode"],
        **({} if cold_s is None else {"cold_makespan_s": cold_s if isfinite(cold_s) else None}),
        "placer": names["placer"],
        "won": solution.won,
        "seconds": times["seconds"],
        "topology": problem.topology.name,
        "graph": problem.graph.name,
        "assignment": names["assignment"],
        **plans.memory_document(solution.assignment, problem.graph),
    }


def _sentence(summary: dict[str, Any], order: str) -> str:
    """Who placed, the makespan, and how far it may be from the optimum."""
    placer, won = summary["placer"], summary["won"]
    who = placer if won == placer else f"{placer} ({won})"
    proven = ", proven optimal" if summary["optimal"] else ""
    return (
        f"{who} on {summary['topology']}: makespan {seconds(summary['makespan_s'])}, lower bound "
        f"{seconds(summary['lower_bound_s'])}, gap {percent(summary['gap'])}{proven}{order} "
        f"(placed in {seconds(summary['seconds'])})"
    )


def _log_members(solution: "Solution") -> None:
    """Log the result of each member of a portfolio; `-v` shows it."""
    for member in solution.members:
        came_to = member.error.splitlines()[0] if member.error else seconds(member.makespan_s)
        logger.info("%s: %s in %s", member.name, came_to, seconds(member.seconds))
