"""Trials: what fails, what the final race chooses, and what runs without a trace."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from training.machines import MACHINE, REAL, Flaky, machine, small, trials_of  # noqa: E402
from training.tiny import graph  # noqa: E402

from doppler.engine.engine import Engine  # noqa: E402
from doppler.errors import (  # noqa: E402
    EngineError,
    TrainingError,
)
from doppler.placers.search.annealing import AnnealingPlacer, SearchConfig  # noqa: E402
from doppler.problem import Problem  # noqa: E402


def test_penalties() -> None:
    work = graph()
    devices = np.where(work.is_input, -1, 0)
    slow = np.where(work.is_input, -1, np.arange(work.num_vertices) % 3)
    bad = np.where(work.is_input, -1, 3)
    executor = Flaky(machine(), lambda d, _: EngineError("broken") if (d == 3).any() else None)
    trials = trials_of(work, executor)
    trials.begin([bad, devices])
    assert np.array_equal(trials.devices, devices)
    assert trials.failures == 1
    found = trials.measure(np.stack([slow, bad]))
    assert trials.failures == 1
    assert found[1] == np.inf
    assert trials.penalized(found)[1] == 2 * max(found[0], trials.worst_s)
    assert not trials.challenge(bad)
    assert (trials.failures, np.array_equal(trials.devices, devices)) == (2, True)
    before = len(executor.ran)
    assert trials.measure(bad[None]) == [np.inf]  # it is not tried again
    assert len(executor.ran) == before


def test_an_incumbent_that_fails_again_and_again_ends_it() -> None:
    work = graph()
    first = np.where(work.is_input, -1, 0)
    broken: list[bool] = []
    executor = Flaky(machine(), lambda *_: EngineError("the fan stopped") if broken else None)
    trials = trials_of(work, executor)
    trials.begin([first])
    broken.append(True)
    with pytest.raises(TrainingError, match="failed 3 times in a row: the fan stopped") as caught:
        trials.measure_incumbent()
    assert caught.value.hint
    assert trials.failures == 3
    once = trials_of(work, Flaky(machine(), lambda _, n: EngineError("x") if n == 6 else None))
    once.begin([first])
    for _ in range(4):
        once.measure_incumbent()
    assert once.failures == 1
    with pytest.raises(TrainingError, match=r"no assignment of .* runs: the fan stopped"):
        trials_of(work, executor).begin([first])


def test_a_final_race_keeps_what_is_faster_and_says_what_the_policy_gets() -> None:
    work = graph()
    start = np.where(work.is_input, -1, 0)
    good = (
        AnnealingPlacer(SearchConfig(evaluations=20_000, candidates=0))
        .place(Problem(work, MACHINE), seed=0)
        .devices
    )
    policy = np.where(work.is_input, -1, 0)
    policy[good == 1] = 1  # one that is half as good
    trials = trials_of(work, machine(), replace(REAL.real, final_runs=6))
    trials.begin([start])
    assert trials.challenge(good)
    before = trials.executions
    trials.final([start], policy)
    assert trials.executions == before + 3 * 7
    found = trials.measured()
    assert np.array_equal(trials.devices, good)
    assert found.start_s is not None
    assert found.policy_s is not None
    assert found.start_s > found.policy_s > trials.incumbent.mean_s
    assert found.speedup == pytest.approx(found.start_s / trials.incumbent.mean_s)
    trials.incumbent.install(policy, [0.0])  # one that should not have won
    trials.final([], start)
    assert np.array_equal(trials.devices, policy)  # it is faster than the start
    trials.incumbent.first = good
    trials.final([], start)
    assert np.array_equal(trials.devices, good)
    assert not trials.may_challenge(policy)


def test_what_fails_in_a_final_race_is_out() -> None:
    work = graph()
    rows = [np.where(work.is_input, -1, device) for device in range(4)]
    broken: list[int] = []
    executor = Flaky(machine(), lambda d, _: EngineError("x") if d.max() in broken else None)
    trials = trials_of(work, executor, replace(REAL.real, final_runs=3))
    trials.begin([rows[1]])
    broken.append(2)
    trials.final([], rows[2])
    assert (trials.measured().policy_s, trials.failures) == (None, 1)
    broken.append(1)
    trials.final([], rows[3])  # the start fails: somebody else is to be beaten
    assert np.array_equal(trials.devices, rows[3])
    broken.append(3)
    trials.final([], rows[3])
    assert np.array_equal(trials.devices, rows[3])


def test_runs_without_a_trace_are_cheaper_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the paper's stage, and those that do not count."""
    work = small()
    with Engine(MACHINE, "null") as engine:
        traced: list[int] = []
        run = engine.run
        monkeypatch.setattr(engine, "run", lambda *a: traced.append(1) or run(*a))
        trials = trials_of(work, engine)
        row = np.where(work.is_input, -1, 0)
        trials.play(row[None])
        assert (len(traced), trials.runs, trials.executions) == (0, 1, 1)
        trials.begin([row])
        assert (len(traced), trials.runs, trials.executions) == (3, 4, 5)
