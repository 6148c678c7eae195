"""Populations of a large-neighbourhood search: the best assignments, and their neighbours."""

from math import inf
from typing import NamedTuple

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.guide import Guide
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import NO_GROUPS, NO_ORDERS, PartialAssignments
from doppler.placers.learned.config import NeighbourhoodConfig
from doppler.placers.lists.guides import simulated_times
from doppler.sim.simulator import Simulator


class Elite(NamedTuple):
    """One of the best assignments so far."""

    cost: tuple[float, float]  # makespan; and the share of memory it lacks, where it runs out
    devices: IntArray  # (n,)
    order: IntArray  # (n,) as they begin in simulation; as they were placed, where it does not fit
    times: FloatArray  # (2, n) when they end and their slack, see `Guide`


class Population:
    """The best assignments of an instance so far, and the neighbours that search tries next.

    A neighbour has one of the best as its parent. A destroy operator unassigns some of the
    vertices: those around one of them, a stretch of the order in which they were placed, or whole
    groups that much is moved within. Repair operators assign them again: some at random here, the
    others by the policy, which completes what `neighbours` returns. A group goes to one device,
    which no policy sees to that places one vertex at a time.
    """

    def __init__(self, instance: Instance, config: NeighbourhoodConfig, part: int = 0) -> None:
        """`part` is that of the machine on which it begins, by number."""
        self.instance, self.config, self.part = instance, config, part
        self.elites: list[Elite] = []  # the best first, no two as good
        self._simulator = Simulator(instance.problem)
        position = np.empty(instance.graph.num_vertices, np.int64)  # producers come first
        position[instance.graph.topological_order] = np.arange(len(position))
        self._depth = position[instance.vertices]

    @property
    def limit_s(self) -> float:
        """The makespan above which an assignment would not be kept."""
        return self.elites[-1].cost[0] if len(self.elites) == self.config.elites else inf

    def add(self, devices: IntArray, order: IntArray, makespans: FloatArray) -> bool:
        """Keep the best of (B, n) assignments and those kept before; whether the best is new."""
        costs = [(made_s, 0.0) for made_s in makespans.tolist()]
        if not any(made_s < inf for made_s, _ in [*costs, *(elite.cost for elite in self.elites)]):
            table = self.instance.expand(devices)
            shares = self._simulator.lent_shares(self.instance.graph, table)
            costs = [(inf, share) for share in shares.tolist()]
        known: dict[tuple[float, float], Elite | int] = {elite.cost: elite for elite in self.elites}
        before = self.elites[0].cost if self.elites else (inf, inf)
        for i, cost in enumerate(costs):
            known[cost] = i  # the last, so that it is not stuck
        best = sorted(known)[: self.config.elites]
        if best[0][0] < inf:  # then those that run out of memory are of no use
            best = [cost for cost in best if cost[0] < inf]
        self.elites = []
        for cost in best:
            one = known[cost]
            if not isinstance(one, Elite):
                one = self._elite(cost, devices[one], order[one])
            self.elites.append(one)
        return self.elites[0].cost < before

    def judged(self, devices: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
        """(K, n) devices, (K, n) orders, producers first, and (K,) makespans of assignments."""
        order = np.tile(np.argsort(self._depth), (len(devices), 1))
        table = self.instance.expand(devices)
        return devices, order, self._simulator.makespans(self.instance.graph, table, threads=1)

    def _elite(self, cost: tuple[float, float], devices: IntArray, order: IntArray) -> Elite:
        """An assignment with its times, and in the order in which it runs."""
        times = None
        if cost[0] < inf:
            times = simulated_times(self.instance, devices, self._simulator)
        if times is None:
            unknown = np.stack([np.full(len(devices), -1.0), np.zeros(len(devices))])
            return Elite(cost, devices, order, unknown)
        begin_s, end_s = times[:2]
        order = np.lexsort((self._depth, end_s, begin_s))
        return Elite(cost, devices, order, times[1:])

    def empty(self, rng: np.random.Generator) -> PartialAssignments:
        """Assignments of no vertex, sometimes with groups that are placed together."""
        grouped = rng.random() < self.config.grouped_share
        return PartialAssignments(groups=self.draw_groups(rng) if grouped else NO_GROUPS)

    def neighbours(
        self, count: int, rng: np.random.Generator, random_share: float, *, keep_order: bool = True
    ) -> PartialAssignments:
        """Elites of which a part is destroyed, and a share of that repaired at random.

        They are completed in the order of their parents, or in a new one of the policy.
        """
        from doppler.placers.learned.neighbourhoods_kernel import destroy_and_repair_at_random

        config = self.config
        groups = self.draw_groups(rng) if rng.random() < config.grouped_share else NO_GROUPS
        parents = np.stack([elite.devices for elite in self.elites])
        orders = np.stack([elite.order for elite in self.elites])
        shares = config.max_destroyed * rng.random(count) ** config.destroyed_power
        devices, order, which = destroy_and_repair_at_random(
            *(self.instance.tables, parents, orders, groups, shares),
            config.operators(random_share),
            int(rng.integers(2**31)),
        )
        times = np.stack([elite.times for elite in self.elites])[which]
        guide = Guide(devices, times)
        return PartialAssignments(devices, groups, order if keep_order else NO_ORDERS, guide)

    def draw_groups(self, rng: np.random.Generator) -> IntArray:
        """(n,) group of each vertex: the ends of edges are merged, those that move most first.

        How much they move is perturbed by noise, and the most work of a group is drawn.
        """
        from doppler.placers.learned.neighbourhoods_kernel import merge_ends

        tables, config = self.instance.tables, self.config
        work_s = tables.exec_s.mean(axis=1)
        ratio = config.min_group_work / config.max_group_work
        share = config.max_group_work * ratio ** rng.random()
        noise = np.exp(config.group_noise * rng.standard_normal(len(tables.edge_move_s)))
        order = np.argsort(-tables.edge_move_s * noise, kind="stable")
        most_s = share * work_s.sum() / self.instance.num_devices
        groups: IntArray = merge_ends(tables, order, work_s, most_s)
        return groups
