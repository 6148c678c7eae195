"""Statistics of durations that a few odd samples do not mislead."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray

STALL = 4.0  # times the median from which a sample is a stall
FEWEST = 5  # samples that can differ from others
MAX_POINTS = 64  # that a line is drawn through
SIGMAS, LEAST = 3.0, 0.02  # standard errors and share by which means must differ


class Samples(NamedTuple):
    """Some durations, and how much each counts."""

    seconds: FloatArray
    weight: FloatArray


def equal(seconds: Sequence[float] | FloatArray) -> Samples:
    """Samples that all count the same."""
    return Samples(np.asarray(seconds, np.float64), np.ones(len(seconds)))


def joined(several: Iterable[Samples]) -> Samples:
    """All of them as one."""
    rows = list(several)
    seconds = np.concatenate([np.zeros(0), *(row.seconds for row in rows)])
    return Samples(seconds, np.concatenate([np.zeros(0), *(row.weight for row in rows)]))


def typical_s(samples: Sequence[float] | FloatArray, weight: FloatArray | None = None) -> float:
    """The weighted mean of some samples but for stalls.

    Not their median: durations are skewed to the right, and what keeps a device or a link busy is
    the sum of their means.
    """
    took = np.asarray(samples, np.float64)
    counts = np.ones(len(took)) if weight is None else weight
    kept = _no_stalls(took, counts)
    return float(np.average(took[kept], weights=counts[kept]))


def differ(own: Samples, others: Samples) -> bool:
    """Whether samples are measurably different from others, in what is typical of them."""
    if _effective(own.weight) < FEWEST or len(others.seconds) == 0:
        return False
    mine, theirs = typical_s(*own), typical_s(*others)
    error = np.hypot(_standard_error(own), _standard_error(others))
    return bool(abs(mine - theirs) > max(SIGMAS * error, LEAST * theirs))


def _no_stalls(took: FloatArray, weight: FloatArray) -> BoolArray:
    kept: BoolArray = took <= STALL * weighted_median(took, weight)
    return kept


def _effective(weight: FloatArray) -> float:
    """The effective number of samples."""
    return float(weight.sum() ** 2 / (weight @ weight)) if len(weight) else 0.0


def _standard_error(samples: Samples) -> float:
    """Of what is typical."""
    kept = _no_stalls(*samples)
    took, weight = samples.seconds[kept], samples.weight[kept]
    off = weight * (took - np.average(took, weights=weight))
    return float(np.sqrt(off @ off) / weight.sum())


def least_absolute_line(x: FloatArray, y: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """(intercept, slope) of the line with the least weighted sum of absolute errors.

    It goes through two of the points, so all pairs are tried; of those that weigh most, if there
    are many.
    """
    points = np.argsort(-weight * y, kind="stable")[:MAX_POINTS]
    a, b = points[np.array(np.triu_indices(len(points), 1))]
    slope = (y[b] - y[a]) / (x[b] - x[a])  # all x are different
    intercept = y[a] - slope * x[a]
    error = np.abs(intercept[:, None] + slope[:, None] * x - y) @ weight
    best = int(np.argmin(error))
    return float(intercept[best]), float(slope[best])


def weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """The first value with at least half of the weight up to it."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
