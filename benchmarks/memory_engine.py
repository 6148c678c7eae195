r"""What does restricted memory cost? The experiment of App. H.1 on real devices.

    python benchmarks/memory_engine.py run --backend cuda --partitions 4 --results engine.jsonl
    python benchmarks/memory_engine.py run --backend cpu --partitions 2 --results engine.jsonl
    python benchmarks/memory_engine.py show engine.jsonl

The paper's workloads, smaller than in `memory_limits.py`, on parts of a GPU or on cores. Each part
has an arena that is as much smaller than 16 and 8 GB as the tensors are smaller than there. The
machine is measured for each workload first, with the link to the host, and the limits are then put
on that topology. For each placer, the engine runs what it found for the larger arenas; with the
smaller ones, the same assignment with a memory plan; and what the placer found for the smaller
ones. Beside each measured time, the fastest of some runs, is the simulated one.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from limited import LOAD_BYTES, host_bytes_per_s, machine, with_host_link, with_memory
from memory_limits import SIZES as LARGE

import doppler as dp
from doppler.errors import OutOfMemoryError
from doppler.placers.planned_search import planned
from doppler.placers.search.orders import OrderConfig, improve_order
from doppler.placers.warm_up import warm_up_search
from doppler.problem import Problem
from doppler.programs import random_inputs
from doppler.programs.registry import workload
from doppler.resolve import as_topology
from doppler.scheduler.choose import FIXED
from doppler.sim import SimConfig, Simulator

SIZES: dict[str, dict[str, dict[str, int]]] = {
    "cuda": {
        "chainmm": {"size": 8192},
        "ffnn": {"batch": 3 << 13},
        "llama-block": {"batch": 2, "heads": 16, "hidden": 5504},
        "llama-layer": {"batch": 2, "heads": 12, "hidden": 4128},
    },
    "cpu": {
        "chainmm": {"size": 1024},
        "ffnn": {"batch": 384, "hidden": 1 << 14},
        "llama-block": {"batch": 7, "heads": 4, "head_dim": 32, "hidden": 344, "sequence": 256},
        "llama-layer": {"batch": 7, "heads": 4, "head_dim": 32, "hidden": 344, "sequence": 256},
    },
}
DTYPES = {"cuda": "float16", "cpu": "float32"}
PLACERS = ("critical-path", "enumerative", "auto")
ORDERS = 500  # that are tried for an assignment with a plan, in fixed mode
WIDE_BYTES, NARROW_BYTES = 16e9, 8e9  # of a device, for the large sizes
CASES = {"wide": "larger", "kept": "smaller, same devices", "narrow": "smaller, placed anew"}
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limited:
    """One workload on one machine, with two limits of memory."""

    wide: Problem
    narrow: Problem
    inputs: dict[str, Any]
    scale: float  # of the arenas to 16 and 8 GB


def program_of(name: str, sizes: dict[str, int], dtype: str) -> tuple[dp.Program, dp.Graph]:
    """A workload, and how the paper shards it."""
    found = workload(name)
    program = found.build(dtype=dtype, **sizes)
    assert not isinstance(program, dp.Graph)
    return program, dp.shard(program, parts=found.parts)


def limited(name: str, args: argparse.Namespace, host_link: float) -> Limited:
    """The workload on the machine as measured, with both limits."""
    program, graph = program_of(name, SIZES[args.backend][name], DTYPES[args.backend])
    _, large = program_of(name, LARGE[name], "float16")
    scale = float(graph.tensor_bytes.sum() / large.tensor_bytes.sum())
    topology = with_host_link(measure(graph, args), host_link)
    limits = [
        with_memory(topology, [scale * size] * args.partitions)
        for size in (WIDE_BYTES, NARROW_BYTES)
    ]
    wide, narrow = (Problem(graph, each) for each in limits)
    return Limited(wide, narrow, random_inputs(program, seed=0), scale)


def measure(graph: dp.Graph, args: argparse.Namespace) -> dp.Topology:
    """The machine, with the seconds of the kernels of a graph."""
    if args.topology:
        return as_topology(args.topology)
    parts: dict[str, Any] = {"devices": args.partitions}
    if args.backend == "cuda":
        parts = {"partitions": args.partitions, "links": args.links}
    found = dp.probe(args.backend, graph=graph, mode=args.mode, seconds=args.probe, **parts)
    return found.topology


def cases(found: Limited, placer: str, args: argparse.Namespace) -> dict[str, dp.Assignment | None]:
    """What the placer found for both limits, and the first with a plan for the second."""
    budget = args.budget if placer == "auto" else None
    wide, narrow = (
        dp.place(p.graph, p.topology, placer, budget_s=budget, mode=args.mode)
        for p in (found.wide, found.narrow)
    )
    return {"wide": wide, "kept": with_plan(found.narrow, wide, args.mode), "narrow": narrow}


def with_plan(problem: Problem, assignment: dp.Assignment, mode: str) -> dp.Assignment | None:
    """The assignment with a memory plan, if there is one; in fixed mode with an order for it."""
    try:
        found = planned(problem, assignment)[0]
    except OutOfMemoryError:
        return None
    if mode == FIXED:
        order = improve_order(problem, found, OrderConfig(evaluations=ORDERS))
        found = replace(found, schedule=order.schedule)
    return found


def rows_of(name: str, args: argparse.Namespace, host_link: float) -> list[Row]:
    """One workload."""
    began = perf_counter()
    found = limited(name, args, host_link)
    every = {placer: cases(found, placer, args) for placer in PLACERS}
    rows, expected = list[Row](), None
    for problem, names in ((found.wide, ("wide",)), (found.narrow, ("kept", "narrow"))):
        config = dp.EngineConfig(mode=args.mode)
        with dp.Engine(problem.topology, args.backend, config) as engine:
            engine.load(problem.graph, found.inputs)
            for placer, case in ((placer, case) for placer in every for case in names):
                row = {"workload": name, "backend": args.backend, "devices": args.partitions}
                row |= {"mode": args.mode, "placer": placer, "case": case, "scale": found.scale}
                row |= {"sizes": SIZES[args.backend][name], "host_gb_per_s": host_link / 1e9}
                timed = measured(engine, problem, found.inputs, every[placer][case], args.repeats)
                outputs = timed.pop("outputs")
                expected = expected or outputs
                row |= timed | {"close": not outputs or close(outputs, expected)}
                print(row, flush=True)
                rows.append(row)
    print(f"{name}: {perf_counter() - began:.1f} s", flush=True)
    return rows


def measured(
    engine: dp.Engine,
    problem: Problem,
    inputs: dict[str, Any],
    assignment: dp.Assignment | None,
    repeats: int,
) -> Row:
    """Seconds, simulated and of the engine, and outputs; none where it does not fit.

    What fits by the account, but not as the engine lays it out, gets a memory plan.
    """
    graph = problem.graph
    row: Row = {"predicted_ms": None, "measured_ms": None, "moved_gb": 0.0, "outputs": {}}
    if assignment is not None and assignment.memory is None and not fits(engine, graph, assignment):
        assignment = with_plan(problem, assignment, engine.config.mode)
    if assignment is None:
        return row
    simulator = Simulator(problem, SimConfig(mode=engine.config.mode))
    if assignment.memory is not None:
        row["moved_gb"] = sum(assignment.memory.moved_bytes(graph)) / 1e9
    try:
        row["predicted_ms"] = simulator.run(graph, assignment).makespan_s * 1e3
        found = engine.execute(graph, assignment, inputs, repeats=repeats, warm_up=2)
    except OutOfMemoryError as error:
        return row | {"error": str(error)}
    row["measured_ms"] = float(found.makespans_s.min()) * 1e3
    row["median_ms"] = float(np.median(found.makespans_s)) * 1e3
    row["peak_gb"] = float(found.peak_bytes.max()) / 1e9
    return row | {"outputs": found.outputs}


def fits(engine: dp.Engine, graph: dp.Graph, assignment: dp.Assignment) -> bool:
    """Whether the engine can lay it out."""
    try:
        engine.peak_bytes(graph, assignment)
    except OutOfMemoryError:
        return False
    return True


def close(outputs: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether two runs gave the same, up to the rounding of sums."""
    return all(np.allclose(outputs[k], expected[k], rtol=1e-2, atol=1e-2) for k in expected)


