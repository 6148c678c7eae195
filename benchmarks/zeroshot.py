"""What does a pretrained policy do with graphs and machines it has not seen?

Every measurement is a job that appends a line to a file of results:

    python benchmarks/zeroshot.py run 'train/*' --train-seconds 1200
    python benchmarks/zeroshot.py run 'known/*' 'families/*' 'machines/*' --results zeroshot.jsonl
    python benchmarks/zeroshot.py show zeroshot.jsonl

`run` takes patterns and does the jobs one after the other, each on one core, and leaves out those
that are in its file already; `--part 0/16` does every sixteenth, so that sixteen processes share
them out. `list` names all jobs, `show` prints the tables. `benchmarks/results/zeroshot.jsonl` is
what we measured.

- `train/all/0`, `train/without-transformer/0`: the policies, runs of `dop pretrain` in `--runs`.
  All other jobs that end with a seed need them.
- `known/CASE`: what `--seconds` of search, the list schedulers and the bounds say of a problem.
  Where there are several results for the same problem, `show` takes the best search.
- `left-out/p100x4-first-fit/chainmm/0`: the paper's graph, by a policy pretrained without its
  group.
- `families/fft/3/0`, `machines/shared-bus/3/0`: graphs of a family, and graphs on machines of a
  family, of split `test`; `3` is one of `--count` problems.
- `time/2000/10/3/0`: the policy, `auto` with it and search from it, ten seconds each, on a graph of
  about 2,000 vertices; `plain/2000/10/3`: search from the heuristics and from random assignments.
- `tuning/p100x4-first-fit/chainmm/0`: `--tune-seconds` of training from the policy, and from
  nothing.

Makespans are simulated seconds. `policy` is the best that placer `doppler` makes, in about a second
or less; `untrained` the same with a policy of random weights; `auto` has `AUTO_S` seconds. Gaps are
above what search found; in `time`, above the best of the methods.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf, isfinite
from pathlib import Path
from time import perf_counter

import numpy as np
from jobs import Job, Result, lines, part_of, read, run_jobs
from placers import LONG as SIX
from placers import problem as paper_problem

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.datasets import FAMILIES, MACHINES, DrawnProblem, draw_problem, make_problem
from doppler.datasets.recipe import Recipe
from doppler.errors import DopplerError
from doppler.graph import Graph
from doppler.mdp import make_instance
from doppler.placers import lower_bounds
from doppler.placers.auto import AutoPlacer
from doppler.placers.bounds.lower import ROUNDING
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.search.annealing import SearchConfig, search, starting_points
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.kinds import make_any
from doppler.problem import Problem
from doppler.runs.run import resume_run, start_run
from doppler.runs.validation_set import listed_s
from doppler.sim import Simulator
from doppler.topology import Topology
from doppler.training.api import pretraining, starting_policy
from doppler.training.presets import PRESETS
from doppler.training.trainer import Trainer

SIZES = (200, 2_000, 20_000)
BUDGETS_S = (1, 10)  # of `time`
SEEDS = 3
AUTO_S = 1.0
POLICY_SHARE = 0.25  # of the time of search from the policy's best
POLICY_S: float | None = None  # of the policy alone, unless it is given less; None: its own
STARTS = 12  # the policy's best, from which search begins
NEAR = 0.8  # graphs of `time` have at least this share of their size
METHODS = ("policy", "auto", "from policy", "from heuristics", "from random")  # of `time`
WORST = 10  # problems that are named

Rows = list[Result]  # of the problems of a table, placed by one policy


@dataclass(frozen=True)
class Settings:
    """Budgets, and where policies are."""

    runs: Path = Path("runs")
    seconds: float = 60.0  # of search
    train_seconds: float = 1200.0
    tune_seconds: float = 60.0
    count: int = 14  # problems of a family, or a machine
    sized: int = 8  # problems of a size
    problems: int = 512  # that a policy is trained on
    max_vertices: int = 300


def jobs(settings: Settings) -> list[Job]:
    """All measurements, those first that others need."""
    found, seeds = [], range(SEEDS)
    without = {FAMILIES[_workload(label)].group: _workload(label) for label in SIX}
    for seed in seeds:
        found.append(Job(f"train/all/{seed}", partial(train, settings, ()), seed))
        for group, family in without.items():
            name = f"train/without-{group}/{seed}"
            found.append(Job(name, partial(train, settings, (family,)), seed))
    every = cases(settings)
    found += [Job(f"known/{case}", partial(known, settings, make)) for case, make in every.items()]
    for seed in seeds:
        found += [
            Job(f"{case}/{seed}", partial(placed, settings, case, make), seed)
            for case, make in every.items()
        ]
    for size in reversed(SIZES):
        for seconds in BUDGETS_S:
            for i in range(settings.sized):
                case = f"{size}/{seconds}/{i}"
                found.append(Job(f"plain/{case}", partial(plain_time, size, seconds, i)))
                work = partial(equal_time, settings, size, seconds, i)
                found += [Job(f"time/{case}/{seed}", work, seed) for seed in seeds]
    for label in SIX:
        work = partial(tuning, settings, label)
        found += [Job(f"tuning/{label}/{seed}", work, seed) for seed in seeds]
    return found


def cases(settings: Settings) -> dict[str, Callable[[], DrawnProblem]]:
    """The problems to place: `left-out/…`, `families/…/3`, `machines/…/3`."""
    found: dict[str, Callable[[], DrawnProblem]] = {}
    for label in SIX:
        found[f"left-out/{label}"] = partial(_paper, label)
    machines = list(MACHINES)
    for name, family in FAMILIES.items():
        if family.split == "test":  # on machines of every split
            room = max(settings.max_vertices, family.smallest + 40)
            for i in range(settings.count):
                machine = machines[i % len(machines)]
                make = partial(make_problem, name, machine, i, max_vertices=room)
                found[f"families/{name}/{i}"] = make
    for name, machine in MACHINES.items():
        if machine.split == "test":  # with families that were trained on
            for i in range(settings.count):
                found[f"machines/{name}/{i}"] = partial(_on_machine, name, i, settings.max_vertices)
    return found


def _workload(label: str) -> str:
    return label.partition("/")[2]


def _paper(label: str) -> DrawnProblem:
    graph, topology = paper_problem(label)
    return DrawnProblem(graph, topology, _workload(label), 0)


def _on_machine(machine: str, seed: int, max_vertices: int) -> DrawnProblem:
    family = draw_problem("train", seed, max_vertices=max_vertices).family
    return make_problem(family, machine, seed, max_vertices=max_vertices)


def train(settings: Settings, without: tuple[str, ...], seed: int) -> Result:
    """A policy, as `dop pretrain` makes it; one that was begun is resumed."""
    path = _run_of(settings, seed, *without)
    if not (path / "config.json").exists():
        config = replace(PRESETS["pretrain"], seconds=settings.train_seconds, seed=seed, threads=1)
        recipe = Recipe(
            problems=settings.problems,
            max_vertices=settings.max_vertices,
            without=without,
            seed=seed,
            validation=0,
        )
        start_run(pretraining(recipe, config), path).close()
    with resume_run(path) as run:
        for _ in run:
            pass
        return {"updates": run.trainer.update, "train_s": run.trainer.seconds}


def _run_of(settings: Settings, seed: int, without: str | None = None) -> Path:
    name = "all" if without is None else f"without-{FAMILIES[without].group}"
    return settings.runs / f"{name}-{seed}"


@cache
def placer_of(run: Path) -> DopplerPlacer:
    """The policy of a run as a placer that has been used before, so that all is compiled."""
    if not run.is_dir():
        raise SystemExit(f"there is no policy in {run}: do the jobs 'train/*' first")
    placer = DopplerPlacer.from_path(run)
    placer.place(Problem(*paper_problem("p100x4-first-fit/chainmm")), budget_s=POLICY_S)
    return placer


@cache
def untrained(seed: int) -> DopplerPlacer:
    """A policy that has learned nothing as a placer: what is left is the placer's doing."""
    return DopplerPlacer(make_any(PolicyConfig(), seed))


