"""The time that compilation takes, which is charged to no placer, and its listeners.

`jit` reports to this module, which is light: reading it does not import a compiler.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from typing import Any

Listener = Callable[[bool], None]  # True when a compilation begins, False when it ends


class _Meter:
    """The seconds during which some thread is inside; calls within each other count once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._since_s = 0.0
        self._before_s = 0.0

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._since_s = perf_counter()
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._before_s += perf_counter() - self._since_s

    def seconds(self, now_s: float) -> float:
        with self._lock:
            return self._before_s + (max(now_s - self._since_s, 0.0) if self._inside else 0.0)


_meter = _Meter()
_listeners: list[Listener] = []  # of the process: any thread may be the one that compiles
_compilations = 0  # under way, within each other; changed under the compiler's lock only


def seconds_spent() -> float:
    """Seconds this process has spent compiling kernels, loading them, and importing numba."""
    return _meter.seconds(perf_counter())


def clock() -> float:
    """`time.perf_counter` without `seconds_spent`: it stands still while kernels are prepared."""
    now_s = perf_counter()
    return now_s - _meter.seconds(now_s)


def is_cached(kernel: Any) -> bool:
    """Whether a kernel was compiled before, or cannot be kept."""
    has_files = getattr(getattr(kernel, "_cache", None), "has_files", None)
    return has_files is None or has_files()


@contextmanager
def on_compile(listener: Listener) -> Iterator[None]:
    """Tell `listener` what this process compiles inside; loading from the cache does not count."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def preparing() -> Iterator[None]:
    """Count what is done inside as compiling or loading kernels."""
    _meter.enter()
    try:
        yield
    finally:
        _meter.leave()


def report_compilation(begins: bool) -> None:
    """Tell the listeners that a compilation begins or ends, unless it is part of another."""
    global _compilations
    _compilations += 1 if begins else -1
    if _compilations == int(begins):
        for listener in tuple(_listeners):
            listener(begins)
