"""Exploration as a pure state machine: its promises hold for whatever it is told."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from doppler.base.arrays import IntArray
from doppler.serving.config import OnlineConfig
from doppler.serving.exploration import (
    CHALLENGER,
    FALLBACK,
    INCUMBENT,
    RETRY,
    Exploration,
)
from doppler.serving.faults import ASSIGNMENT, MACHINE, REQUEST

CONFIG = OnlineConfig(explore=0.3, warm_up=3, slowdown=0.1, burst=5)
START, OTHER, REFUGE = (np.full(3, value) for value in (0, 1, 9))


def exploration(config: OnlineConfig = CONFIG) -> Exploration:
    return Exploration(config, START, [REFUGE])


def serve(state: Exploration, took_s: float = 1.0, *, breaks: object = None) -> list[str]:
    """One request; the roles that tried it. `breaks` says of (V,) devices and role who fails."""
    attempt, roles = state.next(), []
    while True:
        roles.append(attempt.role)
        if not (callable(breaks) and breaks(attempt.devices, attempt.role)):
            state.ran(took_s)
            return roles
        following = state.failed(0.1)
        if following is None:
            return [*roles, "lost"]
        attempt = following


def settled(state: Exploration, requests: int = 20) -> Exploration:
    for _ in range(requests):
        serve(state)
    return state


def promoted(state: Exploration) -> Exploration:
    """With `OTHER` as the incumbent, which is twice as fast."""
    settled(state)
    state.propose([OTHER])
    while not state.incumbent.promoted:
        state.ran(0.5 if state.next().role == CHALLENGER else 1.0)
    return state


def test_a_request_that_fails_on_all_costs_nobody_anything() -> None:
    state = promoted(exploration())
    assert serve(state, breaks=lambda *_: True) == [INCUMBENT, RETRY, FALLBACK, "lost"]
    assert np.array_equal(state.devices, OTHER)
    assert (state.lost, state.faults.counts[REQUEST]) == (1, 1)
    assert state.faults.is_forgiven("", 0)
    assert serve(state, breaks=lambda *_: True)[-1] == "lost"  # the next one: it is the machine
    assert state.faults.counts == {REQUEST: 1, ASSIGNMENT: 0, MACHINE: 1}
    for _ in range(50):
        serve(state, breaks=lambda *_: True)
    assert serve(state, 0.5) == [INCUMBENT]
    assert np.array_equal(state.devices, OTHER)


def test_a_failure_that_does_not_repeat_is_the_machines() -> None:
    state = promoted(exploration())
    for _ in range(20):
        assert serve(state, 0.5, breaks=lambda _, role: role == INCUMBENT) == [INCUMBENT, RETRY]
    assert np.array_equal(state.devices, OTHER)
    assert state.faults.counts == {REQUEST: 0, ASSIGNMENT: 0, MACHINE: 20}


def test_an_incumbent_that_fails_again_and_again_is_replaced_and_later_forgiven() -> None:
    state = promoted(exploration())
    broken = lambda devices, _: np.array_equal(devices, OTHER)  # noqa: E731
    for _ in range(3):
        assert serve(state, breaks=broken) == [INCUMBENT, RETRY, FALLBACK]
    assert np.array_equal(state.devices, START)
    assert state.lost == 0
    assert any(np.array_equal(row, OTHER) for row in state.former)
    assert state.propose([OTHER]) == 0
    settled(state, 3 * CONFIG.half_life)
    assert state.propose([OTHER]) == 1


def test_the_first_incumbent_is_replaced_as_well_where_a_refuge_runs() -> None:
    state = settled(exploration())
    for _ in range(3):
        assert serve(state, breaks=lambda devices, _: devices[0] == 0)[-1] == FALLBACK
    assert np.array_equal(state.devices, REFUGE)


def test_a_challenger_that_fails_is_out_and_heard_again_after_a_half_life() -> None:
    state = settled(exploration())
    state.propose([OTHER])
    roles = [serve(state, breaks=lambda _, role: role == CHALLENGER) for _ in range(30)]
    assert roles.count([CHALLENGER, INCUMBENT]) == 1
    assert state.faults.counts == {REQUEST: 0, ASSIGNMENT: 1, MACHINE: 0}
    assert state.propose([OTHER]) == 0
    settled(state, CONFIG.half_life)
    assert state.propose([OTHER]) == 1


def test_a_challenger_that_is_late_has_lost() -> None:
    state = settled(exploration())
    state.propose([OTHER])
    while (attempt := state.next()).role != CHALLENGER:
        state.ran(1.0)
    assert attempt.deadline_s == pytest.approx(CONFIG.drop * 1.0 + CONFIG.grace_s)
    following = state.failed(attempt.deadline_s, late=True)
    assert following is not None
    assert (following.role, following.deadline_s) == (INCUMBENT, float("inf"))
    state.ran(1.0)
    assert (state.late, state.failures, state.incumbent.dropped) == (1, 0, 1)
    assert state.incumbent.knows(OTHER)
    assert sum(state.faults.counts.values()) == 0


@pytest.mark.parametrize("rate", [0.02, 0.05])
def test_under_random_faults_exploring_goes_on_and_the_incumbent_stays(rate: float) -> None:
    rng = np.random.default_rng(0)
    state = promoted(exploration(replace(CONFIG, explore=0.1)))
    deposed, explored = 0, state.explored
    for number in range(3000):
        if not state.queue:
            state.propose([np.full(3, 10 + number % 40)])
        before = state.devices
        roles = serve(state, rng.normal(0.5, 0.01), breaks=lambda *_: rng.random() < rate)
        deposed += roles[-1] == FALLBACK and state.devices is not before
    assert deposed <= 1
    assert state.explored - explored > 200
    assert state.lost <= 3


def test_no_worse_incumbent_is_kept_for_long_once_a_better_one_waits() -> None:
    """A challenger that is a tenth faster takes over within a race's length of requests."""
    config = OnlineConfig(explore=0.1)
    limit = (config.settle + config.max_runs) / config.explore
    for seed in range(20):
        rng = np.random.default_rng(seed)
        state = settled(Exploration(config, START), 30)
        state.propose([OTHER])
        for _ in range(int(limit) + 1):
            state.ran((0.9 if state.next().role == CHALLENGER else 1.0) * rng.normal(1.0, 0.05))
            if state.incumbent.promoted:
                break
        assert state.incumbent.promoted, seed


