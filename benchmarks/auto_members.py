"""Does `auto` spend its budget well? It, and every single method, in the same time.

    python benchmarks/auto_members.py run '*/train/*' --results auto-members.jsonl
    python benchmarks/auto_members.py show benchmarks/results/auto-members.jsonl

Jobs are `METHOD/SPLIT/VERTICES/SECONDS/NUMBER`: `auto/validation/2000/1/3` gives `auto` one second
on the fourth problem of split `validation` with about 2,000 vertices. Split `train` is for tuning,
`validation` for judging; no other problems are drawn. Machines have 2 to 64 devices, and the ratio
of communication to computation is between 0.01 and 100.

Every job has one core to itself, and budgets are **seconds of the processor**: the clock of all
placers is replaced, so that other work on the machine does not count. What a method took is noted.
`--label` gives the results of `auto` another name, to compare two versions of it.

- `auto`, `doppler`, `annealing`, `genetic`, `metis`, `hypergraph`: the placers. `annealing` begins
  from the heuristics.
- `from policy`: a quarter of the time for the samples of `doppler`, then search from the best 12.
- `lists`: the best of all list schedulers, however long they take.

`benchmarks/results/auto-members.jsonl` is what we measured in November 2026 on split
`validation`, which was looked at eight times before that.
"""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from time import process_time

import numpy as np
from jobs import Job, Result, read, run_jobs

from doppler.datasets import DrawnProblem, draw_problem
from doppler.errors import DopplerError
from doppler.mdp import make_instance
from doppler.placers.auto import AutoPlacer
from doppler.placers.auto_config import AutoConfig
from doppler.placers.bounds.lower import ROUNDING
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.registry import make_placer
from doppler.placers.search.annealing import SearchConfig, search
from doppler.placers.warm_up import warm_up
from doppler.problem import Problem
from doppler.runs.validation_set import listed_s
from doppler.sim import Simulator

SPLITS = ("train", "validation")
BUDGETS_S = {50: (0.5, 1, 5), 200: (0.5, 1, 5), 1000: (0.5, 1, 5), 2000: (0.5, 1, 5), 20000: (1, 5)}
NEAR = 0.8  # graphs have at least this share of their size
RATIOS = (0.01, 100.0)
MAX_DEVICES = (16, 64)  # in turn
FIRST = {"train": 2000, "validation": 0}  # seed of the first problem
COUNT = 5  # problems of each size
LONG_S, LONG_COUNT = 2.0, 3  # with longer budgets than that, fewer problems
SINGLE = ("doppler", "from policy", "annealing")
AT_ONE_SECOND = ("metis", "hypergraph", "genetic")  # never the best on average: measured once
POLICY_SHARE, STARTS = 0.25, 12  # of `from policy`


def jobs() -> list[Job]:
    """All measurements, those of a problem one after the other."""
    found = []
    for split in SPLITS:
        for size, budgets_s in BUDGETS_S.items():
            for number in range(COUNT):
                make = partial(problem_of, split, size, number)
                case = f"{split}/{size}"
                found.append(Job(f"lists/{case}/0/{number}", partial(lists, make)))
                for seconds in budgets_s:
                    methods = ["auto", *SINGLE, *(AT_ONE_SECOND if seconds == 1 else ())]
                    if seconds <= LONG_S or number < LONG_COUNT:
                        found += [
                            Job(f"{method}/{case}/{seconds}/{number}", partial(*how))
                            for method in methods
                            for how in [(measured, make, method, seconds)]
                        ]
    return found


def problem_of(split: str, size: int, number: int) -> DrawnProblem:
    """A problem of about that size, on up to 16 and up to 64 devices in turn."""
    return draw_problem(
        split,
        FIRST[split] + number,
        min_vertices=round(NEAR * size),
        max_vertices=size,
        max_devices=MAX_DEVICES[number % len(MAX_DEVICES)],
        ratios=RATIOS,
    )


def measured(make: Callable[[], DrawnProblem], method: str, seconds: float, seed: int) -> Result:
    """What a method finds in the time; None where nothing fits into memory."""
    drawn = make()
    problem, began = Problem(drawn.graph, drawn.topology), process_time()
    try:
        devices = METHODS[method](problem, seconds, seed)
    except DopplerError:
        devices = None
    took_s = process_time() - began
    if devices is None:
        return about(drawn) | {"took_s": took_s, "makespan_s": None}
    made_s = float(Simulator(problem).makespans(problem.graph, devices[None])[0])
    return about(drawn) | {"took_s": took_s, "makespan_s": made_s if made_s < inf else None}


def lists(make: Callable[[], DrawnProblem], seed: int) -> Result:
    """The best of the list schedulers."""
    drawn = make()
    began = process_time()
    made_s = listed_s(drawn.problem, seed)
    took_s = process_time() - began
    return about(drawn) | {"took_s": took_s, "makespan_s": made_s if made_s < inf else None}


def about(drawn: DrawnProblem) -> Result:
    """What a problem is."""
    count = drawn.topology.num_devices
    return {"graph": drawn.graph.name, "topology": drawn.topology.name, "devices": count}


