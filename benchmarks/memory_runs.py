"""Runs of a model whose weights do not fit on one device, with little more memory than planned.

    python benchmarks/memory_runs.py [--runs N] [--backend cpu|cuda] [--results runs.jsonl] …

A multilayer perceptron on devices that each hold a share of its weights. Its memory plan moves
weights and activations between the devices and the host. The plan's peak is then taken for the
device's memory, and 1 % more: the engine runs the plan there N times in each mode, and every run's
outputs are compared with those of numpy. With `cuda`, the devices are parts of the first GPU.

Printed are the runs, how many found no memory, how many outputs differ, the peak of each device as
planned and as the engine took it, the bytes that a run moves, and the seconds of a run.
"""

import argparse
import json
from pathlib import Path
from time import perf_counter

import numpy as np
from limited import machine, with_memory

import doppler as dp
from doppler.errors import OutOfMemoryError
from doppler.programs import mlp, random_inputs
from doppler.scheduler.choose import MODES
from doppler.scheduler.places import memory_places
from doppler.scheduler.planning import plan_memory
from doppler.sharding.evaluate import evaluate_graph

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


def main() -> None:
    """Print a table, a row for each mode."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--share", type=float, default=0.4, help="of the weights on all devices")
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--results", type=Path, help="where a JSON line for each mode is added")
    options = parser.parse_args()
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
    out, back = planned.memory.moved_bytes(graph)
    print(f"weights and data {weights:.0f} B, planned peaks {peak} B")
    print(f"a run moves {out:.0f} B to the host and {back:.0f} B from there\n")
    print("| mode | runs | no memory | wrong outputs | peak as planned | ms per run |")
    print("|---|---|---|---|---|---|")
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
        each_ms = 1e3 * (perf_counter() - began) / options.runs
        same = "yes" if taken == peak else f"no: {taken}"
        print(f"| {mode} | {options.runs} | {failures} | {wrong} | {same} | {each_ms:.2f} |")
        if options.results:
            row = {"backend": options.backend, "devices": options.devices, "mode": mode}
            row |= {"runs": options.runs, "no_memory": failures, "wrong": wrong}
            row |= {"planned_bytes": peak, "peak_bytes": taken, "ms": each_ms}
            with options.results.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