@pytest.mark.parametrize("skewed", [False, True])
def test_noise_alone_seldom_wins(skewed: bool) -> None:
    wins = ends = 0
    for seed in range(40):
        state, rng = exploration(replace(CONFIG, explore=0.5)), np.random.default_rng(seed)
        for number in range(200):
            if not state.queue:
                state.propose([np.full(3, number + 1)])
            state.next()
            state.ran(rng.lognormal(0.0, 0.3) if skewed else rng.normal(1.0, 0.1))
        wins += state.incumbent.promoted
        ends += state.incumbent.promoted + state.incumbent.dropped
    assert ends > 400
    assert wins <= 0.05 * ends


Told = tuple[str, float]


@st.composite
def stories(draw: st.DrawFn) -> list[Told]:
    """Requests that run, fail in some attempts, or come after a change of the machine."""
    whats = ("ran",) * 6 + ("broken once", "broken twice", "broken", "late", "changed", "new")
    seconds = st.floats(1e-3, 1e3)
    return draw(st.lists(st.tuples(st.sampled_from(whats), seconds), min_size=5, max_size=120))


@settings(deadline=None, max_examples=60)
@given(stories(), st.sampled_from([0.0, 0.1, 0.35, 1.0]), st.floats(0.0, 0.2))
def test_its_promises_hold_for_any_sequence(
    told: list[Told], explore: float, slowdown: float
) -> None:
    config = replace(CONFIG, explore=explore, slowdown=slowdown)
    state, done = exploration(config), []
    for number, (what, took_s) in enumerate(told):
        before, mean_s = state.extra_s, state.incumbent.mean_s
        attempt = state.next()
        done.append(attempt.role == CHALLENGER)
        if attempt.role == CHALLENGER:  # only while there is time to spare
            assert before <= slowdown * state.served_s
            assert attempt.deadline_s <= config.drop * mean_s + config.grace_s
        outcomes = {"broken once": 1, "broken twice": 2, "broken": 4, "late": 1}.get(what, 0)
        following: object = attempt
        for _ in range(outcomes):
            following = state.failed(took_s, late=what == "late")
            if following is None:
                break
        if following is not None:
            state.ran(took_s)
        if what == "changed":
            state.machine_changed(min(2, len(state.incumbent.recent_s)))
        if what == "new":
            state.propose([np.full(3, number % 7 + 1)])
        _check(state, config, done)
    again = exploration(config)
    again.load_state(json.loads(json.dumps(state.state())))
    assert again.state() == state.state()


def _check(state: Exploration, config: OnlineConfig, done: list[bool]) -> None:
    total = state.requests + state.lost
    assert total == len(done)
    assert state.explored == sum(done)
    assert state.explored <= config.explore * total + 1e-9
    for width in (5, 20, 50):  # a burst is bounded, too
        assert sum(done[-width:]) <= config.explore * width + config.burst + 1
    assert len(state.queue) <= config.queue + 1
    devices: IntArray = state.devices
    assert devices.shape == (3,)
    assert (state.incumbent.race is None) == (state.incumbent.challenger is None)
    assert not any(np.array_equal(row, devices) for row in state.queue)