def from_policy(problem: Problem, seconds: float, seed: int) -> np.ndarray:
    """(V,) what search finds from the policy's best."""
    began, instance = process_time(), make_instance(problem)
    devices, _, makespans = DopplerPlacer().propose(
        instance, seed=seed, budget_s=POLICY_SHARE * seconds
    )
    starts = list(instance.expand(devices[np.argsort(makespans)[:STARTS]]))
    left = max(seconds - (process_time() - began), 1e-3)
    found = search(problem, starts, SearchConfig(seconds=left, chains=1), seed=seed)
    return found.devices if found.cost_s < makespans.min() else starts[0]


def _placed(name: str, problem: Problem, seconds: float, seed: int) -> np.ndarray:
    placer = AutoPlacer(config=AUTO) if name == "auto" else make_placer(name)
    return placer.place(problem, seed=seed, budget_s=seconds).devices


AUTO = AutoConfig()
METHODS: dict[str, Callable[[Problem, float, int], np.ndarray]] = {
    **{name: partial(_placed, name) for name in ("auto", *SINGLE, *AT_ONE_SECOND)},
    "from policy": from_policy,
}


def count_processor_seconds() -> None:
    """Let the clock of all placers be that of the processor, on one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    warm_up()
    small = draw_problem("train", 0).problem
    for name in METHODS:  # all is compiled and imported
        METHODS[name](small, 0.2, 0)
    for name, module in sys.modules.items():
        if name.startswith("doppler.placers") and hasattr(module, "monotonic"):
            module.monotonic = process_time  # type: ignore[attr-defined]


def show(paths: list[Path]) -> None:
    """A row for each split, size and budget."""
    cells: dict[tuple[str, int, float], dict[str, dict[int, Result]]] = defaultdict(dict)
    listed: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for name, result in read(paths).items():
        method, split, size, seconds, number = name.split("/")
        if method == "lists":
            listed[split, int(size)][int(number)] = result["makespan_s"] or inf
        else:
            cell = cells[split, int(size), float(seconds)]
            cell.setdefault(method, {})[int(number)] = result
    autos = sorted({m for cell in cells.values() for m in cell if m.startswith("auto")})
    heads = ["mean", "worst", "behind a list", "longest, s"]
    for split in SPLITS:
        if any(key[0] == split for key in cells):
            print(f"\n### Split `{split}`: above the single method that is best on average\n")
            columns = [f"`{m}`: {head}" for m in autos for head in heads]
            print(f"| vertices | seconds | problems | best single | {' | '.join(columns)} |")
            print(f"|---:|---:|---:|---|{'---:|' * len(columns)}")
        for (own, size, seconds), cell in sorted(cells.items(), key=lambda item: item[0]):
            if own == split:
                show_cell(size, seconds, cell, autos, listed[split, size])


def show_cell(
    size: int,
    seconds: float,
    cell: dict[str, dict[int, Result]],
    autos: list[str],
    listed: dict[int, float],
) -> None:
    """One row: the single method that is the best on average, and `auto` against it.

    The best fails on the fewest problems; gaps are over those on which it does not, and their
    means are geometric.
    """
    asked = [method for method in (*autos, *SINGLE) if method in cell]
    numbers = sorted(set.intersection(*(set(cell[method]) for method in asked)))
    made = {m: np.array([cell[m][n]["makespan_s"] or inf for n in numbers]) for m in asked}
    singles = [method for method in SINGLE if method in made]
    least = np.min([made[m] for m in singles], axis=0)
    best = min(singles, key=lambda m: failures_and_gap(made[m], least))
    lists = np.array([listed.get(n, inf) for n in numbers])
    cells = []
    for auto in autos:
        if auto not in made:
            cells += [""] * 4
            continue
        above = made[auto][np.isfinite(made[best])] / made[best][np.isfinite(made[best])]
        mean = float(np.exp(np.mean(np.log(above))) - 1)
        cells += [
            *(f"{100 * value:+.1f} %" for value in (mean, above.max() - 1)),
            f"{np.sum(made[auto] > lists * (1 + ROUNDING))}",
            f"{max(cell[auto][n]['took_s'] for n in numbers):.2f}",
        ]
    print(f"| {size:,} | {seconds:g} | {len(numbers)} | {best} | {' | '.join(cells)} |")


def failures_and_gap(made_s: np.ndarray, least_s: np.ndarray) -> tuple[int, float]:
    """On how many problems a method finds nothing that runs; its mean gap on the others."""
    runs = np.isfinite(made_s)
    return int(np.sum(~runs & np.isfinite(least_s))), float(
        np.mean(np.log(made_s[runs] / least_s[runs]))
    )


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="do the jobs that match")
    running.add_argument("patterns", nargs="+")
    running.add_argument("--results", type=Path, default=Path("auto-members.jsonl"))
    running.add_argument("--label", default="auto", help="the name that `auto` has in the results")
    running.add_argument("--policy-share", type=float, help="`auto` with this share for the policy")
    commands.add_parser("list", help="the names of all jobs")
    commands.add_parser("show", help="print the tables").add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "show":
        show(options.files)
    elif options.command == "list":
        print("\n".join(job.name for job in jobs()))
    else:
        if options.policy_share is not None:
            global AUTO
            AUTO = replace(AUTO, learned_share=options.policy_share)
        count_processor_seconds()
        every = [
            Job(job.name.replace("auto/", f"{options.label}/", 1), job.work, job.seed)
            for job in jobs()
        ]
        run_jobs(every, options.patterns, lambda job: job.work(seed=job.seed), options.results)


if __name__ == "__main__":
    main()
