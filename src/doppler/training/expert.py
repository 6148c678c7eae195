"""Expert: a search that improves a policy's samples, and a pool of the best for it to imitate."""

from math import inf

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.placers.search.annealing import starting_points
from doppler.placers.search.improver import Improver
from doppler.problem import Problem
from doppler.training.config import TrainConfig


class Pool:
    """The best assignments known, with different makespans."""

    def __init__(self, size: int, num_vertices: int) -> None:
        self.size = size
        self.costs_s: FloatArray = np.zeros(0)  # ascending
        self.devices: IntArray = np.zeros((0, num_vertices), np.int64)

    def add(self, devices: IntArray, costs_s: FloatArray) -> None:
        """Keep the best of what is there and what comes; of those that cost the same, the last.

        That is the one which is more like what the policy does now.
        """
        devices = np.concatenate([devices, self.devices])
        costs_s = np.concatenate([costs_s, self.costs_s])
        runs = np.flatnonzero(np.isfinite(costs_s))
        if not len(runs):
            return
        same = np.round(costs_s[runs] / costs_s[runs].min(), 9)
        kept = runs[np.unique(same, return_index=True)[1]][: self.size]
        self.costs_s, self.devices = costs_s[kept], devices[kept]

    @property
    def best_s(self) -> float:
        """The least cost; infinity where there is none."""
        return float(self.costs_s.min(initial=inf))


class Expert:
    """Expert iteration on one graph: search from the policy's samples and from a pool."""

    def __init__(
        self,
        problem: Problem,
        config: TrainConfig,
        threads: int,
    ) -> None:
        assert config.sim.expert is not None
        self.config, self.seed, self.threads = config.sim.expert, config.seed, threads
        self.improver = Improver(problem, config.sim_config, draws=config.draws, seed=config.seed)
        self.problem = problem

    def first_pool(self) -> Pool:
        """A pool with what the heuristics make, and what search makes of the best of that."""
        pool, config = Pool(self.config.pool, self.problem.graph.num_vertices), self.config
        starts = np.array(starting_points(self.problem, self.seed))
        pool.add(starts, self.improver.costs_s(starts))
        if config.first_moves and len(pool.costs_s):
            found = self.improver.improve(
                pool.devices[: config.samples],
                config.first_moves,
                hot=config.hot,
                cold=config.cold,
                seed=self.seed,
                threads=self.threads,
            )
            pool.add(*found)
        return pool

    def lessons(
        self, pool: Pool, devices: IntArray, makespans: FloatArray, number: int
    ) -> tuple[IntArray, int]:
        """(L, V) assignments to imitate, after improving the best of (B, V) devices, and how many
        of them are what became of these.

        Those are the first half: the policy's own, but for what matters. The others are drawn from
        the pool, its better half mostly; what was improved is added to it.
        """
        config = self.config
        rng = np.random.default_rng([self.seed, number])
        starts = devices[np.argsort(makespans, kind="stable")[: config.samples]]
        own = len(starts)
        if len(pool.costs_s):
            elites = rng.integers(len(pool.costs_s), size=config.elites)
            starts = np.concatenate([starts, pool.devices[elites]])
        found, costs_s = self.improver.improve(
            starts,
            config.moves,
            hot=config.hot,
            cold=config.cold,
            seed=int(rng.integers(2**31)),
            threads=self.threads,
            closely=True,
        )
        pool.add(found, costs_s)
        size = len(pool.costs_s)
        if not size:
            return pool.devices, 0
        ranks = rng.exponential(1 + size / 4, config.lessons).astype(np.int64)
        lessons = pool.devices[np.minimum(ranks, size - 1)]
        runs = np.flatnonzero(np.isfinite(costs_s[:own]))
        half = config.lessons // 2 if len(runs) else 0
        if half:
            lessons[:half] = found[rng.choice(runs, size=half)]
        return lessons, half
