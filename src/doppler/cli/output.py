"""What commands print: data on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Any

from doppler.compiling import on_compile
from doppler.errors import DopplerError
from doppler.progress import listening

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

PATIENCE_S = 2.0  # work that takes longer shows that it goes on
COMPILING_PATIENCE_S = 1.0  # kernels that are compiled in less are not worth a line


def print_json(value: Any) -> None:
    """Print a JSON value on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def stdout() -> "Console":
    """Where results for people go."""
    from rich.console import Console

    return Console(highlight=False)


def note(text: str) -> None:
    """Print a remark on stderr."""
    print(text, file=sys.stderr)


def print_error(error: DopplerError) -> None:
    """Print an error and its hint on stderr."""
    note(f"error: {error.message}")
    if error.hint:
        note(f"hint: {error.hint}")


def table(*columns: str, title: str | None = None) -> "Table":
    """An empty table; columns after the first are numbers, set to the right."""
    from rich import box
    from rich.table import Table

    result = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0)
    )
    for i, column in enumerate(columns):
        result.add_column(column, justify="left" if i == 0 else "right", no_wrap=i == 0)
    return result


def seconds(value: float) -> str:
    """A duration for people: 12.3 ms."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale or unit == "µs":
            return f"{value / scale:.4g} {unit}"
    raise AssertionError


def spread(mean: float, deviation: float) -> str:
    """A mean and a standard deviation for people: 12.3 ± 0.4 ms."""
    number, unit = seconds(mean).split()
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[unit]
    return f"{number} ± {deviation / scale:.2g} {unit}"


def amount(value: float, unit: str) -> str:
    """A large number for people: 1.5 GB."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def percent(value: float) -> str:
    """A share for people: 12.3 %."""
    return f"{100 * value:.1f} %"


@contextmanager
def showing_progress() -> Iterator[None]:
    """Show progress of the work inside on stderr, once it takes over two seconds."""
    bar = _Bar()
    try:
        with listening(bar.update):
            yield
    finally:
        bar.close()


@contextmanager
def telling_of_compilation() -> Iterator[None]:
    """Say once on stderr that kernels are being compiled, if that takes over a second inside."""
    notice = _CompilationNotice()
    try:
        with on_compile(notice.update):
            yield
    finally:
        notice.close()


class _Bar:
    """A progress bar on a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._progress: Progress | None = None
        self._tasks: dict[str, Any] = {}

    def update(self, what: str, done: int, total: int) -> None:
        if not sys.stderr.isatty() or monotonic() - self._began < PATIENCE_S:
            return
        if self._progress is None:
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._progress.start()
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


class _CompilationNotice:
    """One line, once kernels have been compiled for a while; to load them is no reason for it."""

    def __init__(self) -> None:
        self._compiled_s = 0.0
        self._began = 0.0
        self._said = False
        self._timer: Timer | None = None

    def update(self, begins: bool) -> None:
        if not begins:
            self._compiled_s += monotonic() - self._began
            self.close()
        elif not self._said:
            self._began = monotonic()
            self._timer = Timer(max(COMPILING_PATIENCE_S - self._compiled_s, 0.0), self._say)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None

    def _say(self) -> None:
        self._said = True
        note("compiling for this machine: 8 s to a minute, the first time only …")
