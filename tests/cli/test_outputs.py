"""What `-o` does to what is there already, and where the words go."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command_line import Dop

from doppler.assignment import read_assignment
from doppler.formats import read_graph
from doppler.policies.arrays.checkpoint import shipped_bytes

PLACE = ("place", "graph.json", "-t", "cpu2", "-p", "single")


def test_a_fifo_with_a_reader(dop: Dop, files: Path) -> None:
    os.mkfifo(files / "ff")
    got = list[str]()
    reader = threading.Thread(target=lambda: got.append((files / "ff").read_text()))
    reader.start()
    result = dop(*PLACE, "-o", "ff")
    reader.join(timeout=30)
    assert result.code == 0
    assert stat.S_ISFIFO((files / "ff").stat().st_mode)
    assert json.loads(got[0])["format"] == "doppler-assignment"


def test_dev_null_stays_a_device(dop: Dop, files: Path) -> None:
    assert dop(*PLACE, "-o", "/dev/null").code == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_stdout_holds_the_file_and_nothing_else(files: Path, name: str) -> None:
    """In a process of its own, whose descriptor 1 is real."""
    done = subprocess.run(
        [sys.executable, "-m", "doppler", *PLACE, "-o", name],
        cwd=files,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["placer"] == "single"
    assert "makespan" in done.stderr
    assert sorted(p.name for p in files.iterdir()) == ["assignment.json", "graph.json"]


def test_stdout_takes_one_thing(dop: Dop, files: Path) -> None:
    result = dop(*PLACE, "-o", "-", "--json")
    assert (result.code, result.out) == (2, "")
    assert "both print on stdout" in result.err


def test_output_over_input(dop: Dop, files: Path) -> None:
    (files / "policy").write_bytes(shipped_bytes())
    before = {p.name: p.read_bytes() for p in files.iterdir()}
    for command in (
        ("place", "graph.json", "-o", "graph.json"),
        ("place", "graph.json", "-p", "doppler:policy", "-o", "policy", "--force"),
        ("place", "graph.json", "-o", "./graph.json", "--force"),
        ("simulate", "graph.json", "assignment.json", "-t", "p100x4", "-o", "assignment.json"),
        ("simulate", "graph.json", "assignment.json", "-t", "p100x4", "-o", "graph.json"),
        ("import", "graph.json", "-o", "graph.json"),
        ("execute", "graph.json", "assignment.json", "-t", "cpu2", "-o", "graph.json"),
    ):
        result = dop(*command)
        assert (result.code, result.out) == (2, ""), command
        assert "hint: write to another file" in result.err
        assert {p.name: p.read_bytes() for p in files.iterdir()} == before


def test_output_over_another_kind(dop: Dop, files: Path) -> None:
    (files / "other.json").write_bytes((files / "graph.json").read_bytes())
    refused = dop(*PLACE, "-o", "other.json")
    assert refused.code == 2
    assert "holds a doppler-graph; a doppler-assignment would be written over it" in refused.err
    assert "--force" in refused.err
    assert dop(*PLACE, "-o", "other.json", "--force").code == 0
    assert read_assignment(files / "other.json").placer == "single"
    assert dop("shard", "ffnn", "--parts", "2", "-o", "other.json").code == 2
    assert dop("shard", "ffnn", "--parts", "2", "-o", "other.json", "--force").code == 0
    assert read_graph(files / "other.json").name


def test_it_is_known_before_the_work_is_done(
    dop: Dop, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(*_: object, **__: object) -> None:
        raise AssertionError("worked in vain")

    monkeypatch.setattr("doppler.placers.solve", place)
    assert dop("place", "graph.json", "-o", "nowhere/a.json").code == 2
    assert dop("place", "graph.json", "-o", "graph.json").code == 2


def test_a_full_stdout_is_a_clear_error() -> None:
    for command in (["list", "placers"], ["list", "placers", "--json"], ["--version"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "doppler", *command],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.returncode == 2
        expected = "error: cannot write to the standard output: No space left on device\n"
        assert done.stderr == expected


def test_nothing_is_cut_or_wrapped_in_a_pipe(dop: Dop, tmp_path: Path) -> None:
    name = "n" * 300
    (tmp_path / "g.json").write_text(
        '{"format": "doppler-graph", "version": 1, "name": "long", "vertices": {"name": ["'
        + name
        + '"], "kind": ["matmul"], "exec_s": [1]}, "tensors": {"producer": [], "bytes": []}, '
        '"edges": {"tensor": [], "reader": []}}'
    )
    result = dop("place", "g.json", "-t", "reference:2", "-p", "single")
    assert name in result.out
    assert "…" not in result.out


def test_stdin_and_process_substitution(
    dop: Dop, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dop("place", "graph.json", "-t", "p100x4", "-p", "single", "-o", "a.json")
    dop("simulate", "graph.json", "a.json", "-o", "t.json")
    (files / "m.json").write_text(dop("show", "p100x4", "--json").out)

    def piped(file: str, *command: str) -> str:
        with (files / file).open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            result = dop(*command)
        assert result.code == 0, result.err
        return result.out

    for file in ("graph.json", "a.json", "t.json", "m.json"):
        assert piped(file, "show", "-", "--json") == dop("show", file, "--json").out
    simulate = ("simulate", "graph.json", "a.json", "--json")
    assert piped("graph.json", "simulate", "-", "a.json", "--json") == dop(*simulate).out
    assert piped("a.json", "simulate", "graph.json", "-", "--json") == dop(*simulate).out
    assert piped("m.json", *simulate, "-t", "-") == dop(*simulate).out
    (files / "p.safetensors").write_bytes(shipped_bytes())
    for file in ("a.json", "p.safetensors"):
        shell = f"{sys.executable} -m doppler show <(cat {file}) --json"
        done = subprocess.run(
            ["bash", "-c", shell], cwd=files, capture_output=True, text=True, check=True
        )
        assert done.stdout == dop("show", file, "--json").out
    assert piped("p.safetensors", "show", "-", "--json") == done.stdout


def test_csv(dop: Dop, files: Path) -> None:
    assert dop(*PLACE, "-o", "plan.csv").code == 0
    lines = (files / "plan.csv").read_text().splitlines()
    assert lines[0] == "vertex,device,device_number"
    assert len(lines) == 21
    assert lines[1].endswith(",core0,0")
    assert dop(*PLACE, "-o", "plan.csv").code == 0
    assert dop("simulate", "graph.json", "plan.csv").code == 2
