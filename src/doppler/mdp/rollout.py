"""Rollouts: many episodes at once under a policy, on all cores."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.base.arrays import IntArray
from doppler.mdp.guide import NO_DEVICES as NO_DEVICES
from doppler.mdp.guide import NO_GUIDE, Guide
from doppler.mdp.guide import UNASSIGNED as UNASSIGNED
from doppler.mdp.instance import Instance

if TYPE_CHECKING:
    from doppler.mdp.kernel import State, Weights

NO_GROUP = -1  # instead of a group: the vertex is placed alone
NO_ORDERS = np.zeros((0, 0), np.int64)
NO_GROUPS = np.zeros(0, np.int64)
NOTHING_SCORED = np.zeros((0, 0, 0), np.int64)
MIN_PART = 8  # episodes from which a thread of its own pays


class PartialAssignments(NamedTuple):
    """What is decided of B assignments before a policy completes them; an empty array: nothing."""

    devices: IntArray = NO_DEVICES  # (B, n) of each vertex, or UNASSIGNED
    # (n,) number, below n, of the group of each vertex, or NO_GROUP. Unassigned vertices of a group
    # follow the first of them that is placed, as long as there is room for them on its device.
    groups: IntArray = NO_GROUPS
    orders: IntArray = NO_ORDERS  # (B, n) vertices, each after its producers: nothing is selected
    # What device features compare with. Without it that is `devices`; without these, the guide of
    # the instance.
    guide: Guide = NO_GUIDE

    def rows(self, rows: slice) -> "PartialAssignments":
        """Some of the assignments."""
        devices, orders = (x[rows] if len(x) else x for x in (self.devices, self.orders))
        return PartialAssignments(devices, self.groups, orders, self.guide.rows(rows))


NOTHING_ASSIGNED = PartialAssignments()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How actions follow from a policy's scores."""

    select_temperature: float = 1.0  # 0: always the best
    place_temperature: float = 1.0
    epsilon: float = 0.0  # probability of a random action instead
    # Devices that cannot be told apart are one choice. Otherwise several empty ones that share a
    # likely choice each lose, at a low temperature, to a less likely one that stands alone.
    alike: bool = True
    place_early: bool = False  # the critical-path rule places instead of PLC


GREEDY = Sampling(select_temperature=0.0, place_temperature=0.0)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """B episodes: their actions, and what was seen at each step where that was recorded."""

    order: IntArray  # (B, n) vertices as they were selected
    devices: IntArray  # (B, n) of each vertex
    features: npt.NDArray[np.float32]  # (B, n, C, 30) of the C devices that were scored
    since: IntArray  # (B, n) from when on the vertex selected at each step was a candidate
    # (B, n, C) those devices, ascending; and the step before that placed something there, or -1
    scored: IntArray = field(default_factory=lambda: NOTHING_SCORED)
    last_step: IntArray = field(default_factory=lambda: NOTHING_SCORED)


class Roller:
    """Plays episodes of one instance."""

    def __init__(self, instance: Instance, *, threads: int = 1) -> None:
        self.instance = instance
        self.threads = threads
        self._states: list[State] = []
        self._shape: tuple[int, ...] = ()  # of the policy they were made for

    def play(
        self,
        weights: "Weights",
        sampling: Sampling,
        seeds: IntArray,
        *,
        partial: PartialAssignments = NOTHING_ASSIGNED,
        record: bool = True,
    ) -> Rollouts:
        """One episode per seed, which completes a partial assignment."""
        from doppler.mdp.features import NUM_FEATURES
        from doppler.mdp.kernel import Choice, Record, make_state, roll_out

        n, devices = self.instance.tables.exec_s.shape
        count = len(seeds)
        kept = count if record else 0
        most = int(weights.most[0]) or devices
        scored, last_step = np.zeros((2, kept, n, min(most, devices)), np.int64)
        features = np.zeros((*scored.shape, NUM_FEATURES), np.float32)
        since = np.zeros((kept, n), np.int64)
        order, placed = np.zeros((count, n), np.int64), np.zeros((count, n), np.int64)
        choice = Choice(
            float(sampling.select_temperature),
            float(sampling.place_temperature),
            float(sampling.epsilon),
            bool(sampling.alike),
            bool(sampling.place_early),
        )
        # Arrays of another layout have another type, and would be compiled for again.
        seeds = np.ascontiguousarray(seeds)
        guide = partial.guide
        if not len(guide.devices):
            guide = Guide(partial.devices) if len(partial.devices) else self.instance.guide
        known = [np.ascontiguousarray(x) for x in (partial.devices, partial.groups, partial.orders)]
        partial = PartialAssignments(known[0], known[1], known[2], guide.contiguous())
        num_parts = max(min(self.threads, count // MIN_PART), 1)
        ends = [count * i // num_parts for i in range(num_parts + 1)]
        if self._shape != weights.hidden.shape:
            self._states, self._shape = [], weights.hidden.shape
        while len(self._states) < num_parts:
            self._states.append(make_state(self.instance.tables, weights))

        def work(i: int) -> None:
            rows = slice(ends[i], ends[i + 1])
            seen = (features[rows], since[rows], scored[rows], last_step[rows])
            out = Record(order[rows], placed[rows], *seen)
            state, part = self._states[i], partial.rows(rows)
            roll_out(self.instance.tables, weights, choice, part, seeds[rows], state, out)

        if num_parts == 1:
            work(0)
        else:
            with ThreadPoolExecutor(num_parts) as pool:
                list(pool.map(work, range(num_parts)))
        return Rollouts(order, placed, features, since, scored, last_step)
