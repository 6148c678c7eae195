"""A user's mistake: exit 2, a message and a hint on stderr, no traceback, no file left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Dop, Result

from doppler.graph import write_graph
from doppler.programs import random_dag
from doppler.topology import Topology, topology_to_json


def assert_refused(result: Result, *words: str) -> None:
    assert result.code == 2
    assert result.out == ""
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.json", b"", ["is empty"]),
        (
            "cut.json",
            b'{"format": "doppler-graph", "vert',
            ["not valid JSON", "hint: was the file cut"],
        ),
        ("binary.bin", bytes(range(256)) * 9, ["is a binary file"]),
        ("latin.txt", "caf\xe9 \xe9\xe9\xe9".encode("latin-1"), ["not UTF-8"]),
        ("prose.txt", b"hello there", ["in no format known here", "hint: known formats"]),
        ("line.txt", b"7" * 2_000_000, ["in no format known here"]),
        ("nested.json", b'{"a":' * 100_000, ["not valid JSON"]),
        (
            "version.json",
            b'{"format": "doppler-graph", "version": 99}',
            ["`version` is 99", "hint: a newer version"],
        ),
        ("kind.json", b'{"format": "doppler-grph", "version": 1}', ["`format` is 'doppler-grph'"]),
        (
            "cycle.json",
            b'{"format": "doppler-graph", "version": 1,'
            b' "vertices": {"kind": ["a", "b"]}, "tensors": {"producer": [0, 1], "bytes": [1, 1]},'
            b' "edges": {"tensor": [0, 1], "reader": [1, 0]}}',
            ["cycle", "`v0`", "`v1`"],
        ),
        (
            "range.json",
            b'{"format": "doppler-graph", "version": 1,'
            b' "vertices": {"kind": ["a"]}, "tensors": {"producer": [3], "bytes": [1]},'
            b' "edges": {"tensor": [], "reader": []}}',
            ["tensors.producer[0] is 3", "hint: ids run from 0 to 0"],
        ),
        (
            "nan.json",
            b'{"format": "doppler-graph", "version": 1,'
            b' "vertices": {"kind": ["a"], "flops": [NaN]},'
            b' "tensors": {"producer": [], "bytes": []}, "edges": {"tensor": [], "reader": []}}',
            ["vertices.flops[0]", "nan"],
        ),
        (
            "overflow.json",
            b'{"format": "doppler-graph", "version": 1,'
            b' "vertices": {"kind": ["a"], "exec_s": [1e999]},'
            b' "tensors": {"producer": [], "bytes": []}, "edges": {"tensor": [], "reader": []}}',
            ["vertices.exec_s[0]", "inf"],
        ),
    ],
)
def test_graphs_that_are_none(
    dop: Dop, tmp_path: Path, name: str, content: bytes, words: list[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert_refused(dop("place", name, "-o", "out.json"), f"`{name}`", *words)
    assert_refused(dop("import", name, "-o", "out.json"), *words)
    assert_refused(dop("show", name), *words)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_files_that_are_not_there(dop: Dop, files: Path) -> None:
    assert_refused(dop("place", "nowhere.json"), "no file `nowhere.json`")
    assert_refused(dop("simulate", "graph.json", "nowhere.json"), "no file `nowhere.json`")
    assert_refused(dop("place", str(files)), "cannot read")
    assert_refused(dop("show", "nowhere.json"), "no file `nowhere.json`")


def test_names_that_are_none(dop: Dop, files: Path) -> None:
    assert_refused(
        dop("place", "graph.json", "--placer", "critical_path"), "did you mean `critical-path`?"
    )
    assert_refused(dop("place", "graph.json", "--topology", "p100"), "did you mean `p100x4`?")
    assert_refused(
        dop("place", "graph.json", "--topology", "reference:0"), "not a number of devices"
    )
    assert_refused(dop("show", "p100"), "did you mean")
    assert_refused(dop("list", "things"), "things")
    arguments = ("simulate", "graph.json", "assignment.json", "-t", "p100x4")
    assert_refused(dop(*arguments, "--strategy", "fifi"), "did you mean `fifo`?")
    assert_refused(dop(*arguments, "--slowdown", "1,x"), "--slowdown is `1,x`")
    assert_refused(dop(*arguments, "--slowdown", "1,2"), "has 2 factors")
    assert_refused(dop(*arguments, "--strategy", "order"), "needs an assignment with an order")


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ("[0, 1]", ["has 2 devices", "28 vertices"]),
        (f"[{', '.join(['null'] * 8 + ['9'] * 20)}]", ["has device 9", "devices 0 to 3"]),
        (f"[{', '.join(['0'] * 28)}]", ["is an input", "hint: inputs are ready everywhere"]),
        ("[-1]", ["holds -1"]),
        ('["gpu0"]', ["holds 'gpu0'"]),
        ("3", ["must be a list"]),
    ],
)
def test_assignments_that_do_not_fit(dop: Dop, files: Path, devices: str, words: list[str]) -> None:
    (files / "bad.json").write_text(
        f'{{"format": "doppler-assignment", "version": 1, "devices": {devices}}}'
    )
    assert_refused(dop("simulate", "graph.json", "bad.json", "-t", "p100x4"), *words)


def test_an_assignment_of_another_graph(dop: Dop, files: Path) -> None:
    dop("place", "graph.json", "-p", "random", "-o", "a.json")
    write_graph(random_dag(vertices=20, depth=5, seed=1), files / "other.json")
    assert_refused(dop("simulate", "other.json", "a.json"), "made for another graph")


def test_a_topology_with_an_unreachable_pair(dop: Dop, files: Path) -> None:
    (files / "island.toml").write_text(
        'format = "doppler-topology"\nversion = 1\nname = "island"\n'
        '[[devices]]\nname = "d"\ncount = 2\nflops_per_s = 1e12\nmemory_bytes_per_s = 1e11\n'
    )
    result = dop("place", "graph.json", "-t", "island.toml")
    assert_refused(result, "no link from `d0` to `d1`", "hint:")


def test_too_little_memory(dop: Dop, files: Path) -> None:
    (files / "tiny.toml").write_text(
        'format = "doppler-topology"\nversion = 1\nname = "tiny"\n'
        '[[devices]]\nname = "d"\nflops_per_s = 1e12\nmemory_bytes = 10\n'
    )
    result = dop("place", "graph.json", "-p", "single", "-t", "tiny.toml", "-o", "a.json")
    assert_refused(result, "device `d` is out of memory", "10 are free")
    assert_refused(result, "hint: no assignment can run: vertex", "device `d` holds 10")
    assert not (files / "a.json").exists()


def test_output_that_cannot_be_written(dop: Dop, files: Path) -> None:
    assert_refused(
        dop("place", "graph.json", "-p", "random", "-o", "no/such/folder/a.json"), "cannot write"
    )
    (files / "folder").mkdir()
    assert_refused(
        dop("place", "graph.json", "-p", "random", "-o", "folder"), "cannot write `folder`"
    )
    assert sorted(path.name for path in files.iterdir()) == [
        "assignment.json",
        "folder",
        "graph.json",
    ]


def test_what_the_parser_refuses(dop: Dop, files: Path) -> None:
    assert_refused(dop("place"), "GRAPH")
    assert_refused(dop("plce", "graph.json"), "plce")
    assert_refused(dop("place", "graph.json", "--seed", "-1"), "seed")


def test_debug_shows_the_traceback(dop: Dop, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("")
    from doppler.errors import FormatError

    with pytest.raises(FormatError, match="is empty"):
        dop("--debug", "show", "empty.json")


def test_ctrl_c_exits_130_and_leaves_no_file(tmp_path: Path) -> None:
    """Stopped in the middle of its work: here, reading a file that never ends."""
    write_graph(random_dag(seed=0), tmp_path / "graph.json")
    pipe = tmp_path / "machine.json"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-m", "doppler", "place", "graph.json", "-t", pipe.name, "-o", "a.json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with pipe.open("w") as machine:  # opens once the other end is being read
        machine.write(topology_to_json(Topology.preset("p100x4")))
        machine.flush()
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.json", "machine.json"]


def test_a_closed_pipe_is_no_crash() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = subprocess.run(
        [sys.executable, "-m", "doppler", "list", "strategies"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert "Traceback" not in process.stderr
