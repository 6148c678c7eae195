"""How do the learned rivals compare: by episodes, by seconds, and as graphs grow?

Every measurement is a job that appends a line to a file of results:

- `table/workload/method/seed`: 4,000 episodes of Stage II on ChainMM and FFNN, 8,000 on the Llama
  graphs (Sec. 6.1), in the default preset; Stage I, where a method has it, comes before. A placer
  that needs no training places once; those that search do so for 10 seconds.
- `paper/workload/method/seed`: the same in the preset `paper`: one episode per update, lr and
  exploration of Sec. 6.1.
- `time/workload/method/seed`: all stages, or a search, in the same number of seconds.
- `scaling/method/vertices`: a greedy assignment, and an update of four episodes, on a random graph.

`list` names all jobs, `run` does those that match some patterns, one after the other, and leaves
out those that are in its file already. `--part 0/16` does every sixteenth of them, so that sixteen
processes share them out, each on a core of its own, with a file of its own:

    for i in $(seq 0 15); do
      taskset -c $i python benchmarks/rivals.py run 'table/*' --part $i/16 --results $i.jsonl &
    done; wait
    python benchmarks/rivals.py show *.jsonl

Budgets of training are CPU seconds, and it takes one thread. Makespans are simulated milliseconds.
`policy` is the policy alone: the best of one greedy and 128 sampled assignments. `run` is the best
that training found, for `doppler` its expert's search included.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from jobs import Job, Result, part_of, read, run_jobs
from placers import P100, SLOW, problem

from doppler.errors import DopplerError
from doppler.mdp import make_instance
from doppler.placers import lower_bounds, make_placer, placer_names, searches
from doppler.policies.trainable import TrainablePolicy
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.reproduce.paper_figures import paper as paper_figures
from doppler.sim import Simulator
from doppler.topology import read_topology
from doppler.training.api import placer_of
from doppler.training.config import TrainConfig
from doppler.training.presets import POLICIES, preset
from doppler.training.trainer import Trainer

EPISODES = {"chainmm": 4000, "ffnn": 4000, "llama-block": 8000, "llama-layer": 8000}  # Sec. 6.1
FOUR = tuple(EPISODES)
LEARNED = tuple(POLICIES)  # doppler, placeto, placeto-pretrain, gdp, seq2seq
PLACERS = tuple(name for name in placer_names() if name not in LEARNED)
SEARCHING = tuple(name for name in PLACERS if name in SLOW)
SCALED = ("doppler", "placeto", "gdp", "seq2seq")
SIZES = (100, 200, 500, 1_000, 2_000, 5_000, 10_000)
SEEDS = 3
SAMPLES = 128
SCALE_BATCH = 4  # episodes of the update that is timed
LONG_S = 30.0  # an update that takes longer is timed once
SLOPE_FROM = 500  # vertices from which on slopes are fitted
SEARCH_S = 10.0  # of placers that search, in `table`
# Of methods whose names differ in the paper: Stages I and II, and App. G.4.
PAPER_ROWS = {
    "doppler": ("placement", "doppler-sim"),
    "placeto-pretrain": ("placeto-pretrain",) * 2,
}


@dataclass(frozen=True)
class Budget:
    """What `run` is given."""

    seconds: float  # of `time` jobs
    episodes: int | None = None  # instead of those of Sec. 6.1


Work = Callable[[Budget], Result]


def jobs() -> list[Job]:
    """All measurements, the longest first."""
    found = []
    for graph in sorted(FOUR, key=lambda name: -EPISODES[name]):
        for name in sorted(LEARNED, key=lambda name: not name.startswith("placeto")):
            for seed in range(SEEDS):
                case = f"{graph}/{name}/{seed}"
                found += [
                    Job(f"table/{case}", _episodes(graph, preset("default", name), seed)),
                    Job(f"paper/{case}", _episodes(graph, preset("paper", name), seed)),
                    Job(f"time/{case}", _seconds(graph, name, seed)),
                ]
    for size in reversed(SIZES):
        found += [Job(f"scaling/{name}/{size}", _scaling(name, size)) for name in SCALED]
    for graph in FOUR:
        for name in sorted(PLACERS, key=lambda name: name not in SEARCHING):
            for seed in range(SEEDS):
                case = f"{graph}/{name}/{seed}"
                found.append(Job(f"table/{case}", _placer(graph, name, seed, SEARCH_S)))
                if name in SEARCHING:
                    found.append(Job(f"time/{case}", _placer(graph, name, seed, None)))
    return found


def train(graph: str, config: TrainConfig) -> Result:
    """Makespans of a policy trained from nothing on one core, and the time that took."""
    config = config.with_stages(from_nothing=True)
    # Budgets are CPU time: other work does not count.
    pair, config = problem(f"{P100}/{graph}"), replace(config, threads=1)
    trainer = Trainer([pair], config, clock=process_time)
    began, episodes = process_time(), dict.fromkeys(config.stages, 0)
    for progress in trainer.run():
        episodes[progress.stage] += getattr(config, progress.stage).batch
    took = process_time() - began
    best = {"run": trainer.records[0].best_s * 1e3, "seconds": took}
    return {"episodes": episodes["sim"], **best, **judge(trainer.policy, graph)}


def judge(policy: TrainablePolicy, graph: str) -> Result:
    """What the policy alone makes of a graph, in ms, and how long that took."""
    instance = make_instance(Problem(*problem(f"{P100}/{graph}")))
    placer = placer_of(policy)
    placer.samples = SAMPLES
    began = perf_counter()
    _, _, makespans = placer.propose(instance, seed=1)
    took = perf_counter() - began
    return {
        "policy": makespans.min() * 1e3,
        "greedy": makespans[0] * 1e3,
        "inference_s": took,
    }


def _episodes(graph: str, config: TrainConfig, seed: int) -> Work:
    def work(budget: Budget) -> Result:
        sim = replace(config.sim, episodes=budget.episodes or EPISODES[graph])
        return train(graph, replace(config, sim=sim, seed=seed))

    return work


def _seconds(graph: str, name: str, seed: int) -> Work:
    def work(budget: Budget) -> Result:
        config = replace(preset("default", name), seconds=budget.seconds, seed=seed)
        return {"budget_s": budget.seconds} | train(graph, config)

    return work


def _placer(graph: str, name: str, seed: int, search_s: float | None) -> Work:
    def work(budget: Budget) -> Result:
        pair, seconds = problem(f"{P100}/{graph}"), search_s or budget.seconds
        found: Result = {"bound": lower_bounds(*pair).best_s * 1e3, "budget_s": seconds}
        began = perf_counter()
        placer = make_placer(name)
        limit_s = seconds if searches(placer) else None
        assignment = placer.place(Problem(*pair), seed=seed, budget_s=limit_s)
        found["seconds"] = perf_counter() - began
        return found | {"policy": Simulator(pair[1]).run(pair[0], assignment).makespan_s * 1e3}

    return work


def _scaling(name: str, size: int) -> Work:
    """CPU seconds of a greedy assignment and of an update by REINFORCE, on a random graph."""

    def work(budget: Budget) -> Result:
        depth = max(size // 50, 5)
        graph = random_dag(vertices=size, depth=depth, bytes_per_flop=2e-6, seed=0)
        topology = read_topology("p100x4")
        config = preset("default", name)
        sim = replace(config.sim, batch=SCALE_BATCH, episodes=3 * SCALE_BATCH, expert=None)
        config = replace(config, stages=("sim",), sim=sim, threads=1)
        trainer = Trainer([(graph, topology)], config, clock=process_time)
        placer = placer_of(trainer.policy)
        placer.samples = 0
        instance = make_instance(Problem(graph, topology))
        times = [_timed(lambda: placer.propose(instance)) for _ in range(3)]
        updates, run = [0.0], trainer.run()
        while len(updates) <= 3 and updates[-1] < LONG_S:
            updates.append(_timed(lambda: next(run)))
        return {"inference_s": min(times), "update_s": min(updates[1:])}

    return work


def _timed(work: Callable[[], object]) -> float:
    began = process_time()
    work()
    return process_time() - began


def do(job: Job, budget: Budget) -> Result:
    """The result of a job; of one that cannot be done here, why."""
    try:
        return job.work(budget)
    except DopplerError as error:  # such as a placer that is not installed
        return {"skipped": error.message}


def by_case(results: dict[str, Result], table: str) -> dict[str, dict[str, list[Result]]]:
    """The results of a table by method and workload, seed by seed."""
    found: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for name, result in sorted(results.items()):
        if name.startswith(f"{table}/") and "skipped" not in result:
            _, graph, method, _ = name.split("/")
            found[method][graph].append(result)
    return found


def spread(results: list[Result], key: str, form: str = ".1f") -> str:
    """Mean ± standard deviation over seeds."""
    values = np.array([r[key] for r in results if key in r], float)
    if not len(values):
        return "–"
    if len(values) == 1 or not values.std():
        return f"{values.mean():{form}}"
    return f"{values.mean():{form}} ± {values.std():{form}}"


def show_table(title: str, cases: dict[str, dict[str, list[Result]]], *, paper: bool) -> None:
    """Methods down, workloads across; what training found, and the paper's in italics."""
    heads = [h for g in FOUR for h in ((g, f"*{g}, paper*") if paper else (g,))]
    print(f"\n**{title}**\n\n| method | {' | '.join(heads)} | seeds |")
    print(f"|---|{'---|' * len(heads)}---|")
    rows = [(graph, row) for found in cases.values() for graph in FOUR for row in found[graph]]
    bounds = {graph: row["bound"] for graph, row in rows if "bound" in row}
    if paper and bounds:
        cells = [c for g in FOUR for c in (f"{bounds[g]:.1f}" if g in bounds else "–", "")]
        print(f"| lower bound | {' | '.join(cells)} | |")
    known = [name for name in (*LEARNED, *PLACERS) if name in cases]
    for method in known:
        cells = []
        table, row = PAPER_ROWS.get(method, ("placement", method))
        measured = paper_figures(table).get(row, {})
        for graph in FOUR:
            cells.append(spread(cases[method][graph], "policy"))
            if paper:
                cells.append(f"*{measured[graph].mean}*" if graph in measured else "")
        seeds = max(len(cases[method][graph]) for graph in FOUR)
        print(f"| {method} | {' | '.join(cells)} | {seeds} |")