def makespan_s(graph: Graph, topology: Topology, assignment: Assignment) -> float:
    """Simulated seconds; infinity where it runs out of memory."""
    return float(Simulator(topology).makespans(graph, [assignment])[0])


def policy_s(
    placer: DopplerPlacer, graph: Graph, topology: Topology, budget_s: float | None = None
) -> tuple[float, float]:
    """The makespan of the policy alone, and the seconds it took to place."""
    began = perf_counter()
    assignment = placer.place(Problem(graph, topology), seed=1, budget_s=budget_s or POLICY_S)
    took_s = perf_counter() - began
    return makespan_s(graph, topology, assignment), took_s


def searched_s(graph: Graph, topology: Topology, seconds: float) -> float:
    """The makespan that `seconds` of search on one core find, heuristics included."""
    began = perf_counter()
    return _search_s(graph, topology, starting_points(Problem(graph, topology), 0), seconds, began)


def _search_s(
    graph: Graph, topology: Topology, starts: list[IntArray], seconds: float, began: float
) -> float:
    """What search from there finds in what is left of the seconds."""
    left = max(seconds - (perf_counter() - began), 1e-3)
    return search(Problem(graph, topology), starts, SearchConfig(seconds=left, chains=1)).cost_s


def from_policy_s(placer: DopplerPlacer, graph: Graph, topology: Topology, seconds: float) -> float:
    """The same from the policy's best, which is sampled for a share of the time."""
    began = perf_counter()
    instance = make_instance(Problem(graph, topology))
    devices, _, makespans = placer.propose(instance, budget_s=POLICY_SHARE * seconds)
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
        assignment = AutoPlacer(seconds, learned=placer).place(Problem(graph, topology))
    except DopplerError:
        return inf
    return makespan_s(graph, topology, assignment)


