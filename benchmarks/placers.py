"""How good are the placers? The paper's workloads on three machines, against a lower bound.

Run it as `python benchmarks/placers.py`: three minutes, 10 s of search for each of 12 problems.
`--long` also searches each for 5 minutes and tells how soon it came within 1 % of that.
"""

import argparse
from time import perf_counter

from workloads import graph_of

from doppler.errors import DopplerError
from doppler.graph import Graph
from doppler.placers import gap, lower_bounds, make_placer, placer_names
from doppler.placers.search import SearchConfig, search, starting_points, warm_up
from doppler.programs import random_dag
from doppler.sim import Simulator
from doppler.topology import Topology, load_topology

# The paper's measurements of its EnumerativeOptimizer on all devices, in milliseconds (Table 2
# and App. H.2).
PAPER_MS = {
    "p100x4": {"chainmm": 139.0, "ffnn": 50.2, "llama-block": 172.7, "llama-layer": 174.8},
    "v100x8": {"chainmm": 33.5, "ffnn": 20.0, "llama-block": 109.6, "llama-layer": 97.5},
    "a100x2-t4x2": {"chainmm": 0.0, "ffnn": 0.0, "llama-block": 0.0, "llama-layer": 0.0},
}
SLOW = {"annealing", "auto", "cp-sat", "genetic", "local-search"}


def instant(graph: Graph, topology: Topology) -> dict[str, float]:
    """Makespans in ms of every placer that does not search."""
    found = {}
    for name in placer_names():
        if name not in SLOW:
            try:
                assignment = make_placer(name).place(graph, topology, seed=0)
                found[name] = Simulator(topology).run(graph, assignment).makespan_s * 1e3
            except DopplerError as error:
                print(f"  {name} failed: {error.message}")
    return found


def compare(seconds: float, long: bool) -> None:
    print(f"\nMakespans in ms, simulated; {seconds:.0f} s of search\n")
    head = "  topology     workload       bound  enumerative  (paper)   best heuristic"
    print(head + "           search   gap")
    for name, rows in PAPER_MS.items():
        topology = load_topology(name)
        for label, paper in rows.items():
            graph = graph_of(label, topology.num_devices)
            found = instant(graph, topology)
            best = min(found, key=lambda key: found[key])
            starts = starting_points(graph, topology, 0)
            result = search(graph, topology, starts, SearchConfig(seconds=seconds))
            bound = lower_bounds(graph, topology).best_s
            print(
                f"  {name:<12} {label:<12} {bound * 1e3:>7.1f} {found['enumerative']:>12.1f}"
                f" {f'({paper})' if paper else '':>8}   {best:<14} {found[best]:>7.1f}"
                f" {result.cost_s * 1e3:>8.1f} {100 * gap(result.cost_s, bound):>4.1f}%",
                flush=True,
            )
            if long:
                show_convergence(graph, topology)


def show_convergence(graph: Graph, topology: Topology) -> None:
    """When a search of 5 minutes came within 1 % of where it ended."""
    starts = starting_points(graph, topology, 0)
    result = search(graph, topology, starts, SearchConfig(seconds=300.0))
    near = next(s for s, _, cost in result.history if cost <= 1.01 * result.cost_s)
    short = search(graph, topology, starts, SearchConfig(seconds=30.0))
    off = 100 * (short.cost_s / result.cost_s - 1)
    print(
        f"      5 min: {result.cost_s * 1e3:.2f} ms, within 1 % after {near:.0f} s; "
        f"30 s alone: {short.cost_s * 1e3:.2f} ms, {off:+.2f}%",
        flush=True,
    )


def show_scaling() -> None:
    print("\nSeconds to place a random graph on v100x8\n")
    names = [name for name in placer_names() if name not in SLOW]
    sizes = (1_000, 10_000, 100_000)
    print(f"  {'':<15}" + "".join(f"{size:>10,}" for size in sizes))
    topology = load_topology("v100x8")
    graphs = [random_dag(vertices=n, depth=n // 50, bytes_per_flop=2e-6, seed=0) for n in sizes]
    for name in names:
        times = []
        for graph in graphs:
            placer = make_placer(name)
            began = perf_counter()
            placer.place(graph, topology, seed=0)
            times.append(perf_counter() - began)
        print(f"  {name:<15}" + "".join(f"{t:>10.2f}" for t in times), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    warm_up()
    compare(options.seconds, options.long)
    show_scaling()