def show_training(title: str, cases: dict[str, dict[str, list[Result]]]) -> None:
    """Of every learned method, the best of its run, seconds and episodes."""
    print(f"\n**{title}**\n")
    print(f"| method | {' | '.join(FOUR)} |\n|---|{'---|' * len(FOUR)}")
    for key, label in (
        ("run", "best of the run, ms"),
        ("greedy", "greedy, ms"),
        ("seconds", "CPU seconds"),
        ("episodes", "episodes"),
    ):
        for method in (name for name in LEARNED if name in cases):
            form = ".1f" if key in ("run", "greedy") else ",.0f"
            cells = [spread(cases[method][graph], key, form) for graph in FOUR]
            print(f"| {method}, {label} | {' | '.join(cells)} |")


def show_scaling(results: dict[str, Result]) -> None:
    """Seconds by size, and the slope of their logarithms."""
    for key, title in (
        ("inference_s", "One greedy assignment, CPU seconds"),
        ("update_s", f"One update of {SCALE_BATCH} episodes, CPU seconds"),
    ):
        print(f"\n**{title}**\n\n| method | {' | '.join(f'{n:,}' for n in SIZES)} | slope |")
        print(f"|---|{'---|' * (len(SIZES) + 1)}")
        for name in SCALED:
            times = np.array(
                [results.get(f"scaling/{name}/{size}", {}).get(key, np.nan) for size in SIZES]
            )
            late = (np.array(SIZES) >= SLOPE_FROM) & np.isfinite(times)
            slope = "–"
            if late.sum() > 1:
                logs = np.log(np.array(SIZES)[late]), np.log(times[late])
                slope = f"{np.polyfit(*logs, 1)[0]:.2f}"
            cells = [f"{s:.3g}" if np.isfinite(s) else "–" for s in times]
            print(f"| {name} | {' | '.join(cells)} | {slope} |")


