"""How time grows with the graph: `scaling` (Sec. 6, Q6)."""

from dataclasses import replace
from time import process_time

import numpy as np

from doppler.mdp.instance import make_instance
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.reproduce.budgets import Settings
from doppler.reproduce.experiments.makespans import RIVALS, Found
from doppler.reproduce.findings import LineChart, check
from doppler.reproduce.job_rows import plain
from doppler.reproduce.jobs import PaperJob, Result, Results, Workshop
from doppler.topology.presets import read_topology

METHODS = ("doppler", "placeto", "gdp", "seq2seq")
BATCH = 4  # episodes of the update that is timed
LINEAR = 1.3  # the largest slope of logarithms that counts as linear
SLOPE_FROM = 200  # vertices
TIMES = {"inference_s": "one greedy assignment", "update_s": f"an update of {BATCH} episodes"}


def grow(parameters: Result, shop: Workshop) -> Result:
    """CPU seconds of a greedy assignment and of an update by REINFORCE, on a random graph."""
    from doppler.placers.learned.trained import placer_of
    from doppler.training.presets import preset
    from doppler.training.trainer import Trainer

    size = parameters["vertices"]
    graph = random_dag(vertices=size, depth=max(size // 50, 5), bytes_per_flop=2e-6, seed=0)
    topology = read_topology("p100x4")
    config = preset("default", parameters["method"])
    sim = replace(config.sim, batch=BATCH, episodes=2 * BATCH, expert=None)
    trainer = Trainer([(graph, topology)], replace(config, stages=("sim",), sim=sim, threads=1))
    placer = placer_of(trainer.policy, samples=0)
    instance = make_instance(Problem(graph, topology))
    placer.propose(instance)  # what it needs is compiled
    began = process_time()
    placer.propose(instance)
    inference_s = process_time() - began
    updates, run = [], trainer.run()
    for _ in range(2):
        began = process_time()
        next(run)
        updates.append(process_time() - began)
    return {"inference_s": inference_s, "update_s": min(updates)}


class Scaling:
    """The figure of Q6."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.sizes = settings, settings.budgets.sizes
        self.timed = {
            (method, size): PaperJob(
                "grow", {"method": method, "vertices": size}, 1.0 + size * _cost(method)
            )
            for method in METHODS
            for size in self.sizes
        }

    def jobs(self) -> list[PaperJob]:
        """All jobs of the figure."""
        return list(self.timed.values())

    def find(self, results: Results) -> Found:
        """Times, slopes and claims."""
        tables, claims, curves = [], [], []
        for key, what in TIMES.items():
            times = {m: [results[self.timed[m, size]][key] for size in self.sizes] for m in METHODS}
            slopes = {m: _slope(self.sizes, times[m]) for m in METHODS}
            rows = [(m, *(f"{t:.3g}" for t in times[m]), f"{slopes[m]:.2f}") for m in METHODS]
            heads = ("method", *(f"{size:,}" for size in self.sizes), "slope")
            tables.append(plain(f"CPU seconds of {what}, by vertices", heads, rows))
            lines = {m: [list(map(float, self.sizes)), times[m]] for m in METHODS}
            curves.append(LineChart(what, "vertices", "CPU seconds", lines, log=True))
            claims.append(
                check(
                    f"DOPPLER's time of {what} is linear in the graph",
                    slopes["doppler"] <= LINEAR,
                    f"slope {slopes['doppler']:.2f} of logarithms from {SLOPE_FROM} vertices on",
                )
            )
            last = {m: times[m][-1] for m in METHODS}
            others = ", ".join(f"{m} {last[m]:.2g} s" for m in METHODS[1:])
            claims.append(
                check(
                    f"DOPPLER takes less time than Placeto and GDP for {what}",
                    last["doppler"] < min(last[m] for m in RIVALS),
                    f"{last['doppler']:.2g} s at {self.sizes[-1]:,} vertices; {others}",
                )
            )
        return tables, claims, curves


def _cost(method: str) -> float:
    return {"placeto": 0.04, "seq2seq": 0.01}.get(method, 0.005)


def _slope(sizes: tuple[int, ...], times: list[float]) -> float:
    late = np.array(sizes) >= SLOPE_FROM
    logs = np.log(np.array(sizes)[late]), np.log(np.array(times)[late])
    return float(np.polyfit(*logs, 1)[0])
