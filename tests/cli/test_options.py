"""Options that every command has, and what the help and the shell show of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Dop

from doppler import __version__
from doppler.cli.main import VERBS


def test_version(dop: Dop) -> None:
    for flag in ("--version", "-V"):
        assert dop(flag).out == f"dop {__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_flags_are_shown_as_flags(dop: Dop, verb: str) -> None:
    shown = dop(verb, "--help").out
    assert "<bool>" not in shown
    for flag in ("--quiet", "-q", "--verbose", "-v", "--debug", "--json"):
        assert flag in shown


def test_quiet_and_verbose(dop: Dop, files: Path) -> None:
    place = ("place", "graph.json", "--budget", "0.2")
    usual, quiet, verbose = dop(*place), dop(*place, "-q"), dop(*place, "-v")
    assert "assuming" in usual.err
    assert quiet.err == ""
    assert "makespan" in quiet.out
    assert "doppler: " in verbose.err
    assert "error:" in dop("place", "nowhere.json", "-q").err


def test_nothing_at_all_shows_the_help(dop: Dop) -> None:
    result = dop()
    assert result.code == 2
    assert "Start with `dop demo`" in result.out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("dop place g.json -p crit", "critical-path"),
        ("dop place g.json -t p100", "p100x4"),
        ("dop place g.json -t he", "here"),
        ("dop shard llama-b", "llama-block"),
        ("dop simulate g.json a.json --strategy fi", "fifo"),
        ("dop show v1", "v100x8"),
    ],
)
def test_completion(words: str, wanted: str) -> None:
    environment = os.environ | {
        "_DOP_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "import sys; sys.argv = ['dop']; from doppler.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert wanted in done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("place", "graph.json", "--budget", "inf"),
        ("place", "graph.json", "--budget", "nan"),
        ("place", "graph.json", "--budget", "1e9"),
        ("place", "graph.json", "--budget", "0"),
        ("place", "graph.json", "--seed", "99999999999999999999999"),
        ("simulate", "graph.json", "assignment.json", "--repeat", "99999999999"),
        ("simulate", "graph.json", "assignment.json", "--exec-noise", "nan"),
        ("compare", "graph.json", "--seeds", "99999999999"),
        ("compare", "graph.json", "--budget", "inf"),
        ("shard", "ffnn", "--size", "batch=99999999999999999999", "-o", "out.json"),
        ("shard", "ffnn", "--parts", "1073741824", "-o", "out.json"),
        ("shard", "random-dag", "--size", "vertices=999999999999", "-o", "out.json"),
        ("execute", "graph.json", "assignment.json", "--repeat", "99999999999"),
        ("execute", "graph.json", "assignment.json", "--timeout", "nan"),
        ("probe", "--devices", "99999999"),
        ("probe", "--seconds", "inf"),
        ("place", "graph.json", "-t", "reference:99999"),
    ],
)
def test_absurd_numbers_are_errors(dop: Dop, files: Path, words: tuple[str, ...]) -> None:
    result = dop(*words)
    assert result.code == 2, result.out
    assert "Traceback" not in result.err
    assert not (files / "out.json").exists()


def test_a_toml_file_is_a_topology(dop: Dop, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('name = "machine\n[[devices]\n')
    result = dop("show", "bad.toml")
    assert result.code == 2
    assert "is not valid TOML" in result.err
