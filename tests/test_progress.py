"""Progress: to a listener, or to a bar in the cell of a notebook, and nowhere else."""

import sys
from threading import Thread
from types import ModuleType, SimpleNamespace

import pytest

import doppler as dp
from doppler.base import notebook
from doppler.base.progress import listening, report, track
from doppler.programs import random_dag


class Events:
    """What IPython calls back when a cell has run."""

    def __init__(self) -> None:
        self.callbacks = []

    def register(self, event, callback) -> None:
        assert event == "post_run_cell"
        self.callbacks.append(callback)

    def unregister(self, event, callback) -> None:
        self.callbacks.remove(callback)

    def end_cell(self) -> None:
        for callback in self.callbacks[:]:
            callback(SimpleNamespace(result=None))


class ZMQInteractiveShell:
    def __init__(self) -> None:
        self.events = Events()


class Shell(ZMQInteractiveShell):
    """As in Colab, whose shell is a subclass."""


class TerminalInteractiveShell(SimpleNamespace):
    """IPython on a terminal."""


class Screen:
    """What a notebook displays, one entry for each time it was changed."""

    def __init__(self) -> None:
        self.shown = []

    def display(self, data, *, raw, display_id):
        assert raw
        assert display_id
        self.shown.append(data["text/html"])
        return SimpleNamespace(update=lambda data, raw: self.shown.append(data["text/html"]))


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(notebook, "monotonic", lambda: now.seconds)
    return now


@pytest.fixture
def screen(monkeypatch):
    """A screen, with an IPython that displays on it."""
    screen = Screen()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: screen.shell
    display.display = screen.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    screen.shell = ZMQInteractiveShell()
    yield screen
    if hasattr(screen.shell, "events"):
        screen.shell.events.end_cell()


@pytest.mark.parametrize("kind", [ZMQInteractiveShell, Shell])
def test_a_cell_shows_a_bar_once_work_takes_two_seconds(screen, clock, kind) -> None:
    screen.shell = kind()
    for done in track(range(4), "placing <b>"):
        if done == 3:
            assert screen.shown == []
            clock.seconds += 2.0
    assert len(screen.shown) == 1
    assert 'value="4" max="4"' in screen.shown[-1]
    assert "placing &lt;b&gt;" in screen.shown[-1]
    screen.shell.events.end_cell()
    assert screen.shown[-1] == ""
    assert screen.shell.events.callbacks == []


def test_updates_are_rare_but_for_the_last(screen, clock) -> None:
    report("searching", 0, 1000)
    clock.seconds += 3.0
    for done in range(1, 1001):
        report("searching", done, 1000)
    assert len(screen.shown) == 2
    assert 'value="1000"' in screen.shown[-1]


def test_every_cell_has_its_own_bar_and_its_own_two_seconds(screen, clock) -> None:
    report("first", 0, 2)
    clock.seconds += 2.5
    report("first", 1, 2)
    screen.shell.events.end_cell()
    assert [("first" in html) for html in screen.shown] == [True, False]
    report("second", 1, 2)
    assert len(screen.shown) == 2
    clock.seconds += 2.5
    report("second", 2, 2)
    assert "first" not in screen.shown[-1]
    assert "second" in screen.shown[-1]


def test_a_listener_comes_before_the_bar(screen, clock) -> None:
    heard = []
    with listening(lambda *what: heard.append(what)):
        report("placing", 0, 2)
        clock.seconds += 5.0
        report("placing", 1, 2)
    assert heard == [("placing", 0, 2), ("placing", 1, 2)]
    assert screen.shown == []


@pytest.mark.parametrize("shell", [None, TerminalInteractiveShell()])
def test_no_bar_in_scripts_and_terminals(screen, clock, shell) -> None:
    screen.shell = shell
    report("placing", 0, 2)
    clock.seconds += 5.0
    report("placing", 1, 2)
    assert screen.shown == []


def test_no_bar_without_ipython(monkeypatch, clock) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    report("placing", 0, 2)
    clock.seconds += 5.0
    report("placing", 1, 2)
    assert notebook.cell_bar() is None
    assert "IPython" not in sys.modules


def test_no_bar_from_other_threads(screen, clock) -> None:
    found = []
    thread = Thread(target=lambda: found.append(notebook.cell_bar()))
    thread.start()
    thread.join()
    assert found == [None]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(notebook, "PATIENCE_S", 0.0)
    monkeypatch.setattr(notebook, "PAUSE_S", 0.0)


def test_placing_in_a_notebook_shows_a_bar(screen, impatient) -> None:
    graph = random_dag(vertices=8, depth=3)
    dp.place(graph, dp.Topology.preset("cpu2"), "annealing", budget_s=0.05)
    assert any("searching" in html for html in screen.shown)


@pytest.mark.parametrize("saved", [False, True])
def test_training_in_a_notebook_shows_a_bar(screen, impatient, tmp_path, saved) -> None:
    pytest.importorskip("torch")
    from training.tiny import CONFIG, graph

    out = tmp_path / "run" if saved else None
    dp.train(graph(), dp.Topology.preset("p100x4"), CONFIG, out=out)
    assert any("training, stage imitation" in html for html in screen.shown)
    assert any("training, stage sim" in html for html in screen.shown)


def test_comparing_in_a_notebook_shows_a_bar(screen, impatient) -> None:
    from doppler.placers.comparison import compare

    graph, topology = random_dag(vertices=8, depth=3), dp.Topology.preset("cpu2")
    rows = list(compare(graph, topology, ["single", "heft"], seeds=1))
    assert len(rows) == 2
    assert 'value="2" max="2"' in screen.shown[-1]
    assert "comparing" in screen.shown[-1]
