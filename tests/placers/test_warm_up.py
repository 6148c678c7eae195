"""The second process that compiles when nothing is cached."""

from typing import Any

import pytest

from doppler.placers import warm_up as module

elsewhere = module._compiling_policy_elsewhere


class Process:
    """Stands for one that was started; the calls it gets are noted."""

    def __init__(self, command: list[str], **options: Any) -> None:
        self.command, self.options, self.calls = command, options, list[str]()
        started.append(self)

    def wait(self, timeout: float | None = None) -> int:
        self.calls.append("wait")
        return 0

    def kill(self) -> None:
        self.calls.append("kill")


started: list[Process] = []


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    started.clear()
    monkeypatch.setattr(module, "Popen", Process)
    monkeypatch.setattr(module, "is_cached", lambda kernel: False)
    monkeypatch.setattr(module, "cores", lambda: [0, 1])


def test_it_compiles_quietly_and_has_ended() -> None:
    with elsewhere():
        assert started[0].calls == []
    (process,) = started
    assert "warm_up_policy()" in process.command[-1]
    assert process.options["stderr"] == process.options["stdout"] == module.DEVNULL
    assert process.calls == ["wait", "kill", "wait"]


def test_it_is_ended_on_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), elsewhere():
        raise KeyboardInterrupt
    assert started[0].calls == ["kill", "wait"]


@pytest.mark.parametrize("why", ["cached", "one-core"])
def test_there_is_none_where_it_would_not_help(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why == "cached":
        monkeypatch.setattr(module, "is_cached", lambda kernel: True)
    else:
        monkeypatch.setattr(module, "cores", lambda: [0])
    with elsewhere():
        assert started == []


def test_there_is_none_where_none_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError("no processes")

    monkeypatch.setattr(module, "Popen", refuse)
    with elsewhere():
        pass
