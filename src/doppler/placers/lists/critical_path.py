"""Critical path: the paper's list scheduler and the teacher of its first stage."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray
from doppler.base.progress import track
from doppler.errors import ConfigError
from doppler.placers.base import Shown, assign, cores, refuse_budget
from doppler.placers.lists.rules import ListSchedule, PlanArrays, RankRule, flatten, run
from doppler.problem import Problem
from doppler.sim.simulator import Simulator


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

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The best of `runs` list schedules by simulated makespan."""
        refuse_budget(self, budget_s, "it makes as many assignments as `runs` says")
        graph, arrays, simulator = problem.graph, self.plan_arrays(problem), Simulator(problem)
        rank, no_bias_s = urgency(problem), np.zeros(arrays.exec_s.shape)
        rng = np.random.default_rng(seed)

        def plan(drawn: Drawn) -> ListSchedule:
            return run(arrays, random_ties(rank, no_bias_s, drawn))

        # The compiled loop runs without Python's lock, as does sorting.
        with ThreadPoolExecutor(len(cores()) or None) as pool:
            plans = [pool.submit(plan, draw(rng, len(rank))) for _ in range(self.runs)]
            simulator.arrays(graph)  # made ready in the meantime
            found = [plan.result() for plan in track(plans, "critical path")]
        makespans = simulator.makespans(graph, np.array([f.devices for f in found]))
        best = found[int(np.argmin(makespans))]
        return assign(self, problem, best.devices, order=best.order)

    def plan_arrays(self, problem: Problem) -> PlanArrays:
        """What plans are made from."""
        return flatten(problem)


class BlindCriticalPathPlacer(CriticalPathPlacer):
    """The same, blind to transfers: on whichever device is free first, wherever its inputs are.

    The plan takes every tensor to be everywhere as soon as it is made, so of several devices that
    are free when a vertex becomes ready any will do. The order of the vertices is the same.
    """

    name = "critical-path:blind"

    def plan_arrays(self, problem: Problem) -> PlanArrays:
        """What plans are made from: transfers take no time."""
        arrays = flatten(problem)
        return arrays._replace(
            fixed_s=np.zeros_like(arrays.fixed_s),
            latency_s=np.zeros_like(arrays.latency_s),
            s_per_byte=np.zeros_like(arrays.s_per_byte),
        )


class Drawn(NamedTuple):
    """What breaks ties in one run."""

    order: IntArray  # (V,) of equally urgent vertices the first one here goes first
    devices: FloatArray  # (V,) in [0, 1): which of the devices that are equally good


def draw(rng: np.random.Generator, size: int) -> Drawn:
    """Random ties for a number of vertices."""
    return Drawn(rng.permutation(size), rng.random(size))


def urgency(problem: Problem) -> IntArray:
    """(V,) 0 for the longest path to an exit by mean seconds, 1 for the next length, and so on."""
    length_s = problem.bottom_levels.length_s
    return np.unique(-length_s, return_inverse=True)[1].astype(np.int64)


def random_ties(rank: IntArray, bias_s: FloatArray, drawn: Drawn) -> RankRule:
    """Least rank first, on the device with the least begin plus bias; ties of both as drawn."""
    size = len(rank)
    # To sort (rank, place in the order) as one number is quicker than to sort ranks stably.
    key = np.sort(rank[drawn.order] * size + np.arange(size))
    return RankRule(drawn.order[key % size], bias_s, drawn.devices)
