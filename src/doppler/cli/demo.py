"""`dop demo`: the whole pipeline, nothing to configure."""

from typing import TYPE_CHECKING, Any

from doppler.cli.options import AsJson, Probe, Seed, TopologyName
from doppler.cli.output import (
    amount,
    percent,
    print_json,
    seconds,
    showing_progress,
    stdout,
    table,
)
from doppler.cli.topologies import DEFAULT, find_topology

if TYPE_CHECKING:
    from doppler.graph import Graph
    from doppler.topology import Topology
    from doppler.trace import Trace

PLACERS = ("single", "random", "round-robin", "critical-path", "doppler")


def demo(
    topology_name: TopologyName = DEFAULT,
    probe: Probe = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Place a Llama transformer block five ways, simulate each, and draw the best.

    Example: dop demo --topology v100x8
    """
    from doppler.cli.timeline import timeline
    from doppler.programs import llama_block
    from doppler.sharding import shard

    topology = find_topology(topology_name, probe_again=probe)
    parts = 1 << (topology.num_devices.bit_length() - 1)  # a power of two, at most one each
    graph = shard(llama_block(), parts)
    with showing_progress():
        rows, best = _compare(graph, topology, seed)
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
    out.print(f"{best.placer}, simulated (run: computing, in: tensors arriving):")
    out.print(timeline(best, out.width))


def _compare(
    graph: "Graph", topology: "Topology", seed: int
) -> tuple[list[dict[str, Any]], "Trace"]:
    """A row per placer, best first, and the best one's trace."""
    from doppler.base.compiling import clock
    from doppler.base.progress import track
    from doppler.placers import bounds_of, gap, make_placer
    from doppler.placers.warm_up import warm_up
    from doppler.problem import Problem
    from doppler.sim import Simulator

    problem = Problem(graph, topology)
    simulator, bound = Simulator(problem), bounds_of(problem).best_s
    rows: list[dict[str, Any]] = []
    traces = []
    warm_up()
    for name in track(PLACERS, "placing"):
        began = clock()
        assignment = make_placer(name).place(problem, seed=seed)
        took = clock() - began
        trace = simulator.run(graph, assignment, seed)
        traces.append(trace)
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
    return rows, min(traces, key=lambda trace: trace.makespan_s)
