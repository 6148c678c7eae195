"""What does lending bring? Search that passes through what lacks memory, and search that does not.

    python benchmarks/lending.py run 'validation/*' --results lending.jsonl
    python benchmarks/lending.py show benchmarks/results/lending.jsonl

Jobs are `SPLIT/NUMBER`: problems of a split, of 60 to 1,000 vertices, that are short of memory.
Some below 9400 served to choose the price (`--first 9000`), the others to judge. Both anneal
with one chain for a **second of the processor** from the same list schedules, with each of three
seeds.

- `lends`: as search comes, at a price that it adapts.
- `never`: at a price at which nothing that lacks memory is accepted.
- `long`: `lends` for ten seconds, one seed.
"""

import argparse
from collections import defaultdict
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
from jobs import Job, Result, read, run_jobs
from moves import count_processor_seconds

from doppler.datasets import DrawnProblem, draw_problem
from doppler.placers.search.annealing import SearchConfig, search, starting_points

SPLITS, FIRST, COUNT = ("train", "validation"), 9400, 20
SEEDS, SECONDS, LONGER, STARTS_S = 3, 1.0, 10, 2.0
NEVER = 1e6  # price
VARIANTS = ("lends", "never", "long")


def jobs(first: int) -> list[Job]:
    """The first problems of each split, from a number on, that are short of memory."""
    return [Job(f"{s}/{i}", measured) for s in SPLITS for i in tight(s, first)]


def drawn(split: str, number: int) -> DrawnProblem:
    """A problem of a split, on up to 64 devices."""
    return draw_problem(
        split, number, min_vertices=60, max_vertices=1000, max_devices=64, ratios=(0.01, 100.0)
    )


def tight(split: str, number: int) -> list[int]:
    """Numbers of problems in which memory may run out, from a number on."""
    found = list[int]()
    while len(found) < COUNT:
        if drawn(split, number).problem.may_run_out:
            found.append(number)
        number += 1
    return found


def measured(job: Job) -> Result:
    """The makespans that each variant finds, None where nothing runs, and its simulations."""
    split, number = job.name.split("/")
    one = drawn(split, int(number))
    problem = one.problem
    starts = starting_points(problem, 0, STARTS_S)
    found: Result = {"graph": one.graph.name, "topology": one.topology.name}
    short = SearchConfig(seconds=SECONDS, chains=1)
    configs = (short, replace(short, price=NEVER), replace(short, seconds=LONGER * SECONDS))
    for name, config, count in zip(VARIANTS, configs, (SEEDS, SEEDS, 1), strict=True):
        made = [search(problem, starts, config, seed=seed) for seed in range(count)]
        found[name] = [each.cost_s if each.cost_s < inf else None for each in made]
        found[f"{name}_simulations"] = float(np.mean([each.evaluations for each in made]))
    return found


def show(paths: list[Path]) -> None:
    """For each split, and each series, how far each variant is above the best of all."""
    series: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for name, row in read(paths).items():
        split, number = name.split("/")
        series[split, "new" if int(number) >= FIRST else "chosen on"].append(row)
    print("| split | series | problems | variant | mean | median | worst | does not run |")
    print("|---|---|---:|---|---:|---:|---:|---:|")
    for (split, which), cases in sorted(series.items()):
        for variant in VARIANTS:
            gaps = np.array([gap for row in cases for gap in gaps_of(row, variant)])
            runs = np.isfinite(gaps)
            cells = [gaps[runs].mean(), np.median(gaps[runs]), gaps[runs].max()]
            texts = " | ".join(f"{100 * cell:.2f} %" for cell in cells)
            print(f"| {split} | {which} | {len(cases)} | {variant} | {texts} | {(~runs).sum()} |")
    print("\nAbove the best of all variants and seeds of a problem.")


def gaps_of(row: Result, variant: str) -> list[float]:
    """How far each seed of a variant is above the best of all."""
    least = min(made or inf for name in VARIANTS for made in row[name])
    return [(made or inf) / least - 1 for made in row[variant]]


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="do the jobs that match")
    running.add_argument("patterns", nargs="+")
    running.add_argument("--results", type=Path, default=Path("lending.jsonl"))
    running.add_argument("--first", type=int, default=FIRST, help="number of the first problem")
    commands.add_parser("show", help="print the table").add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "show":
        show(options.files)
    else:
        count_processor_seconds()
        run_jobs(jobs(options.first), options.patterns, lambda job: job.work(job), options.results)


if __name__ == "__main__":
    main()
