r"""A model larger than the memory of all devices together, run by streaming its weights.

    python benchmarks/memory_streaming.py run [--backend cpu|cuda] [--results streaming.jsonl]
    python benchmarks/memory_streaming.py show streaming.jsonl

A chain of dense layers on devices that together hold a share of its weights. First the engine
measures what the link to the host carries, and what a run takes with all weights in memory
(compute); the fastest of several runs counts, here and below. Batches are then chosen so that
compute takes half as long as the link, as long, and twice as long. For each, a memory plan is made
with what was measured, and run in both modes. Its outputs must equal, bit for bit, those of the run
with all weights in memory, and be close to those of numpy. On the CPU each layer reads a block of
its weight only: kernels that read all of it would compete with the copies for the memory of the
host, whose speed is that of the link. The ratio is that of the measured makespan to max(compute,
moved bytes over the link).
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from limited import LOAD_BYTES, host_bytes_per_s, machine, with_host_link, with_memory

import doppler as dp
from doppler.placers.planned_search import planned
from doppler.placers.warm_up import warm_up_search
from doppler.problem import Problem
from doppler.programs import random_inputs
from doppler.programs.functions import relu
from doppler.programs.program_builder import ProgramBuilder
from doppler.scheduler.choose import MODES
from doppler.sharding.evaluate import evaluate_graph
from doppler.sim import SimConfig, Simulator

SHARES = (0.5, 1.0, 2.0)  # of the time of compute to that of the link
WIDTHS = {"cpu": 2048, "cuda": 4096}
BLOCKS = {"cpu": 512, "cuda": 4096}  # rows and columns of a weight that a layer reads
FIRST_BATCH = {"cpu": 128, "cuda": 2048}  # for which compute is first measured
Row = dict[str, Any]


def graph_of(batch: int, args: argparse.Namespace) -> tuple[dp.Graph, dict[str, Any]]:
    """The model for a batch, in one piece for each device, and its inputs."""
    builder, size = ProgramBuilder("streamed", dtype="float32"), args.block
    x = builder.input("x", (batch, size))
    for i in range(args.layers):
        weight = builder.input(f"w{i}", (args.width, args.width), weight=True)
        x = relu(x @ (weight if size == args.width else weight[:size, :size]))
    program = builder.build(x)
    return dp.shard(program, args.devices), random_inputs(program, seed=0)


def weight_bytes(graph: dp.Graph) -> float:
    """Of all inputs."""
    return float(graph.tensor_bytes[graph.is_input[graph.tensor_producer]].sum())


def one_per_device(graph: dp.Graph, devices: int) -> dp.Assignment:
    """Every vertex where the most of what it reads is, ties in turn."""
    topology = machine(devices, "cpu", flops_per_s=1e12)
    return dp.Assignment(dp.place(graph, topology, "heft").devices)


def compute_s(
    topology: dp.Topology, graph: dp.Graph, inputs: dict[str, Any], args: argparse.Namespace
) -> tuple[float, dict[str, Any]]:
    """The makespan with all weights in memory, and the outputs."""
    config = dp.EngineConfig(mode="fixed")
    assignment = one_per_device(graph, args.devices)
    with dp.Engine(topology, args.backend, config) as engine:
        found = engine.execute(graph, assignment, inputs, repeats=args.repeats, warm_up=2)
    return float(found.makespans_s.min()), found.outputs


def run(args: argparse.Namespace) -> list[Row]:
    """All rows."""
    roomy = machine(args.devices, args.backend)
    link = host_bytes_per_s(roomy, args.backend, load_bytes=args.load_bytes)
    graph, inputs = graph_of(args.batch, args)
    first_s, _ = compute_s(roomy, graph, inputs, args)
    load_s = weight_bytes(graph) * (1 - args.share) / link
    rows = []
    for share in args.shares:
        batch = max(1, round(args.batch * share * load_s / first_s))
        rows += rows_of(batch, link, roomy, args)
    return rows


def rows_of(batch: int, link: float, roomy: dp.Topology, args: argparse.Namespace) -> list[Row]:
    """One batch, in both modes."""
    graph, inputs = graph_of(batch, args)
    work_s, outputs = compute_s(roomy, graph, inputs, args)
    speed = float(graph.flops.sum()) / work_s / args.devices
    topology = with_host_link(machine(args.devices, args.backend, flops_per_s=speed), link)
    held = args.share * weight_bytes(graph) / args.devices
    topology = with_memory(topology, [held] * args.devices)
    problem = Problem(graph, topology)
    plan, _ = planned(problem, one_per_device(graph, args.devices))
    assert plan.memory is not None
    moved = sum(plan.memory.moved_bytes(graph))
    least_s = max(work_s, moved / link)
    expected = evaluate_graph(graph, inputs)
    rows = []
    for mode in MODES:
        simulator = Simulator(problem, SimConfig(mode=mode))
        with dp.Engine(topology, args.backend, dp.EngineConfig(mode=mode)) as engine:
            found = engine.execute(graph, plan, inputs, repeats=args.repeats, warm_up=2)
        row = {
            "backend": args.backend,
            "devices": args.devices,
            "mode": mode,
            "batch": batch,
            "weights_gb": weight_bytes(graph) / 1e9,
            "memory_gb": held * args.devices / 1e9,
            "moved_gb": moved / 1e9,
            "link_gb_per_s": link / 1e9,
            "compute_ms": work_s * 1e3,
            "links_ms": moved / link * 1e3,
            "predicted_ms": simulator.run(graph, plan).makespan_s * 1e3,
            "measured_ms": float(found.makespans_s.min()) * 1e3,
            "median_ms": float(np.median(found.makespans_s)) * 1e3,
            "ratio": float(found.makespans_s.min()) / least_s,
            "equal": all(np.array_equal(found.outputs[k], outputs[k]) for k in outputs),
            "close": all(
                np.allclose(found.outputs[k], expected[k], rtol=1e-3, atol=1e-3) for k in expected
            ),
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def show(paths: list[Path]) -> None:
    """The table, as docs have it."""
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    print("\n| backend | devices | batch | weights, GB | memory, GB | moved, GB |", end="")
    print(" compute, ms |", end="")
    print(" link, ms | mode | predicted, ms | measured, ms | ratio | outputs |")
    print("| --- " * 13 + "|")
    for row in rows:
        outputs = "equal" if row["equal"] and row["close"] else "differ"
        cells = [row["backend"], row["devices"], row["batch"]]
        cells += [f"{row[key]:.2f}" for key in ("weights_gb", "memory_gb", "moved_gb")]
        cells += [f"{row[key]:.1f}" for key in ("compute_ms", "links_ms")]
        cells += [row["mode"], f"{row['predicted_ms']:.1f}", f"{row['measured_ms']:.1f}"]
        print("| " + " | ".join(map(str, [*cells, f"{row['ratio']:.3f}", outputs])) + " |")


def main() -> None:
    """Run and print, or print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("run")
    new.add_argument("--backend", default="cpu", choices=tuple(WIDTHS))
    new.add_argument("--devices", type=int, default=1, help="cores, or parts of the first GPU")
    new.add_argument("--layers", type=int, default=24)
    new.add_argument("--width", type=int, help="2,048; 4,096 with CUDA")
    new.add_argument("--block", type=int, help="of a weight that a layer reads")
    new.add_argument("--batch", type=int, help="for which compute is first measured")
    new.add_argument("--share", type=float, default=0.4, help="of the weights on all devices")
    new.add_argument("--shares", type=float, nargs="+", default=SHARES, help="compute / link")
    new.add_argument("--repeats", type=int, default=11)
    new.add_argument("--load-bytes", type=int, default=LOAD_BYTES, help="of a copy that is timed")
    results = Path(tempfile.gettempdir()) / "streaming.jsonl"
    new.add_argument("--results", type=Path, default=results)
    verbs.add_parser("show").add_argument("results", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "run":
        args.width = args.width or WIDTHS[args.backend]
        args.block = args.block or BLOCKS[args.backend]
        args.batch = args.batch or FIRST_BATCH[args.backend]
        warm_up_search()
        rows = run(args)
        with args.results.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    show([args.results] if args.verb == "run" else args.results)


if __name__ == "__main__":
    main()
