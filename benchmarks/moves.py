"""What does the model of moves bring? Search with it, without it, and with random weights.

    python benchmarks/moves.py train -o moves.safetensors
    python benchmarks/moves.py run 'validation/*' --results moves.jsonl
    python benchmarks/moves.py show benchmarks/results/moves.jsonl

`train` fits a model to moves of searches on problems of split `train`, in eleven minutes on one
core; the package has the one of seed 0. Jobs of `run` are `SPLIT/VERTICES/SECONDS/NUMBER`:
annealing on the fourth problem of split `validation` with about 1,000 vertices, say, for as many
**seconds of the processor**, on one core, from the same list schedules, which are made before. Each
is done with two seeds.

- `random`: each move is a random one.
- `untrained`: each is one of eight random ones, by a model whose weights are random.
- `chosen`: by the model of the package, or that of `--model`.
- `long`: `random` for ten times the seconds.
"""

import argparse
import sys
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from time import process_time

import numpy as np
from auto_members import problem_of
from jobs import Job, Result, read, run_jobs

from doppler.placers.search.annealing import SearchConfig, search, starting_points
from doppler.placers.search.move_model import (
    MoveModel,
    read_move_model,
    shapes_of,
    shipped_move_model,
    write_move_model,
)
from doppler.problem import Problem
from doppler.training.moves import MoveTrainingConfig, train_moves

SPLITS = ("train", "validation")
BUDGETS_S = ((200, (1.0, 5.0)), (1000, (1.0, 5.0)), (2000, (1.0, 5.0)), (20_000, (5.0,)))
COUNT = 5  # problems of each size
SEEDS, LONGER = 2, 10
VARIANTS = ("random", "untrained", "chosen")
STARTS_S = 2.0
TRAINING: dict[str, int] = {}  # settings other than the defaults


def jobs(model: MoveModel) -> list[Job]:
    """All measurements."""
    return [
        Job(f"{split}/{size}/{seconds:g}/{number}", partial(measured, model, split, size, seconds))
        for split in SPLITS
        for size, budgets_s in BUDGETS_S
        for seconds in budgets_s
        for number in range(COUNT)
    ]


def measured(model: MoveModel, split: str, size: int, seconds: float, number: int) -> Result:
    """The makespans that each variant finds, with each seed."""
    drawn = problem_of(split, size, number)
    problem = Problem(drawn.graph, drawn.topology)
    starts = starting_points(problem, 0, STARTS_S)
    rng = np.random.default_rng(0)
    untrained = MoveModel(
        **{name: rng.normal(size=shape).astype("f4") * 0.2 for name, shape in shapes_of(16).items()}
    )
    configs = {
        "random": SearchConfig(seconds=seconds, chains=1, candidates=0),
        "untrained": SearchConfig(seconds=seconds, chains=1, moves=untrained),
        "chosen": SearchConfig(seconds=seconds, chains=1, moves=model),
        "long": SearchConfig(seconds=LONGER * seconds, chains=1, candidates=0),
    }
    found: Result = {"graph": drawn.graph.name, "topology": drawn.topology.name}
    for name, config in configs.items():
        made = [search(problem, starts, config, seed=seed) for seed in range(SEEDS)]
        found[name] = [one.cost_s if one.cost_s < inf else None for one in made]
        found[f"{name}_moves"] = float(np.mean([one.evaluations for one in made]))
    return found


def show(paths: list[Path]) -> None:
    """A row for each size and budget: above the best of all, and simulations a second."""
    cells: dict[tuple[str, int, float], list[Result]] = defaultdict(list)
    for name, result in read(paths).items():
        split, size, seconds, _ = name.split("/")
        cells[split, int(size), float(seconds)].append(result)
    columns = (*VARIANTS, "long")
    print(f"| split | vertices | seconds | problems | {' | '.join(columns)} | moves a second |")
    print("|---|---:|---:|---:|" + "---:|" * len(columns) + "---|")
    for (split, size, seconds), rows in sorted(cells.items()):
        gaps = {name: np.array([gap(row, name) for row in rows]) for name in columns}
        runs = np.isfinite(np.stack(list(gaps.values()))).all(axis=0)
        texts = [
            f"{100 * gaps[n][runs].mean():.2f} % ({100 * np.median(gaps[n][runs]):.2f})"
            for n in columns
        ]
        rates = [np.mean([row[f"{name}_moves"] for row in rows]) / seconds for name in VARIANTS]
        speeds = ", ".join(f"{rate:,.0f}" for rate in rates)
        print(
            f"| {split} | {size:,} | {seconds:g} | {runs.sum()} | {' | '.join(texts)} | {speeds} |"
        )
    print("\nMeans above the best of the row's variants, medians in brackets.")


def gap(row: Result, name: str) -> float:
    """How far a variant is above the best of all, on average over its seeds."""
    least = min(value or inf for variant in (*VARIANTS, "long") for value in row[variant])
    return float(np.mean([(value or inf) / least - 1 for value in row[name]]))


def count_processor_seconds() -> None:
    """Let the clock of search be that of the processor."""
    for name, module in sys.modules.items():
        if name.startswith("doppler.placers") and hasattr(module, "monotonic"):
            module.monotonic = process_time  # type: ignore[attr-defined]


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="fit a model and write it to a file")
    training.add_argument("-o", "--output", type=Path, required=True)
    training.add_argument("--seed", type=int, default=0)
    running = commands.add_parser("run", help="do the jobs that match")
    running.add_argument("patterns", nargs="+")
    running.add_argument("--results", type=Path, default=Path("moves.jsonl"))
    running.add_argument("--model", type=Path, help="the model of moves; that of the package")
    commands.add_parser("show", help="print the tables").add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "show":
        show(options.files)
    elif options.command == "train":
        config = MoveTrainingConfig(seed=options.seed, **TRAINING)
        write_move_model(train_moves(config), options.output, {"config": asdict(config)})
    else:
        model = read_move_model(options.model) if options.model else shipped_move_model()
        count_processor_seconds()

        def do(job: Job) -> Result:
            found: Result = job.work(int(job.name.rpartition("/")[2]))
            return found

        run_jobs(jobs(model), options.patterns, do, options.results)


if __name__ == "__main__":
    main()
