"""How good are the placers? The paper's workloads on three machines, against a lower bound.

    python benchmarks/placers.py run [PART …] [--only PATTERN] [--results FILE]
    python benchmarks/placers.py show FILE

- `search`: 10 s of search for each of 12 problems, against instant placers and a lower bound;
- `long`: six problems searched for 5 minutes and for 30 s, to see whether 30 s are enough;
- `moves`: a move of search against a whole simulation;
- `scaling`: how placing scales to 100,000 vertices;
- `exact`: random graphs of 10 to 30 vertices solved with CP-SAT, a minute each.

`--only a100x2-t4x2/ffnn` does one problem, `--only 'scaling/m-*'` the placers of that name, `--only
'reference:4/*'` (of `exact`) a machine. Search uses two cores however many there are, so that
several processes may run side by side, each on cores of its own:

    taskset -c 0,1 python benchmarks/placers.py run long --only p100x4-first-fit/ffnn &
    taskset -c 2,3 python benchmarks/placers.py run long --only p100x4-first-fit/chainmm &
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from itertools import product
from time import perf_counter, process_time

import numpy as np
import tables
from tables import Table
from workloads import graph_of

from doppler.errors import DopplerError
from doppler.graph import Graph, build_graph
from doppler.placers import gap, lower_bounds, make_placer, placer_names
from doppler.placers.exact.placer import ExactResult, solve_exactly
from doppler.placers.search.annealing import SearchConfig, search, starting_points
from doppler.placers.warm_up import warm_up_search
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.reproduce.paper_figures import paper as paper_figures
from doppler.sim import Simulator
from doppler.topology import Topology, read_topology

# The presets that the stored results were measured with, and the paper's tables for them.
P100, V100 = "p100x4-first-fit", "v100x8-first-fit"
TABLES = {P100: "placement", V100: "eight-gpus"}
WORKLOADS = ("chainmm", "ffnn", "llama-block", "llama-layer")
PROBLEMS = [f"{t}/{w}" for t in (P100, V100, "a100x2-t4x2") for w in WORKLOADS]
LONG = [*(f"{P100}/{w}" for w in WORKLOADS), f"{V100}/llama-block", f"{V100}/llama-layer"]
EXACT = [f"{t}/{n}" for t in ("reference:4", P100) for n in (10, 20, 30)]
EXACT_SEEDS = 4  # with long transfers, and as many with short ones
SLOW = {"annealing", "auto", "cp-sat", "genetic", "local-search"}
INSTANT = [name for name in placer_names() if name not in SLOW | {"doppler"}]  # heuristics
SCALING = [f"scaling/{name}" for name in INSTANT]
SIZES = (1_000, 10_000, 100_000)
CORES = 2
MOVES = 20_000


def problem(label: str) -> tuple[Graph, Topology]:
    """The graph and the machine of `topology/workload`."""
    name, _, workload = label.partition("/")
    topology = read_topology(name)
    return graph_of(workload, topology.num_devices), topology


def searched(graph: Graph, topology: Topology, seconds: float) -> tuple[float, list[float]]:
    """Seconds of the best assignment found, and when the search came within 1 % of it."""
    starts = starting_points(Problem(graph, topology), 0)
    result = search(Problem(graph, topology), starts, SearchConfig(seconds=seconds, chains=CORES))
    return result.cost_s, [s for s, _, cost in result.history if cost <= 1.01 * result.cost_s]


def instant(graph: Graph, topology: Topology) -> dict[str, float]:
    """Makespans in ms of every heuristic that does not search."""
    found = {}
    for name in INSTANT:
        try:
            assignment = make_placer(name).place(Problem(graph, topology), seed=0)
            found[name] = Simulator(topology).run(graph, assignment).makespan_s * 1e3
        except DopplerError as error:
            print(f"  {name} failed: {error.message}")
    return found


def wanted(labels: Sequence[str], args: argparse.Namespace) -> list[str]:
    """Those that a pattern asks for, once kernels are compiled."""
    warm_up_search()
    return [label for label in labels if fnmatch(label, args.only)]


def cells_of(label: str) -> list[str]:
    """`topology/workload` as two cells."""
    return [f"`{part}`" for part in label.split("/")]


def compare(args: argparse.Namespace) -> Iterator[Table]:
    """Some seconds of search against the best of the instant placers and a lower bound."""
    rows, seconds = [], args.seconds or 10.0
    for label in wanted(PROBLEMS, args):
        graph, topology = problem(label)
        found = instant(graph, topology)
        best = min(found, key=lambda key: found[key])
        cost_s, _ = searched(graph, topology, seconds)
        bound = lower_bounds(graph, topology).best_s
        machine, _, name = label.partition("/")
        measured = machine in TABLES and paper_figures(TABLES[machine])["enumerative"][name].mean
        cells = [f"{bound * 1e3:.1f}", f"{found['enumerative']:.1f}", f"{measured or ''}"]
        cells += [f"{found[best]:.1f} (`{best}`)", f"{cost_s * 1e3:.1f}"]
        rows.append([*cells_of(label), *cells, f"{100 * gap(cost_s, bound):.1f} %"])
    yield Table(
        "search",
        f"Simulated makespans in ms, with {seconds:.0f} s of search",
        [
            *("topology", "workload", "lower bound", "enumerative", "paper's EnumOpt, measured"),
            *("best instant placer", f"search, {seconds:.0f} s", "gap"),
        ],
        rows,
    )


def convergence(args: argparse.Namespace) -> Iterator[Table]:
    """Whether a tenth of the time comes within 1 % of all of it."""
    rows, seconds = [], args.seconds or 300.0
    for label in wanted(LONG, args):
        graph, topology = problem(label)
        long_s, near = searched(graph, topology, seconds)
        short_s, _ = searched(graph, topology, seconds / 10)
        after = f"{near[0]:.1f} s" if near else "the start"
        cells = [f"{long_s * 1e3:.2f}", after, f"{short_s * 1e3:.2f}"]
        rows.append([*cells_of(label), *cells, f"{100 * (short_s / long_s - 1):+.2f} %"])
    yield Table(
        "long",
        f"{seconds:.0f} s of search on {CORES} cores against {seconds / 10:.0f} s (ms)",
        [
            *("topology", "workload", f"{seconds:.0f} s", "within 1 % of it after"),
            *(f"{seconds / 10:.0f} s", "difference"),
        ],
        rows,
    )


def moves(args: argparse.Namespace) -> Iterator[Table]:
    """A move of search, which ends as soon as it must be rejected, against a whole simulation.

    Both near the best assignment of a short search: from there on most moves are rejected.
    """
    rows = []
    for label in wanted(LONG, args):
        graph, topology = problem(label)
        starts = starting_points(Problem(graph, topology), 0)
        config = SearchConfig(evaluations=MOVES, chains=1)
        best = search(Problem(graph, topology), starts, config).devices
        began = process_time()
        search(Problem(graph, topology), [best], replace(config, hot=SearchConfig().cold))
        move_s = (process_time() - began) / MOVES
        rng, near = np.random.default_rng(0), np.repeat(best[None], MOVES, axis=0)
        moved = rng.choice(graph.assigned, MOVES)
        near[np.arange(MOVES), moved] = rng.integers(topology.num_devices, size=MOVES)
        simulator = Simulator(topology)
        simulator.makespans(graph, near[:2])
        began = process_time()
        simulator.makespans(graph, near, threads=1)
        whole_s = (process_time() - began) / MOVES
        cells = [f"{move_s * 1e6:.1f}", f"{whole_s * 1e6:.1f}", f"{whole_s / move_s:.1f}"]
        rows.append([*cells_of(label), *cells])
    yield Table(
        "moves",
        "A move of search against a whole simulation, one core (µs of CPU)",
        ["topology", "workload", "a move", "a simulation", "ratio"],
        rows,
    )


def exact(args: argparse.Namespace) -> Iterator[Table]:
    """Random graphs solved by CP-SAT: the best static schedule, and what the runtime makes of it.

    *Simulated / static* is the makespan of the schedule's assignment over its static length.
    """
    rows, seconds = [], args.seconds or 60.0
    for label in wanted(EXACT, args):
        name, _, vertices = label.partition("/")
        topology = read_topology(name)
        found: list[ExactResult] = []
        for seed, long in product(range(EXACT_SEEDS), (True, False)):
            graph = random_graph(int(vertices), topology, seed, long=long)
            found.append(solve_exactly(Problem(graph, topology), seconds=seconds))
        took = [result.seconds for result in found]
        ratio = [result.makespan_s / result.static_s for result in found]
        cells = [f"{sum(result.proven for result in found)} of {len(found)}"]
        cells += [f"{each:.1f} s" for each in (np.median(took), max(took))]
        cells += [f"{each:.3f}" for each in (np.mean(ratio), max(ratio))]
        rows.append([f"`{name}`", vertices, *cells])
    yield Table(
        "exact",
        f"CP-SAT on random graphs, {2 * EXACT_SEEDS} of each size, {seconds:.0f} s each at most",
        [
            *("topology", "vertices", "proven optimal", "median", "longest"),
            *("simulated / static, mean", "at most"),
        ],
        rows,
    )


def random_graph(vertices: int, topology: Topology, seed: int, *, long: bool) -> Graph:
    """A random graph, its transfers about as long as its execs or, if not `long`, a tenth of that.

    Where they are short, what is hard is to spread the work evenly. On `reference:N` it has
    seconds of its own.
    """
    depth, bytes_per_flop = max(3, vertices // 5), 1.5e-3 if long else 1.5e-4
    graph = random_dag(vertices=vertices, depth=depth, bytes_per_flop=bytes_per_flop, seed=seed)
    if not topology.name.startswith("reference:"):
        return graph
    rng, columns = np.random.default_rng(seed), graph.columns()
    columns["exec_s"] = rng.integers(1, 21, size=graph.num_vertices).tolist()
    max_s = 20 if long else 2
    columns["transfer_s"] = rng.integers(0, max_s + 1, size=graph.num_tensors).tolist()
    return build_graph(**columns)


def scaling(args: argparse.Namespace) -> Iterator[Table]:
    """Seconds to place graphs of more and more vertices."""
    rows, topology = [], read_topology(V100)
    graphs = [random_dag(vertices=n, depth=n // 50, bytes_per_flop=2e-6, seed=0) for n in SIZES]
    for label in wanted(SCALING, args):
        name, times = label.partition("/")[2], []
        for graph in graphs:
            placer = make_placer(name)
            began = perf_counter()
            placer.place(Problem(graph, topology), seed=0)
            times.append(perf_counter() - began)
        rows.append([f"`{name}`", *(f"{seconds:.2f}" for seconds in times)])
    head = ["placer", *(f"{size:,}" for size in SIZES)]
    yield Table("scaling", f"Seconds to place a random graph on `{V100}`", head, rows)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, help="10, or 300 of `long`, 60 of `exact`")
    parser.add_argument("--only", default="*", metavar="PATTERN")


PARTS = {
    "search": compare,
    "long": convergence,
    "moves": moves,
    "scaling": scaling,
    "exact": exact,
}


def main() -> None:
    tables.main(__doc__, PARTS, options)


if __name__ == "__main__":
    main()
