"""The incumbent as a pure state machine: told what runs took, it says who is known to be good."""

import json
from math import inf

import numpy as np
import pytest

from doppler.base.arrays import IntArray
from doppler.serving.incumbent import FAILED, LOST, PROMOTED, Incumbent, digest


def devices(*values: int) -> IntArray:
    return np.array(values, np.int64)


FIRST, SECOND, THIRD = devices(0, 0), devices(0, 1), devices(1, 0)


def incumbent(settle: int = 0, drop: float = inf) -> Incumbent:
    made = Incumbent(confidence=0.95, max_runs=8, window=4, settle=settle, drop=drop)
    made.install(FIRST, [2.0, 2.0, 2.0])
    return made


def race(state: Incumbent, challenger: IntArray, makespan_s: float) -> None:
    """One without noise; the incumbent takes what it took."""
    state.challenge(challenger)
    while state.race is not None:
        mine = state.challenger_is_next
        state.ran(makespan_s if mine else state.recent_s[-1], challenger=mine)


def test_the_faster_one_is_promoted_and_the_slower_one_is_not() -> None:
    state = incumbent()
    assert (state.mean_s, state.spread_s, state.speedup) == (2.0, 0.0, 1.0)
    race(state, SECOND, 1.0)
    assert np.array_equal(state.devices, SECOND)
    assert (state.mean_s, state.speedup, state.promoted) == (1.0, 2.0, 1)
    race(state, THIRD, 1.5)
    assert np.array_equal(state.devices, SECOND)
    assert state.fates == {digest(SECOND): PROMOTED, digest(THIRD): LOST}
    assert np.array_equal(state.first, FIRST)


def test_the_mean_is_of_the_latest_runs() -> None:
    state = incumbent()
    for makespan_s in (4.0, 4.0, 6.0, 6.0):
        state.ran(makespan_s)
    assert state.mean_s == 5.0
    assert state.spread_s == pytest.approx(np.std([4, 4, 6, 6], ddof=1))


def test_runs_that_settle_do_not_count_and_one_far_too_slow_ends_it() -> None:
    state = incumbent(settle=2, drop=1.5)
    state.challenge(SECOND)
    for _ in range(2):
        state.ran(2.9, challenger=True)
    assert state.race is not None
    assert state.race.challenger_s == []
    state.ran(1.0, challenger=True)
    assert state.race.challenger_s == [1.0]
    state.ran(3.1, challenger=True)
    assert state.race is None
    assert state.fates == {digest(SECOND): LOST}


def test_a_challenger_that_fails_has_lost() -> None:
    state = incumbent()
    state.challenge(SECOND)
    state.ran(1.0, challenger=True)
    state.failed()
    assert state.race is state.challenger is None
    assert state.fates == {digest(SECOND): FAILED}
    assert np.array_equal(state.devices, FIRST)


def test_an_incumbent_that_fails_gives_way() -> None:
    state = incumbent()
    race(state, SECOND, 1.0)
    state.challenge(THIRD)
    state.fall_back(FIRST)
    assert np.array_equal(state.devices, FIRST)
    assert state.race is None
    assert (state.mean_s, state.speedup) == (inf, 1.0)
    assert state.fates == {digest(SECOND): FAILED}
    assert not state.knows(SECOND)  # failures are the matter of `Faults`


def test_what_lost_may_race_again_when_that_is_long_ago_or_the_machine_changed() -> None:
    state = Incumbent(confidence=0.95, max_runs=8, window=4, forget=20)
    state.install(FIRST, [2.0, 2.0, 2.0])
    race(state, SECOND, 3.0)
    assert state.knows(SECOND)
    for _ in range(20):
        state.ran(2.0)
    assert not state.knows(SECOND)
    race(state, THIRD, 3.0)
    assert state.fates == {digest(THIRD): LOST}  # the other one is forgotten
    state.challenge(SECOND)
    state.ran(9.0)
    broken_off = state.machine_changed(1)
    assert np.array_equal(broken_off, SECOND)
    assert state.race is state.challenger is None
    assert not state.knows(THIRD)
    assert state.mean_s == 9.0


def test_a_promotion_that_was_luck_is_undone_and_one_that_was_not_stays() -> None:
    for truly_s, undone in ((1.2, True), (0.9, False)):
        state = Incumbent(confidence=0.95, max_runs=8, window=16, probation=16)
        state.install(FIRST, [])
        rng = np.random.default_rng(0)
        for _ in range(16):
            state.ran(rng.normal(1.0, 0.02))
        race(state, SECOND, 0.8)
        assert np.array_equal(state.devices, SECOND)
        for _ in range(16):
            state.ran(rng.normal(truly_s, 0.02))
        assert np.array_equal(state.devices, FIRST if undone else SECOND)
        assert state.reverted == undone
        assert state.knows(SECOND) == undone
        assert state.previous_s == []


def test_a_final_race_decides() -> None:
    state = incumbent()
    race(state, SECOND, 1.0)
    state.conclude(SECOND, [1.0, 1.2], [2.0, 2.4])
    assert (state.mean_s, state.speedup) == (1.1, 2.0)
    state.conclude(FIRST, [2.0, 2.2], [2.0, 2.2])
    assert np.array_equal(state.devices, FIRST)
    assert (state.mean_s, state.speedup) == (2.1, 1.0)
    assert state.fates == {digest(SECOND): LOST}


@pytest.mark.parametrize("runs", range(6))
def test_it_resumes_in_the_middle_of_a_race(runs: int) -> None:
    state = incumbent(settle=1)
    race(state, SECOND, 1.0)
    state.challenge(THIRD)
    for number in range(runs):
        state.ran(0.9 + 0.01 * number, challenger=number % 2 == 0)
    again = incumbent(settle=1)
    state.previous, state.previous_s, state.since_s = FIRST, [2.0, 2.0], [1.0]
    again.load_state(json.loads(json.dumps(state.state())))
    assert again.state() == state.state()
    for each in (state, again):
        while each.race is not None:
            mine = each.challenger_is_next
            each.ran(0.5 if mine else 1.0, challenger=mine)
    assert again.state() == state.state()
    assert np.array_equal(again.devices, THIRD)
