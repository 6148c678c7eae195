"""What does a pretrained policy do with graphs and machines it has not seen?

Every measurement is a job, `table/case/seed`, that appends a line to a file of results:

    python benchmarks/zeroshot.py run 'families/*' --policy runs/pretrained --results zeroshot.jsonl
    python benchmarks/zeroshot.py run 'left-out/*' --train-seconds 7200
    python benchmarks/zeroshot.py show zeroshot.jsonl

`run` takes patterns and does the jobs one after the other, each on one core, so several processes
may run side by side on the same file; `list` names all jobs. `show` prints the tables.

- `left-out/p100x4/chainmm/0`: a policy pretrained without the group of that workload, on the
  paper's graph; it trains for `--train-seconds`, once for all graphs of a group, in `--runs`.
- `families/fft/0`, `machines/shared-bus/0`: families of graphs, and of machines, of split `test`:
  the gap to `--seconds` of search, and how often the policy beats the best list scheduler.
- `time/2000/0`: the policy, `auto` without and with it, and search, each for as long as the policy
  takes to be sampled, on graphs of about so many vertices.
- `tuning/p100x4/chainmm/0`: `--tune-seconds` of training from the policy and from nothing.

Makespans are simulated. `policy` is the best of one greedy and 128 sampled assignments. Gaps are
above what search found; in `time`, above the best of the methods.
"""

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from math import inf, isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from placers import problem as paper_problem

from doppler.assignment import Assignment
from doppler.errors import DopplerError
from doppler.graph import Graph
from doppler.placers.auto import AutoPlacer
from doppler.placers.doppler import DopplerPlacer
from doppler.placers.search import SearchConfig, search, starting_points, warm_up
from doppler.sim import Simulator
from doppler.topology import Topology
from doppler.training.api import pretraining, starting_policy
from doppler.training.config import PRESETS
from doppler.training.problems import FAMILIES, MACHINES, Problem, draw_problem, make_problem
from doppler.training.recipe import Recipe
from doppler.training.run import resume_run, start_run
from doppler.training.trainer import Trainer
from doppler.training.validation import listed_s

WORKLOADS = ("chainmm", "ffnn", "llama-block", "llama-layer")
SIX = (*(f"p100x4/{w}" for w in WORKLOADS), "v100x8/llama-block", "v100x8/llama-layer")
SIZES = (200, 2_000, 20_000)
NEAR = 0.8  # graphs of `time` have at least this share of their size

Result = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Budgets, and where policies are."""

    policy: Path  # a run of `dop pretrain`
    runs: Path  # where those that leave a group out are kept
    seconds: float  # of search
    train_seconds: float
    tune_seconds: float
    count: int  # problems of a family, a machine or a size
    problems: int  # that a policy is trained on
    max_vertices: int


@dataclass(frozen=True)
class Job:
    """One measurement."""

    name: str  # table/case/seed
    work: Callable[[Settings, int], Result]
    seed: int = 0


def jobs() -> list[Job]:
    """All measurements."""
    families = [name for name, family in FAMILIES.items() if family.split == "test"]
    machines = [name for name, machine in MACHINES.items() if machine.split == "test"]
    return [
        *(Job(f"left-out/{label}/0", partial(left_out, label)) for label in SIX),
        *(Job(f"families/{name}/0", partial(test_family, name)) for name in families),
        *(Job(f"machines/{name}/0", partial(test_machine, name)) for name in machines),
        *(Job(f"time/{size}/0", partial(equal_time, size)) for size in SIZES),
        *(Job(f"tuning/{label}/0", partial(tuning, label)) for label in SIX),
    ]


def makespan_s(graph: Graph, topology: Topology, assignment: Assignment) -> float:
    """Simulated seconds; infinity where it runs out of memory."""
    return float(Simulator(topology).makespans(graph, [assignment])[0])


def policy_s(placer: DopplerPlacer, graph: Graph, topology: Topology) -> tuple[float, float]:
    """The makespan of the policy alone, and the seconds it took."""
    began = perf_counter()
    made = makespan_s(graph, topology, placer.place(graph, topology, seed=1))
    return made, perf_counter() - began


def searched_s(graph: Graph, topology: Topology, seconds: float) -> float:
    """The makespan that so many seconds of search on one core find, heuristics included."""
    began = perf_counter()
    starts = starting_points(graph, topology, 0)
    left = max(seconds - (perf_counter() - began), 1e-3)
    return search(graph, topology, starts, SearchConfig(seconds=left, chains=1)).cost_s


def against(problem: Problem, placer: DopplerPlacer, seconds: float) -> Result:
    """The policy alone against search and list schedulers on one problem."""
    graph, topology = problem.graph, problem.topology
    made_s, took_s = policy_s(placer, graph, topology)
    found_s = searched_s(graph, topology, seconds)
    lists_s = listed_s(problem)
    return {
        "graph": graph.name,
        "topology": topology.name,
        "policy": _number(made_s),
        "search": _number(found_s),
        "lists": _number(lists_s),
        "inference_s": took_s,
    }


def left_out(label: str, settings: Settings, seed: int) -> Result:
    """The paper's graph, by a policy that has seen none of its group."""
    workload = label.partition("/")[2]
    placer = DopplerPlacer.from_path(trained_without(workload, settings, seed))
    graph, topology = paper_problem(label)
    return against(Problem(graph, topology, workload, seed), placer, settings.seconds)


