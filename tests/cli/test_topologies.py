"""Which machine a command is about."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import Dop

from doppler.machine import here
from doppler.topology import Topology


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """A machine that is measured at once; the calls that measured it."""
    pytest.importorskip("torch")
    calls: list[dict[str, Any]] = []

    class Result:
        topology = Topology.preset("cpu2")

    def probe(backend: str, **options: Any) -> Result:
        calls.append({"backend": backend, **options})
        return Result()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("doppler.machine.probe.probe", probe)
    return calls


def test_an_assumed_machine_is_said(dop: Dop, files: Path, fork: str) -> None:
    for command in (("place", "graph.json", "-p", "single"), ("show", "graph.json")):
        result = dop(*command)
        assert "assuming the machine p100x4 (4 devices); name yours with --topology" in result.err
        assert "assuming" not in dop(*command, "-t", "p100x4").err
        assert "assuming" not in dop(*command, "-q").err
    assert "assuming the machine reference:4" in dop("place", fork, "-p", "single").err
    assert "assuming" in dop("simulate", "graph.json", "assignment.json").err


def test_another_machine_than_the_assignment_s_is_remarked_on(dop: Dop, files: Path) -> None:
    dop("place", "graph.json", "-t", "p100x4", "-p", "single", "-o", "a.json")
    assert dop("simulate", "graph.json", "a.json").err == ""
    other = dop("simulate", "graph.json", "a.json", "-t", "v100x8")
    assert other.code == 0
    assert other.err == "the assignment was made for p100x4, not for v100x8\n"


def test_a_machine_that_is_not_known_any_more(dop: Dop, files: Path) -> None:
    mine = dop("show", "p100x4", "--json").out.replace('"p100x4"', '"mine"')
    (files / "mine.json").write_text(mine)
    dop("place", "graph.json", "-t", "mine.json", "-p", "single", "-o", "a.json")
    result = dop("simulate", "graph.json", "a.json")
    assert result.code == 2
    assert "made for the machine `mine`" in result.err
    assert "hint: name its file with --topology" in result.err


def test_an_assignment_s_machine_is_a_name_and_no_file_to_open(dop: Dop, files: Path) -> None:
    (files / "mine.json").write_text(dop("show", "p100x4", "--json").out)
    made = (files / "assignment.json").read_text()
    for name in ("mine.json", "./mine.json", str(files / "mine.json"), "-", "/dev/stdin"):
        placed = made.replace('"devices"', f'"topology": "{name}", "devices"', 1)
        (files / "a.json").write_text(placed)
        result = dop("simulate", "graph.json", "a.json")
        assert result.code == 2
        assert f"made for the machine `{name}`, which is not known here" in result.err


def test_the_assumed_machine_can_run_the_graph(dop: Dop, fork: str, tmp_path: Path) -> None:
    """One with seconds for vertices, but none for transfers, needs a machine with bandwidths."""
    text = (tmp_path / fork).read_text().replace(', "transfer_s": [1]', "")
    (tmp_path / "untimed.json").write_text(text)
    result = dop("show", "untimed.json")
    assert result.code == 0, result.err
    assert "assuming the machine p100x4" in result.err


def test_here_is_measured_once(dop: Dop, files: Path, probed: list[dict[str, Any]]) -> None:
    place = ("place", "graph.json", "-t", "here", "-p", "single", "-o", "a.json")
    first = dop(*place)
    assert first.code == 0, first.err
    assert "measuring this machine" in first.err
    assert len(probed) == 1
    hours_ago = time.time() - 3 * 3600
    os.utime(here.cache_path(), (hours_ago, hours_ago))
    second = dop(*place)
    assert "as measured 3 hours ago" in second.err
    assert "--probe" in second.err
    assert dop("simulate", "graph.json", "a.json", "--json").json()["topology"] == "here"
    assert len(probed) == 1
    dop(*place, "--probe")
    assert len(probed) == 2
    assert "core0" in dop("show", "here").out
    here.cache_path().write_text("{")
    broken = dop(*place)
    assert broken.code == 2
    assert "hint: measure this machine again with --probe" in broken.err
    assert dop(*place, "--probe").code == 0


def test_here_needs_torch(
    dop: Dop, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    result = dop("place", "graph.json", "-t", "here")
    assert result.code == 2
    assert "needs `torch`" in result.err
