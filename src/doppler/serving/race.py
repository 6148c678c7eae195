"""Race: whether one assignment is faster than another, from few and noisy measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from doppler.errors import ConfigError

FIRST_LOOK = 3  # measurements of each side before anything is said
BETTER, NOT_BETTER = "better", "not better"


def looks(max_runs: int) -> tuple[int, ...]:
    """Numbers of measurements at which a race is looked at: 3, 5, 7, 10, … and `max_runs`."""
    found = [FIRST_LOOK]
    while (following := found[-1] + max(2, found[-1] // 2)) <= max_runs / 1.3:
        found.append(following)
    if max_runs > found[-1]:
        found.append(max_runs)
    return tuple(found)


def probability_not_faster(challenger: Sequence[float], incumbent: Sequence[float]) -> float:
    """The p-value of Welch's one-sided t-test that the challenger's mean is the lower one."""
    from scipy.special import stdtr  # Student's distribution; scipy.stats takes a second to load

    a, b = np.asarray(challenger, float), np.asarray(incumbent, float)
    gain = float(b.mean() - a.mean())
    parts = [float(x.var(ddof=1)) / len(x) for x in (a, b)]
    total = sum(parts)
    if total <= (1e-12 * float(b.mean())) ** 2:  # no noise: what is left is rounding
        return 0.5 if abs(gain) <= 1e-12 * float(b.mean()) else float(gain < 0)
    share = (parts[0] / total) ** 2 / (len(a) - 1) + (parts[1] / total) ** 2 / (len(b) - 1)
    return float(stdtr(1.0 / share, -gain / sqrt(total)))


def winner(makespans: Sequence[Sequence[float]], confidence: float) -> int:
    """The number of the fastest that is surely faster than the first one; 0 where none is.

    Each is tested against the first by Welch's one-sided t-test at a level of `1 - confidence` over
    their number: by the union bound, the first loses to one that is no faster with probability
    `1 - confidence` at most.
    """
    level = (1.0 - confidence) / max(len(makespans) - 1, 1)
    sure = [0]
    for number, challenger_s in enumerate(makespans[1:], start=1):
        if probability_not_faster(challenger_s, makespans[0]) <= level:
            sure.append(number)
    return min(sure, key=lambda number: float(np.mean(makespans[number])))


@dataclass(slots=True)
class Race:
    """A challenger against the incumbent, measured in turn until it is clear who is faster.

    After 3, 5, 7, 10, … measurements of the challenger it is looked at. It is better where Welch's
    one-sided t-test says so at a level of `(1 - confidence) / looks`: by the union bound, over all
    looks a challenger that is no faster wins with probability `1 - confidence` at most. It is not
    better as soon as its mean is not the lower one, or when there is no look left.

    Only what is measured within the race counts. The measurement that made someone a challenger is
    the best of many, and would bias the result.
    """

    confidence: float = 0.95
    max_runs: int = 16  # of the challenger
    challenger_s: list[float] = field(default_factory=list)
    incumbent_s: list[float] = field(default_factory=list)
    looked: int = 0  # times so far
    verdict: str | None = None  # `better`, `not better`, or None while that is open

    def __post_init__(self) -> None:
        check_race(self.confidence, self.max_runs)

    @property
    def challenger_is_next(self) -> bool:
        """Whose turn it is where both are measured equally often: c, i, i, c, c, i and so on."""
        done = len(self.challenger_s) + len(self.incumbent_s)
        return (done + 1) // 2 % 2 == 0

    @property
    def speedup(self) -> float:
        """The incumbent's mean over the challenger's."""
        return float(np.mean(self.incumbent_s) / np.mean(self.challenger_s))

    def add(self, makespan_s: float, *, challenger: bool) -> None:
        """Take a measurement; the verdict may follow."""
        (self.challenger_s if challenger else self.incumbent_s).append(makespan_s)
        at = looks(self.max_runs)
        measured = min(len(self.challenger_s), len(self.incumbent_s))
        if self.verdict is None and measured >= at[self.looked]:
            self.looked += 1
            self._look(len(at))

    def _look(self, count: int) -> None:
        p = probability_not_faster(self.challenger_s, self.incumbent_s)
        if p <= (1.0 - self.confidence) / count:
            self.verdict = BETTER
        elif p >= 0.5 or self.looked == count:
            self.verdict = NOT_BETTER


def check_race(confidence: float, max_runs: int) -> None:
    """Raise unless a race can be run with these."""
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"confidence is {confidence}, must be at least 0.5 and below 1")
    if max_runs < FIRST_LOOK:
        raise ConfigError(f"a comparison needs at least {FIRST_LOOK} measurements, not {max_runs}")
