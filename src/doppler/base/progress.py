"""Progress of long work: library code reports it, whoever runs the library may show it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from doppler.base.notebook import cell_bar

Item = TypeVar("Item")
Listener = Callable[[str, int, int], None]  # what is being done, steps done, steps in all

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def track(steps: Sequence[Item], what: str) -> Iterator[Item]:
    """The steps one by one, telling the listener, if there is one, how far it has come."""
    for done, step in enumerate(steps):
        report(what, done, len(steps))
        yield step
    report(what, len(steps), len(steps))


def report(what: str, done: int, total: int) -> None:
    """Tell the listener, or else the progress bar of a notebook, how far some work has come."""
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
