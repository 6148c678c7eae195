"""How many real executions does Stage III need until it first meets its best assignment?

    python benchmarks/stage3.py run ffnn --topology probed.json --backend cuda --results a.jsonl
    python benchmarks/stage3.py run ffnn --topology p100x4 --backend sim  # in virtual time
    python benchmarks/stage3.py show a.jsonl

For every seed a policy is trained on the simulator, once; from there Stage III runs in mode
`dynamic` and in mode `fixed`, guarded (preset `default`) and with one run per episode (preset
`paper`). `best`, `policy` and `start` are the best assignment of the run, what the policy places by
itself at the end, and what the run began with: measured in turn afterwards, in ms, the mean of
`--repeats` runs without a trace.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import doppler as dp
from doppler.assignment import Assignment
from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine
from doppler.graph import Graph
from doppler.placers.warm_up import warm_up_search
from doppler.programs.registry import workload
from doppler.resolve import as_topology
from doppler.scheduler.choose import MODES
from doppler.topology import Topology
from doppler.training.config import RealConfig, TrainConfig
from doppler.training.presets import preset
from doppler.training.real import greedy
from doppler.training.trainer import Trainer

FORMS = {"guarded": "default", "plain": "paper"}  # presets of Stage III
ROWS = ("start", "policy", "best")
VIRTUAL = "sim"  # the backend of a simulated machine

Result = dict[str, Any]


def runs(name: str, args: argparse.Namespace) -> Iterator[Result]:
    """All runs of Stage III for a workload, one after another."""
    found = workload(name)
    sizes = {key: int(value) for key, value in (pair.split("=") for pair in args.size)}
    graph = dp.shard(found.build(dtype="float32", **sizes), parts=args.parts or found.parts)
    topology = as_topology(args.topology)
    for seed in range(args.seeds):
        config = TrainConfig(
            stages=("imitation", "sim"), seconds=args.train_seconds, seed=seed, threads=args.threads
        )
        trained = Trainer([(graph, topology)], config)
        for _ in trained.run():
            pass
        for mode, form in product(args.modes, FORMS):
            with ExitStack() as stack:
                executor = make_executor(stack, topology, mode, args)
                result = stage_three(graph, topology, executor, trained, form, args)
            result |= {"workload": name, "topology": topology.name, "backend": args.backend}
            result |= {"mode": mode, "form": form, "seed": seed}
            print(_line(result), flush=True)
            yield result


def make_executor(stack: ExitStack, topology: Topology, mode: str, args: argparse.Namespace) -> Any:
    """What Stage III runs on: an engine, or a simulator with noise."""
    if args.backend == VIRTUAL:
        noise = dp.Noise(exec_sigma=args.noise, transfer_sigma=args.noise)
        return dp.Simulator(topology, dp.SimConfig(mode=mode, noise=noise))
    return stack.enter_context(Engine(topology, args.backend, EngineConfig(mode=mode)))


def stage_three(
    graph: Graph,
    topology: Topology,
    executor: Any,
    trained: Trainer,
    form: str,
    args: argparse.Namespace,
) -> Result:
    """One run of Stage III, from the policy and the best assignment of a trainer."""
    real: RealConfig = replace(preset(FORMS[form]).real, episodes=args.episodes)
    config = replace(trained.config, stages=("real",), seconds=None, real=real)
    start = trained.records[0].best()
    trainer = Trainer(
        [(graph, topology)],
        config,
        policy=deepcopy(trained.policy),
        executor=executor,
        starts=[start],
    )
    for _ in trainer.run():
        pass
    record = trainer.records[0]
    measured = record.measured()
    assert measured is not None
    own = greedy(trainer.policy, record, trainer.config)
    times = in_turn(graph, executor, (start, own, record.best()), args.repeats)
    return {
        **asdict(measured),
        "seconds": trainer.seconds,
        "ms": {name: times[row].tolist() for row, name in enumerate(ROWS)},
    }


def in_turn(graph: Graph, executor: Any, assignments: tuple[Assignment, ...], repeats: int) -> Any:
    """(K, R) ms of runs of assignments, in turn to and fro, after one of each to warm up.

    Those that are the same share their runs: they differ in nothing but noise.
    """
    keys = [assignment.devices.tobytes() for assignment in assignments]
    distinct = dict(zip(keys, assignments, strict=True))
    found: dict[bytes, list[float]] = {key: [] for key in distinct}
    for turn in range(repeats + 1):
        for key, assignment in distinct.items() if turn % 2 else reversed(distinct.items()):
            if isinstance(executor, Engine):
                found[key].append(executor.makespans(graph, assignment)[0])
            else:
                found[key].append(executor.run(graph, assignment, 10_000 + turn).makespan_s)
    return (np.array([found[key][1:] for key in keys]) * 1e3).round(6)


def _line(result: Result) -> str:
    times = ", ".join(f"{name} {np.mean(result['ms'][name]):.3f}" for name in ROWS)
    return (
        f"{result['workload']} seed {result['seed']} {result['mode']} {result['form']}: best first "
        f"met after {result['best_after']} of {result['executions']} executions; ms: {times}"
    )


def show(paths: list[Path]) -> None:
    """A table: means over seeds, and the range of the executions until the best."""
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    names = ["workload", "backend", "mode", "Stage III", "runs", "executions", "until the best"]
    names += [f"{name}, ms" for name in ROWS]
    print("| " + " | ".join([*names, "seconds"]) + " |")
    print("|" + "---|" * (len(names) + 1))
    groups: dict[tuple[str, ...], list[Result]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("workload", "backend", "mode", "form"))
        groups.setdefault(key, []).append(row)
    for key, some in groups.items():
        after = [row["best_after"] for row in some]
        cells = [*key, str(len(some)), f"{np.mean([row['executions'] for row in some]):.0f}"]
        cells.append(f"{np.mean(after):.0f} ({min(after)} to {max(after)})")
        cells += [f"{np.mean([row['ms'][name] for row in some]):.1f}" for name in ROWS]
        print("| " + " | ".join([*cells, f"{np.mean([r['seconds'] for r in some]):.1f}"]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("workloads", nargs="+")
    run.add_argument("--topology", required=True, help="a preset, or a file of `dop probe`")
    run.add_argument("--backend", default=VIRTUAL, help="sim, cpu or cuda")
    run.add_argument("--size", action="append", default=[], help="of a workload, as in batch=64")
    run.add_argument("--parts", type=int)
    run.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    run.add_argument("--episodes", type=int, default=128)
    run.add_argument("--seeds", type=int, default=3)
    run.add_argument("--repeats", type=int, default=10)
    run.add_argument("--train-seconds", type=float, default=20)
    run.add_argument("--noise", type=float, default=0.05, help="of backend sim")
    run.add_argument("--threads", type=int)
    run.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()) / "stage3.jsonl")
    shown = verbs.add_parser("show")
    shown.add_argument("results", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "show":
        show(args.results)
        return
    warm_up_search()
    for name in args.workloads:
        for result in runs(name, args):
            with args.results.open("a") as file:
                file.write(json.dumps(result) + "\n")
    show([args.results])


if __name__ == "__main__":
    main()
