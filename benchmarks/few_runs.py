r"""How many real executions until an assignment within 1 % of the best known was run?

    python benchmarks/few_runs.py run llama-layer --topology probed.json --backend cuda
    python benchmarks/few_runs.py run ffnn --topology p100x4 --backend sim --error 0.1
    python benchmarks/few_runs.py show few-runs.jsonl

Four ways to spend executions of a graph on a machine, of which a topology is known more or less:

- `policy`: Stage III (guarded), from the shipped policy and what placer `doppler` makes of it;
- `search`: Stage III from the shipped policy and what `--search-seconds` of search find;
- `random`: Stage III from random weights and a random assignment;
- `bandit`: no learning. The best different assignments of several searches and of the policy run in
  rounds of as many executions; after each the better half stays, until one is left (successive
  halving).

The assignments of all ways that seemed best in their runs are run again at the end, in turn; the
fastest of them is the best known. With backend `sim` the machine is the topology with speeds of
devices and links that are off by `--error` (the standard deviation of a logarithm), and runs vary
by `--noise`; what an assignment takes is then known exactly, and what search finds that knows the
machine is among the best known.

What each way begins with is found before anything runs, in as many processes as `--workers` says.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from stage3 import VIRTUAL, in_turn, make_executor

import doppler as dp
from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.mdp import make_instance
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.search.annealing import AnnealingPlacer
from doppler.placers.warm_up import warm_up_search
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.kinds import make_any
from doppler.problem import Problem
from doppler.programs.registry import workload
from doppler.resolve import as_topology
from doppler.topology import Topology
from doppler.trace import Trace
from doppler.training.config import TrainConfig
from doppler.training.presets import preset
from doppler.training.trainer import Trainer

WAYS = ("policy", "search", "random", "bandit")
CLOSE = 0.01  # to the best known
AGAIN = 4  # assignments of each way that are run again
ELITES = 32  # of searches and the policy, for the bandit
SEARCHES = 4  # with other seeds

Result = dict[str, Any]


class Watched:
    """An executor whose runs are recorded."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.ran: list[tuple[Assignment, float]] = []

    def run(self, graph: dp.Graph, assignment: Assignment, seed: int = 0) -> Trace:
        """A run of the executor."""
        trace: Trace = self.executor.run(graph, assignment, seed)
        self.ran.append((assignment, trace.makespan_s))
        return trace

    def fastest(self) -> list[Assignment]:
        """The assignments with the least mean makespans, the first of them first."""
        found: dict[bytes, list[float]] = {}
        which = {_key(assignment): assignment for assignment, _ in self.ran}
        for assignment, seconds in self.ran:
            found.setdefault(_key(assignment), []).append(seconds)
        ranked = sorted(found, key=lambda key: float(np.mean(found[key])))
        return [which[key] for key in ranked[:AGAIN]]

    def first_of(self, keys: set[bytes]) -> int | None:
        """The execution in which one of some assignments first ran."""
        numbered = enumerate(self.ran, 1)
        return next((n for n, (assignment, _) in numbered if _key(assignment) in keys), None)


def _key(assignment: Assignment) -> bytes:
    return assignment.devices.tobytes()


def run(name: str, args: argparse.Namespace) -> Iterator[Result]:
    """A row for each way and seed."""
    found = workload(name)
    sizes = {key: int(value) for key, value in (pair.split("=") for pair in args.size)}
    graph = dp.shard(found.build(dtype="float32", **sizes), parts=args.parts or found.parts)
    topology = as_topology(args.topology)
    begun = all_starts(graph, topology, args)
    for seed in range(args.seeds):
        machine = perturbed(topology, args.error, seed) if args.backend == VIRTUAL else topology
        with ExitStack() as stack:
            executor = make_executor(stack, machine, args.mode, args)
            yield from spend_all(name, graph, topology, machine, executor, begun, seed, args)


def all_starts(
    graph: dp.Graph, topology: Topology, args: argparse.Namespace
) -> dict[tuple[str, int], list[IntArray]]:
    """What every way begins with, by way and seed."""
    wanted = [(way, seed) for way in args.ways for seed in range(args.seeds)]
    if args.workers == 1:
        return {key: starts(*key, graph, topology, args) for key in wanted}
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        found = submit_starts(pool, graph, topology, args)
        return {key: future.result() for key, future in found.items()}


def submit_starts(
    pool: ProcessPoolExecutor, graph: dp.Graph, topology: Topology, args: argparse.Namespace
) -> "dict[tuple[str, int], Future[list[IntArray]]]":
    """The same, to come."""
    wanted = [(way, seed) for way in args.ways for seed in range(args.seeds)]
    return {key: pool.submit(starts, *key, graph, topology, args) for key in wanted}


