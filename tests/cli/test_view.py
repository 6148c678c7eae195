"""`dop view`: what it serves for which files, and how it ends."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Dop

import doppler as dp
from doppler.errors import Interrupted
from doppler.view.session import ViewSession
from doppler.view.web_server import ViewServer


class Serving:
    """A server that is interrupted as soon as it serves, after what a test does with it."""

    server: ViewServer | None = None

    def __init__(self) -> None:
        self.do = lambda session: None

    @property
    def session(self) -> ViewSession:
        assert self.server is not None
        return self.server.session

    def serve(self, server: ViewServer, **_) -> None:
        self.server = server
        self.do(server.session)
        raise Interrupted

    def data(self) -> dict:
        """What the page shows."""
        seen = {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "doppler.view.session.page_html", lambda data, **_: seen.update(data) or "page"
            )
            self.session.page("token")
        return seen


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Serving:
    found = Serving()
    monkeypatch.setattr(ViewServer, "serve_forever", lambda server, **_: found.serve(server))
    return found


@pytest.fixture
def plan(dop: Dop, files: Path) -> Path:
    place = ("place", "graph.json", "-t", "p100x4", "--placer", "critical-path", "-o", "cp.json")
    assert dop(*place).code == 0
    assert dop("simulate", "graph.json", "cp.json", "-o", "cp.trace.json").code == 0
    return files


def view(dop: Dop, *arguments: str):
    return dop("view", "--no-open", *arguments)


def test_a_graph_is_placed_first(dop: Dop, files: Path, serving: Serving) -> None:
    result = view(dop, "graph.json", "-t", "p100x4")
    assert result.code == 0
    assert serving.server is not None
    assert result.out == f"{serving.server.url}\n"
    assert "stopped" in result.err
    assert "not saved" not in result.err
    data = serving.data()
    assert [trace["name"] for trace in data["traces"]] == ["critical-path", "what if"]
    assert data["traces"][0]["bound"] == data["traces"][1]["bound"] > 0
    assert data["view"]["whatIf"]["save"] == "graph.what-if.json"


def test_an_assignment(dop: Dop, plan: Path, serving: Serving) -> None:
    assert view(dop, "cp.json", "--graph", "graph.json", "-o", "new.json").code == 0
    data = serving.data()
    assert [trace["name"] for trace in data["traces"]] == ["cp", "what if"]
    assert data["traces"][0]["order"] is not None
    assert data["view"]["whatIf"]["save"] == "new.json"
    assert data["view"]["message"] == ""


def test_a_trace_with_and_without_its_graph(dop: Dop, plan: Path, serving: Serving) -> None:
    result = view(dop, "cp.trace.json")
    assert result.code == 0
    assert "no graph in it" in result.err
    data = serving.data()
    assert "--graph FILE" in data["view"]["message"]
    assert data["view"]["whatIf"] is None
    assert data["graph"] is None
    assert view(dop, "cp.trace.json", "--graph", "graph.json").code == 0
    data = serving.data()
    assert [trace["name"] for trace in data["traces"]] == ["cp", "what if"]
    assert data["traces"][0]["deviceOf"] == data["traces"][1]["deviceOf"]


def test_a_trace_of_an_unknown_machine(dop: Dop, plan: Path, serving: Serving) -> None:
    text = (plan / "cp.trace.json").read_text().replace('"p100x4"', '"/etc/passwd"')
    (plan / "odd.trace.json").write_text(text)
    assert "machine" in view(dop, "odd.trace.json", "--graph", "graph.json").err
    assert serving.data()["view"]["whatIf"] is None


def test_changes_that_are_not_saved_are_mentioned(dop: Dop, plan: Path, serving: Serving) -> None:
    def change(session: ViewSession) -> None:
        assert session._what_if is not None
        session._what_if.move(session._what_if.graph.assigned.tolist(), 0)

    serving.do = change
    result = view(dop, "cp.json", "--graph", "graph.json")
    assert result.code == 0
    assert "not saved" in result.err
    assert "cp.what-if.json" in result.err
    assert serving.session.save() == {"saved": "cp.what-if.json"}
    saved = dp.read_assignment("cp.what-if.json")
    assert set(saved.devices[saved.devices >= 0]) == {0}
    view(dop, "cp.json", "--graph", "graph.json")
    assert serving.data()["view"]["whatIf"]["save"] == "cp.what-if-2.json"  # nothing is lost
    assert dop("simulate", "graph.json", "cp.what-if.json").code == 0


def test_runs(dop: Dop, plan: Path, serving: Serving) -> None:
    row = {"step": 1, "stage": "sim", "exercise": "g@m", "mean_s": 2.0, "least_s": 1.5}
    row |= {"best_s": 1.5, "bound_s": 1.0}
    for name in ("first", "second"):
        (plan / name).mkdir()
        (plan / name / "config.json").write_text("{}")
    (plan / "first" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert view(dop, "first", "second").code == 0
    data = serving.data()
    assert [(run["name"], len(run["curves"])) for run in data["runs"]] == [
        ("first", 1),
        ("second", 0),
    ]
    assert data["traces"] == []
    for folder, source in (("graphs", "graph"), ("topologies", ""), ("best", "cp")):
        (plan / "first" / folder).mkdir()
        if source:
            ending = "assignment.json" if folder == "best" else "json"
            (plan / "first" / folder / f"g.{ending}").write_text(
                (plan / f"{source}.json").read_text()
            )
    dp.write_topology(dp.Topology.preset("p100x4"), plan / "first" / "topologies" / "m.json")
    assert view(dop, "first").code == 0
    data = serving.data()
    assert [trace["name"] for trace in data["traces"]] == ["best of the run", "what if"]
    assert len(data["runs"]) == 1


def test_as_json(dop: Dop, plan: Path, serving: Serving) -> None:
    result = view(dop, "cp.json", "--graph", "graph.json", "--json", "--port", "0")
    assert serving.server is not None
    assert json.loads(result.out) == {
        "url": serving.server.url,
        "port": serving.server.server_port,
        "save": "cp.what-if.json",
    }


def test_the_browser_is_opened(
    dop: Dop, plan: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("threading.Thread.start", lambda thread: thread.run())
    assert dop("view", "cp.trace.json").code == 0
    assert serving.server is not None
    assert opened == [serving.server.url]


def test_modes(dop: Dop, plan: Path, serving: Serving) -> None:
    assert view(dop, "cp.json", "--graph", "graph.json", "--mode", "fixed").code == 0
    what_if = serving.session._what_if
    assert what_if is not None
    graph, topology = dp.read_graph("graph.json"), dp.Topology.preset("p100x4")
    config = dp.SimConfig(mode="fixed")
    again = dp.simulate(graph, topology, dp.read_assignment("cp.json"), config=config)
    assert what_if.outcome.trace.makespan_s == again.makespan_s
    what_if.move(graph.assigned[:3].tolist(), 1)
    assert np.isfinite(what_if.outcome.trace.makespan_s)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cp.json",), "no graph in it"),
        (("cp.json", "graph.json"), "two plans"),
        (("graph.json", "--graph", "graph.json"), "two graphs"),
        (("cp.json", "--graph", "graph.json", "-o", "cp.json"), "is an input"),
        (("cp.json", "--graph", "graph.json", "-o", "cp.trace.json"), "holds a doppler-trace"),
        (("cp.json", "--graph", "graph.json", "-o", "-"), "not to stdout"),
        (("cp.json", "--graph", "graph.json", "-o", "nowhere/a.json"), "no folder"),
        (("empty",), "holds no training run"),
        (("missing.json",), "missing.json"),
        ((), "FILE|RUN"),
    ],
)
def test_mistakes(
    dop: Dop, plan: Path, serving: Serving, arguments: tuple[str, ...], message: str
) -> None:
    (plan / "empty").mkdir()
    result = view(dop, *arguments)
    assert result.code == 2
    assert message in result.err
    assert serving.server is None
