"""How do the learned baselines compare: by episodes, by seconds, and as graphs grow?

Every measurement is a job, `table/case/seed`, that appends a line to a file of results:

    python benchmarks/baselines.py run 'episodes/*' --results results.jsonl
    python benchmarks/baselines.py run 'seconds/*' --seconds 300 --results results.jsonl
    python benchmarks/baselines.py run 'placers/*' 'scaling/*' --results results.jsonl
    python benchmarks/baselines.py show results.jsonl

`run` takes patterns and does the jobs one after the other, each on one core, so several processes
may run side by side on the same file; `list` names all jobs. `show` prints the tables.

- `episodes`: 4,000 episodes of Stage II on ChainMM and FFNN, 8,000 on the Llama graphs (Sec. 6.1),
  in the default preset of each policy; Stage I, where a policy has it, comes before.
- `paper`: the same in the preset `paper`: one episode per update, lr and exploration of Sec. 6.1.
- `seconds`: all stages in so many seconds of training.
- `placers`: what needs no training, as `dop compare` runs it.
- `scaling`: seconds of one greedy assignment and of one update of four episodes on random graphs.

Makespans are simulated milliseconds. `policy` is the policy alone: the best of one greedy and 128
sampled assignments. `run` is the best that training came across, for `doppler` its expert's search
included.
"""

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from placers import problem

from doppler.mdp import make_instance
from doppler.placers import ask, lower_bounds, make_placer, placer_names
from doppler.placers.search import warm_up
from doppler.policies.kinds import Policy
from doppler.programs import random_dag
from doppler.sim import Simulator
from doppler.topology import load_topology
from doppler.training.api import placer_of
from doppler.training.config import POLICIES, TrainConfig, preset
from doppler.training.trainer import Trainer

