"""Races between assignments: no false winners beyond the level, and few measurements."""

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch")


from doppler.errors import ConfigError
from doppler.serving.race import (
    BETTER,
    NOT_BETTER,
    Race,
    looks,
    probability_not_faster,
    winner,
)

Draw = Callable[[np.random.Generator], float]


def run(rng: np.random.Generator, challenger: Draw, incumbent: Draw) -> Race:
    race = Race()
    while race.verdict is None:
        mine = race.challenger_is_next
        race.add((challenger if mine else incumbent)(rng), challenger=mine)
    return race


def normal(mean: float, sigma: float) -> Draw:
    return lambda rng: mean * (1 + sigma * rng.standard_normal())


def lognormal(mean: float, sigma: float) -> Draw:
    return lambda rng: mean * rng.lognormal(-sigma * sigma / 2, sigma)


def spiky(mean: float) -> Draw:
    """1 % of noise, and now and then a run that takes half as long again."""
    return lambda rng: mean * (1 + 0.01 * rng.standard_normal() + 0.5 * (rng.random() < 0.05))


@pytest.mark.parametrize(
    "noise", [normal(1.0, 0.01), normal(1.0, 0.2), lognormal(1.0, 0.5), spiky(1.0)]
)
def test_one_that_is_no_faster_seldom_wins(noise: Draw) -> None:
    """At most one in twenty, with four standard errors to spare."""
    rng, trials = np.random.default_rng(0), 1500
    wins = sum(run(rng, noise, noise).verdict == BETTER for _ in range(trials))
    assert wins / trials < 0.05
    assert wins > 0


def test_a_gain_of_two_percent_is_seen_in_few_runs() -> None:
    rng = np.random.default_rng(1)
    races = [run(rng, normal(0.98, 0.01), normal(1.0, 0.01)) for _ in range(500)]
    assert np.mean([race.verdict == BETTER for race in races]) > 0.95
    assert np.mean([len(race.challenger_s) for race in races]) < 7
    slow = [run(rng, normal(1.02, 0.01), normal(1.0, 0.01)) for _ in range(200)]
    assert not any(race.verdict == BETTER for race in slow)
    assert np.mean([len(race.challenger_s) for race in slow]) < 3.2


def test_without_noise_the_faster_one_wins_at_once() -> None:
    rng = np.random.default_rng(0)
    for mean, verdict in ((0.999, BETTER), (1.0, NOT_BETTER), (1.001, NOT_BETTER)):
        race = run(rng, normal(mean, 0.0), normal(1.0, 0.0))
        assert race.verdict == verdict
        assert len(race.challenger_s) == len(race.incumbent_s) == 3
        assert race.speedup == pytest.approx(1 / mean)
    assert run(rng, normal(1 - 1e-15, 0.0), normal(1.0, 0.0)).verdict == NOT_BETTER


def test_turns_are_interleaved() -> None:
    race, turns = Race(), ""
    for _ in range(8):
        turns += "c" if race.challenger_is_next else "i"
        race.add(
            1.0 if turns[-1] == "i" else 0.9 + 0.2 * (len(turns) % 2), challenger=turns[-1] == "c"
        )
    assert turns == "ciicciic"


def test_looks_are_counted_however_uneven_the_sides_are() -> None:
    """As when one request in ten goes to the challenger."""
    rng, wins, trials = np.random.default_rng(2), 0, 1500
    assert looks(16) == (3, 5, 7, 10, 16)
    assert (looks(3), looks(4), looks(8)) == ((3,), (3, 4), (3, 5, 8))
    for _ in range(trials):
        race = Race(max_runs=10)
        while race.verdict is None:
            for _ in range(9):
                race.add(normal(1.0, 0.05)(rng), challenger=False)
            race.add(normal(1.0, 0.05)(rng), challenger=True)
        assert race.looked <= len(looks(10))
        wins += race.verdict == BETTER
    assert 0 < wins / trials < 0.05


def test_the_test_is_welchs() -> None:
    from scipy.stats import ttest_ind  # takes a second to load

    rng = np.random.default_rng(3)
    for sizes in ((3, 3), (4, 9), (16, 5)):
        a, b = rng.normal(1.0, 0.1, sizes[0]), rng.normal(1.05, 0.3, sizes[1])
        expected = ttest_ind(a, b, equal_var=False, alternative="less").pvalue
        assert probability_not_faster(list(a), list(b)) == pytest.approx(expected)


def test_the_first_one_wins_unless_beaten_by_more_than_the_noise() -> None:
    assert winner([[2.0, 2.1]], 0.95) == 0
    assert winner([[2.0, 2.1, 2.2], [1.0, 1.1, 1.2], [1.5, 1.6, 1.7]], 0.95) == 1
    assert winner([[2.0, 2.1, 2.2], [1.9, 2.0, 2.1]], 0.95) == 0
    assert winner([[2.0, 2.0], [1.9, 1.9], [1.8, 1.8]], 0.95) == 2
    sure, unsure = [1.0, 1.01, 1.02], [0.1, 0.2, 2.6]
    assert winner([[1.2, 1.21, 1.22], unsure, sure], 0.95) == 2  # the lowest mean is not enough
    rng, trials = np.random.default_rng(4), 1500
    lost = sum(winner(rng.lognormal(0, 0.2, (4, 10)).tolist(), 0.95) > 0 for _ in range(trials))
    assert 0 < lost / trials < 0.05


def test_mistakes() -> None:
    for confidence in (0.4, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="confidence is"):
            Race(confidence=confidence)
    with pytest.raises(ConfigError, match="at least 3 measurements"):
        Race(max_runs=2)
