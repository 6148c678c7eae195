"""Statistics that a few odd samples do not mislead."""

from collections.abc import Iterable, Sequence

import numpy as np

from doppler.arrays import FloatArray

EXTREMES = 4  # one in so many samples is left out at either end, and the mean of the rest counts
FEWEST = 5  # samples that can differ from others
SIGMAS, LEAST = 3.0, 0.02  # they differ if by more than so many standard errors, and that share


def typical_s(samples: Sequence[float] | FloatArray) -> float:
    """The mean of the middle of some samples: neither stalls nor luck count."""
    ordered = np.sort(np.asarray(samples, np.float64))
    cut = len(ordered) // EXTREMES
    return float(ordered[cut : len(ordered) - cut].mean())


def differ(own: FloatArray, shared: FloatArray) -> bool:
    """Whether samples are measurably different from others, in what is typical of them."""
    if len(own) < FEWEST or len(shared) == 0:
        return False
    mine, theirs = typical_s(own), typical_s(shared)
    error = np.hypot(_standard_error(own), _standard_error(shared))
    return bool(abs(mine - theirs) > max(SIGMAS * error, LEAST * theirs))


def _standard_error(samples: FloatArray) -> float:
    """Of what is typical, from the median of the deviations."""
    deviation = 1.4826 * float(np.median(np.abs(samples - np.median(samples))))
    return 1.25 * deviation / float(np.sqrt(len(samples)))


def lower_quartile(samples: Iterable[float]) -> float:
    """What a quarter of some samples is below, but not less than 0."""
    return max(0.0, float(np.quantile(list(samples), 0.25)))


def least_absolute_line(x: FloatArray, y: FloatArray, count: FloatArray) -> tuple[float, float]:
    """(intercept, slope) of the line with the least relative absolute error, reweighted."""
    weight = count / y**2
    intercept = slope = 0.0
    for _ in range(50):
        total = weight.sum()
        mean_x, mean_y = (weight @ x) / total, (weight @ y) / total
        slope = float(weight @ ((x - mean_x) * (y - mean_y)) / (weight @ (x - mean_x) ** 2))
        intercept = float(mean_y - slope * mean_x)
        relative = np.abs(intercept + slope * x - y) / y
        weight = count / y**2 / np.maximum(relative, 1e-6)
    return intercept, slope


def weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """The first value with at least half of the weight up to it."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