def show(paths: list[Path]) -> None:
    """The tables, as docs have them."""
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    for key in dict.fromkeys((row["workload"], row["backend"], row["mode"]) for row in rows):
        some = [row for row in rows if (row["workload"], row["backend"], row["mode"]) == key]
        sizes = ", ".join(f"{name} {value:,}" for name, value in some[0]["sizes"].items())
        arenas = " and ".join(f"{size * some[0]['scale'] / 1e9:.2f} GB" for size in (16e9, 8e9))
        devices = f"{some[0]['devices']} devices ({key[1]}, {key[2]} mode)"
        print(f"\n{key[0]}, {sizes}; {devices} with arenas of {arenas}\n")
        names = [f"{title}, ms (simulated)" for title in CASES.values()]
        print("| | " + " | ".join(names) + " | moved, GB | outputs |")
        print("| --- " * 6 + "|")
        for placer in dict.fromkeys(row["placer"] for row in some):
            of = {row["case"]: row for row in some if row["placer"] == placer}
            cells = [_cell(of[case]) for case in CASES]
            moved = ", ".join(f"{of[case].get('moved_gb', 0.0):.2f}" for case in ("kept", "narrow"))
            equal = "equal" if all(row["close"] for row in of.values()) else "differ"
            print("| " + " | ".join([placer, *cells, moved, equal]) + " |")


def _cell(row: Row) -> str:
    if row["measured_ms"] is None:
        return "does not fit"
    return f"{row['measured_ms']:.1f} ({row['predicted_ms']:.1f})"


def main() -> None:
    """Run and print, or print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("run")
    new.add_argument("workloads", nargs="*", default=list(LARGE))
    new.add_argument("--backend", default="cpu", choices=tuple(SIZES))
    new.add_argument("--partitions", type=int, default=2, help="parts of the GPU, or cores")
    new.add_argument("--links", default="host", help="of parts of a GPU: host or direct")
    new.add_argument("--mode", default="fixed")
    new.add_argument("--budget", type=float, default=4.0, metavar="SECONDS", help="of `auto`")
    new.add_argument("--probe", type=float, default=5.0, metavar="SECONDS", help="to measure")
    new.add_argument("--topology", help="that was measured before; its devices are the parts")
    new.add_argument("--repeats", type=int, default=5)
    new.add_argument("--load-bytes", type=int, default=LOAD_BYTES, help="of a copy that is timed")
    results = Path(tempfile.gettempdir()) / "memory-engine.jsonl"
    new.add_argument("--results", type=Path, default=results)
    verbs.add_parser("show").add_argument("results", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "run":
        roomy = machine(args.partitions, args.backend)
        host_link = host_bytes_per_s(roomy, args.backend, load_bytes=args.load_bytes)
        warm_up_search()
        for name in args.workloads:  # results of the first are there should a later one fail
            rows = rows_of(name, args, host_link)
            with args.results.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    show([args.results] if args.verb == "run" else args.results)


if __name__ == "__main__":
    main()
