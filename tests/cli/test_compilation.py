"""What commands say of compilation, and that what they time does not contain it."""

from collections.abc import Callable
from typing import Any

import pytest
from command_line import Dop
from fake_time import Time, slow_to_compile

from doppler import placers
from doppler.base.compiling import preparing, report_compilation
from doppler.cli.output import telling_of_compilation
from doppler.placers import modes

NOTICE = "compiling for this machine: 5 to 20 s, the first time only …\n"


class ImpatientTimer:
    """A timer whose time is up at once."""

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        self.function = function

    def start(self) -> None:
        self.function()

    def cancel(self) -> None: ...

    def join(self) -> None: ...


class PatientTimer(ImpatientTimer):
    """A timer that is cancelled before its time is up."""

    def start(self) -> None: ...


def compile_twice() -> None:
    for begins in (True, False, True, False):
        report_compilation(begins)


def test_one_line_says_that_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("doppler.cli.output.Timer", ImpatientTimer)
    with telling_of_compilation():
        compile_twice()
    assert capsys.readouterr() == ("", NOTICE)
    compile_twice()
    assert capsys.readouterr() == ("", "")


def test_no_line_says_so_where_they_are_loaded_or_compiled_quickly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("doppler.cli.output.Timer", ImpatientTimer)
    with telling_of_compilation(), preparing():
        pass
    monkeypatch.setattr("doppler.cli.output.Timer", PatientTimer)
    with telling_of_compilation():
        compile_twice()
    assert capsys.readouterr() == ("", "")


def test_every_command_says_so(dop: Dop, fork: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiling(*arguments: Any, **options: Any) -> Any:
        compile_twice()
        return real(*arguments, **options)

    real = modes.solve_in_mode
    monkeypatch.setattr("doppler.cli.output.Timer", ImpatientTimer)
    monkeypatch.setattr(modes, "solve_in_mode", compiling)
    result = dop("place", fork, "-t", "reference:2", "-p", "single")
    assert (result.code, result.err) == (0, NOTICE)


def test_place_and_demo_do_not_time_it(
    dop: Dop, fork: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(modes, "solve_in_mode", slow_to_compile(time, modes.solve_in_mode))
        result = dop("place", fork, "-t", "reference:2", "-p", "heft", "--json")
    assert result.json()["seconds"] == 1
    monkeypatch.setattr(placers, "make_placer", slow_to_compile(time, placers.make_placer))
    assert [row["seconds"] for row in dop("demo", "--json").json()] == [1] * 5