def show(paths: list[Path]) -> None:
    """Print every table there are results for."""
    results = read(paths)
    table, paper, time = (by_case(results, name) for name in ("table", "paper", "time"))
    if table:
        show_table("The same episodes (Table 2), ms", table, paper=True)
        show_training("The same episodes: training", table)
    if paper:
        show_table("The same episodes, preset `paper`, ms", paper, paper=False)
        show_training("Preset `paper`: training", paper)
    if time:
        rows = [row for found in time.values() for part in found.values() for row in part]
        budgets = " and ".join(f"{seconds:g}" for seconds in sorted({r["budget_s"] for r in rows}))
        show_table(f"The same time, {budgets} s, ms", time, paper=False)
        show_training("The same time: training", time)
    if any(name.startswith("scaling/") for name in results):
        show_scaling(results)
    for name, result in sorted(results.items()):
        if "skipped" in result and name.endswith("/0"):
            print(f"\nskipped: {name}: {result['skipped']}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="do the jobs that match")
    running.add_argument("patterns", nargs="+")
    running.add_argument("--seconds", type=float, default=120.0, help="of `time` jobs")
    running.add_argument("--episodes", type=int, help="of `table` and `paper` jobs, to try them")
    running.add_argument("--results", type=Path, default=Path("rivals.jsonl"))
    running.add_argument("--part", type=part_of, default=(0, 1), metavar="K/N")
    commands.add_parser("list", help="the names of all jobs")
    commands.add_parser("show", help="print the tables").add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    if options.command == "list":
        print("\n".join(job.name for job in jobs()))
    elif options.command == "run":
        budget = Budget(options.seconds, options.episodes)
        doing = partial(do, budget=budget)
        run_jobs(jobs(), options.patterns, doing, options.results, options.part)
    else:
        show(options.files)


if __name__ == "__main__":
    main()
