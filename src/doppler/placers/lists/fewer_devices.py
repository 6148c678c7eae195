"""FewerDevices: list schedulers on some of the devices, where all of them are too many."""

from math import inf
from typing import NamedTuple

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
        parts = nested_parts(problem)
        listed = listed_on(problem, parts[1:] or parts)
        best = shortest(problem, listed)
        return assign(self, problem, listed[best].devices, order=listed[best].order)


class Listed(NamedTuple):
    """What a list scheduler makes of a part of the machine."""

    devices: IntArray  # (V,) of the whole machine
    order: IntArray  # (n,)
    turn: int  # of the scheduler, among those of the part


def listed_on(problem: Problem, parts: list[IntArray]) -> list[Listed]:
    """What all list schedulers make of each of some parts of the machine."""
    found = []
    for part in parts:
        is_whole = len(part) == problem.topology.num_devices
        on_it = problem if is_whole else on_part(problem, part)
        for turn, kind in enumerate(schedulers_for(on_it)):
            schedule = kind().schedule(on_it)
            devices = np.where(problem.graph.is_input, -1, part[schedule.devices])
            found.append(Listed(devices, schedule.order, turn))
    return found


def schedulers_for(problem: Problem) -> tuple[type[ListPlacer], ...]:
    """The schedulers, without those that use the same devices as one before them."""
    if problem.topology.num_devices == 1:
        return SCHEDULERS[:1]
    if not problem.may_run_out:  # then m-ETF is ETF
        return tuple(kind for kind in SCHEDULERS if kind is not MemoryEtfPlacer)
    return SCHEDULERS


def shortest(problem: Problem, listed: list[Listed]) -> int:
    """Which schedule is the shortest in simulation; of equal ones the first.

    They are simulated in turns, one of each part in a turn. A simulation ends where it takes longer
    than the best so far, and parts differ more than schedulers. Where none fits in memory it is the
    one that gets furthest.
    """
    distinct: dict[bytes, int] = {}
    for i, one in enumerate(listed):
        distinct.setdefault(one.devices.tobytes(), i)
    simulator, makespans = Simulator(problem), np.full(len(listed), inf)
    for i in sorted(distinct.values(), key=lambda i: listed[i].turn):
        (makespans[i],) = simulator.makespans(
            problem.graph, listed[i].devices[None], limit_s=makespans.min()
        )
    if makespans.min() < inf:
        return int(np.argmin(makespans))
    table = np.stack([one.devices for one in listed])
    return int(np.argmin(simulator.unfinished(problem.graph, table)))