def trained_without(workload: str, settings: Settings, seed: int) -> Path:
    """The run of a policy that was trained without the group of a workload; it may be there."""
    path = settings.runs / f"without-{FAMILIES[workload].group}-{seed}"
    if not (path / "config.json").exists():
        base = PRESETS["default"]
        config = replace(base, seconds=settings.train_seconds, seed=seed, threads=1)
        recipe = Recipe(
            problems=settings.problems,
            max_vertices=settings.max_vertices,
            without=(workload,),
            seed=seed,
            validation=0,
        )
        start_run(pretraining(recipe, config), path).close()
    with resume_run(path) as run:
        for _ in run:
            pass
    return path


def test_family(family: str, settings: Settings, seed: int) -> Result:
    """Graphs of a family that no policy was trained on, on machines of every split."""
    machines = list(MACHINES)
    drawn = [
        make_problem(
            *(family, machines[i % len(machines)], 1000 * seed + i),
            max_vertices=max(settings.max_vertices, FAMILIES[family].smallest + 40),
        )
        for i in range(settings.count)
    ]
    return _all_against(drawn, settings)


def test_machine(machine: str, settings: Settings, seed: int) -> Result:
    """Graphs of families that were trained on, on machines that were not."""
    drawn = []
    for i in range(settings.count):
        own = 1000 * seed + i
        family = draw_problem("train", own, max_vertices=settings.max_vertices).family
        drawn.append(make_problem(family, machine, own, max_vertices=settings.max_vertices))
    return _all_against(drawn, settings)


def _all_against(drawn: list[Problem], settings: Settings) -> Result:
    placer = DopplerPlacer.from_path(settings.policy)
    return {"rows": [against(problem, placer, settings.seconds) for problem in drawn]}


def equal_time(size: int, settings: Settings, seed: int) -> Result:
    """What each method finds in as long as the policy takes."""
    placer, rows = DopplerPlacer.from_path(settings.policy, seconds=settings.seconds), []
    for i in range(settings.count):
        problem = draw_problem(
            *("test", 1000 * seed + i), max_vertices=size, min_vertices=round(NEAR * size)
        )
        graph, topology = problem.graph, problem.topology
        made_s, took_s = policy_s(placer, graph, topology)
        plain = AutoPlacer(took_s)
        plain.learned = None
        portfolio = AutoPlacer(took_s, learned=DopplerPlacer(placer.arrays))
        row = {"policy": made_s, "search": searched_s(graph, topology, took_s)}
        for name, auto in (("auto", plain), ("auto with policy", portfolio)):
            try:
                row[name] = makespan_s(graph, topology, auto.place(graph, topology))
            except DopplerError:
                row[name] = inf
        told = {key: _number(value) for key, value in row.items()}
        rows.append({"graph": graph.name, "topology": topology.name, "took_s": took_s} | told)
    return {"rows": rows}


def tuning(label: str, settings: Settings, seed: int) -> Result:
    """The same seconds of training from the pretrained policy, and from nothing."""
    graph, topology = paper_problem(label)
    placer = DopplerPlacer.from_path(settings.policy)
    found: Result = {"zero": policy_s(placer, graph, topology)[0]}
    base = replace(PRESETS["default"], seconds=settings.tune_seconds, seed=seed, threads=1)
    for name, config, policy in (
        ("tuned", replace(base, stages=("sim",)), starting_policy(settings.policy)),
        ("scratch", base, None),
    ):
        trainer = Trainer([(graph, topology)], config, policy=policy)
        for _ in trainer.run():
            pass
        found[name] = policy_s(DopplerPlacer(trainer.policy), graph, topology)[0]
        found[f"{name} run"] = trainer.exercises[0].best_s
    found["search"] = searched_s(graph, topology, settings.seconds)
    return {key: _number(value) for key, value in found.items()}


def _number(value: float) -> float | None:
    return float(value) if isfinite(value) else None


def run(patterns: list[str], settings: Settings, results: Path) -> None:
    """Do the jobs that match, and append a line for each."""
    torch.set_num_threads(1)
    warm_up()
    for job in jobs():
        if any(fnmatch(job.name, pattern) for pattern in patterns):
            found = job.work(settings, job.seed)
            told = {key: str(value) for key, value in vars(settings).items()}
            line = {"job": job.name, "settings": told, "cores": len(os.sched_getaffinity(0))}
            with results.open("a") as file:
                file.write(json.dumps(line | found) + "\n")
            print(job.name, json.dumps(found), flush=True)


