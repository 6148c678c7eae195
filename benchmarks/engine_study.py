"""What do assignments give on a real machine? The paper's comparison, run by our engine.

One study takes a workload and a machine: probe it, place the graph on the topology that the probe
gave (one device, critical path, EnumOpt, search, the policy trained on the simulator, the same
after Stage III on the engine), run each, with and without a barrier after every level, and run
many diverse assignments to see how well the simulator predicts.

    python benchmarks/engine_study.py run --backend cuda --partitions 4 --results gpu.jsonl
    python benchmarks/engine_study.py run --backend cpu --results cpu.jsonl  # small, two cores
    python benchmarks/engine_study.py show gpu.jsonl

All makespans are measured milliseconds, mean ± standard deviation of `--repeats` runs.
"""

import argparse
import json
import platform
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

import doppler as dp
from doppler.assignment import Assignment
from doppler.engine.engine import Engine, EngineConfig
from doppler.graph import Graph
from doppler.machine.probe import probe, write_probe
from doppler.machine.validation import (
    Validation,
    diverse_assignments,
    validate,
)
from doppler.placers import lower_bounds, make_placer
from doppler.placers.search.annealing import AnnealingPlacer
from doppler.placers.warm_up import warm_up_search
from doppler.problem import Problem
from doppler.programs.registry import workload
from doppler.sim import SimConfig, simulate
from doppler.topology import Topology
from doppler.training.config import TrainConfig
from doppler.training.trainer import Trainer

NAMES = ("chainmm", "ffnn", "llama-block", "llama-layer")
SIZES: dict[str, dict[str, dict[str, int]]] = {  # large enough to keep a device busy
    "cuda": {
        "ffnn": {"features": 768, "classes": 768},
        "llama-block": {"batch": 3},
        "llama-layer": {"batch": 3},
    },
    "cpu": {
        "chainmm": {"size": 1024},
        "ffnn": {"batch": 1024, "features": 128, "hidden": 4096, "classes": 128},
        "llama-block": {"sequence": 256, "heads": 8, "head_dim": 64, "hidden": 1408},
        "llama-layer": {
            "sequence": 256,
            "heads": 8,
            "head_dim": 64,
            "hidden": 1408,
            "vocabulary": 2048,
            "table": 512,
        },
    },
}
HEURISTICS = ("single", "critical-path", "enumerative")
SYNCHRONOUS = ("critical-path", "enumerative", "search")
NOISE_DRAWS = 300

Result = dict[str, Any]


def make_graph(name: str, backend: str, devices: int) -> Graph:
    """A workload in float32, cut as in the paper: Llama into as many parts as devices."""
    found = workload(name)
    parts = devices if name.startswith("llama") else found.parts
    return dp.shard(found.build(dtype="float32", **SIZES[backend].get(name, {})), parts=parts)


def study(name: str, args: argparse.Namespace) -> Result:
    """All measurements of one workload on one machine."""
    devices = args.partitions or args.devices
    graph = make_graph(name, args.backend, devices)
    began = perf_counter()
    found = probe(
        args.backend,
        partitions=args.partitions,
        devices=None if args.partitions else devices,
        links=args.links,
        graph=graph,
        seconds=args.probe_seconds,
    )
    topology = found.topology
    if args.topologies:
        write_probe(found, Path(args.topologies) / f"{name}-{devices}.json")
    result: Result = {
        "workload": name,
        "devices": devices,
        "backend": args.backend,
        "links": args.links,
        "date": str(date.today()),
        "machine": machine(args.backend),
        "vertices": len(graph.assigned),
        "probe_s": perf_counter() - began,
        "held_out": found.errors.held_out,
        "makespans_off": found.errors.makespans,
        "probed": {  # its runs, those held out last
            "runs": found.runs,
            "devices": [
                "".join(map(str, run.assignment.devices[graph.assigned])) for run in found.measured
            ],
            "ms": [round(run.makespan_s * 1e3, 4) for run in found.measured],
        },
        "failures": list(found.failures),
        "host": [topology.host.dispatch_s, topology.host.completion_s],
        "links_fit": [
            [link.name, link.bandwidth_bytes_per_s, link.latency_s, link.lanes]
            for link in topology.links
        ][:4],
        "bound_ms": lower_bounds(graph, topology).best_s * 1e3,
    }
    print(f"{name} on {devices}: probed in {result['probe_s']:.0f} s", flush=True)
    with Engine(topology, args.backend) as engine:
        assignments = place_all(graph, topology, engine, args)
        result["placed"] = measure(graph, topology, engine, assignments, args.repeats)
        result["ideal_ms"] = ideal_ms(graph, topology, engine, assignments)
        checked = validate(
            graph,
            topology,
            engine,
            diverse_assignments(graph, topology, args.assignments),
            repeats=args.check_repeats,
            warm_up=1,
        )
        result["validation"] = {
            **{key: getattr(checked, key) for key in ("pearson", "spearman", "mape")},
            "best_spearman": checked.best_spearman,
            "measured_ms": (checked.measured_s * 1e3).round(4).tolist(),
            "spread_ms": (checked.spread_s * 1e3).round(4).tolist(),
            "predicted_ms": (checked.predicted_s * 1e3).round(4).tolist(),
            "failures": list(checked.failures),
        }
    barrier = EngineConfig(synchronous=True)
    with Engine(topology, args.backend, barrier) as engine:
        some = {key: assignments[key] for key in SYNCHRONOUS}
        result["synchronous"] = measure(graph, topology, engine, some, args.repeats)
    return result


