r"""How do placers do on models whose weights exceed the memory of one device, but not of all?

    python benchmarks/memory_search.py run --results memory-search.jsonl
    python benchmarks/memory_search.py show memory-search.jsonl

Every placer that takes memory into account places each case; those that search do so for
`--budget` seconds, `auto` also for `--long` seconds. The best of all is what `auto` is compared
with. A placement fits if the places of all its tensors, temporaries included, do.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import doppler as dp
from doppler.errors import OutOfMemoryError
from doppler.placers import bounds_of
from doppler.placers.warm_up import warm_up_search
from doppler.problem import Problem
from doppler.programs import mlp
from doppler.programs.llama import transformer
from doppler.scheduler.places import memory_places
from doppler.sim import Simulator

PLACERS = ("critical-path", "enumerative", "heft", "m-etf", "m-sct", "local-search", "auto")
SEARCHES = ("local-search", "auto")  # have a budget, and seeds
Row = dict[str, Any]


def _machine(memory_bytes: float) -> dp.Topology:
    return dp.Topology.uniform(
        4,
        flops_per_s=10e12,
        memory_bytes_per_s=700e9,
        bandwidth_bytes_per_s=20e9,
        memory_bytes=memory_bytes,
        host_bandwidth_bytes_per_s=10e9,
    )


def _unequal() -> dp.Topology:
    """Two fast devices and two slow ones of half their memory."""
    topology = dp.Topology.preset("a100x2-t4x2")
    sizes = (0.9e9, 0.9e9, 0.45e9, 0.45e9)
    pairs = zip(topology.devices, sizes, strict=True)
    return replace(topology, devices=tuple(replace(d, memory_bytes=m) for d, m in pairs))


CASES: dict[str, Callable[[], Problem]] = {
    "transformer of 8 layers, 4 devices of 1.7 GB": lambda: Problem(
        dp.shard(transformer(layers=8, sequence=1024), 4), _machine(1.7e9)
    ),
    "transformer of 8 layers, 4 devices of 1 GB": lambda: Problem(
        dp.shard(transformer(layers=8, sequence=1024), 4), _machine(1e9)
    ),
    "dense layers, 24 of width 8,192, 4 devices of 1.2 GB": lambda: Problem(
        dp.shard(mlp(batch=2048, width=8192, layers=24), 4), _machine(1.2e9)
    ),
    "transformer of 4 layers, 2 devices of 0.9 and 2 of 0.45 GB": lambda: Problem(
        dp.shard(transformer(layers=4, sequence=1024), 4), _unequal()
    ),
}


def run(args: argparse.Namespace) -> None:
    """All rows, written as they come."""
    for name in list(CASES)[args.first : args.last]:
        problem = CASES[name]()
        _ = bounds_of(problem)
        for placer in PLACERS:
            searches = placer in SEARCHES
            for seed in range(args.seeds if searches else 1):
                _keep(row(name, problem, placer, seed, args.budget if searches else None), args)
        if args.long:
            _keep(row(name, problem, "auto", 0, args.long), args)


def _keep(found: Row, args: argparse.Namespace) -> None:
    print(found, flush=True)
    with args.results.open("a") as file:
        file.write(json.dumps(found) + "\n")


def row(name: str, problem: Problem, placer: str, seed: int, budget_s: float | None) -> Row:
    """One placer on one case."""
    graph, topology = problem.graph, problem.topology
    weights = float(graph.tensor_bytes[graph.stays[graph.tensor_producer]].sum())
    found: Row = {"case": name, "vertices": graph.num_vertices, "weights_gb": weights / 1e9}
    found |= {"memory_gb": [device.memory_bytes / 1e9 for device in topology.devices]}
    found |= {"placer": placer, "seed": seed, "budget_s": budget_s}
    found |= {"bound_ms": bounds_of(problem).best_s * 1e3}
    began, cpu_began = perf_counter(), process_time()
    try:
        assignment = dp.place(graph, topology, placer, seed=seed, budget_s=budget_s)
    except OutOfMemoryError as error:
        return found | {"fits": False, "ms": None, "error": str(error).splitlines()[0]}
    found["seconds"] = perf_counter() - began
    found["cpu_s"] = process_time() - cpu_began
    trace = Simulator(problem).run(graph, assignment)
    if assignment.memory is None:
        taken = [use.peak_bytes for use in trace.memory(graph)]
    else:
        taken = [float(top) for top in memory_places(graph, topology, assignment).top]
        found["moved_gb"] = sum(assignment.memory.moved_bytes(graph)) / 1e9
    limits = [device.memory_bytes for device in topology.devices]
    found["fits"] = all(top <= most for top, most in zip(taken, limits, strict=True))
    return found | {"ms": trace.makespan_s * 1e3, "peak_gb": [top / 1e9 for top in taken]}


def show(paths: list[Path]) -> None:
    """The tables, as docs have them."""
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    for name in dict.fromkeys(row["case"] for row in rows):
        some = [row for row in rows if row["case"] == name]
        best = min(row["ms"] for row in some if row["ms"] is not None)
        what = f"{some[0]['vertices']:,} vertices, {some[0]['weights_gb']:.1f} GB of weights"
        bound = max(row["bound_ms"] for row in some)
        print(f"\n{name}: {what}; lower bound {bound:.1f} ms\n")
        print("| | budget | of a core, s | fits | makespan, ms | above the best | moved, GB |")
        print("| --- " * 7 + "|")
        keys = dict.fromkeys((row["placer"], row["budget_s"]) for row in some)
        for placer, budget_s in keys:
            of = [r for r in some if (r["placer"], r["budget_s"]) == (placer, budget_s)]
            budget = "" if budget_s is None else f"{budget_s:g} s"
            used = ", ".join(f"{row['cpu_s']:.1f}" for row in of if "cpu_s" in row) or "–"
            fits = "yes" if all(row["fits"] for row in of) else "no"
            spans = [row["ms"] for row in of if row["ms"] is not None]
            times = ", ".join(f"{ms:.1f}" for ms in spans) or "–"
            above = ", ".join(f"{100 * (ms / best - 1):.1f} %" for ms in spans)
            moved = ", ".join(f"{row.get('moved_gb', 0.0):.2f}" for row in of)
            print(f"| {placer} | {budget} | {used} | {fits} | {times} | {above} | {moved} |")


def main() -> None:
    """Run and print, or print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("run")
    new.add_argument("--first", type=int, default=0, help="case to begin with")
    new.add_argument("--last", type=int, help="case to end before")
    new.add_argument("--budget", type=float, default=10.0, metavar="SECONDS", help="of searches")
    new.add_argument("--long", type=float, default=300.0, metavar="SECONDS", help="of `auto`")
    new.add_argument("--seeds", type=int, default=2, help="of searches")
    results = Path(tempfile.gettempdir()) / "memory-search.jsonl"
    new.add_argument("--results", type=Path, default=results)
    verbs.add_parser("show").add_argument("results", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "run":
        warm_up_search()
        run(args)
    show([args.results] if args.verb == "run" else args.results)


if __name__ == "__main__":
    main()
