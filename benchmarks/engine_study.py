r"""What do assignments give on a real machine? The paper's comparison, run by our engine.

One study takes a workload and a machine: probe it, place the graph on the topology that the probe
gave (one device, critical path, EnumOpt, search, the policy trained on the simulator, the same
after Stage III on the engine), run each in both modes, `dynamic` also with a barrier after every
level, and run many diverse assignments to see how well the simulator predicts.

Of training there are two rows each: `doppler-sim` and `doppler-sys` are the best assignments met in
the run, `policy-sim` and `policy-sys` what the policy places by itself at the end. Stage III begins
with the best of `doppler-sim` and `search`, and is to end no worse.

    python benchmarks/engine_study.py run --backend cuda --partitions 4 --results gpu.jsonl
    python benchmarks/engine_study.py run --backend cpu --results cpu.jsonl  # small, two cores
    python benchmarks/engine_study.py show gpu.jsonl

`--train-seconds 0` leaves out the policy, `--real-seconds 0` Stage III, and `--assignments 0` the
diverse assignments. Without them one workload on one number of partitions takes about a minute and
a half:

    python benchmarks/engine_study.py run llama-block --backend cuda --partitions 8 \
        --probe-seconds 15 --search-seconds 3 --train-seconds 0 --assignments 0 --traces 10

All makespans are measured milliseconds, mean ± standard deviation of `--repeats` runs that are not
traced. `--traces` more runs give the yardsticks of each assignment, as ratios that are 1 at best:
contention (its kernels against the same alone), schedule (its makespan without a host, simulated,
against all work spread over all devices) and engine (a run against its replay without a host).
"""

import argparse
import json
import math
import platform
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from engine_tables import NAMES, SYNCHRONOUS, YARDSTICKS, Result, show

import doppler as dp
from doppler.assignment import Assignment
from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine
from doppler.graph import Graph
from doppler.machine import yardsticks
from doppler.machine.probe import ProbeResult, probe, write_probe
from doppler.machine.validation import diverse_assignments, validate
from doppler.placers import bounds_of, make_placer
from doppler.placers.modes import solve_in_mode
from doppler.placers.search.annealing import AnnealingPlacer
from doppler.placers.search.orders import OrderConfig, improve_order
from doppler.placers.warm_up import warm_up_search
from doppler.problem import Problem
from doppler.programs.registry import workload
from doppler.reproduce.experiments.engines import SIZES
from doppler.scheduler.choose import DYNAMIC, FIXED
from doppler.sim import SimConfig, Simulator
from doppler.trace import Trace
from doppler.training.config import TrainConfig
from doppler.training.real import greedy
from doppler.training.trainer import Trainer

HEURISTICS = ("critical-path", "enumerative")
ORDERS = 2000  # that are tried for what was trained
DYNAMIC_ROWS = ("single", "search")  # of a study of mode `fixed`
SINGLE_RUNS = 5  # of the assignment to one device, which takes longest and varies least


def make_graph(name: str, backend: str, devices: int, given: list[str]) -> Graph:
    """A workload in float32, cut as in the paper: Llama into as many parts as devices."""
    found = workload(name)
    parts = devices if name.startswith("llama") else found.parts
    own = {key: int(value) for key, value in (pair.split("=") for pair in given)}
    return dp.shard(found.build(dtype="float32", **SIZES[backend].get(name, {}) | own), parts=parts)


