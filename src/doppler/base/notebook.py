"""How values show themselves at a prompt and in notebooks: short, with names made harmless."""

import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import islice
from threading import current_thread, main_thread
from time import monotonic
from typing import Any

from doppler.base.text import visible

LONGEST, LONGEST_CELL = 32, 200  # characters of a name in a `repr`, and of a cell
MAX_ROWS = 16  # of a table
PATIENCE_S = 2.0  # work that takes longer shows a progress bar
PAUSE_S = 0.1  # between updates of the bar

_STYLE = 'style="text-align:left;padding:2px 8px"'


def brief(name: str) -> str:
    """The name in quotes, on one line and cut where it is long."""
    return f"'{cut(name)}'"


def cut(text: str, longest: int = LONGEST) -> str:
    """The text with what does not print made visible, and cut where it is long."""
    shown = visible(text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def number(value: float) -> str:
    """A number in a table: four digits."""
    return f"{value:.4g}"


def html_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, count: int
) -> str:
    """An HTML table of texts, all of them escaped; of `count` rows no more than `MAX_ROWS`.

    The title is a `repr`, in which names are visible already.
    """
    lines = [f"<table><caption {_STYLE}>{escape(title)}</caption>"]
    lines += [_html_row("th", columns)]
    lines += [_html_row("td", row) for row in islice(rows, MAX_ROWS)]
    if count > MAX_ROWS:
        lines += [_html_row("td", [f"… {count - MAX_ROWS} more", *[""] * (len(columns) - 1)])]
    return "".join([*lines, "</table>"])


def html_line(title: str) -> str:
    """A line of HTML that shows a `repr`."""
    return f"<code>{escape(title)}</code>"


def _html_row(tag: str, cells: Sequence[str]) -> str:
    inner = "".join(f"<{tag} {_STYLE}>{_safe(cell)}</{tag}>" for cell in cells)
    return f"<tr>{inner}</tr>"


def _safe(text: str) -> str:
    return escape(cut(text, LONGEST_CELL))


class Bar:
    """Progress bars in the output of a notebook cell: HTML that is shown once, then updated."""

    def __init__(self) -> None:
        self._began = self._shown = monotonic()
        self._tasks: dict[str, tuple[int, int]] = {}
        self._handle: Any = None

    def update(self, what: str, done: int, total: int) -> None:
        """Show how far some work has come, once all work of the cell has taken two seconds."""
        self._tasks[what] = (done, total)
        now = monotonic()
        if now - self._began < PATIENCE_S or (now - self._shown < PAUSE_S and done < total):
            return
        self._shown = now
        self._show(self.html(), ", ".join(f"{w} {d}/{t}" for w, (d, t) in self._tasks.items()))

    def html(self) -> str:
        """A line for each kind of work."""
        return "".join(
            f'<div {_STYLE}><progress value="{int(done)}" max="{max(int(total), 1)}"></progress> '
            f"{_safe(what)}</div>"
            for what, (done, total) in self._tasks.items()
        )

    def close(self) -> None:
        """Take the bars away."""
        if self._handle is not None:
            self._show("", "")

    def _show(self, html: str, text: str) -> None:
        from IPython.display import display

        data = {"text/html": html, "text/plain": visible(text)}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


_bar: Bar | None = None  # of the cell that runs


def cell_bar() -> Callable[[str, int, int], None] | None:
    """What shows progress in the notebook cell that runs; None anywhere else."""
    global _bar
    shell = _kernel_shell()
    if shell is None or current_thread() is not main_thread():
        return None
    if _bar is None:
        _bar = Bar()

        def close(*_: Any) -> None:
            global _bar
            shell.events.unregister("post_run_cell", close)
            if _bar is not None:
                _bar.close()
            _bar = None

        shell.events.register("post_run_cell", close)
    return _bar.update


def _kernel_shell() -> Any:
    """The shell of a notebook's kernel, or None: in a script, and in IPython on a terminal."""
    # Where there is a kernel, IPython has been imported; so a script pays for no import.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    kinds = [kind.__name__ for kind in type(shell).__mro__]
    return shell if "ZMQInteractiveShell" in kinds else None
