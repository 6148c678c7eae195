"""Doppler: the learned policy as a placer."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Union

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray, unboxed
from doppler.errors import ConfigError, Interrupted, MissingExtraError
from doppler.mdp.instance import Instance, make_instance
from doppler.mdp.parts import islands, nested_parts, on_part
from doppler.mdp.rollout import GREEDY, Roller, Sampling
from doppler.placers.base import Shown, cores, pair
from doppler.placers.learned.neighbourhoods import NOTHING, Rethinking, Told
from doppler.placers.warm_up import warm_up_policy
from doppler.policies.arrays.acting import play
from doppler.policies.arrays.checkpoint import read_policy, shipped_policy
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.arrays.policy import ArrayPolicy, from_torch, shapes_of
from doppler.problem import Problem
from doppler.sim.simulator import Simulator

if TYPE_CHECKING:
    from doppler.mdp.kernel import Weights
    from doppler.policies.dual import DualPolicy

POLICY_FILE = "policy.safetensors"  # of a training run
TEMPERATURES = (0.1, 0.3, 1.0, 2.0)  # of the samples, by turns
BY_LOT = (0.0, 0.5, 1.0)  # shares of a neighbourhood that are repaired at random, in turn
# In all samples, pairs of a vertex and a device: about a second. A vertex costs as
# much as `BESIDES` further devices, mostly for simulation.
PAIRS, BESIDES = 40_000_000, 8
FEWEST, MOST = 32, 24576  # samples, where that is what limits them
FRESH, FIRST = 1 / 32, 48  # share of the samples, and their number at least, made from nothing
FRESH_BATCH = 8  # of these at a time
# Repaired assignments at a time: pairs of a vertex and a device, the least and the most
# assignments, and the most rounds.
BATCH, LEAST_BATCH, LARGEST_BATCH, ROUNDS = 200_000, 8, 64, 192
LINEAGES, WORTH = 4, 1024  # that do not mix, at most; samples from which one more pays
ISLANDS = 4  # of the machine that are tried by themselves, at most
MIN_SHARE = 4  # samples from which a thread of its own pays

# (K, n) devices, (K, n) orders and (K,) makespans
_Made = tuple[IntArray, IntArray, FloatArray]


class DopplerPlacer(Shown):
    """The best of some greedy and many sampled assignments of a policy, in simulation.

    The policy may have been trained on any graphs and topologies (Sec. 6, transfer). It places on
    the whole machine and, by turns, on the best half of it, the best quarter and so on, and on
    islands of devices that are close, as little may be gained by many where transfers are slow.
    Two thirds of these samples are only half the policy's: the critical-path rule selects, or
    places, as on graphs unlike those it was trained on that is the safer choice.

    Most samples then come from large-neighbourhood search: a part of one of the best assignments
    so far is unassigned and assigned again in the same order (see `Rethinking`). The policy repairs
    all of it, half of it or none, in turn; the rest is repaired at random, as where the policy errs
    it would err again. Search starts from several independent populations; the worse half is
    dropped at each stage.

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
    ) -> None:
        """`policy` as it is now, or the one that comes with the package.

        `samples` are taken in at most `seconds`; without a number, about as many as one core takes
        in a second. Without `select` or `place` the critical-path rule does that part, as in
        Table 3.
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
        self.config = config
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

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The best assignment by simulated makespan."""
        instance = make_instance(problem)
        devices, order, makespans = self.propose(instance, seed=seed, budget_s=budget_s)
        best = int(np.argmin(makespans))
        return instance.assignment(devices[best], order[best], self.name)

    def propose(
        self, instance: Instance, *, seed: int = 0, budget_s: float | None = None
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """(K, n) devices and orders of all assignments that were made, and their (K,) makespans.

        The greedy one is the first. A repaired assignment that is worse than the best few of its
        population may have any makespan between those and its own. Ctrl-C ends it after those that
        were made.
        """
        warm_up_policy()
        began, limit_s = monotonic(), self.seconds if budget_s is None else budget_s
        threads = len(cores()) or 1
        parts = [_Part(self.arrays, instance, kept, threads) for kept in _parts(instance)]
        found: list[_Made] = []
        lineages = [Rethinking(instance) for _ in range(LINEAGES)]
        with ThreadPoolExecutor(threads) as pool:
            try:
                for number, batch in enumerate(self._batches(instance, len(parts))):
                    late = limit_s is not None and monotonic() - began > limit_s
                    if found and late:
                        break
                    if batch.again:
                        lineages = _best(lineages)[: batch.lineages]
                    rethinking = lineages[batch.turn % len(lineages)]
                    rng = np.random.default_rng([seed, number])
                    seeds = rng.integers(2**62, size=batch.count)
                    told = NOTHING
                    if batch.again:
                        told = rethinking.again(batch.count, rng, batch.by_lot)
                    elif batch.sampling is not GREEDY:
                        told = rethinking.afresh(batch.count, rng)
                    found.append(parts[batch.part].make(batch, seeds, told, pool))
                    rethinking.add(*found[-1])
            except (KeyboardInterrupt, Interrupted):
                if not found:
                    raise
        return _joined(found)

    def _batches(self, instance: Instance, num_parts: int) -> Iterator["_Batch"]:
        """How all are made: greedily on each part, or on the whole if that is all; then samples."""
        samples, pairs = self.samples, instance.num_vertices * (instance.num_devices + BESIDES)
        if samples is None:
            samples = min(max(PAIRS // max(pairs, 1), FEWEST), MOST)
        if not instance.num_vertices:  # nothing to choose
            samples = 0
        mine, lineages = self.config, min(max(samples // WORTH, 1), LINEAGES)
        for part in range(num_parts if samples else 1):
            yield _Batch(GREEDY, mine, 1, part=part, turn=part % lineages)
        rule_selects = replace(mine, select=False) if mine.place else mine
        rule_places = replace(mine, place=False) if mine.select else mine
        kinds = (rule_selects, mine, rule_places)
        between = max(num_parts - 2, 0)  # the whole and one device, where there is but one choice
        fresh = min(max(int(FRESH * samples), FIRST), samples)
        for number, count in enumerate(_split(fresh, FRESH_BATCH)):
            turn, on_a_part = divmod(number, 2)
            part = 1 + turn % between if on_a_part and between else 0
            how = (_at(turn // len(kinds)), kinds[turn % len(kinds)], count)
            yield _Batch(*how, part=part, turn=number % lineages)
        size = min(max(BATCH // max(pairs, 1), LEAST_BATCH), LARGEST_BATCH)
        counts = _split(samples - fresh, max(size, -(-samples // ROUNDS)))
        stages = lineages.bit_length()  # half of them are given up, again and again
        for turn, count in enumerate(counts):
            by_lot = BY_LOT[turn % len(BY_LOT)] if mine.place else None
            left = max(lineages >> (turn * stages // len(counts)), 1)
            how = (_at(turn // len(BY_LOT)), mine, count)
            yield _Batch(*how, turn=turn, again=True, by_lot=by_lot, lineages=left)


def _parts(instance: Instance) -> list[IntArray]:
    """The devices of the parts that are placed on: all, halves and islands by turns, and one."""
    nested = nested_parts(instance)
    known = {part.tobytes() for part in nested}
    others = [part for part in islands(instance) if part.tobytes() not in known][:ISLANDS]
    between = zip_longest(others, nested[1:-1])
    mixed = [part for both in between for part in both if part is not None]
    return [nested[0], *mixed, *nested[1:][-1:]]


def _best(lineages: Sequence[Rethinking]) -> list[Rethinking]:
    """Those that have come to something, the best first."""
    return sorted((one for one in lineages if one.elites), key=lambda one: one.elites[0].cost)


def _split(total: int, size: int) -> list[int]:
    """`total` in batches of one size but for the last."""
    return [min(size, total - at) for at in range(0, total, size)]


def _at(turn: int) -> Sampling:
    """Sampling at the temperature whose turn it is."""
    t = TEMPERATURES[turn % len(TEMPERATURES)]
    return Sampling(select_temperature=t, place_temperature=t)


def place_pair() -> None:
    """Place two vertices by a small policy, which takes the kernels that any policy takes."""
    config = PolicyConfig(width=2, rounds=1)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes_of(config).items()}
    instance = make_instance(pair())
    part = _Part(ArrayPolicy(config, zeros), instance, np.arange(instance.num_devices), 1)
    seeds, rng = np.zeros(1, np.int64), np.random.default_rng(0)
    rethinking = Rethinking(instance)
    with ThreadPoolExecutor(1) as pool:
        rethinking.add(*part.make(_Batch(GREEDY, config, 1), seeds, NOTHING, pool))
    rethinking.groups(rng)
    rethinking.again(1, rng, 0.0)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch of assignments of one kind."""

    sampling: Sampling
    config: PolicyConfig  # says who selects and who places
    count: int
    turn: int = 0  # of a lineage
    part: int = 0  # of the machine
    again: bool = False  # some vertices stay where they are in one of the best of the lineage
    by_lot: float | None = None  # share repaired at random; see `Rethinking`
    lineages: int = LINEAGES  # populations that are kept


class _Part:
    """A policy at work on some of the devices of an instance."""

    def __init__(
        self, policy: ArrayPolicy, instance: Instance, devices: IntArray, threads: int
    ) -> None:
        self.policy, self.whole, self.devices, self.threads = policy, instance, devices, threads
        self.graph, self.simulator = instance.graph, Simulator(instance.problem)

    @cached_property
    def instance(self) -> Instance:
        """What the policy sees of it; made when it is first needed."""
        is_whole = len(self.devices) == self.whole.num_devices
        return self.whole if is_whole else on_part(self.whole, self.devices)

    @cached_property
    def rollers(self) -> list[Roller]:
        """What plays there, in each thread."""
        return [Roller(self.instance) for _ in range(self.threads)]

    @cached_property
    def weights(self) -> "Weights":
        """The policy there."""
        return self.policy.on(self.instance)

    def make(self, batch: _Batch, seeds: IntArray, told: Told, pool: ThreadPoolExecutor) -> _Made:
        """A batch; every thread plays and simulates some of it."""
        weights, shares = self.weights, max(min(self.threads, batch.count // MIN_SHARE), 1)
        ends = [batch.count * i // shares for i in range(shares + 1)]

        def work(i: int) -> _Made:
            rows = slice(ends[i], ends[i + 1])
            played = play(
                *(self.rollers[i], weights, batch.config, batch.sampling, seeds[rows]),
                forced=told.forced[rows],
                orders=told.orders[rows],
                record=False,
            )
            devices = self.devices[played.devices]
            table, limit_s = self.whole.expand(devices), told.limit_s
            makespans = self.simulator.makespans(self.graph, table, threads=1, limit_s=limit_s)
            return devices, played.order, makespans

        return work(0) if shares == 1 else _joined(list(pool.map(work, range(shares))))


def _joined(found: Sequence[_Made]) -> _Made:
    devices, order, makespans = (np.concatenate(column) for column in zip(*found, strict=True))
    return devices, order, makespans
