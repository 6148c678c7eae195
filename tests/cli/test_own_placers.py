"""`--placer package.module:MyPlacer`, and names that take no run."""

import sys
from pathlib import Path

import pytest
from command_line import Dop

MODULE = """
import doppler as dp

class Last:
    name = "last"

    def place(self, problem, *, seed=0, budget_s=None):
        last = problem.topology.num_devices - 1
        return dp.Assignment([-1 if each else last for each in problem.graph.is_input])

class Short(Last):
    name = "short"

    def place(self, problem, *, seed=0, budget_s=None):
        return dp.Assignment([0])

class Raises(Last):
    name = "raises"

    def place(self, problem, *, seed=0, budget_s=None):
        raise ZeroDivisionError("here")
"""


@pytest.fixture
def module(files: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, where Python does not look by itself."""
    monkeypatch.syspath_prepend(str(files / "nowhere"))  # so that the path is put back
    monkeypatch.delitem(sys.modules, "placers_of_mine", raising=False)
    (files / "placers_of_mine.py").write_text(MODULE)
    return "placers_of_mine"


def test_place_and_compare_with_a_placer_of_ones_own(dop: Dop, module: str) -> None:
    placed = dop("place", "graph.json", "-p", f"{module}:Last", "-o", "out.json", "--json")
    assert placed.code == 0, placed.err
    again = dop("simulate", "graph.json", "out.json", "-t", "p100x4", "--json").json()
    assert again["makespan_s"] == placed.json()["makespan_s"]
    assert again["placer"] == "last"
    names = f"single,{module}:Last,{module}:Raises"
    compared = dop("compare", "graph.json", "--placers", names, "--seeds", "1", "--json")
    assert compared.code == 0, compared.err
    rows = {row["placer"]: row for row in compared.json()}
    assert rows[f"{module}:Last"]["makespan_s"] == placed.json()["makespan_s"]
    assert "`raises` failed: ZeroDivisionError: here" in rows[f"{module}:Raises"]["error"]


def test_mistakes_in_it_are_errors_without_a_traceback(dop: Dop, module: str) -> None:
    for attribute, words in (
        ("Short", "placer `short` returned an assignment that does not fit"),
        ("Raises", "placer `raises` failed: ZeroDivisionError: here"),
        ("Missing", "has no `Missing`"),
    ):
        result = dop("place", "graph.json", "-p", f"{module}:{attribute}", "-o", "out.json")
        assert (result.code, result.out) == (2, "")
        assert words in result.err
        assert "Traceback" not in result.err
        assert not Path("out.json").exists()


def test_heft_takes_no_run(dop: Dop, files: Path) -> None:
    result = dop("place", "graph.json", "-p", "heft:runs")
    assert result.code == 2
    assert "placer `heft` takes no run" in result.err
    assert "hint: write `heft`" in result.err


def test_a_budget_without_end_is_refused(dop: Dop, files: Path) -> None:
    for budget in ("inf", "nan", "1e300"):
        assert dop("place", "graph.json", "--budget", budget).code == 2
        assert dop("compare", "graph.json", "--placers", "single", "--budget", budget).code == 2
