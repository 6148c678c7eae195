"""Rethinking: which vertices a policy places again, and which of them together."""

from math import inf
from typing import NamedTuple

import numpy as np

from doppler.arrays import BoolArray, FloatArray, IntArray
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import FREE, in_group
from doppler.sim.simulator import Simulator

ELITES = 4  # the best so far, which are thought about again
MOST = 0.3  # share of the vertices, at most, that are placed again
SMALL = 3.0  # mostly far fewer: that share times a random number to this power
GROUPED = 0.3  # share of the batches in which groups are placed
LARGEST, SMALLEST = 2.0, 1 / 16  # work of a group, as shares of a device's
NOISE = 0.5  # of the logarithm of what is moved


class Elite(NamedTuple):
    """One of the best assignments so far."""

    cost: tuple[float, int]  # makespan; and tasks that never run, where it runs out of memory
    devices: IntArray  # (n,)
    order: IntArray  # (n,) as they were placed


class Rethinking:
    """The best assignments of an instance so far, and what to make of them.

    A policy may repeat its samples with most vertices told to stay where they are in one of the
    best: large neighbourhood search, in which it is the policy that repairs. What it places again
    are the vertices around one of them, a stretch of the order in which they were placed, or whole
    groups that much is moved within. Each of these then goes to one device, that of the vertex of
    it that comes first: what no policy does that sees but one vertex at a time.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.elites: list[Elite] = []  # the best first, no two as good
        self._simulator = Simulator(instance.topology)

    def add(self, devices: IntArray, order: IntArray, makespans: FloatArray) -> None:
        """Remember the best of (B, n) assignments."""
        costs = [(made_s, 0) for made_s in makespans.tolist()]
        if not any(made_s < inf for made_s, _ in [*costs, *(elite.cost for elite in self.elites)]):
            table = self.instance.expand(devices)
            left = self._simulator.unfinished(self.instance.graph, table)
            costs = [(inf, count) for count in left.tolist()]
        known = {elite.cost: elite for elite in self.elites}
        for i, cost in enumerate(costs):
            known[cost] = Elite(cost, devices[i], order[i])  # the last, so that it is not stuck
        self.elites = [known[cost] for cost in sorted(known)[:ELITES]]
        if self.elites[0].cost[0] < inf:  # then those that run out of memory have had their day
            self.elites = [elite for elite in self.elites if elite.cost[0] < inf]

    def afresh(self, count: int, rng: np.random.Generator) -> IntArray:
        """(count, n) what to force where all are placed, by lot group by group."""
        rows = np.full((count, self.instance.num_vertices), FREE)
        if rng.random() < GROUPED:
            rows[:] = in_group(self.groups(rng))
        return rows

    def again(self, count: int, rng: np.random.Generator) -> IntArray:
        """(count, n) what to force where some vertices of one of the best are placed again."""
        grouped = rng.random() < GROUPED
        groups = self.groups(rng) if grouped else np.arange(self.instance.num_vertices)
        rows = np.empty((count, len(groups)), np.int64)
        shares = MOST * rng.random(count) ** SMALL
        for i, share in enumerate(shares.tolist()):
            elite = self.elites[rng.integers(len(self.elites))]
            if grouped:
                chosen = _some(groups, share, rng)
            elif i % 2:
                chosen = self.around(share, rng)
            else:
                chosen = _stretch(elite.order, share, rng)
            rows[i] = np.where(chosen, in_group(groups) if grouped else FREE, elite.devices)
        return rows

    def groups(self, rng: np.random.Generator) -> IntArray:
        """(n,) group of each vertex: where most is moved, by lot, it is put together first."""
        from doppler.placers.rethinking_kernel import join

        tables = self.instance.tables
        work_s = tables.exec_s.mean(axis=1)
        share = LARGEST * (SMALLEST / LARGEST) ** rng.random()
        lots = np.exp(NOISE * rng.standard_normal(len(tables.edge_move_s)))
        order = np.argsort(-tables.edge_move_s * lots, kind="stable")
        most_s = share * work_s.sum() / self.instance.num_devices
        groups: IntArray = join(tables, order, work_s, most_s)
        return groups

    def around(self, share: float, rng: np.random.Generator) -> BoolArray:
        """(n,) whether a vertex is among those around one of them."""
        from doppler.placers.rethinking_kernel import ball

        first, seed = rng.integers(self.instance.num_vertices), rng.integers(2**31)
        size = int(share * self.instance.num_vertices) + 1
        inside: BoolArray = ball(self.instance.tables, int(first), size, int(seed))
        return inside


def _some(groups: IntArray, share: float, rng: np.random.Generator) -> BoolArray:
    """Those of some groups, each by lot, one at least."""
    numbers = np.unique(groups)
    chosen = rng.random(len(groups)) < share
    chosen[rng.choice(numbers)] = True
    return chosen[groups]


def _stretch(order: IntArray, share: float, rng: np.random.Generator) -> BoolArray:
    """Those that follow one another in an order."""
    size = len(order)
    length = min(int(share * size) + 1, size)
    first = int(rng.integers(size - length + 1))
    chosen = np.zeros(size, bool)
    chosen[order[first : first + length]] = True
    return chosen
