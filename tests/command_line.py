"""Running `dop` in this process."""

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import typer

from doppler.cli import main as cli

PARSER = typer.main.get_command(cli.app)  # built once: that takes longer than many commands


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Dop = Callable[..., Result]


def compare_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `dop compare` run placers here: a process of its own has to import everything anew."""
    monkeypatch.setattr(
        "doppler.placers.comparison.ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1)
    )


def runner(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Dop:
    """A function that runs `dop` with the arguments it is given."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(cli, "app", PARSER)

    def run(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["dop", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        captured = capsys.readouterr()
        return Result(int(exit_info.value.code or 0), captured.out, captured.err)

    return run
