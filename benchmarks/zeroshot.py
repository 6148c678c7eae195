"""What does a pretrained policy do with graphs and machines it has not seen?

Every measurement is a job, `table/case/seed`, that appends a line to a file of results:

    python benchmarks/zeroshot.py run 'families/*' 'machines/*' --results zeroshot.jsonl
    python benchmarks/zeroshot.py run 'left-out/*/0' --train-seconds 7200
    python benchmarks/zeroshot.py show zeroshot.jsonl

`run` takes patterns and does the jobs one after the other, each on one core, so several processes
may run side by side on the same file; `list` names all jobs. `show` prints the tables.

- `left-out/p100x4/chainmm/0`: a policy pretrained without the group of that workload, on the
  paper's graph.
- `families/fft/0`, `machines/shared-bus/0`: families of graphs, and of machines, of split `test`:
  the gap to `--seconds` of search and to the bound, how often the policy beats the best list
  scheduler, and what `auto` makes with the policy in `AUTO_S` seconds.
- `time/2000/10/0`: the policy, `auto` with it, and search from the policy, from the heuristics and
  from random assignments, ten seconds each, on graphs of about 2,000 vertices.
- `tuning/p100x4/chainmm/0`: `--tune-seconds` of training from the policy and from nothing.

The last number is the seed of the policy. Policies are runs of `dop pretrain` in `--runs`:
`all-0`, or `without-GROUP-0`; one that is not there is trained for `--train-seconds`.

Makespans are simulated. `policy` is the best that placer `doppler` makes, in under a second. Gaps
are above what search found; in `time`, above the best of the methods.
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

from doppler.arrays import IntArray
from doppler.assignment import Assignment
from doppler.errors import DopplerError
from doppler.graph import Graph
from doppler.mdp import make_instance
from doppler.placers import lower_bounds
from doppler.placers.auto import LEARNED_SHARE, AutoPlacer
from doppler.placers.bounds import ROUNDING
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
BUDGETS_S = (1, 10)  # of `time`
SEEDS = 3
AUTO_S = 2.0
STARTS = 12  # the policy's best, from which search begins
NEAR = 0.8  # graphs of `time` have at least this share of their size

Result = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Budgets, and where policies are."""

    runs: Path  # where policies are
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
    every = [
        *((f"left-out/{label}", partial(left_out, label)) for label in SIX),
        *((f"families/{name}", partial(test_family, name)) for name in families),
        *((f"machines/{name}", partial(test_machine, name)) for name in machines),
        *((f"time/{size}/{s}", partial(equal_time, size, s)) for size in SIZES for s in BUDGETS_S),
        *((f"tuning/{label}", partial(tuning, label)) for label in SIX),
    ]
    return [Job(f"{name}/{seed}", work, seed) for seed in range(SEEDS) for name, work in every]


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
    return _search_s(graph, topology, starting_points(graph, topology, 0), seconds, began)


def _search_s(
    graph: Graph, topology: Topology, starts: list[IntArray], seconds: float, began: float
) -> float:
    """What search from there finds in what is left of the seconds."""
    left = max(seconds - (perf_counter() - began), 1e-3)
    return search(graph, topology, starts, SearchConfig(seconds=left, chains=1)).cost_s


def from_policy_s(placer: DopplerPlacer, graph: Graph, topology: Topology, seconds: float) -> float:
    """The same from the policy's best, which is sampled for as long as `auto` does."""
    began = perf_counter()
    instance = make_instance(graph, topology)
    devices, _, makespans = placer.within(LEARNED_SHARE * seconds).propose(instance)
    first = np.argsort(makespans)[:STARTS]
    found_s = _search_s(graph, topology, list(instance.expand(devices[first])), seconds, began)
    return min(found_s, float(makespans.min()))


def from_random_s(graph: Graph, topology: Topology, seconds: float) -> float:
    """The same from random assignments."""
    began, rng = perf_counter(), np.random.default_rng(0)
    starts = rng.integers(topology.num_devices, size=(STARTS, graph.num_vertices))
    return _search_s(graph, topology, list(np.where(graph.is_input, -1, starts)), seconds, began)


def auto_s(placer: DopplerPlacer, graph: Graph, topology: Topology, seconds: float) -> float:
    """What `auto` makes with the policy; infinity where nothing fits into memory."""
    try:
        placed = AutoPlacer(seconds, learned=placer).place(graph, topology)
    except DopplerError:
        return inf
    return makespan_s(graph, topology, placed)