FOUR = ("chainmm", "ffnn", "llama-block", "llama-layer")
EPISODES = {"chainmm": 4000, "ffnn": 4000, "llama-block": 8000, "llama-layer": 8000}  # Sec. 6.1
NAMES = tuple(POLICIES)  # doppler, placeto, placeto-pretrain, gdp, seq2seq
SEEDS = 3
SAMPLES = 128
SCALED = ("doppler", "placeto", "gdp", "seq2seq")
SIZES = (100, 200, 500, 1_000, 2_000, 5_000, 10_000)
SCALE_BATCH = 4  # episodes of the update that is timed
MOST_S = 300.0  # an update that would take longer is left out
SLOPE_FROM = 500  # vertices from which on slopes are fitted
SEARCH_S = 10.0  # of placers that search

Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One measurement."""

    name: str  # table/case/seed
    work: Callable[[float, int], Result]
    seed: int


def jobs() -> list[Job]:
    """All measurements."""
    found = [Job(f"placers/{graph}/0", _placers(graph), 0) for graph in FOUR]
    found += [Job(f"scaling/{name}/0", _scaling(name), 0) for name in SCALED]
    for seed in range(SEEDS):
        for graph in FOUR:
            for name in NAMES:
                case = f"{graph} {name}/{seed}"
                found.append(Job(f"episodes/{case}", _episodes(graph, name, "default"), seed))
                found.append(Job(f"paper/{case}", _episodes(graph, name, "paper"), seed))
                found.append(Job(f"seconds/{case}", _seconds(graph, name), seed))
    return found


def train(graph: str, config: TrainConfig) -> Result:
    """What a policy comes to on one core, and what that took."""
    pair = problem(f"p100x4/{graph}")
    trainer = Trainer([pair], replace(config, threads=1))
    began, episodes = process_time(), defaultdict(int)
    for progress in trainer.run():
        episodes[progress.stage] += getattr(config, progress.stage).batch
    took = process_time() - began
    return {
        "episodes": episodes["sim"],
        "seconds": took,
        "run": trainer.exercises[0].best_s * 1e3,
        **judge(trainer.policy, graph),
    }


def judge(policy: Policy, graph: str) -> Result:
    """What the policy alone makes of a graph, in ms, and how long that took."""
    instance = make_instance(*problem(f"p100x4/{graph}"))
    placer = placer_of(policy)
    placer.samples = SAMPLES
    began = perf_counter()
    _, _, makespans = placer.propose(instance, seed=1)
    return {
        "policy": makespans.min() * 1e3,
        "greedy": makespans[0] * 1e3,
        "inference_s": perf_counter() - began,
    }


def _episodes(graph: str, name: str, preset_name: str) -> Callable[[float, int], Result]:
    def work(seconds: float, seed: int) -> Result:
        config = preset(preset_name, name)
        sim = replace(config.sim, episodes=EPISODES[graph])
        return train(graph, replace(config, sim=sim, seed=seed))

    return work


def _seconds(graph: str, name: str) -> Callable[[float, int], Result]:
    def work(seconds: float, seed: int) -> Result:
        return train(graph, replace(preset("default", name), seconds=seconds, seed=seed))

    return work


def _placers(graph: str) -> Callable[[float, int], Result]:
    def work(seconds: float, seed: int) -> Result:
        pair = problem(f"p100x4/{graph}")
        simulator, found = Simulator(pair[1]), {}
        for name in placer_names():
            answer = ask(make_placer(name, budget_s=SEARCH_S), *pair, seed=seed)
            found[name] = simulator.run(pair[0], answer.assignment).makespan_s * 1e3
        return {"bound": lower_bounds(*pair).best_s * 1e3, "placers": found}

    return work


def _scaling(name: str) -> Callable[[float, int], Result]:
    def work(seconds: float, seed: int) -> Result:
        found: Result = {"sizes": SIZES, "inference_s": [], "update_s": []}
        before, last_s = 1, 0.0
        for size in SIZES:
            too_long = last_s * (size / before) ** 2 > MOST_S  # nothing here grows faster
            inference_s, update_s = scale(name, size, update=not too_long)
            found["inference_s"].append(inference_s)
            found["update_s"].append(update_s)
            print(name, size, inference_s, update_s, flush=True)
            if update_s is not None:
                before, last_s = size, update_s
        return found

    return work


def scale(name: str, size: int, *, update: bool) -> tuple[float, float | None]:
    """CPU seconds of a greedy assignment and of an update by REINFORCE, on a random graph."""
    depth = max(size // 50, 5)
    graph = random_dag(vertices=size, depth=depth, bytes_per_flop=2e-6, seed=0)
    topology = load_topology("p100x4")
    config = preset("default", name)
    sim = replace(config.sim, batch=SCALE_BATCH, episodes=3 * SCALE_BATCH, expert=None)
    config = replace(config, stages=("sim",), sim=sim, threads=1)
    trainer = Trainer([(graph, topology)], config)
    placer = placer_of(trainer.policy)
    placer.samples = 0
    instance, times = make_instance(graph, topology), []
    for _ in range(1 if size >= SLOPE_FROM and name == "placeto" else 3):
        began = process_time()
        placer.propose(instance)
        times.append(process_time() - began)
    if not update:
        return min(times), None
    updates, began = [], process_time()
    for _ in trainer.run():
        updates.append(process_time() - began)
        if updates[-1] > MOST_S / 10:
            break
        began = process_time()
    return min(times), min(updates)


def run(patterns: list[str], seconds: float, results: Path) -> None:
    """Do the jobs that match, and append a line for each."""
    torch.set_num_threads(1)
    warm_up()
    for job in jobs():
        if any(fnmatch(job.name, pattern) for pattern in patterns):
            found = job.work(seconds, job.seed)
            line = {"job": job.name, "budget_s": seconds, "cores": len(os.sched_getaffinity(0))}
            with results.open("a") as file:
                file.write(json.dumps(line | found, default=float) + "\n")
            print(job.name, json.dumps(found, default=float), flush=True)


def read(paths: list[Path]) -> dict[str, dict[str, list[Result]]]:
    """Results by table and case; of the same job, the last."""
    lines: dict[str, Result] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            result = json.loads(line)
            lines[result["job"]] = result
    found: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for name, result in sorted(lines.items()):
        table, _, rest = name.partition("/")
        found[table][rest.rpartition("/")[0]].append(result)
    return found


def spread(results: list[Result], key: str, form: str = ".1f") -> str:
    """Mean ± standard deviation over seeds."""
    values = np.array([r[key] for r in results], float)
    return f"{values.mean():{form}} ± {values.std():{form}}" if len(values) else "–"


def show_training(title: str, cases: dict[str, list[Result]], key: str) -> None:
    """A table of one number: graphs down, policies across."""
    print(f"\n**{title}**\n\n| graph | {' | '.join(NAMES)} | seeds |")
    print(f"|---|{'---|' * (len(NAMES) + 1)}")
    for graph in FOUR:
        rows = [cases.get(f"{graph} {name}", []) for name in NAMES]
        cells = [spread(results, key) for results in rows]
        print(f"| {graph} | {' | '.join(cells)} | {min(len(r) for r in rows)} |")


def show_placers(cases: dict[str, list[Result]]) -> None:
    """What needs no training."""
    names = sorted({name for results in cases.values() for name in results[0]["placers"]})
    print(f"\n**Without training, ms**\n\n| placer | {' | '.join(FOUR)} |\n|---|{'---|' * 4}")
    bounds = [f"{cases[g][0]['bound']:.1f}" if g in cases else "–" for g in FOUR]
    print(f"| lower bound | {' | '.join(bounds)} |")
    for name in names:
        found = [cases[g][0]["placers"][name] if g in cases else np.nan for g in FOUR]
        print(f"| {name} | {' | '.join(f'{ms:.1f}' for ms in found)} |")


def show_scaling(cases: dict[str, list[Result]]) -> None:
    """Seconds by size, and the slope of their logarithms."""
    for key, title in (
        ("inference_s", "One greedy assignment, seconds"),
        ("update_s", f"One update of {SCALE_BATCH} episodes, seconds"),
    ):
        print(f"\n**{title}**\n\n| policy | {' | '.join(f'{n:,}' for n in SIZES)} | slope |")
        print(f"|---|{'---|' * (len(SIZES) + 1)}")
        for name in SCALED:
            if name not in cases:
                continue
            result = cases[name][0]
            sizes, times = np.array(result["sizes"]), np.array(result[key], float)
            late = (sizes >= SLOPE_FROM) & np.isfinite(times)
            slope = np.polyfit(np.log(sizes[late]), np.log(times[late]), 1)[0]
            cells = [f"{s:.3g}" if np.isfinite(s) else "–" for s in times]
            print(f"| {name} | {' | '.join(cells)} | {slope:.2f} |")


def show(paths: list[Path]) -> None:
    """Print every table there are results for."""
    tables = read(paths)
    titles = {
        "episodes": "the same episodes, default presets",
        "paper": "the same episodes, presets `paper`",
        "seconds": "the same seconds",
    }
    for table, title in titles.items():
        if table in tables:
            show_training(f"Policy alone, ms: {title}", tables[table], "policy")
            show_training(f"Best of the run, ms: {title}", tables[table], "run")
            show_training(f"Seconds of training: {title}", tables[table], "seconds")
    if "placers" in tables:
        show_placers(tables["placers"])
    if "scaling" in tables:
        show_scaling(tables["scaling"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="do the jobs that match")
    running.add_argument("patterns", nargs="+")
    running.add_argument("--seconds", type=float, default=300.0, help="of `seconds` jobs")
    running.add_argument("--results", type=Path, default=Path("baselines.jsonl"))
    commands.add_parser("list", help="the names of all jobs")
    showing = commands.add_parser("show", help="print the tables")
    showing.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "list":
        print("\n".join(job.name for job in jobs()))
    elif options.command == "run":
        run(options.patterns, options.seconds, options.results)
    else:
        show(options.files)
