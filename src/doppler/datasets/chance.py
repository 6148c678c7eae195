"""Random numbers as the problems draw them, rounded so that every machine makes the same."""

import numpy as np


def rounded(value: float, digits: int = 3) -> float:
    """The value rounded to `digits` digits: what libraries of mathematics agree on."""
    return float(f"{value:.{digits}g}")


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A number between the two whose logarithm is uniform."""
    return float(low * (high / low) ** rng.random())


def about(rng: np.random.Generator, low: float, high: float) -> float:
    """`log_uniform` with three digits."""
    return rounded(log_uniform(rng, low, high))


def whole(rng: np.random.Generator, low: int, high: int) -> int:
    """A whole number between the two, both included, whose logarithm is uniform."""
    return min(high, int(log_uniform(rng, low, high + 1)))


def coin(rng: np.random.Generator, share: float = 0.5) -> bool:
    """True in that share of the draws."""
    return bool(rng.random() < share)
