"""`--mode fixed`: assignments that have a schedule, from `dop place` to `dop show`."""

from pathlib import Path

import pytest
from command_line import Dop, compare_in_this_process

from doppler.assignment import read_assignment

PLACE = ("place", "graph.json", "-t", "p100x4", "-p", "heft")
SIMULATE = ("simulate", "graph.json", "a.json", "-t", "p100x4")


def test_a_schedule_goes_through_its_file(dop: Dop, files: Path) -> None:
    placed = dop(*PLACE, "--mode", "fixed", "-o", "a.json", "--json").json()
    assert placed["mode"] == "fixed"
    assert read_assignment(files / "a.json").schedule is not None
    fixed = dop(*SIMULATE, "--mode", "fixed", "--json").json()
    for key in ("makespan_s", "lower_bound_s"):
        assert fixed[key] == placed[key]
    shown = dop("show", "a.json", "--graph", "graph.json", "--json").json()
    assert (shown["mode"], shown["makespan_s"]) == ("fixed", placed["makespan_s"])
    dynamic = dop(*SIMULATE)
    assert "the assignment has a schedule: --mode fixed keeps to it" in dynamic.err
    assert dop(*SIMULATE, "--json").json()["makespan_s"] > placed["makespan_s"]  # host costs


def test_people_are_told_of_the_order(dop: Dop, files: Path) -> None:
    placed = dop(*PLACE, "--mode", "fixed", "-o", "a.json")
    tasks = len(read_assignment(files / "a.json").schedule.tasks)
    assert f"{tasks} tasks in a fixed order (placed" in placed.out
    assert f", {tasks} tasks in a fixed order" in dop("show", "a.json").out
    assert dop("show", "a.json", "--json").json()["scheduled"]
    assert f", {tasks} tasks in a fixed order" in dop("show", "a.json", "--graph", "graph.json").out
    assert "in a fixed order" not in dop(*PLACE).out


def test_an_assignment_without_a_schedule_gets_one(dop: Dop, files: Path) -> None:
    simulate = ("simulate", "graph.json", "assignment.json", "-t", "p100x4", "--json")
    dynamic, fixed, deep = (
        dop(*simulate, *options).json()["makespan_s"]
        for options in ((), ("--mode", "fixed"), ("--mode", "fixed", "--strategy", "depth-first"))
    )
    assert max(fixed, deep) < dynamic


def test_placers_are_compared_in_a_mode(
    dop: Dop, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_in_this_process(monkeypatch)
    compare = ("compare", "graph.json", "-t", "p100x4", "--placers", "heft", "--seeds", "2")
    (row,) = dop(*compare, "--mode", "fixed", "--json").json()
    placed = dop(*PLACE, "--mode", "fixed", "--json").json()
    assert row["makespan_s"] == placed["makespan_s"]


@pytest.mark.parametrize("command", [PLACE, ("compare", "graph.json", "-t", "p100x4")])
def test_an_unknown_mode_is_refused(dop: Dop, files: Path, command: tuple[str, ...]) -> None:
    result = dop(*command, "--mode", "fixd")
    assert result.code == 2
    assert "no mode named `fixd`" in result.err
    assert "did you mean `fixed`?" in result.err


def test_barriers_are_for_mode_dynamic(dop: Dop, files: Path) -> None:
    simulate = ("simulate", "graph.json", "assignment.json", "-t", "p100x4", "--bulk-synchronous")
    result = dop(*simulate, "--mode", "fixed")
    assert result.code == 2
    assert "has no barriers" in result.err


def test_a_schedule_that_does_not_fit_is_refused(dop: Dop, files: Path) -> None:
    dop(*PLACE, "--mode", "fixed", "-o", "a.json")
    text = (files / "a.json").read_text()
    for old, new, message in (
        ('"task": [', '"task": [7, ', "tasks, but"),
        ('"task": [', '"task": ["7", ', "`schedule`: `task` holds '7'"),
        ('"room": [0', '"room": [5', "slot 5, but the topology has slots 0 to 0 there"),
    ):
        (files / "a.json").write_text(text.replace(old, new))
        result = dop(*SIMULATE, "--mode", "fixed")
        assert result.code == 2
        assert message in result.err
    assert "made for another topology" in result.err
