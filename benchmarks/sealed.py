r"""How good is a finished policy, on problems that nothing was trained, chosen or tuned on?

    python benchmarks/sealed.py run 'known/*' --results sealed.jsonl --seconds 60
    python benchmarks/sealed.py run 'placed/*' 'time/*' --results sealed.jsonl --policies a b c
    python benchmarks/sealed.py show sealed.jsonl

**Each `run` is a look**: it adds a line to `benchmarks/results/sealed-looks.csv` (when, at which
commit, who, which jobs, which policies), which is to be committed with the results. Development has
the cases `validation/…` instead, which are drawn from the splits that may be looked at, with the
same ratios of communication; a `run` of these alone is no look.

`--policies` are training runs or checkpoints, one for each training seed; without them it is the
policy of the package. Cases are `workflows/1007` (families and machines of
`doppler.datasets.sealed`), `models/bert/4` (a model of the gallery at its published size, whole or
in parts, on a sealed machine; architectures of which no policy has seen a graph),
`hard/llama-layer` (eight devices, communication four times computation) and `validation/7`. Numbers
count from `--first` on, that of the series: the first, from 0 on, was looked at until 19 November
2026, and the workflows of the second, and the machines under its models, had never been drawn. For
every case there are two jobs:

- `known/CASE`: what `--seconds` of search on one core find, the list schedulers, the bound. Where
  `earlier` is there, it is the best of an earlier look.
- `placed/CASE/SEED`: the policy by itself, greedily and as the best of 128 plain samples, on the
  whole machine and on nested parts of it, with a list schedule as its guide; the guide itself;
  placer `doppler` around it; the same placer with nothing learned (random weights and random
  moves), with random weights only, with random moves only, and with random repair only; `auto`;
  `annealing` in the same time, and with random moves. What `doppler` and `auto` took is noted.

`time/2000/10/3/SEED` gives each method ten seconds on a graph of about 2,000 vertices, and
`time/bert-16/10/0/SEED` on a model in 16 parts. Makespans are simulated; gaps are above the best
that any job found.
"""

import argparse
import csv
import getpass
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import cache, lru_cache, partial
from math import inf
from pathlib import Path

import numpy as np
from jobs import Job, Result, part_of, read, run_jobs
from zeroshot import (
    auto_s,
    finite,
    from_policy_s,
    from_random_s,
    p95,
    policy_s,
    searched_s,
)

import doppler as dp
from doppler.base.arrays import IntArray
from doppler.datasets import DrawnProblem, draw_problem
from doppler.datasets.chance import log_uniform
from doppler.datasets.draw import seeded
from doppler.datasets.machines import MOST_DEVICES, SEALED_MACHINES
from doppler.datasets.sealed import SEALED_RATIOS, sealed_problem
from doppler.datasets.sketch import with_ratio
from doppler.mdp.parts import nested_parts
from doppler.mdp.rollout import GREEDY, Roller, Sampling
from doppler.placers import lower_bounds
from doppler.placers.learned.config import NeighbourhoodConfig
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.lists.guides import instance_for, instance_on, listed_best
from doppler.placers.search.annealing import AnnealingPlacer, SearchConfig
from doppler.policies.arrays.acting import play
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.kinds import make_any
from doppler.problem import Problem
from doppler.programs.registry import workload
from doppler.runs.validation_set import listed_s
from doppler.sim import Simulator

LOOKS = Path(__file__).parent / "results" / "sealed-looks.csv"
COLUMNS = ("when", "commit", "who", "jobs", "policies")
OPEN = "validation"  # cases that may be looked at
MODELS = ("bert", "gpt2", "mixtral", "opt", "t5", "vit", "whisper")
PARTS = (1, 4, 16)
HARD = ("llama-block", "llama-layer", "transformer")
HARD_RATIO, HARD_MACHINE = 4.0, "v100x8"
SAMPLES, SAMPLE_SEED = 128, 1
AUTO_S = 1.0
LARGE, BUDGETS_S, NEAR = (2_000, 20_000), (1, 10, 60), 0.8
LARGE_MODELS = (("bert", 16), ("mixtral", 4), ("mixtral", 16))  # of `time`, and their parts
BY_ITSELF = ("greedy", "greedy on parts", "samples", "samples on parts")
AROUND = ("doppler", "untrained", "random policy", "random moves", "random repair")
ROWS = (*BY_ITSELF, "guide", *AROUND, "auto", "annealing", "annealing, random moves", "lists")
METHODS = ("doppler", "auto", "from policy", "from heuristics", "from random")  # of `time`


