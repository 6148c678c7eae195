"""Doppler: the learned policy as a placer, in a large-neighbourhood search."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from copy import copy
from dataclasses import replace
from itertools import zip_longest
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Union

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray, unboxed
from doppler.errors import ConfigError, Interrupted, MissingExtraError
from doppler.mdp.instance import Instance, make_instance
from doppler.mdp.parts import islands, nested_parts
from doppler.mdp.rollout import GREEDY
from doppler.placers.base import Shown, cores, pair
from doppler.placers.learned.batches import Batch, BatchKind, batches
from doppler.placers.learned.config import NeighbourhoodConfig
from doppler.placers.learned.neighbourhoods import Population
from doppler.placers.learned.policy_repair import PolicyRepair, Samples, joined
from doppler.placers.learned.policy_search import PolicySearch, make_samples
from doppler.placers.lists.guides import instance_for
from doppler.placers.solution import Solution
from doppler.placers.warm_up import warm_up_policy
from doppler.policies.arrays.checkpoint import read_policy, shipped_policy
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.arrays.policy import ArrayPolicy, from_torch, shapes_of
from doppler.problem import Problem

if TYPE_CHECKING:
    from doppler.policies.dual import DualPolicy

POLICY_FILE = "policy.safetensors"  # of a training run


class DopplerPlacer(Shown):
    """The best of some greedy and many sampled assignments of a policy, in simulation.

    The policy may have been trained on any graphs and topologies (Sec. 6, transfer). It places on
    the whole machine, on the best half of it, the best quarter and so on, and on islands of devices
    that are close, as little may be gained by many where transfers are slow. There it also has the
    best list schedule, which guides it. Search begins on the best of these parts. Two thirds of the
    first samples are only half the policy's: the critical-path rule selects, or places, as on
    graphs unlike those it was trained on that is the safer choice.

    Most samples then come from large-neighbourhood search: a part of one of the best assignments
    so far is unassigned and assigned again in the same order (see `Population`). The policy repairs
    all of it, half of it or none, in turn; the rest is repaired at random, as where the policy errs
    it would err again. There are several independent populations; the worse half is dropped at each
    stage. In the end the best are polished by the moves of placer `annealing`, which also move
    regions of vertices, until a budget in seconds is spent.

    Nothing here needs torch, whatever the policy was trained with.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> dp.place(graph, "p100x4", dp.DopplerPlacer(samples=8)).placer
    'doppler'
    """

    name = "doppler"
    searches = True

    def __init__(
        self,
        policy: Union[ArrayPolicy, "DualPolicy", None] = None,
        *,
        samples: int | None = None,
        seconds: float | None = None,
        select: bool = True,
        place: bool = True,
        search: NeighbourhoodConfig | None = None,
    ) -> None:
        """`policy` as it is now, or the one that comes with the package.

        `samples` are taken at most; without a number, about as many as two cores take in half a
        second. `seconds` is the budget where `place` is given none: all of it is used. Without both
        a number of simulations polishes the best.

        Without `select` or `place` the critical-path rule does that part, as in
        Table 3. `search` has the settings of the large-neighbourhood search.
        """
        if (samples or 0) < 0 or (seconds is not None and not seconds > 0):
            raise ConfigError("samples must not be negative, and seconds must be positive")
        if policy is None:
            policy = shipped_policy()
        self.arrays = policy if isinstance(policy, ArrayPolicy) else from_torch(policy)
        self._policy = None if isinstance(policy, ArrayPolicy) else policy
        config = self.arrays.config
        if (select, place) != (True, True):
            config = replace(config, select=config.select and select, place=config.place and place)
        self.config, self.search = config, search or NeighbourhoodConfig()
        self.samples, self.seconds = unboxed(samples), unboxed(seconds)

    @classmethod
    def from_path(cls, path: str | Path) -> "DopplerPlacer":
        """One with the policy of a training run, or of a checkpoint."""
        file = Path(path)
        return cls(read_policy(file / POLICY_FILE if file.is_dir() else file))

    @property
    def policy(self) -> "DualPolicy":
        """The policy as a torch module, to be trained on: the one given, or a copy of it."""
        if self._policy is None:
            try:
                from doppler.policies.checkpoint import to_torch
            except ImportError as error:
                raise MissingExtraError(error.name or "torch", "training", extra="torch") from None
            self._policy = to_torch(self.arrays)
        return self._policy

    def without_polishing(self) -> "DopplerPlacer":
        """The same, but it ends once its samples are made, whatever is left of a budget."""
        twin = copy(self)
        twin.search = replace(self.search, polishing_work=0)
        return twin

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The best assignment by simulated makespan."""
        return self.solve(problem, seed=seed, budget_s=budget_s).assignment

    def solve(self, problem: Problem, *, seed: int = 0, budget_s: float | None = None) -> Solution:
        """The best assignment by simulated makespan, and whether Ctrl-C ended the search."""
        warm_up_policy()
        began = monotonic()
        instance = instance_for(self.config, problem.keeping())
        (devices, order, makespans), interrupted = self._search(instance, seed, budget_s, began)
        best = int(np.argmin(makespans))
        assignment = instance.assignment(devices[best], order[best], self.name)
        return Solution(assignment, won=self.name, interrupted=interrupted)

    def propose(
        self, instance: Instance, *, seed: int = 0, budget_s: float | None = None
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """(K, n) devices and orders of all assignments that were made, and their (K,) makespans.

        The greedy one is the first. A neighbour that is worse than the elites of its population may
        have any makespan between theirs and its own. Ctrl-C ends it after those that were made.
        """
        warm_up_policy()
        return self._search(instance, seed, budget_s, monotonic())[0]

    def _search(
        self, instance: Instance, seed: int, budget_s: float | None, began: float
    ) -> tuple[Samples, bool]:
        """All assignments that were made, and whether Ctrl-C ended the search."""
        limit_s = self.seconds if budget_s is None else budget_s
        until, found = began + (inf if limit_s is None else limit_s), list[Samples]()
        with closing(self.begin(instance, seed)) as search:
            try:
                found.extend(self._made(search, until, limit_s))
            except (KeyboardInterrupt, Interrupted):
                if not found:
                    raise
                return joined(found), True
        return joined(found), False

    def _made(self, search: PolicySearch, until: float, limit_s: float | None) -> Iterator[Samples]:
        """The samples of all batches, then what polishing makes of the best of them."""
        config = self.search
        polishing_s = 0.0 if limit_s is None else config.polishing_share * limit_s
        samples = 0
        while search.next is not None:
            free_s = until - polishing_s - monotonic()
            if samples and not search.has_time(free_s):
                break
            made = search.step(free_s)
            samples += len(made[0])
            yield made
        if config.polishing_work and self.samples != 0 and monotonic() < until:
            left_s = None if limit_s is None else until - monotonic()
            size = search.instance.num_vertices + len(search.instance.problem.edges.reader)
            made, interrupted = search.polish(config.polishing(size, left_s))
            yield made
            if interrupted:
                raise Interrupted

    def begin(self, instance: Instance, seed: int) -> PolicySearch:
        """The search before its first batch; close it after use."""
        instance = replace(instance, problem=instance.problem.keeping())
        parts = self._parts(instance)
        batches = self._batches(instance, len(parts))
        return PolicySearch(instance, parts, batches, self.search, seed)

    def _parts(self, instance: Instance) -> list[PolicyRepair]:
        """The policy on each of the parts of the machine that it places on."""
        threads, fewest = len(cores()) or 1, self.search.min_samples_per_thread
        return [
            PolicyRepair(
                self.arrays, instance, devices, threads=threads, min_samples_per_thread=fewest
            )
            for devices in _device_sets(instance, self.search.max_islands)
        ]

    def _batches(self, instance: Instance, num_parts: int) -> Iterator[Batch]:
        """The batches of a search in their order."""
        pairs = instance.num_vertices * (instance.num_devices + self.search.vertex_pairs)
        samples = self.search.num_samples(pairs) if self.samples is None else self.samples
        if not instance.num_vertices:  # nothing to choose
            samples = 0
        return batches(self.search, self.config, samples, pairs, num_parts)


def _device_sets(instance: Instance, max_islands: int) -> list[IntArray]:
    """The devices of the parts that are placed on: all, halves and islands by turns, and one."""
    nested = nested_parts(instance.problem)
    known = {part.tobytes() for part in nested}
    others = [part for part in islands(instance.problem) if part.tobytes() not in known][
        :max_islands
    ]
    between = zip_longest(others, nested[1:-1])
    mixed = [part for both in between for part in both if part is not None]
    return [nested[0], *mixed, *nested[1:][-1:]]


def place_pair() -> None:
    """Place two vertices by a small policy, which takes the kernels that any policy takes."""
    config = PolicyConfig(width=2, rounds=1)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes_of(config).items()}
    instance = make_instance(pair())
    part = PolicyRepair(ArrayPolicy(config, zeros), instance, np.arange(instance.num_devices))
    population, rng = Population(instance, NeighbourhoodConfig()), np.random.default_rng(0)
    with ThreadPoolExecutor(1) as pool:
        batch = Batch(BatchKind.GREEDY, GREEDY, config, 1)
        population.add(*make_samples(batch, part, population, rng, pool))
    population.draw_groups(rng)
    population.neighbours(1, rng, 0.0)