def study(name: str, args: argparse.Namespace, result: Result) -> None:
    """All measurements of one workload on one machine, put into `result` as they come."""
    devices, began = args.partitions or args.devices, perf_counter()
    graph = make_graph(name, args.backend, devices, args.size)
    found = probe_in(FIXED if args.fixed_only else DYNAMIC, graph, devices, args)
    problem = Problem(graph, found.topology)
    result |= {
        "workload": name,
        "devices": devices,
        "backend": args.backend,
        "links": args.links,
        "date": str(date.today()),
        "machine": machine(args.backend),
        "vertices": len(graph.assigned),
        "probe_s": perf_counter() - began,
        **probed(problem, found),
    }
    print(f"{name} on {devices}: probed in {result['probe_s']:.0f} s", flush=True)
    with Engine(found.topology, args.backend) as engine:
        alone = typical_run([engine.run(graph, on_one(problem)) for _ in range(SINGLE_RUNS)])
        result["ideal_ms"] = float(alone.busy_s().sum()) / devices * 1e3
        assignments = place_all(problem, engine, args)
        some = {key: assignments[key] for key in assignments if key in DYNAMIC_ROWS}
        chosen = some if args.fixed_only else assignments
        result["placed"] = measure(problem, engine, chosen, args, alone)
        if args.assignments and not args.fixed_only:
            result["validation"] = validation(problem, engine, args)
    if not args.fixed_only:
        some = {key: assignments[key] for key in SYNCHRONOUS}
        with Engine(found.topology, args.backend, EngineConfig(synchronous=True)) as engine:
            result["synchronous"] = measure(problem, engine, some, args)
        found = probe_in(FIXED, graph, devices, args)
        problem = Problem(graph, found.topology)
    ordered = place_in_order(problem, assignments, args)
    with Engine(found.topology, args.backend, EngineConfig(mode=FIXED)) as engine:
        result["fixed"] = measure(problem, engine, ordered, args, alone)
        if args.assignments:
            result["validation_fixed"] = validation(problem, engine, args)
    if args.capture:
        config = EngineConfig(mode=FIXED, capture=True)
        with Engine(found.topology, args.backend, config) as engine:
            some = {"search": ordered["search"]}
            result["captured"] = measure(problem, engine, some, args)
    result["study_s"] = perf_counter() - began
    print(f"  {result['study_s']:.0f} s in all", flush=True)


def probe_in(mode: str, graph: Graph, devices: int, args: argparse.Namespace) -> ProbeResult:
    """The machine as runs of the graph in that mode show it."""
    found = probe(
        args.backend,
        partitions=args.partitions,
        devices=None if args.partitions else devices,
        links=args.links,
        graph=graph,
        mode=mode,
        seconds=args.probe_seconds,
    )
    if args.topologies:
        name = graph.name.replace(" ", "-")
        write_probe(found, Path(args.topologies) / f"{name}-{devices}-{mode}.json")
    return found


def probed(problem: Problem, found: ProbeResult) -> Result:
    """What the probe found."""
    topology, vertices = problem.topology, problem.graph.assigned
    return {
        "held_out": found.errors.held_out,
        "makespans_off": found.errors.makespans,
        "probed": {  # its runs, those held out last
            "runs": found.runs,
            "devices": [
                "".join(map(str, run.assignment.devices[vertices])) for run in found.measured
            ],
            "ms": [round(run.makespan_s * 1e3, 4) for run in found.measured],
        },
        "failures": list(found.failures),
        "host": [topology.host.dispatch_s, topology.host.completion_s],
        "links_fit": [
            [link.name, link.bandwidth_bytes_per_s, link.latency_s, link.lanes]
            for link in topology.links
        ][:4],
        "contention": dict(topology.contention),
        "bound_ms": bounds_of(problem).best_s * 1e3,
    }


def on_one(problem: Problem) -> Assignment:
    """All on the first device."""
    return make_placer("single").place(problem)


