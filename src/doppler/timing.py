"""Seconds that work takes, less what compiling its kernels takes the first time."""

from collections.abc import Callable
from time import perf_counter


def stopwatch() -> Callable[[], float]:
    """A function that gives the seconds since now; compilation is not charged to the work."""
    began = perf_counter()
    return lambda: perf_counter() - began