def known(settings: Settings, make: Callable[[], DrawnProblem], seed: int) -> Result:
    """What is known of a problem without a policy."""
    problem = make()
    graph, topology = problem.graph, problem.topology
    found = {
        "search": searched_s(graph, topology, settings.seconds),
        "lists": listed_s(problem.problem, seed),
        "bound": lower_bounds(graph, topology).best_s,
    }
    about = {"graph": graph.name, "topology": topology.name, "search_s": settings.seconds}
    return about | {key: finite(value) for key, value in found.items()}


def placed(settings: Settings, case: str, make: Callable[[], DrawnProblem], seed: int) -> Result:
    """What the policy alone makes of a problem, and `auto` with it."""
    problem = make()
    left_out = (problem.family,) if case.startswith("left-out/") else ()
    placer = placer_of(_run_of(settings, seed, *left_out))
    made_s, took_s = policy_s(placer, problem.graph, problem.topology)
    with_it_s = auto_s(placer, problem.graph, problem.topology, AUTO_S)
    guess_s, _ = policy_s(untrained(seed), problem.graph, problem.topology)
    found = {"policy": made_s, "auto": with_it_s, "untrained": guess_s}
    return {"inference_s": took_s} | {key: finite(value) for key, value in found.items()}


def _of_size(size: int, number: int) -> tuple[Graph, Topology]:
    least = round(NEAR * size)
    problem = draw_problem("test", number, max_vertices=size, min_vertices=least)
    return problem.graph, problem.topology


def plain_time(size: int, seconds: float, number: int, seed: int) -> Result:
    """What search without a policy finds within the budget."""
    del seed
    graph, topology = _of_size(size, number)
    found = {
        "from heuristics": searched_s(graph, topology, seconds),
        "from random": from_random_s(graph, topology, seconds),
    }
    about = {"graph": graph.name, "topology": topology.name}
    return about | {key: finite(value) for key, value in found.items()}


