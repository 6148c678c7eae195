"""Cusum: when measurements of several channels have changed for good, and since when.

The cumulative sum test of E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954), on
both sides: deviations from a level, less an allowance, are summed up and never fall below zero; a
sum above a threshold is a change, which began when that sum was last zero.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray, unbox_fields
from doppler.errors import ConfigError

MAD = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
REESTIMATES = (1, 2, 4)  # times `learn` values, after which level and noise are estimated
WILD = 0.5  # a deviation that says no more of the noise than this
HISTORY = 64  # deviations kept, to say how large a change is


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftConfig:
    """When a change of the machine is believed.

    Values are logarithms of seconds, so that a change is a difference of them whatever the unit:
    0.1 is about a tenth. The sigmas are robust estimates of each channel's own noise.
    """

    learn: int = 8  # values of which the level before a change is first the median
    allowance: float = 0.1  # deviation that is of no interest, at least
    allowance_sigmas: float = 1.5  # and in standard deviations: the level is itself an estimate
    threshold: float = 0.5  # sum of the excess deviations that is a change, at least
    threshold_sigmas: float = 8.0  # one false alarm in more than 10,000 values of normal noise
    steps: int = 4  # a single value, a stall say, counts as less than this share of the threshold

    def __post_init__(self) -> None:
        unbox_fields(self)
        for name in ("learn", "steps"):
            if (count := getattr(self, name)) < 2:
                raise ConfigError(f"{name} is {count}, must be at least 2")
        for name in ("allowance", "threshold"):
            if not (value := getattr(self, name)) > 0:
                raise ConfigError(f"{name} is {value}, must be positive")
        for name in ("allowance_sigmas", "threshold_sigmas"):
            if not (value := getattr(self, name)) >= 0:
                raise ConfigError(f"{name} is {value}, must not be negative")


class Cusum:
    """Two-sided cumulative sums of C channels, fed one value of each at a time.

    A channel's level is the median of its first values; with `centred` it is zero.
    """

    def __init__(self, width: int, config: DriftConfig, *, centred: bool = False) -> None:
        self.config, self.step = config, 0  # values so far
        self._learned = np.zeros(width, np.int64)
        self._first = np.full((config.learn * REESTIMATES[-1], width), np.nan)
        self._centred = centred
        self.level = np.zeros(width) if centred else np.full(width, np.nan)
        self.allowance = np.full(width, config.allowance)
        self._threshold = np.full(width, config.threshold)
        self._sums = np.zeros((2, width))  # upwards, downwards
        self._since = np.zeros((2, width), np.int64)  # step at which each was last zero
        self._past: deque[FloatArray] = deque(maxlen=HISTORY)  # deviations

    @property
    def alarms(self) -> BoolArray:
        """(C,) which channels have changed."""
        up, down = self._sums > self._threshold
        found: BoolArray = up | down
        return found

    @property
    def since(self) -> int:
        """The first step after the change, as the channels that have changed say."""
        above = self._sums > self._threshold
        return int(self._since[above].min()) + 1 if above.any() else self.step

    def add(self, values: FloatArray) -> bool:
        """Take (C,) values, NaN where there is none; whether a channel has changed."""
        self.step += 1
        self._learn(values)
        off = values - self.level
        self._past.append(off)
        off = np.nan_to_num(off)
        most = self._threshold * (1.0 - 1e-9) / (self.config.steps - 1)
        for side, deviation in enumerate((off, -off)):
            gain = np.minimum(deviation - self.allowance, most)
            self._sums[side] = np.maximum(self._sums[side] + gain, 0.0)
            self._since[side][self._sums[side] == 0.0] = self.step
        return bool(self.alarms.any())

    def changes(self) -> FloatArray:
        """(C,) mean deviation since the change; 0 where it is within the allowance."""
        count = self.step - self.since + 1
        past = np.array(self._past)[-count:]
        known = np.isfinite(past)
        mean = np.where(known, past, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        found: FloatArray = np.where(np.abs(mean) > self.allowance, mean, 0.0)
        return found

    def _learn(self, values: FloatArray) -> None:
        """Estimate level and noise from the first values, and again from twice and more as many."""
        new = np.isfinite(values) & (self._learned < len(self._first))
        if not new.any():
            return
        self._first[self._learned[new], new] = values[new]
        self._learned[new] += 1
        for more in REESTIMATES:
            count = self.config.learn * more
            ready = np.flatnonzero(new & (self._learned == count))
            calm = self._sums.max(axis=0) < self._threshold / 2
            if len(ready := ready[calm[ready]]):
                self._estimate(ready, self._first[:count, ready])

    def _estimate(self, channels: IntArray, values: FloatArray) -> None:
        config, middle = self.config, np.median(values, axis=0)
        off = np.abs(values - middle)
        # Of few values the median deviation may be far too low: their mean one is looked at, too.
        sigma = MAD * np.maximum(np.median(off, axis=0), np.minimum(off, WILD).mean(axis=0))
        if not self._centred:
            self.level[channels] = middle
        self.allowance[channels] = np.maximum(config.allowance, config.allowance_sigmas * sigma)
        self._threshold[channels] = np.maximum(config.threshold, config.threshold_sigmas * sigma)
