"""Load: what an OnlinePlacer adds to calling the engine, with and without exploring.

    python benchmarks/load.py run --results load.jsonl
    python benchmarks/load.py show load.jsonl

`run` takes about a minute. The same requests go to the engine itself, to a placer that does not
explore, and to one that does, all with the same assignment at first; requests are sent one after
the other. Each takes its turn in short blocks, so that a machine that is busy with something else
is so for all. `own` is what a request takes beyond its run.
"""

import argparse
import json
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import doppler as dp

BLOCK = 20  # requests of each in turn
Serve = Callable[[dict[str, Any]], dp.Execution]
Row = dict[str, Any]


def requests_of(count: int) -> tuple[dp.Graph, list[dict[str, Any]]]:
    """A graph, and inputs for it."""
    program = dp.programs.ffnn(batch=64, features=64, hidden=128, classes=16, dtype="float32")
    rng = np.random.default_rng(0)
    weights = {
        "W1": rng.random((64, 128), np.float32),
        "W2": rng.random((128, 16), np.float32),
    }
    rows = [{"X": rng.random((64, 64), np.float32)} | weights for _ in range(count)]
    return dp.shard(program, parts=4), rows


def measure(serve: Serve, rows: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Seconds of each request, and of the run in it."""
    took, ran = [], []
    for row in rows:
        began = perf_counter()
        execution = serve(row)
        took.append(perf_counter() - began)
        ran.append(execution.trace.makespan_s)
    return took, ran


def load(args: argparse.Namespace) -> list[Row]:
    """One row for each way to run the requests."""
    busy = os.getloadavg()[0]
    graph, rows = requests_of(args.requests)
    start = dp.place(graph, args.topology, "critical-path")
    took: dict[str, list[float]] = {}
    own: dict[str, list[float]] = {}
    with dp.Engine(args.topology, args.backend) as engine:
        quiet = dp.OnlinePlacer(graph, engine, start)
        quiet.off()
        eager = dp.OnlinePlacer(graph, engine, start)
        ways: dict[str, Serve] = {
            "engine": lambda row: engine.execute(graph, start, row),
            "serving": quiet.serve,
            "serving, exploring": eager.serve,
        }
        for first in range(0, len(rows), BLOCK):
            for name, serve in ways.items():
                block, ran = measure(serve, rows[first : first + BLOCK])
                took.setdefault(name, []).extend(block)
                beyond = [a - b for a, b in zip(block, ran, strict=True)]
                own.setdefault(name, []).extend(beyond)
        explored = {"serving, exploring": eager.status().explored}
    return [
        {
            "way": name,
            "requests": len(seconds),
            "explored": explored.get(name, 0),
            "per_s": len(seconds) / sum(seconds),
            "p50_s": float(np.percentile(seconds, 50)),
            "p99_s": float(np.percentile(seconds, 99)),
            "own_p50_s": float(np.median(own[name])),
            "load": busy,
            "topology": args.topology,
            "backend": args.backend,
        }
        for name, seconds in took.items()
    ]


def show(paths: list[Path]) -> None:
    """Print medians over repetitions."""
    rows = [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]
    names = dict.fromkeys(row["way"] for row in rows)
    ways = {name: [row for row in rows if row["way"] == name] for name in names}
    first, busy = rows[0], [row["load"] for row in rows]
    print(
        f"\nRequests one after the other on `{first['topology']}` with backend "
        f"`{first['backend']}`, {first['requests']:,} of each way, medians of "
        f"{len(ways['engine'])} repetitions; load average of the machine before each: "
        f"{min(busy):.1f} to {max(busy):.1f}\n"
    )
    print("| way | explored | requests/s | against the engine | p50 ms | p99 ms | own p50 ms |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    rate = median(ways["engine"], "per_s")
    for way, own in ways.items():
        mine, explored = median(own, "per_s"), median(own, "explored")
        times = (f"{1e3 * median(own, key):.2f}" for key in ("p50_s", "p99_s", "own_p50_s"))
        print(f"| {way} | {explored:.0f} | {mine:.0f} | {mine / rate:.2f} | {' | '.join(times)} |")


def median(rows: list[Row], key: str) -> float:
    return float(np.median([row[key] for row in rows]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("run")
    new.add_argument("--requests", type=int, default=2000, help="of each way")
    new.add_argument("--repeats", type=int, default=1)
    new.add_argument("--topology", default="cpu2")
    new.add_argument("--backend", default="cpu", help="cpu, cuda or null")
    new.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()) / "load.jsonl")
    shown = verbs.add_parser("show")
    shown.add_argument("results", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "run":
        logging.getLogger("doppler").setLevel(logging.ERROR)
        with args.results.open("a") as file:
            for _ in range(args.repeats):
                file.writelines(json.dumps(row) + "\n" for row in load(args))
    show([args.results] if args.verb == "run" else args.results)


if __name__ == "__main__":
    main()
