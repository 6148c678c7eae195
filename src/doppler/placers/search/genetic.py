"""A biased random-key genetic algorithm, the family that REGAL (Paliwal et al. 2019) tunes."""

from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray, unbox_fields
from doppler.base.progress import report
from doppler.errors import ConfigError, Interrupted
from doppler.placers.base import Shown, assign
from doppler.placers.search.annealing import START_SHARE, starting_points
from doppler.problem import Problem
from doppler.sim.simulator import Simulator

LEAST = 8  # individuals
GENE_S = 3e-8  # that a key of an individual takes in a generation, beside its simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneticConfig:
    """Size and parameters of the population."""

    seconds: float = 10.0
    generations: int | None = None  # instead of seconds
    population: int = 128
    elite: float = 0.15  # share that is kept unchanged
    mutants: float = 0.1  # share that is made anew at random
    inherit: float = 0.7  # chance that a key comes from the elite parent

    def __post_init__(self) -> None:
        unbox_fields(self)
        if not self.seconds > 0 or self.population < LEAST or (self.generations or 1) < 1:
            raise ConfigError("the budget must be positive and the population at least 8")
        if self.elite <= 0 or self.mutants < 0 or self.elite + self.mutants >= 1:
            raise ConfigError("elite and mutants must leave room for children")


class GeneticPlacer(Shown):
    """A biased random-key genetic algorithm on the simulator, seeded with the heuristics.

    An individual holds a key for every vertex and device; a vertex goes to the device with its
    largest key. Each generation keeps its elite, adds random mutants, and fills up with children
    that take each vertex's keys from an elite parent more often than from another.
    """

    name = "genetic"
    searches = True

    def __init__(self, config: GeneticConfig | None = None) -> None:
        self.config = config or GeneticConfig()

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The best assignment of any generation; the best so far on Ctrl-C."""
        config, rng = self.config, np.random.default_rng(seed)
        if budget_s is not None:
            config = replace(config, seconds=budget_s, generations=None)
        graph, simulator, size = problem.graph, Simulator(problem), problem.topology.num_devices
        began = monotonic()
        if config.generations is not None:
            starts = starting_points(problem, seed)
        else:
            starts = starting_points(problem, seed, START_SHARE * config.seconds)
            costs_s, most = _affordable(problem, simulator, starts, began + config.seconds)
            if most < LEAST:  # no time to breed
                return assign(self, problem, starts[int(np.argmin(costs_s))])
            config = replace(config, population=min(config.population, most))
        keys = rng.random((config.population, graph.num_vertices, size))
        for row, devices in zip(keys, starts, strict=False):
            row[np.arange(len(row)), np.maximum(devices, 0)] += 1.0
        best, best_s, generation = starts[0], np.inf, 0
        try:
            while True:
                devices = np.where(graph.is_input, -1, keys.argmax(axis=2))
                costs = simulator.makespans(graph, devices, seed=seed)
                leader = int(np.argmin(costs))
                if costs[leader] < best_s:
                    best, best_s = devices[leader], costs[leader]
                generation += 1
                share = (monotonic() - began) / config.seconds
                if config.generations is not None:
                    share = generation / config.generations
                report("breeding", int(1000 * min(share, 1.0)), 1000)
                if share >= 1.0 or size == 1 or not len(graph.assigned):
                    break
                keys = _next_generation(keys, costs, config, rng)
        except (KeyboardInterrupt, Interrupted):
            pass  # anytime: the best so far is returned
        return assign(self, problem, best)


def _affordable(
    problem: Problem, simulator: Simulator, starts: list[IntArray], until: float
) -> tuple[FloatArray, int]:
    """(K,) makespans of K starts, and individuals of which two generations end in time."""
    began = monotonic()
    costs_s = simulator.makespans(problem.graph, np.array(starts))
    genes = problem.graph.num_vertices * problem.topology.num_devices
    each_s = (monotonic() - began) / len(starts) + genes * GENE_S
    return costs_s, int((until - monotonic()) / each_s / 2)


def _next_generation(
    keys: FloatArray, costs: FloatArray, config: GeneticConfig, rng: np.random.Generator
) -> FloatArray:
    """Elite, mutants, and children of one elite and one other parent each."""
    count = len(keys)
    order: IntArray = np.argsort(costs, kind="stable")
    elite, mutants = max(1, round(config.elite * count)), round(config.mutants * count)
    children = count - elite - mutants
    first = keys[order[rng.integers(elite, size=children)]]
    second = keys[order[rng.integers(elite, count, size=children)]]
    from_first = rng.random(first.shape[:2]) < config.inherit
    born = np.where(from_first[:, :, None], first, second)
    return np.concatenate([keys[order[:elite]], rng.random((mutants, *keys.shape[1:])), born])