def equal_time(settings: Settings, size: int, seconds: float, number: int, seed: int) -> Result:
    """What a policy finds within the budget, and what search does with it."""
    graph, topology = _of_size(size, number)
    placer = placer_of(_run_of(settings, seed))
    found = {
        "policy": policy_s(placer, graph, topology, seconds)[0],
        "auto": auto_s(placer, graph, topology, seconds),
        "from policy": from_policy_s(placer, graph, topology, seconds),
    }
    return {key: finite(value) for key, value in found.items()}


def tuning(settings: Settings, label: str, seed: int) -> Result:
    """The same seconds of training from the pretrained policy, and from nothing."""
    graph, topology = paper_problem(label)
    path = _run_of(settings, seed)
    found: Result = {"zero": policy_s(placer_of(path), graph, topology)[0]}
    base = replace(PRESETS["default"], seconds=settings.tune_seconds, seed=seed, threads=1)
    for name, config, policy in (
        ("tuned", replace(base, stages=("sim",)), starting_policy(path)),
        ("scratch", base.with_stages(from_nothing=True), None),
    ):
        trainer = Trainer([(graph, topology)], config, policy=policy)
        for _ in trainer.run():
            pass
        found[name] = policy_s(DopplerPlacer(trainer.policy), graph, topology)[0]
        found[f"{name} run"] = trainer.records[0].best_s
    return {key: finite(value) for key, value in found.items()}


def finite(value: float) -> float | None:
    """The value, or None where it is infinite: JSON has no infinity."""
    return float(value) if isfinite(value) else None


def best_known(paths: list[Path]) -> dict[str, Result]:
    """Of all that the files know of each problem, what the best search found."""
    found: dict[str, Result] = {}
    for result in lines(paths):
        name, best = result["job"], found.get(result["job"], {"search": None})
        if name.startswith("known/") and (result["search"] or inf) <= (best["search"] or inf):
            found[name] = result
    return found


def by_case(results: dict[str, Result], table: str) -> dict[str, list[Rows]]:
    """By family, machine or graph: the rows of each seed's policy, with what is known of them."""
    found: dict[str, list[Rows]] = defaultdict(lambda: [[] for _ in range(SEEDS)])
    for name, result in results.items():
        kind, _, rest = name.partition("/")
        case, _, seed = rest.rpartition("/")
        about = results.get(f"known/{kind}/{case}")
        if kind == table and about is not None:
            label = case if table == "left-out" else case.rpartition("/")[0]
            found[label][int(seed)].append(about | result)
    return {label: [rows for rows in seeds if rows] for label, seeds in found.items()}


def gaps(rows: Rows, key: str, others: Iterable[str]) -> list[float]:
    """What a method is above the best of some, on every problem on which it runs."""
    best = [min((row[k] for k in others if row[k] is not None), default=inf) for row in rows]
    pairs = [(row[key], least) for row, least in zip(rows, best, strict=True)]
    return [value / least - 1 for value, least in pairs if value is not None and isfinite(least)]


def over_seeds(
    seeds: list[Rows],
    key: str,
    others: Iterable[str],
    how: Callable[[list[float]], float] = np.mean,
) -> str:
    """A figure of the gaps of each seed's policy: mean ± standard deviation over several seeds."""
    every = [gaps(rows, key, list(others)) for rows in seeds]
    values = [float(how(found)) for found in every if found]
    if not values:
        return "–"
    if len(values) == 1:
        return f"{100 * values[0]:+.2f} %"
    return f"{100 * np.mean(values):+.2f} ± {100 * np.std(values):.2f} %"


def p95(values: list[float]) -> float:
    """The 95th percentile."""
    return float(np.percentile(values, 95))


def share(values: Iterable[bool]) -> str:
    """How many of them, in percent."""
    return f"{100 * np.mean(list(values)):.1f} %"