def place_all(
    graph: Graph, topology: Topology, engine: Engine, args: argparse.Namespace
) -> dict[str, Assignment]:
    """Every method's assignment on the probed topology, or in Stage III on the machine itself."""
    found = {name: make_placer(name).place(Problem(graph, topology)) for name in HEURISTICS}
    found["search"] = AnnealingPlacer().place(
        Problem(graph, topology), budget_s=args.search_seconds
    )
    config = TrainConfig(
        stages=("imitation", "sim"), seconds=args.train_seconds, threads=args.threads
    )
    trainer = Trainer([(graph, topology)], config)
    for _ in trainer.run():
        pass
    found["doppler-sim"] = trainer.records[0].best()
    print(f"  trained for {trainer.seconds:.0f} s", flush=True)
    config = replace(config, stages=("real",), seconds=args.real_seconds)
    starts = [found["doppler-sim"]]
    real = Trainer(
        [(graph, topology)], config, policy=trainer.policy, executor=engine, starts=starts
    )
    for _ in real.run():
        pass
    found["doppler-sys"] = real.records[0].best()
    return found


def measure(
    graph: Graph,
    topology: Topology,
    engine: Engine,
    assignments: dict[str, Assignment],
    repeats: int,
) -> dict[str, Result]:
    """Measured makespans of assignments, in turns, beside the simulated ones; all in ms."""
    synchronous = SimConfig(synchronous=engine.config.synchronous)
    times: dict[str, list[float]] = {name: [] for name in assignments}
    for turn in range(repeats + 1):
        for name, assignment in assignments.items():
            trace = engine.run(graph, assignment)
            if turn:  # the first is to warm up
                times[name].append(trace.makespan_s * 1e3)
    rows: dict[str, Result] = {}
    for name, assignment in assignments.items():
        predicted = simulate(graph, topology, assignment, config=synchronous).makespan_s
        measured = np.array(times[name])
        rows[name] = {
            "mean": float(measured.mean()),
            "std": float(measured.std()),
            "predicted": predicted * 1e3,
            "runs": measured.round(4).tolist(),
        }
        print(
            f"  {name:<14}{measured.mean():9.2f} ± {measured.std():5.2f} ms, "
            f"predicted {predicted * 1e3:9.2f}",
            flush=True,
        )
    return rows


def ideal_ms(
    graph: Graph, topology: Topology, engine: Engine, assignments: dict[str, Assignment]
) -> float:
    """Total kernel time over devices: kernels alone on a device, with nothing to wait for."""
    trace = engine.run(graph, assignments["single"])
    return float(trace.busy_s().sum()) / topology.num_devices * 1e3


def machine(backend: str) -> str:
    """The hardware and what drives it."""
    if backend == "cuda":
        return (
            f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}, torch {torch.__version__}"
        )
    return f"{platform.processor() or platform.machine()}, torch {torch.__version__}"


