"""A clock that goes on when it is told to, in place of the one that compilation is timed by."""

from collections.abc import Callable
from typing import Any

import pytest

from doppler.base import compiling


class Time:
    """What `doppler.base.compiling` takes for the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(compiling, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(compiling, "_meter", compiling._Meter())


def slow_to_compile(time: Time, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, but it takes a second, and is compiled for a minute before."""

    def wrapped(*arguments: Any, **options: Any) -> Any:
        with compiling.preparing():
            time.now_s += 60
        time.now_s += 1
        return function(*arguments, **options)

    return wrapped