def against(problem: Problem, placer: DopplerPlacer, seconds: float) -> Result:
    """The policy alone against search and list schedulers on one problem."""
    graph, topology = problem.graph, problem.topology
    made_s, took_s = policy_s(placer, graph, topology)
    found = {
        "policy": made_s,
        "search": searched_s(graph, topology, seconds),
        "lists": listed_s(problem),
        "auto": auto_s(placer, graph, topology, AUTO_S),
        "bound": lower_bounds(graph, topology).best_s,
    }
    told = {key: _number(value) for key, value in found.items()}
    return {"graph": graph.name, "topology": topology.name, "inference_s": took_s} | told


def left_out(label: str, settings: Settings, seed: int) -> Result:
    """The paper's graph, by a policy that has seen none of its group."""
    workload = label.partition("/")[2]
    placer = DopplerPlacer.from_path(trained(settings, seed, workload))
    graph, topology = paper_problem(label)
    return against(Problem(graph, topology, workload, seed), placer, settings.seconds)


def trained(settings: Settings, seed: int, without: str | None = None) -> Path:
    """The run of a policy, of one without the group of a workload if that is given."""
    name = "all" if without is None else f"without-{FAMILIES[without].group}"
    path = settings.runs / f"{name}-{seed}"
    if not (path / "config.json").exists():
        base = PRESETS["pretrain"]
        config = replace(base, seconds=settings.train_seconds, seed=seed, threads=1)
        recipe = Recipe(
            problems=settings.problems,
            max_vertices=settings.max_vertices,
            without=() if without is None else (without,),
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
            *(family, machines[i % len(machines)], i),
            max_vertices=max(settings.max_vertices, FAMILIES[family].smallest + 40),
        )
        for i in range(settings.count)
    ]
    return _all_against(drawn, settings, seed)


def test_machine(machine: str, settings: Settings, seed: int) -> Result:
    """Graphs of families that were trained on, on machines that were not."""
    drawn = []
    for i in range(settings.count):
        family = draw_problem("train", i, max_vertices=settings.max_vertices).family
        drawn.append(make_problem(family, machine, i, max_vertices=settings.max_vertices))
    return _all_against(drawn, settings, seed)


def _all_against(drawn: list[Problem], settings: Settings, seed: int) -> Result:
    placer = DopplerPlacer.from_path(trained(settings, seed))
    return {"rows": [against(problem, placer, settings.seconds) for problem in drawn]}


def equal_time(size: int, seconds: float, settings: Settings, seed: int) -> Result:
    """What each method finds in so many seconds."""
    placer, rows = DopplerPlacer.from_path(trained(settings, seed)), []
    for i in range(settings.count):
        problem = draw_problem("test", i, max_vertices=size, min_vertices=round(NEAR * size))
        graph, topology = problem.graph, problem.topology
        found = {
            "policy": policy_s(placer.within(seconds), graph, topology)[0],
            "auto": auto_s(placer, graph, topology, seconds),
            "from policy": from_policy_s(placer, graph, topology, seconds),
            "from heuristics": searched_s(graph, topology, seconds),
            "from random": from_random_s(graph, topology, seconds),
        }
        told = {key: _number(value) for key, value in found.items()}
        rows.append({"graph": graph.name, "topology": topology.name} | told)
    return {"rows": rows}


