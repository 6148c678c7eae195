"""PolicySearch: the search of placer `doppler`, batch by batch, so that it can be continued."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf

import numpy as np

from doppler.base.arrays import IntArray
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import NOTHING_ASSIGNED
from doppler.placers.learned.batches import Batch, BatchKind
from doppler.placers.learned.config import NeighbourhoodConfig
from doppler.placers.learned.neighbourhoods import Population
from doppler.placers.learned.policy_repair import PolicyRepair, Samples


class PolicySearch:
    """A large-neighbourhood search in which a policy repairs, and where it stands.

    Batch i is drawn with the seeds `[seed, i]`, whatever happens between batches. Close it after
    use: it has threads.
    """

    def __init__(
        self,
        instance: Instance,
        parts: Sequence[PolicyRepair],
        batches: Iterator[Batch],
        config: NeighbourhoodConfig,
        seed: int,
    ) -> None:
        self.instance, self.parts, self.seed = instance, parts, seed
        self._batches = enumerate(batches)
        self._next = next(self._batches, None)
        self._populations = [Population(instance, config) for _ in range(config.max_populations)]
        self._pool = ThreadPoolExecutor(parts[0].threads)

    @property
    def next(self) -> Batch | None:
        """The batch to be made next; None where all were made."""
        return None if self._next is None else self._next[1]

    def step(self, count: int | None = None) -> Samples:
        """The samples of the next batch; with a `count`, only that number of them."""
        assert self._next is not None
        number, batch = self._next
        if count is not None:
            batch = replace(batch, count=min(count, batch.count))
        if batch.kind is BatchKind.NEIGHBOUR:
            self._populations = best_first(self._populations)[: batch.populations]
        population = self._populations[batch.population % len(self._populations)]
        rng = np.random.default_rng([self.seed, number])
        number_of_part = population.part if batch.stays else batch.part
        part = self.parts[number_of_part]
        samples = make_samples(batch, part, population, rng, self._pool)
        self._next = next(self._batches, None)
        if population.add(*samples) and batch.kind is not BatchKind.NEIGHBOUR:
            population.part = number_of_part
        return samples

    def take(self, devices: IntArray, makespan_s: float) -> None:
        """Add an assignment that others found, (n,) devices, to the best population.

        It is repaired in the order of the best assignment there; there is none before the first
        batch.
        """
        populations = best_first(self._populations)
        if populations:
            order = populations[0].elites[0].order
            populations[0].add(devices[None], order[None], np.array([makespan_s]))

    def close(self) -> None:
        """Let its threads end."""
        self._pool.shutdown()


def best_first(populations: Sequence[Population]) -> list[Population]:
    """Those that are not empty, the best first."""
    return sorted((one for one in populations if one.elites), key=lambda one: one.elites[0].cost)


def make_samples(
    batch: Batch,
    part: PolicyRepair,
    population: Population,
    rng: np.random.Generator,
    pool: ThreadPoolExecutor,
) -> Samples:
    """The assignments of a batch: destroyed and repaired at random in part, then by the policy."""
    seeds = rng.integers(2**62, size=batch.count)
    partial, limit_s = NOTHING_ASSIGNED, inf
    if batch.kind is BatchKind.INITIAL:
        partial = population.empty(rng)
    elif batch.kind is BatchKind.NEIGHBOUR:
        partial = population.neighbours(
            batch.count, rng, batch.random_share, keep_order=batch.keeps_order
        )
        partial = part.within(partial)
        limit_s = population.limit_s
    return part.repair_with_policy(partial, batch, seeds, pool, limit_s=limit_s)
