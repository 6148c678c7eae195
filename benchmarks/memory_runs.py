"""Runs of a model whose weights do not fit on one device, with little more memory than planned.

    python benchmarks/memory_runs.py run [--runs N] [--backend cpu|cuda] [--results runs.jsonl] …
    python benchmarks/memory_runs.py show runs.jsonl

A multilayer perceptron on devices that each hold a share of its weights. Its memory plan moves
weights and activations between the devices and the host. The plan's peak is then taken for the
device's memory, and 1 % more: the engine runs the plan there N times in each mode, and every run's
outputs are compared with those of numpy. With `cuda`, the devices are parts of the first GPU.

Printed are the runs, how many found no memory, how many outputs differ, the peak of each device as
planned and as the engine took it, the bytes that a run moves, and the seconds of a run.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from limited import machine, with_memory

import doppler as dp
from doppler.errors import OutOfMemoryError
from doppler.programs import mlp, random_inputs
from doppler.scheduler.choose import MODES
from doppler.scheduler.places import memory_places
from doppler.scheduler.planning import plan_memory
from doppler.sharding.evaluate import evaluate_graph

Row = dict[str, Any]

SPARE = 1.01  # memory of a device over the planned peak


def tight_plan(
    graph: dp.Graph, topology: dp.Topology
) -> tuple[dp.Topology, dp.Assignment, list[int]]:
    """A machine with 1 % more memory than a plan takes, the plan made for it, and its peaks."""
    devices = dp.place(graph, with_memory(topology, [1e30] * topology.num_devices), "round-robin")
    planned = plan_memory(dp.Problem(graph, topology), dp.Assignment(devices.devices))
    peak = memory_places(graph, topology, planned).top
    limited = with_memory(topology, [max(1.0, SPARE * size) for size in peak])
    return limited, planned, memory_places(graph, limited, planned).top


def run(options: argparse.Namespace) -> Iterator[Row]:
    """A row for each mode."""
    program = mlp(batch=options.batch, width=options.width, layers=options.layers, dtype="float32")
    graph = dp.shard(program, options.parts)
    inputs = random_inputs(program, seed=0)
    expected = evaluate_graph(graph, inputs)
    weights = float(graph.tensor_bytes[graph.is_input[graph.tensor_producer]].sum())
    held = options.share * weights / options.devices
    roomy = machine(options.devices, options.backend)
    limited = with_memory(roomy, [held] * options.devices)
    topology, planned, peak = tight_plan(graph, limited)
    assert planned.memory is not None
    for mode in MODES:
        failures, wrong, taken = 0, 0, list[int]()
        began = perf_counter()
        with dp.Engine(topology, options.backend, dp.EngineConfig(mode=mode)) as engine:
            for _ in range(options.runs):
                try:
                    found = engine.execute(graph, planned, inputs)
                except OutOfMemoryError:
                    failures += 1
                    continue
                taken = found.peak_bytes.tolist()
                wrong += any(
                    not np.allclose(found.outputs[name], value, rtol=1e-3, atol=1e-3)
                    for name, value in expected.items()
                )
        yield {
            "backend": options.backend,
            "devices": options.devices,
            "mode": mode,
            "runs": options.runs,
            "no_memory": failures,
            "wrong": wrong,
            "weights_bytes": weights,
            "moved_bytes": planned.memory.moved_bytes(graph),
            "planned_bytes": peak,
            "peak_bytes": taken,
            "ms": 1e3 * (perf_counter() - began) / options.runs,
        }


def show(paths: list[Path]) -> None:
    """A table, a row for each backend and mode."""
    names = "backend | devices | weights and data, B | moved, B | planned peak, B | mode | runs"
    print(f"| {names} | no memory | wrong outputs | peak as planned | ms per run |")
    print("|" + " --- |" * 11)
    for row in (json.loads(line) for path in paths for line in path.read_text().splitlines()):
        same = row["peak_bytes"] == row["planned_bytes"]
        cells = [row["backend"], row["devices"], f"{row['weights_bytes']:.0f}"]
        cells += [f"{sum(row['moved_bytes']):.0f}", max(row["planned_bytes"]), row["mode"]]
        cells += [row["runs"], row["no_memory"], row["wrong"]]
        cells += ["yes" if same else f"no: {row['peak_bytes']}", f"{row['ms']:.2f}"]
        print("| " + " | ".join(map(str, cells)) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("run")
    new.add_argument("--runs", type=int, default=1000)
    new.add_argument("--devices", type=int, default=2)
    new.add_argument("--parts", type=int, default=4)
    new.add_argument("--batch", type=int, default=256)
    new.add_argument("--width", type=int, default=256)
    new.add_argument("--layers", type=int, default=8)
    new.add_argument("--share", type=float, default=0.4, help="of the weights on all devices")
    new.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    results = Path(tempfile.gettempdir()) / "memory_runs.jsonl"
    new.add_argument("--results", type=Path, default=results)
    verbs.add_parser("show").add_argument("results", nargs="+", type=Path)
    options = parser.parse_args()
    if options.verb == "run":
        for row in run(options):
            with options.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
        options.results = [options.results]
    show(options.results)


if __name__ == "__main__":
    main()
