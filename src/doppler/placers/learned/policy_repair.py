"""Repair by a policy: partial assignments completed, and simulated."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import UNASSIGNED, PartialAssignments, Roller
from doppler.placers.learned.batches import Batch
from doppler.placers.lists.guides import instance_on, with_guide
from doppler.policies.arrays.acting import play
from doppler.policies.arrays.policy import ArrayPolicy
from doppler.sim.simulator import Simulator

if TYPE_CHECKING:
    from doppler.mdp.kernel import Weights

# (K, n) devices, (K, n) orders and (K,) makespans
Samples = tuple[IntArray, IntArray, FloatArray]


class PolicyRepair:
    """A policy that completes assignments on some of the devices of an instance."""

    def __init__(
        self,
        policy: ArrayPolicy,
        instance: Instance,
        devices: IntArray,
        *,
        threads: int = 1,
        min_samples_per_thread: int = 1,
    ) -> None:
        self.policy, self.whole, self.devices = policy, instance, devices
        self.threads, self.min_samples_per_thread = threads, min_samples_per_thread
        self.graph, self.simulator = instance.graph, Simulator(instance.problem)

    @cached_property
    def instance(self) -> Instance:
        """What the policy sees of it; made when it is first needed."""
        is_whole = len(self.devices) == self.whole.num_devices
        if is_whole:
            return with_guide(self.policy.config, self.whole)
        return instance_on(self.policy.config, self.whole.problem, self.devices)

    @property
    def listed(self) -> IntArray:
        """(G, n) devices of the whole machine of the best list schedule there, the guide; none
        where the policy reads none.
        """
        guide = self.instance.guide.devices
        if not len(guide):
            return np.zeros((0, self.whole.num_vertices), np.int64)
        return self.devices[guide]

    @cached_property
    def rollers(self) -> list[Roller]:
        """What plays there, in each thread."""
        return [Roller(self.instance) for _ in range(self.threads)]

    @cached_property
    def weights(self) -> "Weights":
        """The policy there."""
        return self.policy.on(self.instance)

    def within(self, partial: PartialAssignments) -> PartialAssignments:
        """Partial assignments of the whole machine on these devices; vertices elsewhere have none.

        Their devices are numbered as the part does.
        """
        index = np.full(self.whole.num_devices + 1, UNASSIGNED, np.int64)  # the last: of UNASSIGNED
        index[self.devices] = np.arange(len(self.devices))
        guide = partial.guide._replace(devices=index[partial.guide.devices])
        return partial._replace(devices=index[partial.devices], guide=guide)

    def shares(self, count: int) -> int:
        """The number of threads that make `count` samples."""
        return max(min(self.threads, count // self.min_samples_per_thread), 1)

    def repair_with_policy(
        self,
        partial: PartialAssignments,
        batch: Batch,
        seeds: IntArray,
        pool: ThreadPoolExecutor,
        *,
        limit_s: float = inf,
    ) -> Samples:
        """A batch of assignments, completed by the policy; every thread makes some of them.

        A makespan above the limit may be any number between the limit and its own.
        """
        weights, count, shares = self.weights, batch.count, self.shares(batch.count)
        ends = [count * i // shares for i in range(shares + 1)]

        def work(i: int) -> Samples:
            rows = slice(ends[i], ends[i + 1])
            played = play(
                *(self.rollers[i], weights, batch.policy, batch.sampling, seeds[rows]),
                partial=partial.rows(rows),
                record=False,
            )
            devices = self.devices[played.devices]
            table = self.whole.expand(devices)
            makespans = self.simulator.makespans(self.graph, table, threads=1, limit_s=limit_s)
            return devices, played.order, makespans

        return work(0) if shares == 1 else joined(list(pool.map(work, range(shares))))


def joined(found: Sequence[Samples]) -> Samples:
    """The samples of all batches."""
    devices, order, makespans = (np.concatenate(column) for column in zip(*found, strict=True))
    return devices, order, makespans
