"""Critical path: the paper's list-scheduling baseline and the teacher of its first stage."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from doppler.arrays import FloatArray
from doppler.assignment import Assignment
from doppler.cost import DefaultCostModel
from doppler.errors import ConfigError
from doppler.graph.graph import Graph
from doppler.placers.base import assign
from doppler.placers.list_rules import RankRule, flatten, run
from doppler.progress import track
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology


class CriticalPathPlacer:
    """Longest path to an exit first, on the device where it can start first; best of 50.

    Sec. 6.1, after Kwok & Ahmad (1999): of the vertices whose producers are placed, take the one
    with the longest path to an exit, by mean exec and transfer seconds; put it on the device
    where it can start earliest, given when the device is free and when its inputs get there.
    Ties are broken at random, so `runs` assignments are made and the best in simulation is kept.
    """

    name = "critical-path"

    def __init__(self, runs: int = 50) -> None:  # Sec. 6.1
        if runs < 1:
            raise ConfigError(f"runs is {runs}, must be at least 1")
        self.runs = runs

    def place(self, graph: Graph, topology: Topology, *, seed: int = 0) -> Assignment:
        """The best of `runs` list schedules by simulated makespan."""
        costs = DefaultCostModel().costs(graph, topology)
        problem = flatten(graph, topology, costs)
        rank = costs.bottom_levels(graph, topology).length_s
        rng, no_bias_s = np.random.default_rng(seed), np.zeros(costs.exec_s.shape)
        rules = [random_ties(rank, no_bias_s, rng) for _ in range(self.runs)]
        with ThreadPoolExecutor() as pool:  # the compiled loop runs without Python's lock
            plans = [pool.submit(run, problem, rule) for rule in rules]
            found = [plan.result() for plan in track(plans, "critical path")]
        makespans = Simulator(topology).makespans(graph, np.array([f.devices for f in found]))
        best = found[int(np.argmin(makespans))]
        return assign(self, graph, topology, best.devices, order=best.order)


def random_ties(rank: FloatArray, bias_s: FloatArray, rng: np.random.Generator) -> RankRule:
    """Largest rank first, on the device with the least begin plus bias; ties of both at random."""
    shuffled = rng.permutation(len(rank))
    sequence = shuffled[np.argsort(-rank[shuffled], kind="stable")]
    return RankRule(sequence, bias_s, rng.random(len(rank)))
