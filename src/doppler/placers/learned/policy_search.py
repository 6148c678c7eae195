"""PolicySearch: the search of placer `doppler`, batch by batch, so that it can be continued."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from math import inf
from time import monotonic

import numpy as np

from doppler.base.arrays import IntArray
from doppler.mdp.instance import Instance
from doppler.mdp.rollout import NOTHING_ASSIGNED
from doppler.placers.learned.batches import Batch, BatchKind
from doppler.placers.learned.config import NeighbourhoodConfig
from doppler.placers.learned.neighbourhoods import Elite, Population
from doppler.placers.learned.policy_repair import PolicyRepair, Samples, joined
from doppler.placers.learned.sample_times import SampleTimes
from doppler.placers.search.annealing import SearchConfig, search


class PolicySearch:
    """A large-neighbourhood search in which a policy repairs, and where it stands.

    Each part of the machine begins with the greedy assignment of the policy and, where the policy
    reads a guide, with that: the best list schedule. The best parts become populations, which do
    not mix.

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
        self._times = SampleTimes()
        self.instance, self.parts, self.seed = instance, parts, seed
        self._batches = enumerate(batches)
        self._next = next(self._batches, None)
        self._on_parts = [Population(instance, config, part) for part in range(len(parts))]
        self._populations: list[Population] = []  # from the first batch on that is not greedy
        self._pool = ThreadPoolExecutor(parts[0].threads)

    @property
    def next(self) -> Batch | None:
        """The batch to be made next; None where all were made."""
        return None if self._next is None else self._next[1]

    def has_time(self, seconds: float) -> bool:
        """Whether there is a next batch, of which one sample ends in time, as those before tell."""
        batch = self.next
        return batch is not None and self._times.sample_s(batch.kind) <= seconds

    def step(self, seconds: float = inf) -> Samples:
        """The samples of the next batch: as many as end in time, one at least."""
        assert self._next is not None
        began, (number, batch) = monotonic(), self._next
        batch = replace(batch, count=self._times.count(batch, self.parts[0], seconds))
        population = self._population(batch)
        rng = np.random.default_rng([self.seed, number])
        part = self.parts[population.part if batch.stays else 0]  # the first is the whole machine
        samples = make_samples(batch, part, population, rng, self._pool)
        if batch.kind is BatchKind.GREEDY and population.config.list_starts:
            samples = joined([samples, population.judged(part.listed)])
        self._next = next(self._batches, None)
        population.add(*samples)
        took_s = (monotonic() - began) * part.shares(batch.count) / max(batch.count, 1)
        self._times.note(batch.kind, took_s)
        return samples

    def _population(self, batch: Batch) -> Population:
        """The population that the assignments of a batch are for."""
        if batch.kind is BatchKind.GREEDY:
            return self._on_parts[batch.part]
        if not self._populations:
            self._populations = self._first(batch.populations)
        elif batch.kind is BatchKind.NEIGHBOUR:
            self._populations = best_first(self._populations)[: batch.populations]
        return self._populations[batch.population % len(self._populations)]

    def _first(self, count: int) -> list[Population]:
        """The populations to begin with: on the best parts, and on these again if there are few."""
        ranked = best_first(self._on_parts)
        fresh = max(count - len(ranked), 0)
        parts = [ranked[i % len(ranked)].part for i in range(fresh)]
        config = ranked[0].config
        every = [*ranked, *(Population(self.instance, config, part) for part in parts)]
        return every[:count]

    def polish(self, config: SearchConfig) -> tuple[Samples, bool]:
        """What annealing makes of the best assignments, and whether Ctrl-C ended it.

        Its chains begin with the best of all populations.
        """
        populations = best_first(self._populations or self._on_parts)
        elites = sorted(chain.from_iterable(one.elites for one in populations), key=cost_of)
        starts = self.instance.expand(np.stack([one.devices for one in elites]))
        found = search(self.instance.problem, list(starts), config, seed=self.seed)
        devices, order = found.devices[None, self.instance.vertices], elites[0].order[None]
        return (devices, order, np.array([found.cost_s])), found.interrupted

    def take(self, devices: IntArray, makespan_s: float) -> None:
        """Add an assignment that others found, (n,) devices, to the best population.

        It is repaired in the order of the best assignment there; there is none before the first
        batch.
        """
        populations = best_first(self._populations or self._on_parts)
        if populations:
            order = populations[0].elites[0].order
            populations[0].add(devices[None], order[None], np.array([makespan_s]))

    def close(self) -> None:
        """Let its threads end."""
        self._pool.shutdown()


def best_first(populations: Sequence[Population]) -> list[Population]:
    """Those that are not empty, the best first."""
    return sorted(
        (one for one in populations if one.elites), key=lambda one: cost_of(one.elites[0])
    )


def cost_of(elite: Elite) -> tuple[float, float]:
    """What elites are compared by."""
    return elite.cost


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
