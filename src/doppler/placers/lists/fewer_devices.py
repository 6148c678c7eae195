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
        devices, orders, rounds = list[IntArray](), list[IntArray](), list[int]()
        parts = nested_parts(problem)
        for part in parts[1:] or parts:
            on_it = on_part(problem, part)
            for number, kind in enumerate(schedulers_for(on_it)):
                schedule = kind().schedule(on_it)
                devices.append(np.where(problem.graph.is_input, -1, part[schedule.devices]))
                orders.append(schedule.order)
                rounds.append(number)
        best = shortest(problem, devices, rounds)
        return assign(self, problem, devices[best], order=orders[best])


def schedulers_for(problem: Problem) -> tuple[type[ListPlacer], ...]:
    """The schedulers, without those that use the same devices as one before them."""
    if problem.topology.num_devices == 1:
        return SCHEDULERS[:1]
    if not problem.may_run_out:  # then m-ETF is ETF
        return tuple(kind for kind in SCHEDULERS if kind is not MemoryEtfPlacer)
    return SCHEDULERS


def shortest(problem: Problem, devices: list[IntArray], rounds: list[int]) -> int:
    """Which of (V,) assignments is the shortest in simulation; of equal ones the first.

    They are simulated round by round, one of each part in a round. A simulation ends where it takes
    longer than the best so far, and parts differ more than schedulers.
    """
    distinct: dict[bytes, int] = {}
    for i, row in enumerate(devices):
        distinct.setdefault(row.tobytes(), i)
    simulator, makespans = Simulator(problem), np.full(len(devices), inf)
    for i in sorted(distinct.values(), key=rounds.__getitem__):
        (makespans[i],) = simulator.makespans(
            problem.graph, devices[i][None], limit_s=makespans.min()
        )
    return int(np.argmin(makespans))