def tuning(label: str, settings: Settings, seed: int) -> Result:
    """The same seconds of training from the pretrained policy, and from nothing."""
    graph, topology = paper_problem(label)
    path = trained(settings, seed)
    placer = DopplerPlacer.from_path(path)
    found: Result = {"zero": policy_s(placer, graph, topology)[0]}
    base = replace(PRESETS["default"], seconds=settings.tune_seconds, seed=seed, threads=1)
    for name, config, policy in (
        ("tuned", replace(base, stages=("sim",)), starting_policy(path)),
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


def read(paths: list[Path]) -> dict[str, dict[str, list[Result]]]:
    """Results by table and case, seed by seed; of the same job, the last."""
    lines: dict[str, Result] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            result = json.loads(line)
            lines[result["job"]] = result
    found: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for name, result in lines.items():
        table, _, rest = name.partition("/")
        found[table][rest.rpartition("/")[0]].append(result)
    return found


def gaps(rows: list[Result], key: str, others: list[str]) -> list[float]:
    """What a method is above the best of some, on every problem on which it runs."""
    best = [min((row[k] for k in others if row[k] is not None), default=inf) for row in rows]
    pairs = [(row[key], least) for row, least in zip(rows, best, strict=True)]
    return [value / least - 1 for value, least in pairs if value is not None and isfinite(least)]


def spread(values: list[float]) -> str:
    """Mean ± standard deviation over seeds, in percent."""
    if not values:
        return "–"
    return f"{100 * np.mean(values):+.2f} ± {100 * np.std(values):.2f} %"


def over_seeds(
    results: list[Result], key: str, others: list[str], how: Callable[[list[float]], Any]
) -> str:
    """A figure of the gaps of each seed's policy, mean ± standard deviation over seeds."""
    every = [gaps(result.get("rows", [result]), key, others) for result in results]
    return spread([float(how(values)) for values in every if values])


def p95(values: list[float]) -> float:
    """The 95th percentile."""
    return float(np.percentile(values, 95))


def show(paths: list[Path]) -> None:
    """Print every table there are results for."""
    tables = read(paths)
    if tables["left-out"]:
        print("\n### The paper's graphs, by a policy that has seen none of their group\n")
        print("| problem | search, ms | policy | above the bound | best list scheduler | seconds |")
        print("|---|---|---|---|---|---|")
        for label, results in tables["left-out"].items():
            pairs = (("policy", "search"), ("policy", "bound"), ("lists", "search"))
            cells = [over_seeds(results, key, [other], np.mean) for key, other in pairs]
            found_ms = 1e3 * np.mean([r["search"] for r in results])
            took = f"{np.mean([r['inference_s'] for r in results]):.2f}"
            print(f"| `{label}` | {found_ms:.2f} | {' | '.join(cells)} | {took} |")
    for table in ("families", "machines"):
        if tables[table]:
            show_unseen(table, tables[table])
    if tables["time"]:
        show_time(tables["time"])
    if tables["tuning"]:
        print("\n### After the same time of training, from the policy and from nothing\n")
        heads = "| problem | search, ms | as it comes | tuned | from nothing |"
        print(f"{heads}\n|---|---|---|---|---|")
        for label, results in tables["tuning"].items():
            keys = ("zero", "tuned", "scratch")
            cells = [over_seeds(results, key, ["search"], np.mean) for key in keys]
            found_ms = 1e3 * np.mean([r["search"] for r in results])
            print(f"| `{label}` | {found_ms:.2f} | {' | '.join(cells)} |")


def show_unseen(table: str, cases: dict[str, list[Result]]) -> None:
    """The policy against search on families of split `test`, and where a heuristic is better."""
    print(f"\n### Unseen {table}: above search\n")
    heads = ("problems", "out of memory", "mean", "95th percentile", "above the bound")
    print(f"| | {' | '.join(heads)} | beats list schedulers | `auto` does not lose |")
    print("|---|---|---|---|---|---|---|---|")
    every: list[Result] = [{"rows": []} for _ in range(SEEDS)]
    for results in cases.values():
        for together, result in zip(every, results, strict=False):
            together["rows"] += result["rows"]
    for name, results in [*cases.items(), ("all", [e for e in every if e["rows"]])]:
        rows = [row for result in results for row in result["rows"]]
        wins = [(r["policy"] or inf) < (r["lists"] or inf) for r in rows]
        kept = [(r["auto"] or inf) <= (r["lists"] or inf) * (1 + ROUNDING) for r in rows]
        cells = [
            f"{len(results[0]['rows'])}",
            f"{sum(r['policy'] is None for r in rows)}",
            over_seeds(results, "policy", ["search"], np.mean),
            over_seeds(results, "policy", ["search"], p95),
            over_seeds(results, "policy", ["bound"], np.mean),
            f"{100 * np.mean(wins):.0f} %",
            f"{100 * np.mean(kept):.0f} %",
        ]
        print(f"| `{name}` | {' | '.join(cells)} |")
    print("\nWorst against the best list scheduler, with any of the policies:\n")
    worst: dict[tuple[str, str], float] = {}
    for results in cases.values():
        for row in (row for result in results for row in result["rows"]):
            above = gaps([row], "policy", ["lists"])
            if above and above[0] > 0:
                key = row["graph"], row["topology"]
                worst[key] = max(worst.get(key, 0.0), above[0])
    for (graph, topology), above_by in sorted(worst.items(), key=lambda item: -item[1])[:10]:
        print(f"- `{graph}` on `{topology}`: {100 * above_by:+.1f} %")


def show_time(cases: dict[str, list[Result]]) -> None:
    """All methods in the same time, above the best of them."""
    methods = ["policy", "auto", "from policy", "from heuristics", "from random"]
    print("\n### In the same time, above the best of these\n")
    print("| vertices | seconds | method | out of memory | mean | 95th percentile | is the best |")
    print("|---|---|---|---|---|---|---|")
    for name, results in cases.items():
        size, _, seconds = name.partition("/")
        rows = [row for result in results for row in result["rows"]]
        least = [min((row[m] or inf) for m in methods) for row in rows]
        for method in methods:
            failed = sum(row[method] is None for row in rows)
            mean, late = (over_seeds(results, method, methods, how) for how in (np.mean, p95))
            wins = np.mean(
                [(r[method] or inf) == best for r, best in zip(rows, least, strict=True)]
            )
            cells = f"{failed} | {mean} | {late} | {100 * wins:.0f} %"
            print(f"| {size} | {seconds} | {method} | {cells} |")


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("patterns", nargs="+")
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
