"""Turns: members of `auto` that can be continued, and which of them has the next turn."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import inf, isfinite, log
from time import monotonic

import numpy as np

from doppler.base.arrays import IntArray
from doppler.placers.base import cores
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.learned.policy_search import PolicySearch
from doppler.placers.lists.guides import instance_for
from doppler.placers.search.annealing import LEAST_S, Annealer, SearchConfig
from doppler.problem import Problem

LARGEST_GAIN = 1.0  # of a turn; the first assignment that fits counts as much


class TurnTaker(ABC):
    """A member that continues from where it was, or from what others found, and what it brought.

    Its rate is by how much the logarithm of the best makespan fell in a second, of late.
    """

    order: IntArray | None = None  # in which it placed vertices, if it did

    def __init__(self, name: str) -> None:
        self.name, self.seconds, self.gain, self.has_failed = name, 0.0, 0.0, False
        self.rate = inf  # so that everyone has a turn
        self.number: int | None = None  # among what the portfolio has found

    @property
    @abstractmethod
    def devices(self) -> IntArray | None:
        """(V,) the best that it has made; None before the first turn."""

    @property
    @abstractmethod
    def cost_s(self) -> float:
        """The makespan of that; infinity where it does not fit."""

    @abstractmethod
    def has_time(self, left_s: float) -> bool:
        """Whether it has something left to try that ends in time."""

    @abstractmethod
    def turn(self, seconds: float, left_s: float) -> None:
        """Continue for about `seconds`; `left_s` is what is left of the budget."""

    @abstractmethod
    def take(self, devices: IntArray, cost_s: float) -> None:
        """Continue from (V,) devices that others found."""

    def reward(self, before_s: float, after_s: float, seconds: float) -> None:
        """Count a turn, which has half of the weight of all turns."""
        gain = 0.0
        if after_s < before_s:
            gain = LARGEST_GAIN if before_s == inf or not after_s else log(before_s / after_s)
        gain = min(gain, LARGEST_GAIN)
        rate = gain / max(seconds, LEAST_S)
        self.rate = rate if self.rate == inf else (self.rate + rate) / 2
        self.seconds, self.gain = self.seconds + seconds, self.gain + gain


def whose_turn(
    members: Sequence[TurnTaker], left_s: float, least_rate: float = 0.0
) -> TurnTaker | None:
    """The one of the highest rate that has time; of equal ones the one that had the least time.

    Rates below the least are equal. What brings nothing loses half of its rate with each turn, so
    the others soon have theirs.
    """
    able = [one for one in members if not one.has_failed and one.has_time(left_s)]
    return max(able, key=lambda one: (max(one.rate, least_rate), -one.seconds), default=None)


class PolicyTurns(TurnTaker):
    """Placer `doppler`, batch by batch; batches that would take longer than a turn are cut."""

    def __init__(self, placer: DopplerPlacer, problem: Problem, seed: int, sample_s: float) -> None:
        """`sample_s` is what it takes until its first assignment, as an estimate."""
        super().__init__(placer.name)
        self._placer, self._problem, self._seed = placer, problem, seed
        self._sample_s = sample_s
        self._devices: IntArray | None = None
        self._cost_s = inf
        self._left_s = inf if placer.seconds is None else placer.seconds
        self._search: PolicySearch | None = None  # from the first turn on

    @property
    def devices(self) -> IntArray | None:
        """(V,) the best of its own samples."""
        return self._devices

    @property
    def cost_s(self) -> float:
        """The makespan of that."""
        return self._cost_s

    def has_time(self, left_s: float) -> bool:
        """Whether one more sample ends in time."""
        left_s = min(left_s, self._left_s)
        if self._search is None:
            return self._sample_s <= left_s
        return left_s > 0 and self._search.has_time(left_s)

    def turn(self, seconds: float, left_s: float) -> None:
        """Make batches for about `seconds`: one sample at least."""
        began = monotonic()
        until = began + min(seconds, left_s)
        if self._search is None:
            instance = instance_for(self._placer.config, self._problem)
            self._search = self._placer.begin(instance, self._seed)
        self._step(self._search, until - monotonic())
        while self._search.has_time(until - monotonic()):
            self._step(self._search, until - monotonic())
        self._left_s -= monotonic() - began

    def _step(self, search: PolicySearch, seconds: float) -> None:
        devices, order, makespans = search.step(seconds)
        best = int(np.argmin(makespans))
        if self.devices is None or makespans[best] < self.cost_s:
            self._cost_s = float(makespans[best])
            self._devices = search.instance.expand(devices[best])
            self.order = search.instance.vertices[order[best]]

    def take(self, devices: IntArray, cost_s: float) -> None:
        """Let the best population have an assignment that others found."""
        if self._search is not None and cost_s < self.cost_s:
            self._search.take(devices[self._search.instance.vertices], cost_s)

    def close(self) -> None:
        """Let its threads end."""
        if self._search is not None:
            self._search.close()


class SearchTurns(TurnTaker):
    """Annealing, whose temperature falls with what is left of the budget after its first turn."""

    def __init__(self, name: str, problem: Problem, seed: int, begin_s: float) -> None:
        """`begin_s` is what it takes until its first move, as an estimate."""
        super().__init__(name)
        self._problem, self._seed, self._begin_s = problem, seed, begin_s
        self._first_left_s = 0.0
        self._config, self._starts = SearchConfig(), list[IntArray]()
        self._annealer: Annealer | None = None

    @property
    def devices(self) -> IntArray | None:
        """(V,) the best that it has seen."""
        return None if self._annealer is None else self._annealer.best.best[0].copy()

    @property
    def cost_s(self) -> float:
        """The makespan of that."""
        from doppler.placers.search.kernel import INFEASIBLE

        cost = INFEASIBLE if self._annealer is None else float(self._annealer.best.cost[1])
        return cost if cost < INFEASIBLE else inf

    def begin(self, starts: list[IntArray], enough_s: float) -> None:
        """Let it start from (V,) devices, the best first, and stop where the cost is enough."""
        self._config = SearchConfig(enough_s=enough_s)
        self._starts = starts[: len(cores()) or 1]

    def has_time(self, left_s: float) -> bool:
        """Whether there is something to move, and some time."""
        can_move = len(self._problem.graph.assigned) and self._problem.topology.num_devices > 1
        return bool(can_move) and left_s > (self._begin_s if self._annealer is None else 0)

    def turn(self, seconds: float, left_s: float) -> None:
        """Try moves for `seconds`."""
        began = monotonic()
        self._first_left_s = max(self._first_left_s, left_s)
        share = 1 - left_s / self._first_left_s
        if self._annealer is None:
            self._annealer = Annealer(self._problem, self._starts, self._config, self._seed)
        self._annealer.run_for(min(seconds, left_s) - (monotonic() - began), share)

    def take(self, devices: IntArray, cost_s: float) -> None:
        """Let one of the chains continue from there."""
        if self._annealer is None:  # each a chain: those that are fastest
            self._starts = [devices, *self._starts[: max(len(cores()) - 1, 0)]]
        elif isfinite(cost_s) and cost_s < self.cost_s:
            self._annealer.take(devices)
