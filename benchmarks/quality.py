"""Has any method become worse? A small fixed set of problems, compared with stored figures.

    python benchmarks/quality.py          # some minutes; exits 1 if something is worse
    python benchmarks/quality.py --write  # store the figures of this version

Budgets are evaluations and episodes, not seconds, so that a busy machine finds the same. Every
figure is a mean over seeds; it is worse if it is above the stored mean by more than three standard
errors of the two means together and half a percent.
"""

import argparse
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from doppler.placers import make_placer
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.search.annealing import SearchConfig, search, starting_points
from doppler.reproduce.paper_figures import FOUR
from doppler.reproduce.placements import problem_of
from doppler.sim import Simulator
from doppler.training.presets import preset
from doppler.training.trainer import Trainer

STORED = Path(__file__).parent / "results" / "quality.toml"
HEURISTICS = ("enumerative", "critical-path", "heft")
SEEDS = 3
MOVES, SAMPLES, EPISODES, IMITATION = 20_000, 512, 1024, 512
ERRORS, MARGIN = 3.0, 0.005


def makespan_ms(graph: str, devices: np.ndarray) -> float:
    problem = problem_of("p100x4", graph)
    return float(Simulator(problem).makespans(problem.graph, devices[None])[0]) * 1e3


def placed(name: str, graph: str, seed: int) -> float:
    return makespan_ms(
        graph, make_placer(name).place(problem_of("p100x4", graph), seed=seed).devices
    )


def searched(graph: str, seed: int) -> float:
    problem = problem_of("p100x4", graph)
    config = SearchConfig(evaluations=MOVES, chains=1)
    return search(problem, starting_points(problem, seed), config, seed=seed).cost_s * 1e3


def sampled(graph: str, seed: int) -> float:
    placer = DopplerPlacer(samples=SAMPLES)
    return makespan_ms(graph, placer.place(problem_of("p100x4", graph), seed=seed).devices)


def trained(graph: str, seed: int) -> float:
    problem, config = problem_of("p100x4", graph), preset("default")
    config = replace(
        config,
        stages=("imitation", "sim"),
        imitation=replace(config.imitation, episodes=IMITATION),
        sim=replace(config.sim, episodes=EPISODES),
        seed=seed,
        threads=1,
    )
    trainer = Trainer([(problem.graph, problem.topology)], config)
    for _ in trainer.run():
        pass
    return trainer.records[0].best_s * 1e3


def figures() -> dict[str, Callable[[int], float]]:
    """What is measured, by name: a function of the seed."""
    found: dict[str, Callable[[int], float]] = {}
    for graph in FOUR:
        for name in HEURISTICS:
            found[f"{name}/{graph}"] = partial(placed, name, graph)
        found[f"search/{graph}"] = partial(searched, graph)
        found[f"doppler/{graph}"] = partial(sampled, graph)
    for graph in ("chainmm", "llama-layer"):
        found[f"training/{graph}"] = partial(trained, graph)
    return found


def is_worse(now: list[float], stored: list[float]) -> bool:
    """Whether means differ by more than chance and a margin."""
    errors = [np.std(values) / np.sqrt(len(values)) for values in (now, stored)]
    limit = ERRORS * float(np.hypot(*errors)) + MARGIN * float(np.mean(stored))
    return bool(np.mean(now) - np.mean(stored) > limit)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="store the figures instead")
    parser.add_argument("--only", default="", help="those whose names begin so")
    options = parser.parse_args(arguments)
    stored = tomllib.loads(STORED.read_text("utf-8"))["ms"] if STORED.exists() else {}
    worse, lines = [], ["# Milliseconds by seed: `make quality` compares with them.", "", "[ms]"]
    for name, measure in figures().items():
        if not name.startswith(options.only):
            continue
        now = [measure(seed) for seed in range(SEEDS)]
        lines.append(f'"{name}" = [{", ".join(f"{ms:.4f}" for ms in now)}]')
        before = stored.get(name, [])
        verdict = "not stored" if not before else "worse" if is_worse(now, before) else "ok"
        told = f"{np.mean(before):9.2f}" if before else "        –"
        print(f"{name:<26}{np.mean(now):9.2f} ± {np.std(now):5.2f} ms, stored {told}  {verdict}")
        worse += [name] if verdict == "worse" else []
    if options.write:
        STORED.write_text("\n".join(lines) + "\n", "utf-8")
    elif worse:
        sys.exit(f"worse than stored: {', '.join(worse)}")


if __name__ == "__main__":
    main()