def show(paths: list[Path]) -> None:
    """Print every table there are results for."""
    results = read(paths) | best_known(paths)
    if table := by_case(results, "left-out"):
        show_left_out(table)
    unseen = {name: by_case(results, name) for name in ("families", "machines")}
    if any(unseen.values()):
        show_unseen({name: table for name, table in unseen.items() if table})
    if any(name.startswith("time/") for name in results):
        show_time(results)
    if any(name.startswith("tuning/") for name in results):
        show_tuning(results)


def show_left_out(table: dict[str, list[Rows]]) -> None:
    """Graph by graph."""
    print("\n### The paper's graphs, by a policy that has seen none of their group\n")
    heads = (
        *("policy", "seconds", "above the bound", "untrained"),
        *(f"`auto`, {AUTO_S:g} s", "best list scheduler"),
    )
    print(f"| problem | search, ms | {' | '.join(heads)} |\n|---|---|{'---|' * len(heads)}")
    for label, seeds in table.items():
        rows = [row for rows in seeds for row in rows]
        cells = [
            over_seeds(seeds, "policy", ["search"]),
            f"{np.mean([row['inference_s'] for row in rows]):.2f}",
            over_seeds(seeds, "policy", ["bound"]),
            *(over_seeds(seeds, key, ["search"]) for key in ("untrained", "auto", "lists")),
        ]
        print(f"| `{label}` | {1e3 * rows[0]['search']:.2f} | {' | '.join(cells)} |")
    for machine in sorted({label.partition("/")[0] for label in table}):
        some = [seeds for label, seeds in table.items() if label.startswith(f"{machine}/")]
        rows = [[row for rows in column for row in rows] for column in zip(*some, strict=False)]
        means = [over_seeds(rows, key, ["search"]) for key in ("policy", "untrained", "auto")]
        print(f"| all of `{machine}` | | {means[0]} | | | {means[1]} | {means[2]} | |")


def by_seed(tables: Iterable[list[Rows]]) -> list[Rows]:
    """All rows of each seed."""
    return [[row for rows in column for row in rows] for column in zip(*tables, strict=True)]