@dataclass(frozen=True)
class Settings:
    """Budgets, and which policies are judged."""

    policies: tuple[str, ...] = ()
    seconds: float = 60.0  # of search
    count: int = 30  # problems of `workflows` and `validation`
    sized: int = 5  # problems of each size of `time`
    first: int = 1000  # number of the first problem: that of the series


def jobs(settings: Settings) -> list[Job]:
    """All measurements."""
    found, seeds = [], range(max(1, len(settings.policies)))
    for case, make in cases(settings).items():
        found.append(Job(f"known/{case}", partial(known, settings, make)))
        work = partial(placed, settings, make)
        found += [Job(f"placed/{case}/{seed}", work, seed) for seed in seeds]
    for size in LARGE:
        for seconds in BUDGETS_S:
            for i in range(settings.sized):
                make = partial(large_problem, size, settings.first + i)
                work = partial(equal_time, settings, make, seconds)
                found += [Job(f"time/{size}/{seconds}/{i}/{seed}", work, seed) for seed in seeds]
    for name, parts in LARGE_MODELS:
        make = partial(model_problem, name, parts, settings.first + MODELS.index(name))
        for seconds in BUDGETS_S:
            work = partial(equal_time, settings, make, seconds)
            case = f"time/{name}-{parts}/{seconds}/0"
            found += [Job(f"{case}/{seed}", work, seed) for seed in seeds]
    return found


def cases(settings: Settings) -> dict[str, Callable[[], DrawnProblem]]:
    """The problems by their names."""
    found: dict[str, Callable[[], DrawnProblem]] = {}
    first = settings.first
    for number in range(first, first + settings.count):
        found[f"workflows/{number}"] = partial(sealed_problem, number)
    for i, name in enumerate(MODELS):
        for j, parts in enumerate(PARTS):
            found[f"models/{name}/{parts}"] = partial(model_problem, name, parts, first + i + j)
    for name in HARD:
        found[f"hard/{name}"] = partial(hard_problem, name)
    for number in range(settings.count):
        found[f"{OPEN}/{number}"] = partial(open_problem, number)
    return found


@lru_cache(maxsize=1)  # making it takes up to a minute
def model_problem(name: str, parts: int, number: int) -> DrawnProblem:
    """A model of the gallery on a sealed machine that can hold it."""
    from doppler.frontends.models.full_size import make_full_example
    from doppler.frontends.torch_export import from_torch

    module, args, kwargs = make_full_example(name)
    graph = from_torch(module, args, kwargs, parts=parts if parts > 1 else None).graph
    machines = list(SEALED_MACHINES)
    machine = machines[number % len(machines)]
    topology = SEALED_MACHINES[machine].draw(seeded(number, "models", name), MOST_DEVICES)
    return DrawnProblem(graph, replace(topology, name=f"{machine}-{name}"), name, number, machine)


def hard_problem(name: str) -> DrawnProblem:
    """Eight devices where moving a result costs four times as much as making it."""
    graph = dp.shard(workload(name).build(), parts=8)
    topology = with_ratio(graph, dp.Topology.preset(HARD_MACHINE), HARD_RATIO)
    return DrawnProblem(graph, topology, name, 0, HARD_MACHINE)


def open_problem(number: int) -> DrawnProblem:
    """A problem of split `validation`, with the ratios of the sealed ones."""
    drawn = draw_problem(OPEN, number)
    ratio = log_uniform(seeded(number, "ratio"), *SEALED_RATIOS)
    return replace(drawn, topology=with_ratio(drawn.graph, drawn.topology, ratio))


@cache
def placer_of(path: str | None) -> DopplerPlacer:
    """The policy as a placer."""
    return DopplerPlacer() if path is None else DopplerPlacer.from_path(path)


def judged(settings: Settings, seed: int) -> DopplerPlacer:
    """The placer around the policy of a training seed."""
    return placer_of(settings.policies[seed] if settings.policies else None)


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
    about |= {"vertices": len(graph.assigned), "devices": topology.num_devices}
    return about | {key: finite(value) for key, value in found.items()}


def placed(settings: Settings, make: Callable[[], DrawnProblem], seed: int) -> Result:
    """What the policy makes by itself, and what the placers around it do."""
    drawn = make()
    placer, graph, topology = judged(settings, seed), drawn.graph, drawn.topology
    made_s, took_s = policy_s(placer, graph, topology)
    blank, random = make_any(PolicyConfig(), seed), NeighbourhoodConfig(candidates=0)
    variants = (
        DopplerPlacer(blank, search=random),
        DopplerPlacer(blank),
        DopplerPlacer(placer.arrays, search=random),
        DopplerPlacer(blank, search=NeighbourhoodConfig(random_shares=(1.0,))),
    )
    found = {
        **dict(zip(BY_ITSELF, by_itself(placer, drawn), strict=True)),
        "guide": played_s(drawn.problem, listed_best(drawn.problem)[None]),
        "doppler": made_s,
        **{n: policy_s(p, graph, topology)[0] for n, p in zip(AROUND[1:], variants, strict=True)},
        "auto": auto_s(placer, graph, topology, AUTO_S),
        "annealing": annealed_s(drawn, SearchConfig(seconds=AUTO_S)),
        "annealing, random moves": annealed_s(drawn, SearchConfig(seconds=AUTO_S, candidates=0)),
    }
    return {"inference_s": took_s} | {key: finite(value) for key, value in found.items()}