def starts(
    way: str, seed: int, graph: dp.Graph, topology: Topology, args: argparse.Namespace
) -> list[IntArray]:
    """The assignments that a way begins with."""
    problem = Problem(graph, topology)
    if way == "bandit":
        return elites(problem, seed, args)
    if way == "random":
        return [place_at_random(problem, seed).devices]
    if way == "search":
        found = AnnealingPlacer().place(problem, seed=seed, budget_s=args.search_seconds)
        return [found.devices]
    return [DopplerPlacer().place(problem, seed=seed).devices]


def spend_all(
    name: str,
    graph: dp.Graph,
    topology: Topology,
    machine: Topology,
    executor: Any,
    begun: Mapping[tuple[str, int], list[IntArray]],
    seed: int,
    args: argparse.Namespace,
) -> Iterator[Result]:
    """A row for each way of a seed."""
    seen = {way: Watched(executor) for way in args.ways}
    for way, watched in seen.items():
        spend(way, graph, topology, watched, begun[way, seed], seed, args)
        print(f"{name} seed {seed} {way}: {len(watched.ran)} executions", flush=True)
    yield from rows(name, graph, machine, executor, seen, seed, args)


def spend(
    way: str,
    graph: dp.Graph,
    topology: Topology,
    executor: Watched,
    begun: list[IntArray],
    seed: int,
    args: argparse.Namespace,
) -> None:
    """Run assignments in that way until the executions are spent."""
    some = [Assignment(devices, topology=topology.name) for devices in begun]
    if way == "bandit":
        halve(graph, some, executor, args.executions)
        return
    own = make_any(PolicyConfig(), seed) if way == "random" else DopplerPlacer().policy
    limits = {name: getattr(args, name) for name in ("warm_up", "max_runs", "final_runs")}
    real = replace(preset("default").real, episodes=args.executions, **limits)
    config = TrainConfig(stages=("real",), real=real, seed=seed, threads=args.threads)
    trainer = Trainer([(graph, topology)], config, policy=own, executor=executor, starts=some)
    for _ in trainer.run():
        if len(executor.ran) >= args.executions:
            break


def place_at_random(problem: Problem, seed: int) -> Assignment:
    """A device for each vertex, none preferred."""
    return dp.place(problem.graph, problem.topology, "random", seed=seed)


def elites(problem: Problem, seed: int, args: argparse.Namespace) -> list[IntArray]:
    """Different assignments that are good in simulation, the best first."""
    each = args.search_seconds / SEARCHES
    found = [
        AnnealingPlacer().place(problem, seed=seed + i, budget_s=each).devices
        for i in range(SEARCHES)
    ]
    instance = make_instance(problem)
    devices, _, makespans = DopplerPlacer().propose(instance, seed=seed)
    found += list(instance.expand(devices[np.argsort(makespans)[: 4 * ELITES]]))
    distinct = list({row.tobytes(): row for row in found}.values())
    cost_s = dp.Simulator(problem).makespans(problem.graph, np.array(distinct))
    return [distinct[i] for i in np.argsort(cost_s)[:ELITES].tolist()]


