r"""What does restricted memory cost? The paper's experiment of App. H.1, in the simulator.

The paper's workloads, so large that devices of 8 GB are too small for what placers do on devices of
16 GB, on its machine of four P100. For each placer: its makespan with 16 GB; with 8 GB, the same
assignment kept and a memory plan made for it (evictions); with 8 GB, placed anew.

    python benchmarks/memory_limits.py run --results memory.jsonl
    python benchmarks/memory_limits.py show memory.jsonl
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import doppler as dp
from doppler.errors import OutOfMemoryError
from doppler.placers import bounds_of
from doppler.placers.planned_search import planned
from doppler.placers.warm_up import warm_up_search
from doppler.problem import Problem
from doppler.programs.registry import workload
from doppler.sim import Simulator

SIZES: dict[str, dict[str, int]] = {  # what placers need with 16 GB is more than 8 GB
    "chainmm": {"size": 30_000},
    "ffnn": {"batch": 3 << 16},
    "llama-block": {"batch": 7},
    "llama-layer": {"batch": 7},
}
PLACERS = ("critical-path", "enumerative", "m-etf", "m-sct", "auto")
SEARCHES = ("auto",)  # have a budget, and seeds
Row = dict[str, Any]


def run(names: list[str], budget_s: float, seeds: int) -> list[Row]:
    """All rows."""
    rows = []
    for name in names:
        found = workload(name)
        program = found.build(**SIZES[name])
        assert not isinstance(program, dp.Graph)
        graph = dp.shard(program, parts=found.parts)
        large, small = (Problem(graph, machine(memory_bytes)) for memory_bytes in (16e9, 8e9))
        for placer in PLACERS:
            for seed in range(seeds if placer in SEARCHES else 1):
                rows.append(row(name, placer, seed, large, small, budget_s))
                print(rows[-1], flush=True)
    return rows


def machine(memory_bytes: float) -> dp.Topology:
    """Four P100 with so much memory, of the preset that the stored results were measured with."""
    full = dp.Topology.preset("p100x4-first-fit")
    devices = tuple(replace(device, memory_bytes=memory_bytes) for device in full.devices)
    return replace(full, devices=devices)


def row(name: str, placer: str, seed: int, large: Problem, small: Problem, budget_s: float) -> Row:
    """One placer on one workload."""
    limit = budget_s if placer in SEARCHES else None
    began = perf_counter()
    wide, narrow = (
        dp.place(p.graph, p.topology, placer, seed=seed, budget_s=limit) for p in (large, small)
    )
    took_s = perf_counter() - began
    wide_s = Simulator(large).run(large.graph, wide).makespan_s
    try:
        kept, kept_s = planned(small, wide, seed=seed)
    except OutOfMemoryError:
        kept, kept_s = None, np.nan
    narrow_s = Simulator(small).run(small.graph, narrow).makespan_s
    used = Simulator(large).run(large.graph, wide).memory(large.graph)
    moved = [
        sum(a.memory.moved_bytes(small.graph)) if a and a.memory else 0.0 for a in (kept, narrow)
    ]
    return {
        "workload": name,
        "placer": placer,
        "seed": seed,
        "budget_s": budget_s if placer in SEARCHES else None,
        "peak_gb": max(use.peak_bytes for use in used) / 1e9,
        "wide_ms": wide_s * 1e3,
        "kept_ms": None if np.isnan(kept_s) else kept_s * 1e3,
        "kept_moved_gb": moved[0] / 1e9,
        "narrow_ms": narrow_s * 1e3,
        "narrow_moved_gb": moved[1] / 1e9,
        "bound_ms": bounds_of(small).best_s * 1e3,
        "seconds": took_s,
    }


def show(paths: list[Path]) -> None:
    """The tables, as docs have them."""
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    for name in dict.fromkeys(line["workload"] for line in lines):
        some = [line for line in lines if line["workload"] == name]
        size = ", ".join(f"{key} {value:,}" for key, value in SIZES[name].items())
        print(f"\n{name}, {size}; lower bound with 8 GB {some[0]['bound_ms']:.0f} ms\n")
        print("| | peak, GB | 16 GB, ms | 8 GB, same devices, ms | moved, GB |", end="")
        print(" 8 GB, placed anew, ms | moved, GB |")
        print("| --- " * 7 + "|")
        for placer in dict.fromkeys(line["placer"] for line in some):
            of = [line for line in some if line["placer"] == placer]
            keys = ("peak_gb", "wide_ms", "kept_ms", "kept_moved_gb", "narrow_ms")
            cells = [_cell([line[key] for line in of]) for key in (*keys, "narrow_moved_gb")]
            print("| " + " | ".join([placer, *cells]) + " |")


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "does not fit"
    mean = f"{np.mean(known):.1f}"
    return f"{mean} ± {np.std(known):.1f}" if len(known) > 1 else mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("run")
    new.add_argument("workloads", nargs="*", default=list(SIZES))
    new.add_argument("--budget", type=float, default=10.0, metavar="SECONDS", help="of `auto`")
    new.add_argument("--seeds", type=int, default=3, help="of `auto`")
    new.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()) / "memory.jsonl")
    shown = verbs.add_parser("show")
    shown.add_argument("results", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "run":
        warm_up_search()
        rows = run(args.workloads, args.budget, args.seeds)
        with args.results.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    show([args.results] if args.verb == "run" else args.results)


if __name__ == "__main__":
    main()
