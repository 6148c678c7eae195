"""The cache of compiled kernels: damage, full disks and changes cost time, never a result."""

import importlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import pytest

import doppler
from doppler.base import jit
from doppler.base.compiling import on_compile, seconds_spent

TOY = {
    "__init__.py": "",
    "numbers.py": "from typing import NamedTuple\nSTEP = 1\nclass Pair(NamedTuple):\n    a: int\n",
    "base_kernel.py": """
from doppler.base.jit import njit
from toy.numbers import STEP, Pair

@njit(nogil=True)
def step(x):
    return x + STEP
""",
    "kernel.py": """
from doppler.base.jit import njit
from toy.base_kernel import step

compiled = njit(cache=True, nogil=True)

@compiled
def twice(x):
    return step(step(x))

@compiled
def thrice(x):
    return step(step(step(x)))
""",
}
RUN = """
import json
from doppler.base.compiling import on_compile, seconds_spent

compiled = []
with on_compile(compiled.append):
    from toy.kernel import twice
    value = twice(1)
print(json.dumps([value, compiled, seconds_spent() > 0]))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the cache, and the package `toy`, whose kernels are cached there."""
    write_toy(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jit, "_said", set())
    # Byte code is known by the second its source was written in: too coarse for these tests.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / "cache"
    forget_toy()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings of this package since it was last asked."""

    def take() -> list[str]:
        records = [r for r in caplog.records if r.levelno >= logging.WARNING]
        caplog.clear()
        assert {r.name for r in records} <= {"doppler"}
        return [r.getMessage() for r in records]

    return take


def write_toy(folder: Path, **changed: str) -> None:
    (folder / "toy").mkdir(exist_ok=True)
    for name, text in TOY.items():
        (folder / "toy" / name).write_text(changed.get(name.partition(".")[0], text))


def forget_toy() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    jit._source.cache_clear()
    jit._stamp.cache_clear()


def call(name: str = "twice") -> tuple[int, bool]:
    """What a kernel of the toy returns in a new process, as it were; whether it was compiled."""
    forget_toy()
    compiled: list[bool] = []
    with on_compile(compiled.append):
        value = getattr(importlib.import_module("toy.kernel"), name)(1)
    assert compiled in ([], [True, False])
    return value, bool(compiled)


def files(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


def test_what_was_compiled_is_loaded(cache: Path, warnings: Callable[[], list[str]]) -> None:
    before = seconds_spent()
    assert call() == (3, True)
    between = seconds_spent()
    assert call() == (3, False)
    assert before < between < seconds_spent()
    assert len(files(cache)) == 1
    assert warnings() == []


def test_every_signature_has_a_file(cache: Path) -> None:
    call()
    twice: Any = sys.modules["toy.kernel"].twice
    assert twice(1.5) == 3.5
    assert len(files(cache)) == 2
    twice._cache.flush()
    assert files(cache) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[:50],
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: os.urandom(len(content)),
        lambda content: content[:3000] + bytes([content[3000] ^ 1]) + content[3001:],
        lambda content: content + b"more",
    ],
    ids=["empty", "no-tag", "no-code", "half", "last-byte", "garbage", "one-bit", "longer"],
)
def test_a_damaged_cache_is_compiled_again(
    cache: Path, warnings: Callable[[], list[str]], damage: Callable[[bytes], bytes]
) -> None:
    assert (call(), call("thrice")) == ((3, True), (4, True))
    for path in files(cache):
        path.write_bytes(damage(path.read_bytes()))
    assert (call(), call("thrice")) == ((3, True), (4, True))
    assert warnings() == ["the cache of compiled kernels was damaged; compiling again"]
    assert (call(), call("thrice")) == ((3, False), (4, False))


def test_a_file_that_cannot_be_understood_is_compiled_again(
    cache: Path, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, but what was pickled is not what is expected."""
    with monkeypatch.context() as patch:
        patch.setattr(jit, "dumps", lambda data: b"\x80\x04K\x01.")
        call()
    assert call() == (3, True)
    assert warnings() == ["the cache of compiled kernels was damaged; compiling again"]
    assert call() == (3, False)


