"""Placers of one's own: from modules and packages, and what happens when they are none."""

import logging
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from doppler.errors import ConfigError, DopplerError, PlacerError, UnknownNameError
from doppler.graph import GraphBuilder
from doppler.placers import make_placer, place, placer_names
from doppler.placers.registry import described_placers

MINE = """
import doppler as dp

class Mine:
    '''Everything on the last device.'''

    name = "mine"

    def __init__(self, made_by="its class"):
        self.made_by = made_by

    def place(self, problem, *, seed=0, budget_s=None):
        last = problem.topology.num_devices - 1
        return dp.Assignment([-1 if each else last for each in problem.graph.is_input])

class Holder:
    Nested = Mine

ready = Mine("hand")
def make(): return Mine("a function")
def fail(): raise ZeroDivisionError("no luck\\nat all")
def leave(): raise SystemExit(3)
number = 4
class Nothing: pass
class Nameless:
    def place(self, problem, *, seed=0, budget_s=None): ...
"""
Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes modules into the current folder; the path and what is imported are put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "nowhere"))  # so that the path is put back

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        sys.modules.pop(path.stem, None)

    write("my_own.py", MINE)
    return write


@pytest.mark.parametrize(
    ("attribute", "made_by"),
    [
        ("Mine", "its class"),
        ("Holder.Nested", "its class"),
        ("ready", "hand"),
        ("make", "a function"),
    ],
)
def test_classes_placers_and_factories_in_the_current_folder(
    write: Write, attribute: str, made_by: str
) -> None:
    placer = make_placer(f"my_own:{attribute}")
    assert placer.name == "mine"
    assert vars(placer)["made_by"] == made_by


def test_modules_of_packages(write: Write) -> None:
    write("my_package/__init__.py", "")
    write("my_package/inner.py", MINE)
    assert make_placer("my_package.inner:Mine").name == "mine"
    assert make_placer("doppler.placers.lists.trivial:SinglePlacer").name == "single"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my_own:Missing", ["my_own:Missing", "has no `Missing`", "my_own.py"]),
        ("my_own:number", ["`my_own:number`", "no method `place`", "place(problem, *"]),
        ("my_own:Nothing", ["`my_own:Nothing`", "no method `place`"]),
        ("my_own:Nameless", ["`my_own:Nameless`", "`name` is None"]),
        ("my_own:fail", ["`my_own:fail`", "ZeroDivisionError: no luck"]),
        ("my_own:leave", ["`my_own:leave`", "SystemExit: 3"]),
        ("raises:Mine", ["`raises:Mine`", "import failed", "KeyError: 'x'"]),
        ("needs:Mine", ["`needs:Mine`", "ModuleNotFoundError", "no_such_library"]),
        ("wrong:Mine", ["`wrong:Mine`", "SyntaxError"]),
    ],
)
def test_what_is_no_placer_says_why(write: Write, name: str, words: list[str]) -> None:
    write("raises.py", "{}['x']")
    write("needs.py", "import no_such_library")
    write("wrong.py", "class")
    with pytest.raises(PlacerError) as caught:
        make_placer(name)
    for word in words:
        assert word in str(caught.value)
    assert "at all" not in str(caught.value)


def test_a_failure_keeps_its_cause_for_debugging(write: Write) -> None:
    with pytest.raises(PlacerError) as caught:
        make_placer("my_own:fail")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_modules_that_are_not_there(write: Write) -> None:
    with pytest.raises(UnknownNameError, match="no placer or module named `no_such_module`"):
        make_placer("no_such_module:Mine")
    with pytest.raises(UnknownNameError, match=r"named `my_own\.inner`"):
        make_placer("my_own.inner:Mine")
    with pytest.raises(UnknownNameError, match="did you mean `critical-path`"):
        make_placer("critical_pth:runs")
    with pytest.raises(UnknownNameError, match="did you mean `critical-path`"):
        make_placer("critical_path:runs/x")


@pytest.mark.parametrize("name", ["heft:runs", "single:runs/x", "cp-sat:a.b"])
def test_placers_that_take_no_run_say_so(name: str) -> None:
    with pytest.raises(ConfigError, match=r"takes no run[^\n]*\n.*take a run: auto, doppler, gdp"):
        make_placer(name)


@pytest.mark.parametrize("name", ["doppler:", "gdp:", "gdp"])
def test_placers_that_need_a_run_say_so(name: str) -> None:
    with pytest.raises(ConfigError, match="needs a policy"):
        make_placer(name)


@pytest.mark.parametrize("budget", [float("inf"), float("nan"), 0, -1.0, 1e7, "5"])
@pytest.mark.parametrize("name", ["annealing", "heft", "my_own:Mine"])
def test_budgets_that_are_none(write: Write, name: str, budget: float) -> None:
    with pytest.raises(ConfigError, match="budget_s is"):
        place(GraphBuilder("empty").build(), "cpu2", name, budget_s=budget)


@pytest.fixture
def package(write: Write) -> None:
    """An installed package with two entry points of its own, and one that `heft` is taken by."""
    write("some_package-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-package\n")
    write(
        "some_package-1.0.dist-info/entry_points.txt",
        "[doppler.placers]\nlast-device = my_own:Mine\nbroken = my_own:fail\nheft = my_own:Mine\n",
    )


@pytest.fixture
def _installed(package: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("_installed")
def test_entry_points_are_placers_by_name() -> None:
    assert make_placer("last-device").name == "mine"
    assert type(make_placer("heft")).__name__ == "HeftPlacer"
    assert "last-device" not in placer_names()
    with pytest.raises(PlacerError, match=r"`broken` of package `some-package`.*ZeroDivision"):
        make_placer("broken")
    with pytest.raises(ConfigError, match="`last-device` takes no run"):
        make_placer("last-device:runs/x")
    with pytest.raises(UnknownNameError, match="did you mean `last-device`"):
        make_placer("last-devise")


@pytest.mark.usefixtures("_installed")
def test_entry_points_are_listed_with_their_package(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        rows = dict(described_placers())
    assert rows["last-device"] == "Everything on the last device. (from some-package)"
    assert "ZeroDivisionError" in rows["broken"]
    assert "some-package" not in rows["heft"]
    assert "`heft` of package `some-package` is left out" in caplog.text
    assert rows["doppler:RUN"]


def test_every_error_of_a_name_is_one_of_ours(write: Write) -> None:
    for name in ("", ":", "a:", ":b", "a b:c", "heft:", "my_own:Mine:x", "..:x", "1:2", "é:ü"):
        with pytest.raises(DopplerError):
            make_placer(name)
