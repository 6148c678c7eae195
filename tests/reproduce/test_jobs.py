"""Jobs are done once, in the order that they need each other, and kept."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from doppler.reproduce import jobs as module
from doppler.reproduce.jobs import (
    Leeway,
    PaperJob,
    Result,
    Tool,
    Workshop,
    estimate_s,
    missing,
    run_jobs,
)

DONE: list[str] = []


def note(parameters: Result, shop: Workshop) -> Result:
    """A job that only notes that it was done."""
    DONE.append(parameters["name"])
    if parameters.get("fails"):
        raise ValueError(parameters["name"])
    return {"value": len(DONE), "of": [shop.result(key) is not None for key in shop.needs]}


@pytest.fixture(autouse=True)
def _noting(monkeypatch: pytest.MonkeyPatch) -> None:
    DONE.clear()
    monkeypatch.setattr(module, "KINDS", {"note": f"{__name__}:note"})
    monkeypatch.setattr(module, "import_module", lambda name: __import__("sys").modules[name])


def job(name: str, *needs: PaperJob, cost_s: float = 1.0, **more: object) -> PaperJob:
    return PaperJob("note", {"name": name, **more}, cost_s, needs)


def test_jobs_are_done_once_and_after_what_they_need(tmp_path: Path) -> None:
    first = job("first")
    second = job("second", first, cost_s=9.0)
    results = run_jobs([second, second], tmp_path, workers=1)
    assert DONE == ["first", "second"]
    assert (results[first]["value"], results[second]["of"]) == (1, [True])
    assert results[second]["parameters"] == {"name": "second"}
    assert missing([second], tmp_path) == []
    run_jobs([second], tmp_path, workers=1)
    assert DONE == ["first", "second"]


def test_what_is_done_before_a_failure_is_kept(tmp_path: Path) -> None:
    good, bad = job("good", cost_s=2.0), job("bad", fails=True)
    with pytest.raises(ValueError, match="bad"):
        run_jobs([good, bad], tmp_path, workers=1)
    assert missing([good, bad], tmp_path) == [bad]


def test_what_is_timed_comes_between_what_it_needs_and_what_needs_it(tmp_path: Path) -> None:
    probe = PaperJob("note", {"name": "probe", "workload": "b"}, alone=True)
    other = PaperJob("note", {"name": "other", "workload": "a"}, alone=True)
    training = job("training", probe)
    run = PaperJob("note", {"name": "run", "workload": "b"}, 9.0, (training, other), alone=True)
    run_jobs([run], tmp_path, workers=1)
    assert DONE == ["other", "probe", "training", "run"]


def test_failures_and_a_deadline_may_leave_jobs_undone(tmp_path: Path) -> None:
    bad, good = job("bad", fails=True), job("good")
    failures: dict[str, str] = {}
    done: list[PaperJob] = []
    leeway = Leeway(failures=failures, done=done.append)
    after = job("last", job("after", bad))
    results = run_jobs([after, good], tmp_path, workers=1, leeway=leeway)
    assert failures == {bad.key: "ValueError: bad"}
    assert done == [good]
    assert list(results.by_key) == [good.key]
    assert results.get(after) is None
    results = run_jobs([job("late")], tmp_path, workers=1, leeway=Leeway(until=0.0))
    assert results.by_key == {}


def test_a_tool_stays_open_for_the_same_key() -> None:
    closed: list[str] = []
    with Tool() as tool:
        first = tool.get("a", lambda: _closing("a", closed))
        assert tool.get("a", lambda: _closing("b", closed)) is first
        tool.get("c", lambda: _closing("c", closed))
        assert closed == ["a"]
    assert closed == ["a", "c"]


@contextmanager
def _closing(name: str, closed: list[str]) -> Iterator[object]:
    yield object()
    closed.append(name)


def test_a_training_whose_policy_is_gone_is_done_again_only_for_others(tmp_path: Path) -> None:
    training = PaperJob("train", {"name": "training"}, 5.0)
    judge = job("judge", training)
    shop = Workshop(tmp_path)
    shop.file(".json", training.key).parent.mkdir()
    shop.file(".json", training.key).write_text("{}")
    assert missing([training], tmp_path) == []
    assert missing([judge], tmp_path) == [training, judge]
    shop.file(".safetensors", training.key).touch()
    assert missing([judge], tmp_path) == [judge]


def test_a_key_depends_on_all_that_the_result_does() -> None:
    keys = {
        job("a").key,
        job("b").key,
        job("a", job("b")).key,
        PaperJob("other", {"name": "a"}).key,
    }
    assert len(keys) == 4
    assert job("a", cost_s=5.0).key == job("a").key
    on = [PaperJob("note", {"machine": m, "graph": "chainmm"}).key for m in ("p100x4", "v100x8")]
    assert on[0] != on[1]


def test_the_estimate_is_of_the_longest_job_or_of_all_over_the_cores() -> None:
    long, short = job("long", cost_s=30.0), job("short", cost_s=10.0)
    assert estimate_s([long, short], 4) == 30.0
    assert estimate_s([long, short], 1) == 40.0
    alone = PaperJob("note", {}, 5.0, alone=True)
    assert estimate_s([long, short, alone], 4) == 35.0


def test_results_are_files(tmp_path: Path) -> None:
    one = job("one")
    run_jobs([one], tmp_path, workers=1)
    assert json.loads((tmp_path / "jobs" / f"{one.key}.json").read_text())["value"] == 1
