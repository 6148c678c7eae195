"""Load: what an OnlinePlacer adds to calling the engine, with and without exploring.

Run it as `python benchmarks/load.py`; it takes about a minute. The same requests go to the engine
itself, to a placer that does not explore, and to one that does, all with the same assignment at
first; requests are sent one after the other. Each takes its turn in short blocks, so that a machine
that is busy with something else is so for all. `own` is what a request takes beyond its run.
"""

import argparse
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

import doppler as dp

BLOCK = 20  # requests of each in turn
Serve = Callable[[dict[str, Any]], dp.Execution]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--requests", type=int, default=2000, help="of each")
    parser.add_argument("--topology", default="cpu2")
    parser.add_argument("--backend", default="cpu", help="cpu, cuda or null")
    args = parser.parse_args()
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
        print(eager.metrics())
    print("| way | requests/s | against the engine | p50 ms | p99 ms | own p50 ms |")
    print("|---|--:|--:|--:|--:|--:|")
    rate = len(took["engine"]) / sum(took["engine"])
    for name, seconds in took.items():
        mine = len(seconds) / sum(seconds)
        p50, p99 = (1e3 * float(np.percentile(seconds, q)) for q in (50, 99))
        beyond = 1e3 * float(np.median(own[name]))
        cells = f"{mine:.0f} | {mine / rate:.2f} | {p50:.2f} | {p99:.2f} | {beyond:.2f}"
        print(f"| {name} | {cells} |")


if __name__ == "__main__":
    main()
