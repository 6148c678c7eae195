"""Rollouts: many episodes at once under a policy, on all cores."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from doppler.base.arrays import IntArray
from doppler.mdp.instance import Instance

if TYPE_CHECKING:
    from doppler.mdp.kernel import State, Weights

NOTHING_FORCED = np.zeros((0, 0), np.int64)
FREE = -1  # where it is to be chosen
MIN_PART = 8  # episodes from which a thread of its own pays


def in_group(numbers: IntArray) -> IntArray:
    """What forces vertices to be placed together that have the same number, from 0 to n - 1."""
    return FREE - 1 - numbers


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
    features: npt.NDArray[np.float32]  # (B, n, D, 15)
    since: IntArray  # (B, n) from when on the vertex selected at each step was a candidate


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
        forced: IntArray = NOTHING_FORCED,
        orders: IntArray = NOTHING_FORCED,
        record: bool = True,
    ) -> Rollouts:
        """One episode per seed.

        `forced` says for (B, n) vertices: the device that it gets; or `FREE`; or the group of which
        the first to be placed decides for all the others, as `in_group` writes it, as long as there
        is room for them on its device. `orders`, if any, are (B, n) vertices in the order they are
        placed in, each after its producers; then nothing is selected.
        """
        from doppler.mdp.features import NUM_FEATURES
        from doppler.mdp.kernel import Choice, Record, make_state, roll_out

        n, devices = self.instance.tables.exec_s.shape
        count = len(seeds)
        kept = count if record else 0
        features = np.zeros((kept, n, devices, NUM_FEATURES), np.float32)
        since = np.zeros((kept, n), np.int64)
        order, placed = np.zeros((count, n), np.int64), np.zeros((count, n), np.int64)
        choice = Choice(
            float(sampling.select_temperature),
            float(sampling.place_temperature),
            float(sampling.epsilon),
            bool(sampling.alike),
            int(sampling.place_early),
        )
        # Arrays of another layout have another type, and would be compiled for again.
        seeds, forced, orders = (np.ascontiguousarray(x) for x in (seeds, forced, orders))
        num_parts = max(min(self.threads, count // MIN_PART), 1)
        ends = [count * i // num_parts for i in range(num_parts + 1)]
        if self._shape != weights.hidden.shape:
            self._states, self._shape = [], weights.hidden.shape
        while len(self._states) < num_parts:
            self._states.append(make_state(self.instance.tables, weights))

        def work(i: int) -> None:
            rows = slice(ends[i], ends[i + 1])
            out = Record(order[rows], placed[rows], features[rows], since[rows])
            given = [table[rows] if len(table) else table for table in (forced, orders)]
            state = self._states[i]
            roll_out(self.instance.tables, weights, choice, *given, seeds[rows], state, out)

        if num_parts == 1:
            work(0)
        else:
            with ThreadPoolExecutor(num_parts) as pool:
                list(pool.map(work, range(num_parts)))
        return Rollouts(order, placed, features, since)