def test_a_folder_in_place_of_a_file(cache: Path, warnings: Callable[[], list[str]]) -> None:
    call()
    (path,) = files(cache)
    path.unlink()
    path.mkdir()
    assert call() == (3, True)
    damaged, not_cached = warnings()
    assert "damaged" in damaged
    assert "cannot be cached (Is a directory)" in not_cached


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("base_kernel", TOY["base_kernel.py"].replace("x + STEP", "STEP + x")),
        ("numbers", TOY["numbers.py"].replace("STEP = 1", "STEP = 2")),
        ("numbers", TOY["numbers.py"].replace("a: int", "b: int")),
    ],
    ids=["function", "constant", "fields"],
)
def test_a_change_in_what_a_kernel_uses_compiles_it_again(
    cache: Path, warnings: Callable[[], list[str]], module: str, text: str
) -> None:
    before = call()
    write_toy(cache.parent, **{module: text})
    assert call() == (5 if "STEP = 2" in text else 3, True)
    assert call()[1] is False
    assert len(files(cache)) == 1  # it took the place of the old one
    write_toy(cache.parent)
    assert call() == before
    assert warnings() == []


def test_a_source_that_was_only_touched_is_not_compiled_again(cache: Path) -> None:
    call()
    for path in (cache.parent / "toy").glob("*.py"):
        os.utime(path, (1, 1))
    numbers = cache.parent / "toy" / "numbers.py"
    numbers.write_text(numbers.read_text() + "OTHER = 1\n")
    assert call() == (3, False)


def test_a_source_that_changes_before_the_first_call_is_compiled_again(cache: Path) -> None:
    """What is cached is known by the source that was imported, not by the one there is now."""
    forget_toy()
    kernel = importlib.import_module("toy.kernel")
    text = TOY["base_kernel.py"].replace("STEP\n", "STEP + 1\n")
    write_toy(cache.parent, base_kernel=text)
    assert kernel.twice(1) == 3
    assert call() == (5, True)


def test_what_another_version_of_numba_compiled_is_not_loaded(
    cache: Path, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    call()
    monkeypatch.setattr(numba, "__version__", "0.1")
    assert call() == (3, True)
    assert warnings() == []


def test_a_full_disk_stops_nothing(
    cache: Path, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert (call(), call("thrice")) == ((3, True), (4, True))
    (warning,) = warnings()
    assert "cannot be cached (No space left on device)" in warning
    assert "NUMBA_CACHE_DIR" in warning
    assert files(cache) == []  # nothing half written
    assert (call(), call()) == ((3, True), (3, False))


def test_no_place_for_a_cache_stops_nothing(
    cache: Path, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = cache.parent / "file"
    nowhere.touch()
    (cache.parent / "toy" / "__pycache__").touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(nowhere / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere))
    monkeypatch.setenv("HOME", str(nowhere))
    assert (call(), call()) == ((3, True), (3, True))
    (warning,) = warnings()
    assert "no locator available" in warning


def test_a_process_goes_on_with_one_line_of_notice(tmp_path: Path) -> None:
    write_toy(tmp_path)
    roots = (str(tmp_path), str(Path(doppler.__file__).parents[1]))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(roots),
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }

    def run() -> tuple[Any, str]:
        done = subprocess.run(
            [sys.executable, "-c", RUN], capture_output=True, text=True, env=environment, check=True
        )
        return json.loads(done.stdout), done.stderr

    assert run() == ([3, [True, False], True], "")
    assert run() == ([3, [], True], "")
    (path,) = files(tmp_path / "cache")
    path.write_bytes(path.read_bytes()[:1000])
    notice = "the cache of compiled kernels was damaged; compiling again\n"
    assert run() == ([3, [True, False], True], notice)
    assert run() == ([3, [], True], "")


def test_accounts_can_be_read_without_a_compiler() -> None:
    code = (
        "import sys, doppler.base.compiling as c; c.clock(); print(c.seconds_spent(), *sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    spent, *modules = out.stdout.split()
    assert float(spent) == 0
    assert "numba" not in modules