def show(paths: list[Path]) -> None:
    """The tables, as docs have them."""
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    rows = list({(r["devices"], r["workload"]): r for r in lines}.values())
    rows.sort(key=lambda r: (r["devices"], NAMES.index(r["workload"])))
    for devices in sorted({r["devices"] for r in rows}):
        some = [r for r in rows if r["devices"] == devices]
        first = some[0]
        about = "; ".join(first[key] for key in ("links", "machine", "date"))
        print(f"\n{devices} devices, links: {about}\n")
        names = list(some[0]["placed"])
        _row("ms", [r["workload"] for r in some])
        _row("---", ["---"] * len(some))
        for name in names:
            _row(name, [_spread(r["placed"][name]) for r in some])
        _row("ideal", [f"{r['ideal_ms']:.1f}" for r in some])
        best = [min(v["mean"] for v in r["placed"].values()) for r in some]
        over = [100 * (b / r["ideal_ms"] - 1) for b, r in zip(best, some, strict=True)]
        _row("best above ideal", [f"{x:.1f} %" for x in over])
        for name in SYNCHRONOUS:
            _row(f"{name}, bulk-synchronous", [_spread(r["synchronous"][name]) for r in some])
            saved = [1 - r["placed"][name]["mean"] / r["synchronous"][name]["mean"] for r in some]
            _row(f"{name}, saved by work conservation", [f"{100 * x:.1f} %" for x in saved])
        checks = [r["validation"] for r in some]
        _row("assignments validated", [str(len(c["measured_ms"])) for c in checks])
        _row("Pearson", [f"{c['pearson']:.4f}" for c in checks])
        _row("Spearman", [f"{c['spearman']:.3f}" for c in checks])
        _row("Spearman, best quarter", [f"{c['best_spearman']:.2f}" for c in checks])
        _row("mean absolute error", [f"{100 * c['mape']:.1f} %" for c in checks])
        noise = [noise_of(r) for r in some]
        _row("noise of what was measured", [f"{100 * x:.1f} %" for x in noise])
        perfect = [of_a_perfect_simulator(c, x) for c, x in zip(checks, noise, strict=True)]
        _row("Spearman of a perfect simulator", [f"{p[0]:.3f}" for p in perfect])
        _row("the same, best quarter", [f"{p[1]:.2f}" for p in perfect])


def noise_of(result: Result) -> float:
    """Standard deviation of what was measured under one assignment, as a share of it.

    Where all that were validated ran twice, of the mean of the two; otherwise of one run, by those
    that were placed.
    """
    checked = result["validation"]
    shares = np.array(checked["spread_ms"]) / np.array(checked["measured_ms"])
    if not shares.any():
        placed = [found for name, found in result["placed"].items() if name != "single"]
        shares = np.array([found["std"] / found["mean"] for found in placed])
    return float(np.sqrt(np.mean(shares**2)))


def of_a_perfect_simulator(checked: Result, noise: float) -> tuple[float, float]:
    """Spearman, over all and among the best quarter, if runs only differed by such noise."""
    predicted, rng = np.array(checked["predicted_ms"]), np.random.default_rng(0)
    draws = predicted * (1 + noise * rng.standard_normal((NOISE_DRAWS, len(predicted))))
    nothing = np.zeros(len(predicted))
    found = [Validation("", "", (), measured, nothing, predicted) for measured in draws]
    every, best = ([getattr(f, key) for f in found] for key in ("spearman", "best_spearman"))
    return float(np.mean(every)), float(np.mean(best))


def _row(name: str, cells: list[str]) -> None:
    print("| " + " | ".join([name, *cells]) + " |")


def _spread(found: Result) -> str:
    return f"{found['mean']:.1f} ± {found['std']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("workloads", nargs="*", default=NAMES)
    run.add_argument("--backend", default="cpu")
    run.add_argument("--partitions", type=int)
    run.add_argument("--devices", type=int, default=2)
    run.add_argument("--links", default="host")
    run.add_argument("--assignments", type=int, default=100)
    run.add_argument("--repeats", type=int, default=10)
    run.add_argument("--check-repeats", type=int, default=3)
    run.add_argument("--probe-seconds", type=float, default=60)
    run.add_argument("--search-seconds", type=float, default=10)
    run.add_argument("--train-seconds", type=float, default=60)
    run.add_argument("--real-seconds", type=float, default=60)
    run.add_argument("--threads", type=int)
    run.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()) / "engine.jsonl")
    run.add_argument("--topologies", help="a directory for the probed topologies")
    shown = verbs.add_parser("show")
    shown.add_argument("results", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "show":
        show(args.results)
        return
    warm_up_search()
    for name in args.workloads:
        result = study(name, args)
        with args.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
    show([args.results])


if __name__ == "__main__":
    main()
