"""Settings for all tests.

No hypothesis example fails because the machine was slow, and torch and NumPy compute on one thread:
every core has a worker of pytest, and threads that wait for each other on busy cores take many
times as long as the work.
"""

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

LONG = {"test_benchmarks.py", "test_docs.py"}

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read where torch and NumPy are first imported
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest, so that no worker has one of them left when all others are done."""
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """Collect garbage less often, and without looking at all that was imported by then."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)
