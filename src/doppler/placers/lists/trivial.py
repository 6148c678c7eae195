"""Placers to measure others by: one device, round-robin, random."""

import numpy as np

from doppler.assignment import Assignment
from doppler.placers.base import Shown, assign, refuse_budget
from doppler.problem import Problem

ONE_RULE = "it makes one assignment by a fixed rule"


class SinglePlacer(Shown):
    """Everything on the one device that does it fastest."""

    name = "single"

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """All vertices on the device with the least exec seconds in all."""
        refuse_budget(self, budget_s, ONE_RULE)
        fastest = int(np.argmin(problem.costs.exec_s.sum(axis=0)))
        return assign(self, problem, np.full(problem.graph.num_vertices, fastest))


class RoundRobinPlacer(Shown):
    """Vertices in topological order, dealt out to the devices in turn."""

    name = "round-robin"

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The i-th vertex in topological order on device i modulo the number of devices."""
        refuse_budget(self, budget_s, ONE_RULE)
        graph = problem.graph
        order = graph.topological_order[~graph.is_input[graph.topological_order]]
        devices = np.zeros(graph.num_vertices, np.int64)
        devices[order] = np.arange(len(order)) % problem.topology.num_devices
        return assign(self, problem, devices, order=order)


class RandomPlacer(Shown):
    """A device for each vertex at random."""

    name = "random"

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """Independent and uniform, from the seed."""
        refuse_budget(self, budget_s, ONE_RULE)
        rng = np.random.default_rng(seed)
        devices = rng.integers(problem.topology.num_devices, size=problem.graph.num_vertices)
        return assign(self, problem, devices)
