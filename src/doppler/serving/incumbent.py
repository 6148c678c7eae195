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
from doppler.serving.race import BETTER, Race, probability_not_faster

FAILED, LOST, PROMOTED = "failed", "lost", "promoted"  # what became of a challenger
LEAST = 0.01  # share of the mean that a standard deviation is taken to be, at least
PROBATION_LOOKS = (1 / 8, 1 / 4, 1 / 2, 1)  # parts of the probation at which it is looked back


class Incumbent:
    """The incumbent, and the challenger that races against it, if there is one.

    Another assignment becomes the incumbent only by winning a `Race`. `challenge` begins one;
    `ran` and `failed` report the outcome of the runs, in any order, until the race is decided.
    After a promotion the old incumbent comes back if the runs since then were slower than its own,
    by Welch's test at `1 - confidence` over all looks: a race may be won by chance.
    """

    def __init__(
        self,
        *,
        confidence: float,
        max_runs: int,
        window: int,
        settle: int = 0,
        drop: float = inf,
        probation: int = 0,
        forget: float = inf,
        hopeless: float = inf,
    ) -> None:
        """The mean is that of the latest `window` runs.

        The first `settle` runs of a challenger do not count, and one that takes `drop` times the
        incumbent's mean has lost; so has one that later takes `hopeless` standard deviations more
        than it. What it did is known for `forget` runs. A new incumbent is on probation for some.
        """
        self.probation, self.forget, self.hopeless = probation, forget, hopeless
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
        self.dropped = 0  # challengers that did not
        self.reverted = 0  # promotions that were undone
        self.fates: dict[str, str] = {}  # what became of challengers, by digest
        self.ended: dict[str, int] = {}  # and at which run
        self.runs = 0  # of all
        self.previous: IntArray | None = None  # (V,) the incumbent before this one
        self.previous_s: list[float] = []  # its makespans, as long as they count
        self.since_s: list[float] = []  # makespans since the promotion

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
            self._note(digest(self.devices), LOST)
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
        self.runs += 1
        if not challenger:
            self.recent_s.append(makespan_s)
            if self._look_back(makespan_s):
                return
        elif makespan_s > self.drop * self.mean_s:
            self._end(LOST)
            return
        elif self.unsettled:
            self.unsettled -= 1
            return
        elif makespan_s > self.mean_s + self.hopeless * max(self.spread_s, LEAST * self.mean_s):
            self._end(LOST)
            return
        if self.race is not None:
            self.race.add(makespan_s, challenger=challenger)
            self._judge(self.race)

    def failed(self, fate: str = FAILED) -> None:
        """The challenger failed, or was late, and has lost."""
        self._end(fate)

    def knows(self, devices: IntArray) -> bool:
        """Whether (V,) devices lost a race, and that is not long ago."""
        key = digest(devices)
        return self.fates.get(key) == LOST and self.runs - self.ended[key] < self.forget

    def fall_back(self, devices: IntArray) -> None:
        """Let (V,) devices take the place of the incumbent, which fails."""
        assert self.devices is not None
        self._note(digest(self.devices), FAILED)
        self._reinstall(devices, [])

    def machine_changed(self, kept: int) -> IntArray | None:
        """Forget what was measured before the last `kept` runs of the incumbent.

        The (V,) challenger whose race is broken off, if there is one.
        """
        recent = list(self.recent_s)[-kept:] if kept else []
        self.recent_s.clear()
        self.recent_s.extend(recent)
        self.first_s.clear()
        self._forget_previous()
        challenger, self.race, self.challenger = self.challenger, None, None
        for key in [key for key, fate in self.fates.items() if fate == LOST]:
            del self.fates[key], self.ended[key]
        return challenger

    def _look_back(self, makespan_s: float) -> bool:
        """Whether the incumbent before this one came back, since it was faster."""
        if len(self.previous_s) < 2:  # no spread is known
            return False
        self.since_s.append(makespan_s)
        count, looks = len(self.since_s), [max(2, int(x * self.probation)) for x in PROBATION_LOOKS]
        level = (1.0 - self.confidence) / len(looks)
        if count in looks and probability_not_faster(self.previous_s, self.since_s) <= level:
            assert self.devices is not None
            assert self.previous is not None
            self._note(digest(self.devices), LOST)
            self.reverted += 1
            self._reinstall(self.previous, self.previous_s)
            return True
        if count >= looks[-1]:
            self.previous_s, self.since_s = [], []
        return False

    def _reinstall(self, devices: IntArray, makespans: Sequence[float]) -> None:
        """Make an assignment of before the incumbent again."""
        assert self.first is not None
        self.install(devices, makespans)
        if np.array_equal(devices, self.first):
            self.first_s.clear()
        self.race = self.challenger = None
        self._forget_previous()

    def _forget_previous(self) -> None:
        self.previous, self.previous_s, self.since_s = None, [], []

    def _judge(self, race: Race) -> None:
        if race.verdict == BETTER:
            if not self.first_s:
                self.first_s.extend(self.recent_s)
            assert self.challenger is not None
            if self.probation:
                self.previous, self.previous_s = self.devices, list(self.recent_s)
                self.since_s = []
            self.install(self.challenger, race.challenger_s)
            self.promoted += 1
        if race.verdict is not None:
            self._end(PROMOTED if race.verdict == BETTER else LOST)

    def _end(self, fate: str) -> None:
        assert self.challenger is not None
        self._note(digest(self.challenger), fate)
        self.dropped += fate != PROMOTED
        self.challenger = self.race = None

    def _note(self, key: str, fate: str) -> None:
        old = [k for k, run in self.ended.items() if self.runs - run >= self.forget]
        for each in old:
            del self.fates[each], self.ended[each]
        self.fates[key], self.ended[key] = fate, self.runs

    def state(self) -> dict[str, Any]:
        """All that changes, as JSON values."""
        rows = {
            "incumbent": self.devices,
            "first": self.first,
            "challenger": self.challenger,
            "previous": self.previous,
        }
        return {
            **{name: None if row is None else row.tolist() for name, row in rows.items()},
            "race": None if self.race is None else asdict(self.race),
            "recent_s": list(self.recent_s),
            "first_s": list(self.first_s),
            "unsettled": self.unsettled,
            "promoted": self.promoted,
            "dropped": self.dropped,
            "reverted": self.reverted,
            "fates": self.fates,
            "ended": self.ended,
            "runs": self.runs,
            "previous_s": self.previous_s,
            "since_s": self.since_s,
        }

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Resume where `state` was taken."""
        self.devices, self.first, self.challenger, self.previous = (
            None if values[name] is None else np.array(values[name])
            for name in ("incumbent", "first", "challenger", "previous")
        )
        self.race = None if values["race"] is None else Race(**values["race"])
        for kept, name in ((self.recent_s, "recent_s"), (self.first_s, "first_s")):
            kept.clear()
            kept.extend(float(makespan_s) for makespan_s in values[name])
        self.unsettled, self.promoted = int(values["unsettled"]), int(values["promoted"])
        self.dropped, self.reverted = int(values["dropped"]), int(values["reverted"])
        self.runs = int(values["runs"])
        self.fates = dict(values["fates"])
        self.ended = {key: int(values["ended"][key]) for key in self.fates}
        self.previous_s, self.since_s = (
            [float(makespan_s) for makespan_s in values[name]] for name in ("previous_s", "since_s")
        )


def digest(devices: IntArray) -> str:
    """A name for (V,) devices."""
    return hashlib.blake2b(devices.astype(np.int64).tobytes(), digest_size=8).hexdigest()