def halve(graph: dp.Graph, some: list[Assignment], executor: Watched, executions: int) -> None:
    """Successive halving: rounds of as many executions, after each of which the better half stays.

    There are as many arms as can run once in the first round. Karnin, Koren & Somekh, "Almost
    optimal exploration in multi-armed bandits", ICML 2013.
    """
    found: dict[bytes, list[float]] = {_key(one): [] for one in some}
    while len(some) > 1 and len(some) * rounds_of(some) > executions:
        some = some[: len(some) // 2]
    if len(some) == 1:
        executor.run(graph, some[0], 0)
    each = executions // max(rounds_of(some), 1)
    while len(some) > 1:
        for _ in range(max(each // len(some), 1)):
            for one in some:
                trace = executor.run(graph, one, len(executor.ran))
                found[_key(one)].append(trace.makespan_s)
        some = sorted(some, key=lambda one: float(np.mean(found[_key(one)])))
        some = some[: -(-len(some) // 2)]


def rounds_of(some: list[Assignment]) -> int:
    """How often they are halved until one is left."""
    return (len(some) - 1).bit_length()


def perturbed(topology: Topology, error: float, seed: int) -> Topology:
    """A machine that the topology describes more or less."""
    rng = np.random.default_rng(seed)
    factors = np.exp(error * rng.standard_normal(topology.num_devices)).tolist()
    devices = [
        replace(
            device,
            flops_per_s={key: rate * factor for key, rate in device.flops_per_s.items()},
            memory_bytes_per_s=device.memory_bytes_per_s * factor,
        )
        for device, factor in zip(topology.devices, factors, strict=True)
    ]
    links = [
        replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
        for link, factor in zip(
            topology.links,
            np.exp(error * rng.standard_normal(len(topology.links))).tolist(),
            strict=True,
        )
    ]
    return replace(topology, devices=tuple(devices), links=tuple(links))


def rows(
    name: str,
    graph: dp.Graph,
    machine: Topology,
    executor: Any,
    seen: dict[str, Watched],
    seed: int,
    args: argparse.Namespace,
) -> Iterator[Result]:
    """What each way came to, against the best of all."""
    best = {_key(one): one for watched in seen.values() for one in watched.fastest()}
    if args.backend == VIRTUAL:
        known = Problem(graph, machine)
        searched = AnnealingPlacer().place(known, seed=seed, budget_s=args.search_seconds)
        best[_key(searched)] = searched
    some = tuple(best.values())
    if args.backend == VIRTUAL:
        ms = 1e3 * dp.Simulator(machine, dp.SimConfig(mode=args.mode)).makespans(graph, list(some))
    else:
        ms = in_turn(graph, executor, some, args.repeats).mean(axis=1)
    times = dict(zip(best, ms.tolist(), strict=True))
    least = min(times.values())
    close = {key for key, value in times.items() if value <= (1 + CLOSE) * least}
    for way, watched in seen.items():
        own = min(times[_key(one)] for one in watched.fastest())
        yield {
            "workload": name,
            "topology": machine.name,
            "backend": args.backend,
            "mode": args.mode,
            "error": args.error if args.backend == VIRTUAL else None,
            "way": way,
            "seed": seed,
            "executions": len(watched.ran),
            "close_after": watched.first_of(close),
            "first_ms": watched.ran[0][1] * 1e3,
            "own_ms": own,
            "best_ms": least,
        }


def show(paths: list[Path]) -> None:
    """A table: a row for each workload and way."""
    every = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    print("\n".join(table(every)))


def table(every: list[Result]) -> list[str]:
    """The lines of that table."""
    lines = [
        "| workload | backend | way | seeds | executions | until within 1 % | never within 1 % "
        "| first run, above the best | best, above the best |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for row in every:
        groups.setdefault((row["workload"], row["backend"], row["way"]), []).append(row)
    for key, some in groups.items():
        after = [row["close_after"] for row in some if row["close_after"] is not None]
        until = f"{np.mean(after):.0f} ({min(after)} to {max(after)})" if after else "–"
        cells = [*key, len(some), f"{np.mean([row['executions'] for row in some]):.0f}", until]
        cells.append(f"{len(some) - len(after)} of {len(some)}")
        for name in ("first_ms", "own_ms"):
            above = [100 * (row[name] / row["best_ms"] - 1) for row in some]
            cells.append(f"{np.mean(above):.1f} ± {np.std(above):.1f} %")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def main() -> None:
    """Run and print, or print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("run")
    new.add_argument("workloads", nargs="+")
    new.add_argument("--topology", required=True, help="a preset, or a file of `dop probe`")
    new.add_argument("--backend", default=VIRTUAL, help="sim, cpu or cuda")
    new.add_argument("--mode", default="fixed", choices=("dynamic", "fixed"))
    new.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    new.add_argument("--size", action="append", default=[], help="of a workload, as in batch=64")
    new.add_argument("--parts", type=int)
    new.add_argument("--executions", type=int, default=200)
    new.add_argument("--seeds", type=int, default=3)
    new.add_argument("--repeats", type=int, default=8)
    new.add_argument("--search-seconds", type=float, default=4.0)
    new.add_argument("--error", type=float, default=0.1, help="of backend sim")
    new.add_argument("--noise", type=float, default=0.003, help="of backend sim")
    new.add_argument("--warm-up", type=int, default=1, help="runs of an assignment to warm up")
    new.add_argument("--max-runs", type=int, default=16, help="of each side of a race")
    new.add_argument("--final-runs", type=int, default=10, help="of each side of the last race")
    new.add_argument("--threads", type=int)
    new.add_argument("--workers", type=int, default=1, help="processes that search beforehand")
    results = Path(tempfile.gettempdir()) / "few-runs.jsonl"
    new.add_argument("--results", type=Path, default=results)
    verbs.add_parser("show").add_argument("results", nargs="+", type=Path)
    args = parser.parse_args()
    if args.verb == "show":
        show(args.results)
        return
    warm_up_search()
    for name in args.workloads:
        for row in run(name, args):
            with args.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
    show([args.results])


if __name__ == "__main__":
    main()
