"""Progress of long work: library code reports it, an application may show it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from doppler.base.notebook import cell_bar

Item = TypeVar("Item")
Listener = Callable[[str, int, int], None]  # what is being done, steps done, steps in all

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def track(steps: Sequence[Item], what: str) -> Iterator[Item]:
    """The steps in turn; their progress is reported to the listener, if there is one."""
    for done, step in enumerate(steps):
        report(what, done, len(steps))
        yield step
    report(what, len(steps), len(steps))


def report(what: str, done: int, total: int) -> None:
    """Report progress to the listener, or else to the progress bar of a notebook."""
    listener = _listener.get() or cell_bar()
    if listener is not None:
        listener(what, done, total)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send progress made inside to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
