"""FewerDevices: list schedulers on some of the devices, where all of them are too many."""

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
        devices, orders = list[IntArray](), list[IntArray]()
        parts = nested_parts(problem)
        for part in parts[1:] or parts:
            on_it = on_part(problem, part)
            for kind in SCHEDULERS:
                schedule = kind().schedule(on_it)
                devices.append(np.where(problem.graph.is_input, -1, part[schedule.devices]))
                orders.append(schedule.order)
        makespans = Simulator(problem).makespans(problem.graph, np.stack(devices), threads=1)
        best = int(np.argmin(makespans))
        return assign(self, problem, devices[best], order=orders[best])
