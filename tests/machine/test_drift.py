"""Changes of a machine: found when they are there, seldom when they are not."""

from typing import Any

import numpy as np
import pytest

from doppler.errors import ConfigError
from doppler.machine.drift import Cusum, DriftConfig


def fed(values: np.ndarray, **options: Any) -> Cusum:
    """A test that was given rows of values until one was a change."""
    cusum = Cusum(values.shape[1], DriftConfig(), **options)
    for row in values:
        if cusum.add(row):
            break
    return cusum


@pytest.mark.parametrize("factor", [1.3, 2.0, 5.0, 1 / 1.3, 1 / 2, 1 / 5])
def test_a_change_is_found_in_a_few_values_and_dated(factor: float) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0.0, 0.03, (80, 3))
    values[40:, 1] += np.log(factor)
    cusum = fed(values)
    assert cusum.alarms.tolist() == [False, True, False]
    assert 44 <= cusum.step <= 46
    assert 40 <= cusum.since <= 42
    size = cusum.changes()
    assert size[1] == pytest.approx(np.log(factor), abs=0.05)
    assert size[0] == size[2] == 0.0


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.2])
def test_noise_and_stalls_are_no_change(sigma: float) -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0.0, sigma, (2000, 20))
    values[rng.random(values.shape) < 0.01] += 4.0  # stalls: 50 times as long
    cusum, alarms = Cusum(20, DriftConfig()), 0
    for row in values:
        if cusum.add(row):
            alarms, cusum = alarms + 1, Cusum(20, DriftConfig())
    assert alarms <= 4  # in 40,000 values


def test_values_that_are_missing_say_nothing() -> None:
    values = np.zeros((60, 2))
    values[:, 0] = np.nan
    values[1::2, 1] = np.nan
    values[40:, 1] += 0.5
    cusum = fed(values)
    assert cusum.alarms.tolist() == [False, True]
    assert fed(np.full((50, 1), np.nan)).step == 50


def test_a_centred_one_needs_no_level() -> None:
    assert fed(np.full((20, 1), 0.5), centred=True).step == 4
    assert fed(np.full((20, 1), 0.5)).step == 20


@pytest.mark.parametrize(
    "changes", [{"learn": 1}, {"steps": 1}, {"allowance": 0.0}, {"threshold_sigmas": -1.0}]
)
def test_mistakes(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DriftConfig(**changes)
