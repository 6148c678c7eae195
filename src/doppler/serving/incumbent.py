"""Incumbent: the assignment known to be good, and the races that may replace it.

Pure: no clock, no executor, no torch. Stage III drives it with measurements, serving with requests,
tests with numbers.
"""

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Any

import numpy as np

from doppler.base.arrays import IntArray
from doppler.serving.race import BETTER, Race

FAILED, LOST, PROMOTED = "failed", "lost", "promoted"  # what became of a challenger


class Incumbent:
    """The incumbent, and the challenger that races against it, if there is one.

    Another assignment becomes the incumbent only by winning a `Race`. `challenge` begins one;
    `ran` and `failed` report the outcome of the runs, in any order, until the race is decided.
    """

    def __init__(
        self,
        *,
        confidence: float,
        max_runs: int,
        window: int,
        settle: int = 0,
        drop: float = inf,
    ) -> None:
        """The mean is that of the latest `window` runs.

        The first `settle` runs of a challenger do not count, and one that takes `drop` times the
        incumbent's mean has lost.
        """
        self.confidence, self.max_runs = confidence, max_runs
        self.settle, self.drop = settle, drop
        self.devices: IntArray | None = None  # (V,)
        self.recent_s: deque[float] = deque(maxlen=window)  # makespans of the incumbent
        self.first: IntArray | None = None  # (V,) the first incumbent
        self.first_s: deque[float] = deque(maxlen=window)  # its makespans, once it was replaced
        self.challenger: IntArray | None = None  # (V,)
        self.race: Race | None = None  # against it
        self.unsettled = 0  # runs of the challenger that do not count yet
        self.promoted = 0  # challengers that became the incumbent
        self.fates: dict[str, str] = {}  # what became of challengers, by digest

    @property
    def mean_s(self) -> float:
        """The mean of the incumbent's latest makespans; infinity where there are none."""
        return float(np.mean(self.recent_s)) if self.recent_s else inf

    @property
    def spread_s(self) -> float:
        """Their standard deviation."""
        return float(np.std(self.recent_s, ddof=1)) if len(self.recent_s) > 1 else 0.0

    @property
    def speedup(self) -> float:
        """How many times as fast as the first incumbent the present one is."""
        known = self.first_s and self.recent_s and self.mean_s > 0
        return float(np.mean(self.first_s)) / self.mean_s if known else 1.0

    @property
    def challenger_is_next(self) -> bool:
        """Whether it is the challenger's turn, where both run equally often."""
        return self.race is not None and self.race.challenger_is_next

    def install(self, devices: IntArray, makespans: Sequence[float]) -> None:
        """Make (V,) devices, with their makespan, the incumbent without a race."""
        self.first = devices.copy() if self.first is None else self.first
        self.devices = devices.copy()
        self.recent_s.clear()
        self.recent_s.extend(makespans)

    def conclude(
        self, devices: IntArray, makespans: Sequence[float], first_s: Sequence[float]
    ) -> None:
        """Make (V,) devices the incumbent that won a final race; the first one took `first_s`.

        An incumbent that did not win has lost.
        """
        assert self.first is not None
        if self.devices is not None and not np.array_equal(self.devices, devices):
            self.fates[digest(self.devices)] = LOST
        self.install(devices, makespans)
        self.first_s.clear()
        if not np.array_equal(devices, self.first):
            self.first_s.extend(first_s)

    def challenge(self, devices: IntArray) -> None:
        """Begin a race of (V,) devices against the incumbent."""
        assert self.race is None
        self.challenger = devices
        self.race = Race(confidence=self.confidence, max_runs=self.max_runs)
        self.unsettled = self.settle

    def ran(self, makespan_s: float, *, challenger: bool = False) -> None:
        """Record a makespan of the incumbent or the challenger; it may decide the race."""
        if not challenger:
            self.recent_s.append(makespan_s)
        elif makespan_s > self.drop * self.mean_s:
            self._end(LOST)
            return
        elif self.unsettled:
            self.unsettled -= 1
            return
        if self.race is not None:
            self.race.add(makespan_s, challenger=challenger)
            self._judge(self.race)

    def failed(self) -> None:
        """The challenger failed, and has lost."""
        self._end(FAILED)

    def fall_back(self) -> bool:
        """Whether the incumbent, which failed, could be replaced by the first one."""
        assert self.devices is not None
        assert self.first is not None
        if np.array_equal(self.devices, self.first):
            return False
        self.fates[digest(self.devices)] = FAILED
        self.devices = self.first
        self.recent_s.clear()
        self.first_s.clear()
        self.race = self.challenger = None
        return True

    def _judge(self, race: Race) -> None:
        if race.verdict == BETTER:
            if not self.first_s:
                self.first_s.extend(self.recent_s)
            assert self.challenger is not None
            self.install(self.challenger, race.challenger_s)
            self.promoted += 1
        if race.verdict is not None:
            self._end(PROMOTED if race.verdict == BETTER else LOST)

    def _end(self, fate: str) -> None:
        assert self.challenger is not None
        self.fates[digest(self.challenger)] = fate
        self.challenger = self.race = None

    def state(self) -> dict[str, Any]:
        """All that changes, as JSON values."""
        rows = {"incumbent": self.devices, "first": self.first, "challenger": self.challenger}
        return {
            **{name: None if row is None else row.tolist() for name, row in rows.items()},
            "race": None if self.race is None else asdict(self.race),
            "recent_s": list(self.recent_s),
            "first_s": list(self.first_s),
            "unsettled": self.unsettled,
            "promoted": self.promoted,
            "fates": self.fates,
        }

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Resume where `state` was taken."""
        self.devices, self.first, self.challenger = (
            None if values[name] is None else np.array(values[name])
            for name in ("incumbent", "first", "challenger")
        )
        self.race = None if values["race"] is None else Race(**values["race"])
        for kept, name in ((self.recent_s, "recent_s"), (self.first_s, "first_s")):
            kept.clear()
            kept.extend(float(makespan_s) for makespan_s in values[name])
        self.unsettled, self.promoted = int(values["unsettled"]), int(values["promoted"])
        self.fates = dict(values["fates"])


def digest(devices: IntArray) -> str:
    """A name for (V,) devices."""
    return hashlib.blake2b(devices.astype(np.int64).tobytes(), digest_size=8).hexdigest()
