"""Large-neighbourhood search: which vertices are unassigned, and how they are assigned again."""

from math import inf
from typing import NamedTuple

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import FREE, NOTHING_FORCED, in_group
from doppler.sim.simulator import Simulator

ELITES = 4  # the best so far, which are thought about again
MOST = 0.3  # share of the vertices, at most, that are placed again
SMALL = 3.0  # mostly far fewer: that share times a random number to this power
GROUPED = 0.3  # share of the batches in which groups are placed
LARGEST, SMALLEST = 2.0, 1 / 16  # work of a group, as shares of a device's
NOISE = 0.5  # of the logarithm of what is moved
NO_GROUPS = np.zeros(0, np.int64)


class Elite(NamedTuple):
    """One of the best assignments so far."""

    cost: tuple[float, int]  # makespan; and tasks that never run, where it runs out of memory
    devices: IntArray  # (n,)
    order: IntArray  # (n,) as they were placed


class Told(NamedTuple):
    """What a policy is told of B assignments: see `Roller.play`."""

    forced: IntArray  # (B, n)
    orders: IntArray  # (B, n)
    limit_s: float = inf  # makespan above which nothing would be remembered


NOTHING = Told(NOTHING_FORCED, NOTHING_FORCED)


class Rethinking:
    """The best assignments of an instance so far, and what to make of them.

    A policy may repeat its samples with most vertices told to stay where they are in one of the
    best: large neighbourhood search, in which it is the policy that repairs, or the lot. What is
    placed again are the vertices around one of them, a stretch of the order in which they were
    placed, or whole groups that much is moved within. Each of these then goes to one device, that
    of the vertex of it that comes first: what no policy does that sees but one vertex at a time.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.elites: list[Elite] = []  # the best first, no two as good
        self._simulator = Simulator(instance.problem)

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

    def afresh(self, count: int, rng: np.random.Generator) -> Told:
        """The plan of assignments made from nothing, at random group by group."""
        forced = np.full((count, self.instance.num_vertices), FREE)
        if rng.random() < GROUPED:
            forced[:] = in_group(self.groups(rng))
        return Told(forced, NOTHING_FORCED)

    def again(self, count: int, rng: np.random.Generator, by_lot: float | None) -> Told:
        """The plan of assignments that repair a part of one of the best.

        This share of them, or of their groups, is repaired at random. If it is None, none
        does, and they are selected in a new order.
        """
        from doppler.placers.learned.neighbourhoods_kernel import think_again

        groups = self.groups(rng) if rng.random() < GROUPED else NO_GROUPS
        devices = np.stack([elite.devices for elite in self.elites])
        orders = np.stack([elite.order for elite in self.elites])
        shares, seed = MOST * rng.random(count) ** SMALL, int(rng.integers(2**31))
        forced, order = think_again(
            self.instance.tables, devices, orders, groups, shares, by_lot or 0.0, seed
        )
        limit_s = self.elites[-1].cost[0] if len(self.elites) == ELITES else inf
        return Told(forced, NOTHING_FORCED if by_lot is None else order, limit_s)

    def groups(self, rng: np.random.Generator) -> IntArray:
        """(n,) group of each vertex: those that exchange most are joined first, with some noise."""
        from doppler.placers.learned.neighbourhoods_kernel import join

        tables = self.instance.tables
        work_s = tables.exec_s.mean(axis=1)
        share = LARGEST * (SMALLEST / LARGEST) ** rng.random()
        lots = np.exp(NOISE * rng.standard_normal(len(tables.edge_move_s)))
        order = np.argsort(-tables.edge_move_s * lots, kind="stable")
        most_s = share * work_s.sum() / self.instance.num_devices
        groups: IntArray = join(tables, order, work_s, most_s)
        return groups
