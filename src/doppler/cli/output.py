"""What commands print: data on stdout, everything else on stderr.

Everything that is printed passes through `doppler.base.text.visible` here, so that no name in a
file can write to a terminal; rich's markup is off for the same reason.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Any

from doppler.base.compiling import on_compile
from doppler.base.progress import listening
from doppler.base.text import json_visible, visible
from doppler.base.writing import is_stdout
from doppler.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table as RichTable

PATIENCE_S = 2.0  # work that takes longer shows its progress
COMPILING_PATIENCE_S = 1.0  # kernels that are compiled in less are not worth a line
NO_LIMIT = 1_000_000  # columns: tables are as wide as what is in them
_settings = {"quiet": False, "stdout_is_taken": False}


@dataclass(slots=True)
class Table:
    """Rows of texts under heads; the columns after the first `left` are numbers, set to the right.

    rich draws it; no cell is cut off, whatever the width.
    """

    heads: tuple[str, ...]
    left: int = 1
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add_row(self, *cells: str) -> None:
        """Add a row: a text for each column."""
        self.rows.append(cells)

    def __rich__(self) -> "RichTable":
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        result = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for i, head in enumerate(self.heads):
            justify: Any = "left" if i < self.left else "right"
            result.add_column(Text(visible(head)), justify=justify, overflow="fold")
        for row in self.rows:
            result.add_row(*(Text(visible(cell)) for cell in row))
        return result


class Output:
    """A stream for people: lines and tables, cut or wrapped only where a terminal is narrow."""

    def __init__(self, console: "Console") -> None:
        self._console = console

    @property
    def width(self) -> int:
        """Columns of the terminal; those that the environment says, or 80, where there is none."""
        if self._console.is_terminal:
            return self._console.width
        said = os.environ.get("COLUMNS", "")
        return int(said) if said.isdecimal() and int(said[:6]) > 0 else 80

    def print(self, what: "str | RenderableType" = "", *, style: str | None = None) -> None:
        """Print a line of text, or what rich can draw, such as a `Table`."""
        from rich.text import Text

        if isinstance(what, str):
            what = Text(visible(what), style=style or "")
            self._console.print(what, soft_wrap=True)
            return
        wide = None if self._console.is_terminal else NO_LIMIT
        self._console.print(what, width=wide, crop=self._console.is_terminal)


def table(*heads: str, left: int = 1) -> Table:
    """An empty table; the columns after the first `left` are numbers, set to the right."""
    return Table(heads, left)


def stdout() -> Output:
    """Where results for people go: stderr if stdout takes a file (`-o -`)."""
    from rich.console import Console

    to_stderr = _settings["stdout_is_taken"]
    width = None if (sys.stderr if to_stderr else sys.stdout).isatty() else NO_LIMIT
    return Output(
        Console(stderr=to_stderr, markup=False, emoji=False, highlight=False, width=width)
    )


def print_json(value: Any) -> None:
    """Print a JSON value on stdout."""
    print(json_visible(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)))


def take_stdout(*outputs: "Path | None", as_json: bool) -> None:
    """Keep stdout for a file that goes there, if one does: what people read goes to stderr."""
    taken = [path for path in outputs if path is not None and is_stdout(path)]
    if len(taken) + as_json > 1:
        raise ConfigError(
            f"--json and `{taken[0]}` both print on stdout" if as_json else "two files on stdout",
            hint="write to a file instead",
        )
    _settings["stdout_is_taken"] = bool(taken)


def announce(*paths: "Path | None") -> None:
    """Say which files were written."""
    for path in paths:
        if path is not None and not is_stdout(path):
            stdout().print(f"wrote {path}")


def note(text: str) -> None:
    """Print a remark on stderr, unless remarks are off."""
    if not _settings["quiet"]:
        print(visible(text), file=sys.stderr)


def is_quiet() -> bool:
    """Whether remarks and progress are off."""
    return _settings["quiet"]


def print_error(message: str, hint: str | None = None) -> None:
    """Print an error and its hint on stderr."""
    print(f"error: {visible(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {visible(hint)}", file=sys.stderr)


def set_up(*, quiet: bool = False, verbose: int = 0) -> None:
    """Begin a command: what the library logs goes to stderr, from the chosen level on."""
    _settings.update(quiet=quiet, stdout_is_taken=False)
    logger = logging.getLogger("doppler")
    logger.handlers = [_Handler()]
    logger.propagate = False
    usual = logging.ERROR if quiet else logging.WARNING
    logger.setLevel(usual if not verbose else logging.INFO if verbose == 1 else logging.DEBUG)


class _Handler(logging.Handler):
    """Prints what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        print(visible(record.getMessage()), file=sys.stderr)


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


def factors(by_name: Mapping[str, float]) -> str:
    """Factors with their names: `matmul ×1, reduction ×1.8`."""
    return ", ".join(f"{name} ×{factor:.3g}" for name, factor in by_name.items())


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
        if _settings["quiet"] or not sys.stderr.isatty():
            return
        if monotonic() - self._began < PATIENCE_S:
            return
        if self._progress is None:
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._progress.start()
        if what not in self._tasks:
            from rich.markup import escape

            self._tasks[what] = self._progress.add_task(escape(visible(what)), total=total)
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
        note("compiling for this machine: 5 to 20 s, the first time only …")