def typical_run(traces: list[Trace]) -> Trace:
    """The run whose kernels took the median of all."""
    return sorted(traces, key=lambda trace: float(trace.busy_s().sum()))[len(traces) // 2]


def place_all(problem: Problem, engine: Engine, args: argparse.Namespace) -> dict[str, Assignment]:
    """Every method's assignment on the probed topology, or in Stage III on the machine itself."""
    found = {"single": on_one(problem)}
    found |= {name: make_placer(name).place(problem) for name in HEURISTICS}
    found["search"] = AnnealingPlacer().place(problem, budget_s=args.search_seconds)
    if not args.train_seconds:
        return found
    both = [(problem.graph, problem.topology)]
    config = TrainConfig(
        stages=("imitation", "sim"), seconds=args.train_seconds, threads=args.threads
    )
    trainer = Trainer(both, config)
    for _ in trainer.run():
        pass
    found["doppler-sim"] = trainer.records[0].best()
    found["policy-sim"] = placed_greedily(trainer)
    print(f"  trained for {trainer.seconds:.0f} s", flush=True)
    if not args.real_seconds:
        return found
    config = replace(config, stages=("real",), seconds=args.real_seconds)
    starts = [found["doppler-sim"], found["search"]]
    real = Trainer(both, config, policy=trainer.policy, executor=engine, starts=starts)
    for _ in real.run():
        pass
    found["doppler-sys"] = real.records[0].best()
    found["policy-sys"] = placed_greedily(real)
    measured = real.records[0].measured()
    assert measured is not None
    print(
        f"  Stage III: {measured.executions} executions, the best first met after "
        f"{measured.best_after}",
        flush=True,
    )
    return found


def placed_greedily(trainer: Trainer) -> Assignment:
    """What the policy places by itself, without a search or samples."""
    return greedy(trainer.policy, trainer.records[0], trainer.config)


def place_in_order(
    problem: Problem, assignments: dict[str, Assignment], args: argparse.Namespace
) -> dict[str, Assignment]:
    """The same for mode `fixed`: placers place for it, what was trained is put into an order."""
    found = {
        name: solve_in_mode(make_placer(name), problem, "fixed").assignment for name in HEURISTICS
    }
    solution = solve_in_mode(AnnealingPlacer(), problem, "fixed", budget_s=args.search_seconds)
    found["search"] = solution.assignment
    for name in assignments.keys() - found.keys() - {"single"}:
        order = improve_order(problem, assignments[name], OrderConfig(evaluations=ORDERS))
        found[name] = replace(assignments[name], schedule=order.schedule)
    return {name: found[name] for name in assignments if name in found}


def measure(
    problem: Problem,
    engine: Engine,
    assignments: dict[str, Assignment],
    args: argparse.Namespace,
    alone: Trace | None = None,
) -> dict[str, Result]:
    """Measured makespans of assignments, in turns, beside the simulated ones; all in ms.

    And their yardsticks, where the work `alone` is known.
    """
    graph, config = problem.graph, engine.config
    simulator = Simulator(problem, SimConfig(synchronous=config.synchronous, mode=config.mode))
    times: dict[str, list[float]] = {name: [] for name in assignments}
    for turn in range(args.repeats + 1):
        for name, assignment in assignments.items():
            if name == "single" and turn > SINGLE_RUNS:
                continue
            seconds = engine.makespans(graph, assignment)
            times[name] += (seconds[turn == 0 :] * 1e3).tolist()  # the first is to warm up
    rows: dict[str, Result] = {}
    for name, assignment in assignments.items():
        measured = np.array(times[name])
        rows[name] = {
            "mean": float(measured.mean()),
            "std": float(measured.std()),
            "predicted": simulator.run(graph, assignment).makespan_s * 1e3,
            "runs": measured.round(4).tolist(),
        }
        print(
            f"  {name:<14}{measured.mean():9.2f} ± {measured.std():5.2f} ms, "
            f"predicted {rows[name]['predicted']:9.2f}, {config.mode}"
            f"{', with barriers' if config.synchronous else ''}",
            flush=True,
        )
    if alone is not None:
        traced = {name: a for name, a in assignments.items() if name != "single"}
        for name, found in measure_yardsticks(problem, engine, traced, args.traces, alone).items():
            rows[name] |= found
    return rows


def measure_yardsticks(
    problem: Problem,
    engine: Engine,
    assignments: dict[str, Assignment],
    traces: int,
    alone: Trace,
) -> dict[str, Result]:
    """The yardsticks of each assignment, from traced runs in turns; with standard deviations."""
    mode, graph = engine.config.mode, problem.graph
    ratios: dict[str, list[list[float]]] = {name: [] for name in assignments}
    for _ in range(traces):
        for name, assignment in assignments.items():
            trace = engine.run(graph, assignment)
            slowed = yardsticks.contention(problem, loaded=trace, alone=alone)
            ratios[name].append([slowed, yardsticks.engine(problem, trace, assignment.schedule)])
    rows = {}
    for name, assignment in assignments.items():
        found = np.array(ratios[name])
        schedule = yardsticks.schedule(problem, assignment, mode=mode)
        mean, std = found.mean(axis=0).tolist(), found.std(axis=0).tolist()
        rows[name] = {
            "yardsticks": dict(zip(YARDSTICKS, (mean[0], schedule, mean[1]), strict=True)),
            "yardsticks_std": dict(zip(YARDSTICKS, (std[0], 0.0, std[1]), strict=True)),
        }
        cells = (f"{key} {value:.3f}" for key, value in rows[name]["yardsticks"].items())
        print(f"  {name:<14}{', '.join(cells)}, {mode}", flush=True)
    return rows


def validation(problem: Problem, engine: Engine, args: argparse.Namespace) -> Result:
    """How well the simulator predicts diverse assignments, in the mode of the engine."""
    graph, topology, mode = problem.graph, problem.topology, engine.config.mode
    chosen = diverse_assignments(graph, topology, args.assignments)
    config = SimConfig(mode=mode)
    # One at a time: together they would need more memory than one GPU has. The engine captures
    # what it launches in the second run of an assignment.
    found, began = [], perf_counter()
    for i in np.random.default_rng(0).permutation(len(chosen)):
        if perf_counter() - began > args.check_seconds:
            break
        found.append(
            validate(
                graph,
                topology,
                engine,
                [chosen[i]],
                repeats=args.check_repeats,
                warm_up=2,
                config=config,
            )
        )
    checked = replace(
        found[0],
        placers=tuple(name for each in found for name in each.placers),
        failures=tuple(failure for each in found for failure in each.failures),
        **{
            key: np.concatenate([getattr(each, key) for each in found])
            for key in ("measured_s", "spread_s", "predicted_s")
        },
    )
    print(
        f"  {len(checked.placers)} assignments, {mode}: mean error {checked.mape:.1%}, Spearman "
        f"{checked.spearman:.3f}, best quarter {checked.best_spearman:.2f}",
        flush=True,
    )
    return {
        **{key: getattr(checked, key) for key in ("pearson", "spearman", "mape")},
        "best_spearman": checked.best_spearman,
        "measured_ms": (checked.measured_s * 1e3).round(4).tolist(),
        "spread_ms": (checked.spread_s * 1e3).round(4).tolist(),
        "predicted_ms": (checked.predicted_s * 1e3).round(4).tolist(),
        "failures": list(checked.failures),
    }


def machine(backend: str) -> str:
    """The hardware and what drives it."""
    if backend == "cuda":
        return (
            f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}, torch {torch.__version__}"
        )
    return f"{platform.processor() or platform.machine()}, torch {torch.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("workloads", nargs="*", default=NAMES)
    run.add_argument("--backend", default="cpu")
    run.add_argument("--partitions", type=int)
    run.add_argument("--devices", type=int, default=2)
    run.add_argument("--links", default="host")
    run.add_argument("--size", action="append", default=[], help="of a workload, as in batch=64")
    run.add_argument("--assignments", type=int, default=100)
    run.add_argument(
        "--fixed-only", action="store_true", help="in mode dynamic one device and search alone"
    )
    run.add_argument("--capture", action="store_true", help="runs as one CUDA graph, too")
    run.add_argument("--repeats", type=int, default=20)
    run.add_argument("--traces", type=int, default=20)
    run.add_argument("--check-repeats", type=int, default=3)
    run.add_argument(
        "--check-seconds", type=float, default=math.inf, help="of running those assignments"
    )
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
        result: Result = {}
        try:
            study(name, args, result)
        finally:  # what was measured before an interruption is kept
            with args.results.open("a") as file:
                file.write(json.dumps(result) + "\n")
    show([args.results])


if __name__ == "__main__":
    main()