def annealed_s(drawn: DrawnProblem, config: SearchConfig) -> float:
    """What annealing finds, the heuristics that it begins from included."""
    placer = AnnealingPlacer(config)
    return played_s(drawn.problem, placer.place(drawn.problem).devices[None])


def by_itself(placer: DopplerPlacer, drawn: DrawnProblem) -> list[float]:
    """Makespans of the policy's greedy choices and best of its plain samples: no search, no rule.

    On parts it is the best of the greedy choices on all devices, half of them, a quarter and so on,
    and as many samples in all, the same number on each.
    """
    problem = drawn.problem.keeping()
    parts = nested_parts(problem)
    seeds = np.arange(SAMPLES) + SAMPLE_SEED
    few = seeds[: max(SAMPLES // len(parts), 1)]
    whole, *others = (Player(placer, problem, part) for part in parts)
    greedy_s, samples_s = whole.least_s(GREEDY, seeds[:1]), whole.least_s(Sampling(), seeds)
    return [
        greedy_s,
        min([greedy_s, *(each.least_s(GREEDY, seeds[:1]) for each in others)]),
        samples_s,
        min(each.least_s(Sampling(), few) for each in (whole, *others)),
    ]


class Player:
    """Episodes of a policy on some of the devices of a problem."""

    def __init__(self, placer: DopplerPlacer, problem: Problem, part: IntArray) -> None:
        is_whole = len(part) == problem.topology.num_devices
        self.problem, self.part, self.config = problem, part, placer.config
        self.instance = (
            instance_for(placer.config, problem)
            if is_whole
            else instance_on(placer.config, problem, part)
        )
        self.roller, self.weights = Roller(self.instance), placer.arrays.on(self.instance)

    def least_s(self, sampling: Sampling, seeds: IntArray) -> float:
        """The least makespan of an episode for each seed."""
        played = play(self.roller, self.weights, self.config, sampling, seeds, record=False)
        return played_s(self.problem, self.instance.expand(self.part[played.devices]))


def played_s(problem: Problem, table: IntArray) -> float:
    """The least makespan of (K, V) assignments."""
    return float(Simulator(problem).makespans(problem.graph, table).min())


def large_problem(size: int, number: int) -> DrawnProblem:
    """A sealed problem of nearly that number of vertices."""
    return sealed_problem(number, min_vertices=round(NEAR * size), max_vertices=size)


def equal_time(
    settings: Settings, make: Callable[[], DrawnProblem], seconds: float, seed: int
) -> Result:
    """What each method finds in the same time."""
    drawn = make()
    placer, graph, topology = judged(settings, seed), drawn.graph, drawn.topology
    found = {
        "doppler": policy_s(placer, graph, topology, seconds)[0],
        "auto": auto_s(placer, graph, topology, seconds),
        "from policy": from_policy_s(placer, graph, topology, seconds),
        "from heuristics": searched_s(graph, topology, seconds),
        "from random": from_random_s(graph, topology, seconds),
    }
    about: Result = {"graph": graph.name, "topology": topology.name}
    about |= {"vertices": len(graph.assigned), "devices": topology.num_devices}
    return about | {key: finite(value) for key, value in found.items()}


def note_look(wanted: list[str], policies: Iterable[str], log: Path) -> None:
    """Add a line to the log of looks."""
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = subprocess.run(
        [*git, "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    is_new = not log.exists()
    with log.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        when = datetime.now(UTC).isoformat(timespec="minutes")
        named = " ".join(Path(each).name for each in policies) or "shipped"
        row = (when, commit.stdout.strip() or "unknown", getpass.getuser(), len(wanted), named)
        writer.writerow(row)


def sealed_jobs(every: Iterable[Job], patterns: Iterable[str], results: Path) -> list[str]:
    """Jobs that match, have no result yet, and are on sealed problems."""
    done = read([results]) if results.exists() else {}
    patterns = list(patterns)
    return [
        job.name
        for job in every
        if any(fnmatch(job.name, pattern) for pattern in patterns)
        and job.name not in done
        and job.name.split("/")[1] != OPEN
    ]


def show(paths: list[Path], log: Path) -> None:
    """All tables, and how often was looked."""
    results = read(paths)
    best = best_known(results)
    groups: dict[str, dict[int, list[Result]]] = {}
    for name, result in results.items():
        kind, _, rest = name.partition("/")
        case, _, seed = rest.rpartition("/")
        about = results.get(f"known/{case}")
        if kind == "placed" and about is not None:
            row = about | result | {"best": best[case]}
            groups.setdefault(case.partition("/")[0], {}).setdefault(int(seed), []).append(row)
    for group, by_seed in groups.items():
        show_group(group, list(by_seed.values()))
    show_time(results)
    looks = list(csv.reader(log.open())) if log.exists() else []
    print(f"\nThe sealed problems were looked at {max(0, len(looks) - 1)} times.")


def best_known(results: dict[str, Result]) -> dict[str, float]:
    """The least makespan of each case, of any method and policy."""
    best: dict[str, float] = {}
    for name, result in results.items():
        kind, _, case = name.partition("/")
        if kind in ("known", "placed"):
            case = case if kind == "known" else case.rpartition("/")[0]
            made = (result.get(key) or inf for key in ("search", "earlier", *ROWS))
            best[case] = min(best.get(case, inf), *made)
    return best


def show_group(group: str, seeds: list[list[Result]]) -> None:
    """A row for each method: above the best known, over policies."""
    first = seeds[0]
    few = f"{len(first)} problems, {len(seeds)} training seeds"
    print(f"\n### `{group}`: {few}, above the best known\n")
    print("| method | mean | median | 95th percentile | above the bound | out of memory |")
    print("|---|---:|---:|---:|---:|---:|")
    for method in ("search", *ROWS):
        gaps = [[row[method] / row["best"] - 1 for row in rows if row[method]] for rows in seeds]
        bounds = [[row[method] / row["bound"] - 1 for row in rows if row[method]] for rows in seeds]
        failed = sum(row[method] is None for rows in seeds for row in rows)
        cells = [_spread(gaps, how) for how in (np.mean, np.median, p95)]
        cells += [_spread(bounds, np.mean), f"{failed} of {sum(map(len, seeds))}"]
        print(f"| {method} | {' | '.join(cells)} |")


def _spread(seeds: list[list[float]], how: Callable[..., float]) -> str:
    """A figure of each seed's gaps, in per cent: mean, and standard deviation over several."""
    values = [100 * float(how(gaps)) for gaps in seeds if gaps]
    if not values:
        return "–"
    several = f" ± {np.std(values):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{several} %"


def show_time(results: dict[str, Result]) -> None:
    """All methods in the same time, above the best of them."""
    found: dict[str, dict[str, list[Result]]] = {}
    for name, result in results.items():
        kind, *case = name.split("/")
        if kind == "time":
            found.setdefault(" | ".join(case[:2]), {}).setdefault(case[3], []).append(result)
    if not found:
        return
    print("\n### In the same time, above the best of these\n")
    print(f"| vertices | seconds | problems | {' | '.join(METHODS)} |")
    print("|---:|---:|---:|" + "---:|" * len(METHODS))
    for case, by_seed in found.items():
        cells = []
        for method in METHODS:
            gaps = [
                [
                    row[method] / min(row[m] or inf for m in METHODS) - 1
                    for row in rows
                    if row[method]
                ]
                for rows in by_seed.values()
            ]
            cells.append(_spread(gaps, np.mean))
        print(f"| {case} | {len(next(iter(by_seed.values())))} | {' | '.join(cells)} |")


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--log", type=Path, default=LOOKS, help="where looks are noted")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="do the jobs that match")
    running.add_argument("patterns", nargs="+")
    running.add_argument("--results", type=Path, required=True)
    running.add_argument("--part", type=part_of, default=(0, 1), metavar="K/N")
    running.add_argument("--policies", nargs="*", default=())
    for name in ("seconds", "count", "sized"):
        value = getattr(Settings(), name)
        running.add_argument(f"--{name}", type=type(value), default=value)
    commands.add_parser("list", help="the names of all jobs")
    commands.add_parser("show", help="print the tables").add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "show":
        show(options.files, options.log)
        return
    if options.command == "list":
        print("\n".join(job.name for job in jobs(Settings())))
        return
    settings = Settings(tuple(options.policies), options.seconds, options.count, options.sized)
    every = jobs(settings)
    if wanted := sealed_jobs(every, options.patterns, options.results):
        note_look(wanted, settings.policies, options.log)
    run_jobs(
        every, options.patterns, lambda job: job.work(seed=job.seed), options.results, options.part
    )


if __name__ == "__main__":
    main()
