"""Critical path: the paper's list-scheduling baseline and the teacher of its first stage."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray
from doppler.base.progress import track
from doppler.cost import Costs, DefaultCostModel
from doppler.errors import ConfigError
from doppler.graph.graph import Graph
from doppler.placers.base import Shown, assign, cores
from doppler.placers.lists.rules import RankRule, Schedule, flatten, run
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology


class CriticalPathPlacer(Shown):
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
        problem, simulator = flatten(graph, topology, costs), Simulator(topology)
        rank, no_bias_s = urgency(graph, topology, costs), np.zeros(costs.exec_s.shape)
        rng = np.random.default_rng(seed)

        def plan(drawn: Drawn) -> Schedule:
            return run(problem, random_ties(rank, no_bias_s, drawn))

        # The compiled loop runs without Python's lock, as does sorting.
        with ThreadPoolExecutor(len(cores()) or None) as pool:
            plans = [pool.submit(plan, draw(rng, len(rank))) for _ in range(self.runs)]
            simulator.problem(graph)  # made ready in the meantime
            found = [plan.result() for plan in track(plans, "critical path")]
        makespans = simulator.makespans(graph, np.array([f.devices for f in found]))
        best = found[int(np.argmin(makespans))]
        return assign(self, graph, topology, best.devices, order=best.order)


class Drawn(NamedTuple):
    """What breaks ties in one run."""

    order: IntArray  # (V,) of equally urgent vertices the first one here goes first
    devices: FloatArray  # (V,) in [0, 1): which of the devices that are equally good


def draw(rng: np.random.Generator, size: int) -> Drawn:
    """Random ties for so many vertices."""
    return Drawn(rng.permutation(size), rng.random(size))


def urgency(graph: Graph, topology: Topology, costs: Costs) -> IntArray:
    """(V,) 0 for the longest path to an exit by mean seconds, 1 for the next length, and so on."""
    length_s = costs.bottom_levels(graph, topology).length_s
    return np.unique(-length_s, return_inverse=True)[1].astype(np.int64)


def random_ties(rank: IntArray, bias_s: FloatArray, drawn: Drawn) -> RankRule:
    """Least rank first, on the device with the least begin plus bias; ties of both as drawn."""
    size = len(rank)
    # To sort (rank, place in the order) as one number is quicker than to sort ranks stably.
    key = np.sort(rank[drawn.order] * size + np.arange(size))
    return RankRule(drawn.order[key % size], bias_s, drawn.devices)
