"""The paper's comparison on a real machine: one job per graph does all of it, as it measures time.

The machine is probed with the graph. Placers, and policies trained on the simulator of the probed
machine, place it; every assignment runs on the engine, in turns. The same assignments run with
barriers, and diverse ones tell how well the simulator predicts, as do those that a policy makes
while it imitates.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from doppler.assignment import Assignment
from doppler.graph.graph import Graph
from doppler.placers.registry import make_placer
from doppler.problem import Problem
from doppler.programs.registry import workload
from doppler.reproduce.budgets import Settings
from doppler.reproduce.jobs import PaperJob, Result, Workshop
from doppler.sharding import shard
from doppler.sim import Simulator

DEVICES = {"cpu": 2, "cuda": 4}  # cores, and partitions of one GPU
SIZES: dict[str, dict[str, dict[str, int]]] = {  # so that a machine has enough to do, and memory
    "cuda": {
        "ffnn": {"features": 768, "classes": 768},
        "llama-block": {"batch": 3},
        "llama-layer": {"batch": 3},
    },
    "cpu": {
        "chainmm": {"size": 1024},
        "ffnn": {"batch": 1024, "features": 128, "hidden": 4096, "classes": 128},
        "llama-block": {"sequence": 256, "heads": 8, "head_dim": 64, "hidden": 1408},
        "llama-layer": {
            "sequence": 256,
            "heads": 8,
            "head_dim": 64,
            "hidden": 1408,
            "vocabulary": 2048,
            "table": 512,
        },
    },
}
PLACERS = ("single", "critical-path", "critical-path:blind", "enumerative", "auto")
METHODS = ("doppler", "placeto", "gdp")
BARRIERS = ("critical-path", "enumerative", "auto")
PANEL = 20  # assignments of Stage I that are run (App. G.1, left)


def engine_job(settings: Settings, graph: str) -> PaperJob:
    """All that is measured of a graph on a real machine."""
    b = settings.budgets
    values = {
        "workload": graph,
        "executor": settings.executor,
        "episodes": b.episodes[graph],
        "imitation": b.imitation,
        "real": b.real,
        "seeds": b.seeds,
        "draws": b.draws,
        "probe_s": b.probe_s,
        "search_s": b.search_s,
        "assignments": b.assignments,
    }
    cost = 2 * b.probe_s + b.seeds * 0.08 * b.episodes[graph] + b.assignments + 30
    return PaperJob("engine", values, cost, alone=True)


def graph_for(name: str, executor: str) -> Graph:
    """A workload in float32 of a size for this executor, cut as in the paper."""
    found = workload(name)
    parts = DEVICES[executor] if name.startswith("llama") else found.parts
    program = found.build(dtype="float32", **SIZES[executor].get(name, {}))
    assert not isinstance(program, Graph)
    return shard(program, parts=parts)


def run_on_engine(parameters: Result, shop: Workshop) -> Result:
    """Measured milliseconds of every method's assignment, and how well they were predicted."""
    from doppler.engine.config import EngineConfig
    from doppler.engine.engine import Engine
    from doppler.machine.probe import probe

    executor, devices = parameters["executor"], DEVICES[parameters["executor"]]
    graph = graph_for(parameters["workload"], executor)
    probed = probe(
        executor,
        partitions=devices if executor == "cuda" else None,
        devices=None if executor == "cuda" else devices,
        graph=graph,
        seconds=parameters["probe_s"],
    )
    problem = Problem(graph, probed.topology)
    with Engine(probed.topology, executor) as engine:
        placed = dict(_assignments(problem, parameters, engine))
        rows = _measured(engine, graph, placed, parameters["draws"])
        panel = _panel(problem, parameters, engine)
        validation = _validation(problem, parameters["assignments"], engine)
    some = {name: placed[name] for name in BARRIERS}
    with Engine(probed.topology, executor, EngineConfig(synchronous=True)) as engine:
        barriers = _measured(engine, graph, some, parameters["draws"])
    return {
        "vertices": len(graph.assigned),
        "ms": rows,
        "barriers_ms": barriers,
        "predicted_ms": {name: _predicted_ms(problem, a) for name, a in placed.items()},
        "validation": validation,
        "panel": panel,
    }


def _assignments(
    problem: Problem, parameters: Result, engine: Any
) -> Iterator[tuple[str, Assignment]]:
    """Those of placers, of trained policies, and of Stage III on the engine."""
    from doppler.training.presets import preset
    from doppler.training.trainer import Trainer

    for name in PLACERS:
        budget_s = parameters["search_s"] if name == "auto" else None
        yield name, make_placer(name).place(problem, budget_s=budget_s)
    pair = [(problem.graph, problem.topology)]
    for method in METHODS:
        for seed in range(parameters["seeds"]):
            config = preset("paper", method)
            config = replace(
                config.with_stages(from_nothing=True),
                sim=replace(config.sim, episodes=parameters["episodes"]),
                imitation=replace(config.imitation, episodes=parameters["imitation"]),
                seed=seed,
            )
            trainer = Trainer(pair, config)
            for _ in trainer.run():
                pass
            best = trainer.records[0].best()
            yield f"{method}-sim/{seed}", best
            if method != "doppler":
                continue
            real = replace(config.real, episodes=parameters["real"])
            config = replace(config, stages=("real",), real=real)
            refined = Trainer(pair, config, policy=trainer.policy, executor=engine, starts=[best])
            for _ in refined.run():
                pass
            yield f"{method}-sys/{seed}", refined.records[0].best()


def _measured(
    engine: Any, graph: Graph, placed: dict[str, Assignment], draws: int
) -> dict[str, list[float]]:
    """Milliseconds of runs in turns, after one that does not count."""
    times: dict[str, list[float]] = {name: [] for name in placed}
    for turn in range(draws + 1):
        for name, assignment in placed.items():
            seconds = engine.makespans(graph, assignment)
            times[name] += (seconds[turn == 0 :] * 1e3).tolist()
    return times


def _predicted_ms(problem: Problem, assignment: Assignment) -> float:
    makespans = Simulator(problem).makespans(problem.graph, assignment.devices[None])
    return float(makespans[0]) * 1e3


def _validation(problem: Problem, count: int, engine: Any) -> Result:
    """Predicted and measured makespans of diverse assignments."""
    from doppler.machine.validation import diverse_assignments, validate

    chosen = diverse_assignments(problem.graph, problem.topology, count)
    found = validate(problem.graph, problem.topology, engine, chosen)
    return {
        "pearson": found.pearson,
        "spearman": found.spearman,
        "mape": found.mape,
        "measured_ms": (found.measured_s * 1e3).tolist(),
        "predicted_ms": (found.predicted_s * 1e3).tolist(),
    }


def _panel(problem: Problem, parameters: Result, engine: Any) -> Result:
    """Predicted and measured makespans of what a policy makes while it imitates (Stage I)."""
    from doppler.training.presets import preset
    from doppler.training.real import greedy
    from doppler.training.trainer import Trainer

    config = preset("paper")
    imitation = replace(config.imitation, episodes=parameters["imitation"])
    config = replace(config, stages=("imitation",), imitation=imitation)
    trainer = Trainer([(problem.graph, problem.topology)], config)
    every = max(parameters["imitation"] // PANEL, 1)
    rows = []
    for number, _ in enumerate(trainer.run()):
        if number % every == 0:
            made = greedy(trainer.policy, trainer.records[0], trainer.config)
            seconds = engine.makespans(problem.graph, made, repeats=3, warm_up=1)
            rows.append([number, _predicted_ms(problem, made), float(np.mean(seconds)) * 1e3])
    return {"rows": rows}