def read(paths: list[Path]) -> dict[str, dict[str, Result]]:
    """Results by table and case; of the same job, the last."""
    found: dict[str, dict[str, Result]] = defaultdict(dict)
    for path in paths:
        for line in path.read_text().splitlines():
            result = json.loads(line)
            table, _, rest = result["job"].partition("/")
            found[table][rest.rpartition("/")[0]] = result
    return found


def gaps(rows: list[Result], key: str, others: list[str]) -> list[float]:
    """What a method is above the best of some, on every problem on which it runs."""
    best = [min((row[k] for k in others if row[k] is not None), default=inf) for row in rows]
    pairs = [(row[key], least) for row, least in zip(rows, best, strict=True)]
    return [value / least - 1 for value, least in pairs if value is not None and isfinite(least)]


def told(values: list[float]) -> str:
    """Mean and 95th percentile."""
    if not values:
        return "– | –"
    return f"{100 * np.mean(values):+.2f} % | {100 * np.percentile(values, 95):+.2f} %"


def show(paths: list[Path]) -> None:
    """Print every table there are results for."""
    tables = read(paths)
    if tables["left-out"]:
        print("\n### The paper's graphs, by a policy that has seen none of their group\n")
        print("| problem | search, ms | policy | best list scheduler | seconds |")
        print("|---|---|---|---|---|")
        for label, row in tables["left-out"].items():
            cells = [
                told(gaps([row], key, ["search"])).split(" |")[0] for key in ("policy", "lists")
            ]
            took = f"{row['inference_s']:.2f}"
            print(f"| `{label}` | {row['search'] * 1e3:.2f} | {' | '.join(cells)} | {took} |")
    for table in ("families", "machines"):
        if tables[table]:
            show_unseen(table, tables[table])
    if tables["time"]:
        show_time(tables["time"])
    if tables["tuning"]:
        print("\n### After the same time of training, from the policy and from nothing\n")
        print(
            "| problem | search, ms | as it comes | tuned | from nothing |\n|---|---|---|---|---|"
        )
        for label, row in tables["tuning"].items():
            keys = ("zero", "tuned", "scratch")
            cells = [told(gaps([row], key, ["search"])).split(" |")[0] for key in keys]
            print(f"| `{label}` | {row['search'] * 1e3:.2f} | {' | '.join(cells)} |")


def show_unseen(table: str, cases: dict[str, Result]) -> None:
    """The policy against search on families of split `test`."""
    print(f"\n### Unseen {table}: above search\n")
    print("| | problems | out of memory | mean | 95th percentile | beats list schedulers |")
    print("|---|---|---|---|---|---|")
    for name, result in cases.items():
        rows = result["rows"]
        wins = [(r["policy"] or inf) < (r["lists"] or inf) for r in rows]
        failed = sum(r["policy"] is None for r in rows)
        cells = told(gaps(rows, "policy", ["search"]))
        print(f"| `{name}` | {len(rows)} | {failed} | {cells} | {100 * np.mean(wins):.0f} % |")


def show_time(cases: dict[str, Result]) -> None:
    """All methods in the same time, above the best of them."""
    methods = ["policy", "search", "auto", "auto with policy"]
    print("\n### In the time the policy takes, above the best of these\n")
    print("| vertices | method | seconds | out of memory | mean | 95th percentile |")
    print("|---|---|---|---|---|---|")
    for size, result in sorted(cases.items(), key=lambda case: int(case[0])):
        rows = result["rows"]
        took = f"{np.mean([row['took_s'] for row in rows]):.2f}"
        for name in methods:
            failed = sum(row[name] is None for row in rows)
            print(f"| {size} | {name} | {took} | {failed} | {told(gaps(rows, name, methods))} |")


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("patterns", nargs="+")
    one.add_argument("--policy", type=Path, default=Path("runs/pretrained"))
    one.add_argument("--runs", type=Path, default=Path("runs"))
    one.add_argument("--results", type=Path, default=Path("zeroshot.jsonl"))
    one.add_argument("--seconds", type=float, default=60.0)
    one.add_argument("--train-seconds", type=float, default=7200.0)
    one.add_argument("--tune-seconds", type=float, default=60.0)
    one.add_argument("--count", type=int, default=20)
    one.add_argument("--problems", type=int, default=256)
    one.add_argument("--max-vertices", type=int, default=300)
    commands.add_parser("list")
    commands.add_parser("show").add_argument("files", nargs="+", type=Path)
    options = vars(parser.parse_args())
    command = options.pop("command")
    if command == "run":
        patterns, results = options.pop("patterns"), options.pop("results")
        run(patterns, Settings(**options), results)
    elif command == "list":
        print("\n".join(job.name for job in jobs()))
    else:
        show(options["files"])


if __name__ == "__main__":
    main()
