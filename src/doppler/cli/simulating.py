"""`dop simulate`: what an assignment does in the simulated runtime."""

from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doppler.cli.options import (
    MAX_REPEATS,
    AsJson,
    AssignmentFile,
    Cold,
    Force,
    GraphFile,
    Mode,
    Probe,
    Seed,
    Strategy,
    TopologyName,
)
from doppler.cli.output import (
    amount,
    announce,
    note,
    percent,
    print_json,
    seconds,
    showing_progress,
    spread,
    stdout,
    table,
    take_stdout,
)
from doppler.errors import ConfigError

if TYPE_CHECKING:
    from doppler.assignment import Assignment
    from doppler.plan import DeviceLoad
    from doppler.problem import Problem
    from doppler.sim import SimConfig
    from doppler.trace import Trace

Sigma = typer.Option(min=0.0, max=10.0, help="Log-normal noise: sigma of the logarithm.")


def simulate(
    graph_file: GraphFile,
    assignment_file: AssignmentFile,
    topology_name: TopologyName = None,
    strategy: Strategy = "fifo",
    mode: Mode = "dynamic",
    exec_noise: Annotated[float, Sigma] = 0.0,
    transfer_noise: Annotated[float, Sigma] = 0.0,
    device_noise: Annotated[float, Sigma] = 0.0,
    slowdown: Annotated[
        str, typer.Option(metavar="1,1,2,…", help="Fixed factor on each device's exec seconds.")
    ] = "",
    bulk_synchronous: Annotated[
        bool, typer.Option("--bulk-synchronous", help="Put a barrier after every level.")
    ] = False,
    cold: Cold = False,
    limit_memory: Annotated[bool, typer.Option(help="Make tasks wait for device memory.")] = True,
    repeat: Annotated[
        int, typer.Option(min=1, max=MAX_REPEATS, help="Runs, with seeds from --seed on.")
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Trace file to write (of the first run)."
        ),
    ] = None,
    force: Force = False,
    probe: Probe = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run an assignment in the work-conserving simulator.

    Prints a lower bound for all assignments, and the gap to it, unless noise may go below it.
    With --mode fixed, an assignment without a schedule gets one by the strategy. With --cold,
    resident inputs are loaded first; a schedule and a memory plan count if made for that.

    Example: dop simulate graph.json assignment.json --topology p100x4 -o trace.json
    """
    import numpy as np

    from doppler.assignment import read_assignment
    from doppler.base.progress import track
    from doppler.base.writing import check_output
    from doppler.cli import plans
    from doppler.cli.topologies import find_topology
    from doppler.formats import read_graph
    from doppler.plan import device_loads
    from doppler.problem import Problem
    from doppler.scheduler.choose import DYNAMIC
    from doppler.sim import Noise, SimConfig, Simulator
    from doppler.trace import FORMAT, write_trace

    take_stdout(output, as_json=as_json)
    inputs = (graph_file, assignment_file, topology_name)
    check_output(output, kind=FORMAT, inputs=inputs, force=force)
    config = SimConfig(
        strategy=strategy,
        noise=Noise(exec_noise, transfer_noise, device_noise, _factors(slowdown)),
        synchronous=bulk_synchronous,
        limit_memory=limit_memory,
        mode=mode,
    )
    assignment = read_assignment(assignment_file)
    graph = read_graph(graph_file)
    topology = find_topology(topology_name, graph, assignment, probe_again=probe)
    if cold:
        graph = plans.cold_graph(graph, topology)
    problem = Problem(graph, topology)
    if cold:
        assignment = plans.fitting(assignment, problem)
    assignment.check(graph, topology)
    simulator = Simulator(problem, config)
    with showing_progress():
        bound = _lower_bound(problem, assignment, config)
        trace = simulator.run(graph, assignment, seed)
        seeds = track(range(seed + 1, seed + repeat), "simulating")
        later = [float(simulator.makespans(graph, [assignment], seed=s)[0]) for s in seeds]
    loads = device_loads(graph, topology, trace, is_planned=assignment.memory is not None)
    makespans = np.array([trace.makespan_s, *later])
    if output:
        write_trace(trace, output, force=force)
    if as_json:
        memory = _memory(loads) | plans.memory_document(assignment, graph)
        print_json(_summary(trace, makespans.tolist(), bound, output) | memory)
    else:
        _print_summary(trace, makespans, bound, loads)
        plans.print_memory_plan(assignment, graph)
        if assignment.schedule and not assignment.memory and mode == DYNAMIC:
            note("the assignment has a schedule: --mode fixed keeps to it")
        announce(output)


def _factors(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(item) for item in text.split(",") if item.strip())
    except ValueError:
        raise ConfigError(
            f"--slowdown is `{text}`", hint="one number per device, such as 1,1,2,1"
        ) from None


def _lower_bound(problem: "Problem", assignment: "Assignment", config: "SimConfig") -> float | None:
    """A bound for every assignment under these options; None where noise may go below it.

    Barriers, strategies and slowdowns only make runs longer; without limits of memory those
    bounds that follow from them do not hold.
    """
    from doppler.placers import bounds_of, proven_bound_s

    if config.noise.is_random or min(config.noise.slowdown, default=1.0) < 1:
        return None
    if config.limit_memory:
        return proven_bound_s(problem, assignment, config.mode)
    return replace(bounds_of(problem, config.mode), memory_s=0.0).best_s


def _summary(
    trace: "Trace", makespans: list[float], bound: float | None, output: Path | None
) -> dict[str, Any]:
    from doppler.placers import gap

    result: dict[str, Any] = {
        "makespan_s": trace.makespan_s,
        "lower_bound_s": bound,
        "gap": None if bound is None else gap(trace.makespan_s, bound),
    }
    if len(makespans) > 1:
        result["makespans_s"] = makespans
    return result | {
        "utilization": trace.utilization().tolist(),
        "idle_s": trace.idle_s().tolist(),
        "link_utilization": trace.link_utilization().tolist(),
        "bytes_moved": trace.bytes_moved,
        "bytes_by_class": trace.bytes_by_class(),
        "overlap": trace.overlap(),
        "transfers": int(trace.is_transfer.sum()),
        "graph": trace.graph,
        "topology": trace.topology,
        "placer": trace.placer,
        "trace": str(output) if output else None,
    }


def _memory(loads: "list[DeviceLoad]") -> dict[str, Any]:
    """JSON values: the most memory that each device uses, and how much it has; None: no limit."""
    limits = [load.memory_bytes for load in loads]
    return {
        "peak_bytes": [load.peak_bytes for load in loads],
        "memory_bytes": [limit if isfinite(limit) else None for limit in limits],
    }


def _print_summary(
    trace: "Trace", makespans: Any, bound: float | None, loads: "list[DeviceLoad]"
) -> None:
    from doppler.cli.plans import peak_memory
    from doppler.placers import gap

    out = stdout()
    several = ""
    if len(makespans) > 1:
        several = f", {spread(makespans.mean(), makespans.std())} over {len(makespans)}"
    how_good = ""
    if bound is not None:
        how_good = f"; lower bound {seconds(bound)}, gap {percent(gap(trace.makespan_s, bound))}"
    out.print(f"makespan {seconds(trace.makespan_s)}{several}{how_good}")
    devices = table("device", "busy", "idle", "execs", "peak memory")
    busy, idle = trace.utilization(), trace.idle_s()
    for i, device in enumerate(trace.devices):
        execs = int(((trace.device == i) & ~trace.is_transfer).sum())
        memory = peak_memory(loads[i])
        devices.add_row(device.name, percent(busy[i]), seconds(idle[i]), str(execs), memory)
    out.print(devices)
    by_class = ", ".join(f"{amount(v, 'B')} {k}" for k, v in trace.bytes_by_class().items())
    out.print(f"read: {by_class}; transfers overlap compute {percent(trace.overlap())}")
    chain = trace.critical_chain()
    reasons = [step.waited_for for step in chain]
    counts = ", ".join(f"{reasons.count(r)} for {r}" for r in dict.fromkeys(reasons))
    if chain:
        out.print(f"critical chain: {len(chain)} tasks; waited {counts}")