def show_unseen(tables: dict[str, dict[str, list[Rows]]]) -> None:
    """The policy against search on problems of split `test`, and where a heuristic is better."""
    print(f"\n### Unseen {' and '.join(tables)}: above search\n")
    heads = (
        *("problems", "out of memory", "mean", "median", "95th percentile", "above the bound"),
        *("seconds", "untrained, mean", "95th percentile"),
        *(f"`auto`, {AUTO_S:g} s, mean", "95th percentile", "best list scheduler, mean"),
        *("beats list schedulers", "loses to one", "`auto` loses to one"),
    )
    print(f"| | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    every = {name: by_seed(table.values()) for name, table in tables.items()}
    lines: dict[str, list[Rows]] = {}
    for name, table in tables.items():
        lines |= {f"`{label}`": seeds for label, seeds in table.items()}
        lines[f"all {name}"] = every[name]
    if len(every) > 1:
        lines["all"] = by_seed(every.values())
    for label, seeds in lines.items():
        rows = [row for rows in seeds for row in rows]
        against = [(row["policy"] or inf, row["auto"] or inf, row["lists"] or inf) for row in rows]
        cells = [
            f"{len(seeds[0])}",
            f"{sum(row['policy'] is None for row in rows)} of {len(rows)}",
            *(over_seeds(seeds, "policy", ["search"], how) for how in (np.mean, np.median, p95)),
            over_seeds(seeds, "policy", ["bound"]),
            f"{np.mean([row['inference_s'] for row in rows]):.2f}",
            *(over_seeds(seeds, "untrained", ["search"], how) for how in (np.mean, p95)),
            *(over_seeds(seeds, "auto", ["search"], how) for how in (np.mean, p95)),
            over_seeds(seeds, "lists", ["search"]),
            share(policy < lists * (1 - ROUNDING) for policy, _, lists in against),
            share(policy > lists * (1 + ROUNDING) for policy, _, lists in against),
            share(auto > lists * (1 + ROUNDING) for _, auto, lists in against),
        ]
        print(f"| {label} | {' | '.join(cells)} |")
    for other in ("lists", "search"):
        print(f"\nWorst against `{other}`, with any of the policies:\n")
        worst: dict[str, float] = {}
        for rows in (rows for seeds in every.values() for rows in seeds):
            for row in rows:
                key = f"`{row['graph']}` on `{row['topology']}`"
                above = gaps([row], "policy", [other])
                worst[key] = max([worst.get(key, 0.0), *above])
                if row["policy"] is None and row[other] is not None:
                    worst[key] = inf
        for key, above_by in sorted(worst.items(), key=lambda item: -item[1])[:WORST]:
            if above_by > ROUNDING:
                shown = f"{100 * above_by:+.1f} %" if isfinite(above_by) else "out of memory"
                print(f"- {key}: {shown}")


def show_time(results: dict[str, Result]) -> None:
    """All methods in the same time, above the best of them."""
    print("\n### In the same time, above the best of these\n")
    print("| vertices | seconds | method | out of memory | mean | 95th percentile | is the best |")
    print("|---|---|---|---|---|---|---|")
    found: dict[str, list[Rows]] = defaultdict(lambda: [[] for _ in range(SEEDS)])
    for name, result in results.items():
        kind, _, rest = name.partition("/")
        case, _, seed = rest.rpartition("/")
        plain = results.get(f"plain/{case}")
        if kind == "time" and plain is not None:
            found[case.rpartition("/")[0]][int(seed)].append(plain | result)
    for case, by_seed in sorted(
        found.items(), key=lambda item: [float(n) for n in item[0].split("/")]
    ):
        seeds = [rows for rows in by_seed if rows]
        rows = [row for rows in seeds for row in rows]
        least = [min((row[method] or inf) for method in METHODS) for row in rows]
        for method in METHODS:
            pairs = zip(rows, least, strict=True)
            cells = [
                f"{sum(row[method] is None for row in rows)} of {len(rows)}",
                *(over_seeds(seeds, method, METHODS, how) for how in (np.mean, p95)),
                share((row[method] or inf) <= best * (1 + ROUNDING) for row, best in pairs),
            ]
            print(f"| {case.replace('/', ' | ')} | {method} | {' | '.join(cells)} |")


def show_tuning(results: dict[str, Result]) -> None:
    """Graph by graph."""
    print("\n### After the same time of training, from the policy and from nothing\n")
    print("| problem | as it comes | tuned | best of its run | from nothing | best of its run |")
    print("|---|---|---|---|---|---|")
    for label in SIX:
        about = results.get(f"known/left-out/{label}")
        named = [results.get(f"tuning/{label}/{seed}") for seed in range(SEEDS)]
        seeds = [[about | result] for result in named if result is not None and about is not None]
        if seeds:
            keys = ("zero", "tuned", "tuned run", "scratch", "scratch run")
            cells = [over_seeds(seeds, key, ["search"]) for key in keys]
            print(f"| `{label}` | {' | '.join(cells)} |")


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="do the jobs that match")
    running.add_argument("patterns", nargs="+")
    running.add_argument("--results", type=Path, default=Path("zeroshot.jsonl"))
    running.add_argument("--part", type=part_of, default=(0, 1), metavar="K/N")
    for name, value in vars(Settings()).items():
        running.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    commands.add_parser("list", help="the names of all jobs")
    commands.add_parser("show", help="print the tables").add_argument("files", type=Path, nargs="+")
    options = vars(parser.parse_args())
    command = options.pop("command")
    if command == "run":
        patterns, results, part = (options.pop(key) for key in ("patterns", "results", "part"))
        every = jobs(Settings(**options))
        run_jobs(every, patterns, lambda job: job.work(seed=job.seed), results, part)
    elif command == "list":
        print("\n".join(job.name for job in jobs(Settings())))
    else:
        show(options["files"])


if __name__ == "__main__":
    main()
