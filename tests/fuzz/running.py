"""Runs `dop` on a case in a folder of its own, and checks what no input may bring about."""

import json
import os
import signal
import stat
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from command_line import PARSER
from report.trace_events import check_document

import doppler.cli.main as cli
from doppler.assignment import read_assignment
from doppler.base.writing import format_of
from doppler.formats import read_graph
from doppler.trace import read_trace
from doppler.view.web_server import ViewServer

HANGS_S = 300  # kernels may have to be compiled; what takes longer counts as never ending
READERS = {  # of what commands write
    "": read_graph,  # in a format of others
    "doppler-graph": read_graph,
    "doppler-assignment": read_assignment,
    "doppler-trace": read_trace,
    "doppler-perfetto": lambda path: check_document(json.loads(path.read_bytes())),
    "doppler-report": lambda path: path.read_text("utf-8"),
}
_devices = [Path(os.devnull), Path("/dev/full"), Path("/dev/zero")]


@dataclass(frozen=True)
class Case:
    """A command and the files that it finds."""

    arguments: list[str]
    files: dict[str, bytes]
    stdin: bytes = b""
    written: str = ""  # the only file that may be created or changed
    links: dict[str, str] = field(default_factory=dict)  # symbolic ones, to a name


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: object
    out: str
    err: str


def check(case: Case, root: Path) -> Outcome:
    """Run a case below an empty folder; assert that it is refused or works, and nothing else."""
    here = root / "here"
    here.mkdir()
    (root / "tmp").mkdir()
    (here / "folder").mkdir()
    for name, data in case.files.items():
        (here / name).write_bytes(data)
    for name, target in case.links.items():
        (here / name).symlink_to(target)
    before, devices = _contents(root), _kinds()
    outcome = run(case, root)
    after = _contents(root)
    assert outcome.code in (0, 2), f"exit {outcome.code}: {outcome.err}"
    for text in (outcome.out, outcome.err):
        odd = {one for one in text if one != "\n" and not one.isprintable()}
        assert not odd, f"prints {odd}"
        assert "Traceback (most recent call last)" not in text
    if outcome.code == 2:
        assert outcome.err.startswith("error: ") or "\nerror: " in outcome.err, "no word of it"
    touched = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
    allowed = {f"here/{case.written}"} if case.written and outcome.code == 0 else set()
    assert touched <= allowed, f"touches {touched}"
    assert _kinds() == devices, "replaces a device"
    if touched and not case.written.endswith((".csv", ".npz")):
        path = here / case.written
        READERS[format_of(path.read_text("utf-8"))](path)
    return outcome


def run(case: Case, root: Path) -> Outcome:
    """What a command does, with streams of its own; every warning is an error."""
    streams = [TextIOWrapper(BytesIO(), "utf-8") for _ in range(2)]
    environment = {
        "HOME": str(root / "home"),
        "XDG_CACHE_HOME": str(root / "cache"),
        "TMPDIR": str(root / "tmp"),
        "COLUMNS": "100",
    }
    code: Any = None
    with (
        patch.dict(os.environ, environment),
        patch.object(tempfile, "tempdir", str(root / "tmp")),
        patch.object(sys, "argv", ["dop", *case.arguments]),
        patch.object(sys, "stdin", TextIOWrapper(BytesIO(case.stdin), "utf-8")),
        patch.object(sys, "stdout", streams[0]),
        patch.object(sys, "stderr", streams[1]),
        patch.object(cli, "app", PARSER),
        patch("doppler.cli.output.COMPILING_PATIENCE_S", 3600.0),
        patch.object(ViewServer, "serve_forever", _serve_once),
        patch("webbrowser.open"),
        _inside(root / "here"),
        _limited(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        try:
            cli.main()
        except SystemExit as exit_info:
            code = exit_info.code or 0
        for stream in streams:
            stream.flush()
    out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
    return Outcome(code, out, err)


def _serve_once(server: ViewServer, **_: Any) -> None:
    """What `dop view` does for one request; without this it would not end."""
    assert server.session.page(server.token).startswith("<!doctype html>")


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    old = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(old)


@contextmanager
def _limited() -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        raise AssertionError("hangs")

    interrupt = signal.getsignal(signal.SIGINT)
    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANGS_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
        signal.signal(signal.SIGINT, interrupt)


def _contents(root: Path) -> dict[str, tuple[int, bytes]]:
    """What is at every path below a folder: its mode, and its bytes."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders:
            path = Path(folder, name)
            found[str(path.relative_to(root))] = (path.lstat().st_mode, b"")
        for name in files:
            path = Path(folder, name)
            data = bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
            found[str(path.relative_to(root))] = (path.lstat().st_mode, data)
    return found


def _kinds() -> list[tuple[int, int]]:
    """What the devices are that outputs may be named after."""
    found = [path.stat() for path in _devices if path.exists()]
    return [(stat.S_IFMT(one.st_mode), one.st_rdev) for one in found]
