"""FewerDevices: list schedulers on some of the devices, where all of them are too many."""

from math import inf

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.mdp.parts import nested_parts, on_part
from doppler.placers.base import Shown, assign, refuse_budget
from doppler.placers.lists.schedulers import (
    CpopPlacer,
    EtfPlacer,
    HeftPlacer,
    Listed,
    ListPlacer,
    MaxMinPlacer,
    MemoryEtfPlacer,
    MemorySctPlacer,
    MinMinPlacer,
    PeftPlacer,
)
from doppler.placers.lists.trivial import ONE_RULE
from doppler.problem import Problem
from doppler.sim.simulator import Simulator

SCHEDULERS: tuple[type[ListPlacer], ...] = (
    *(MaxMinPlacer, MinMinPlacer, PeftPlacer, HeftPlacer, CpopPlacer, EtfPlacer),
    *(MemorySctPlacer, MemoryEtfPlacer),
)


class FewerDevicesPlacer(Shown):
    """The best list schedule, in simulation, on half of the devices, a quarter, and so on to one.

    A list scheduler gives a vertex to the device where it ends first, and never asks what that
    costs the vertices after it. Where transfers are slow, it spreads a graph over far too many
    devices, and fewer are better. The devices of a part are quick, and close to one another.
    """

    name = "fewer-devices"

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The schedule that is the shortest in simulation; of equal ones the first."""
        refuse_budget(self, budget_s, ONE_RULE)
        nested = nested_schedules(problem)
        devices, order = nested.best(problem, min(1, len(nested.parts) - 1))
        return assign(self, problem, devices, order=order)


class NestedSchedules:
    """The best list schedule on each nested part of a machine, or on a part of that part.

    They are made from the smallest part on, as far as is asked for, as a simulation then ends
    where it takes longer than the best so far. Of equal ones the first is the best: on the largest
    part, by the first scheduler. Where none fits in memory it is the one that lacks least memory.
    """

    def __init__(self, problem: Problem) -> None:
        self.parts = nested_parts(problem)
        self._best: list[Listed] = []  # on the smallest part, and so on
        self._cost = inf, inf  # makespan of the last of them, and share of memory it lacks

    def best(self, problem: Problem, number: int) -> Listed:
        """The best on a part, by its number, with devices of the whole machine."""
        simulator = Simulator(problem)
        while len(self._best) < len(self.parts) - number:
            self._add(problem, self.parts[-1 - len(self._best)], simulator)
        return self._best[len(self.parts) - 1 - number]

    def _add(self, problem: Problem, part: IntArray, simulator: Simulator) -> None:
        """Find what is best on one more part, or on those before."""
        distinct: dict[bytes, Listed] = {}
        for one in listed_on(problem, part):
            distinct.setdefault(one.devices.tobytes(), one)
        every, costs = [*distinct.values()], list[tuple[float, float]]()
        for one in every:
            least_s = min([self._cost[0], *(made_s for made_s, _ in costs)])
            (made_s,) = simulator.makespans(problem.graph, one.devices[None], limit_s=least_s)
            costs.append((float(made_s), 0.0))
        if min(self._cost, *costs)[0] == inf:
            table = np.stack([one.devices for one in every])
            costs = [(inf, share) for share in simulator.lent_shares(problem.graph, table)]
        first = min(range(len(every)), key=lambda i: costs[i])
        is_best = not self._best or costs[first] <= self._cost
        self._best.append(every[first] if is_best else self._best[-1])
        self._cost = costs[first] if is_best else self._cost


def nested_schedules(problem: Problem) -> NestedSchedules:
    """The best list schedules on nested parts, which a problem may keep."""
    return problem.kept(NestedSchedules, lambda: NestedSchedules(problem))


def listed_on(problem: Problem, part: IntArray) -> list[Listed]:
    """What all list schedulers make of a part of the machine, with devices of the whole."""
    if len(part) == problem.topology.num_devices:
        return [kind().listed(problem) for kind in schedulers_for(problem)]
    on_it = on_part(problem, part)
    every = [kind().listed(on_it) for kind in schedulers_for(on_it)]
    is_input = problem.graph.is_input
    return [Listed(np.where(is_input, -1, part[one.devices]), one.order) for one in every]


def schedulers_for(problem: Problem) -> tuple[type[ListPlacer], ...]:
    """The schedulers, without those that use the same devices as one before them."""
    if problem.topology.num_devices == 1:
        return SCHEDULERS[:1]
    if not problem.may_run_out:  # then m-ETF is ETF
        return tuple(kind for kind in SCHEDULERS if kind is not MemoryEtfPlacer)
    return SCHEDULERS
