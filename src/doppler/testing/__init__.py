"""Suites that placers and executors from anywhere can run on themselves."""

from doppler.testing.executors import ExecutorContract, check_trace
from doppler.testing.placers import PlacerContract

__all__ = ["ExecutorContract", "PlacerContract", "check_trace"]
