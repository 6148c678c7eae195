"""`dop plot` and the figures behind it."""

import sys
from pathlib import Path

import pytest
from command_line import Dop

import doppler as dp
from doppler.errors import GraphError, MissingExtraError

HEADS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.fixture
def trace(dop: Dop, files: Path) -> Path:
    result = dop("simulate", "graph.json", "assignment.json", "-t", "p100x4", "-o", "t.json")
    assert result.code == 0
    return files / "t.json"


@pytest.mark.parametrize("kind", HEADS)
def test_figures_can_be_written_again_and_are_equal(dop: Dop, trace: Path, kind: str) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    name = f"x.{kind}"
    assert dop("plot", "t.json", "-o", name).out == f"wrote {name}\n"
    first = (trace.parent / name).read_bytes()
    assert first.startswith(HEADS[kind])
    assert dop("plot", "t.json", "-o", name).code == 0
    assert (trace.parent / name).read_bytes() == first
    assert dop("plot", "graph.json", "--assignment", "assignment.json", "-o", name).code == 0
    assert (trace.parent / name).read_bytes() != first


def test_as_json(dop: Dop, trace: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    shown = dop("plot", "t.json", "-o", "x.svg", "--no-links", "--json").json()
    assert shown == {"figure": "x.svg", "of": "trace"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t.json", "-o", "x.gif"), "its ending is `.gif`"),
        (("t.json", "-o", "x.svg", "--assignment", "assignment.json"), "is for graphs"),
        (("assignment.json", "-o", "x.svg"), "assignment.json"),
        (("t.json",), "Missing option"),
    ],
)
def test_mistakes(dop: Dop, trace: Path, arguments: tuple[str, ...], message: str) -> None:
    result = dop("plot", *arguments)
    assert result.code == 2
    assert message in result.err


def test_without_matplotlib(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match="matplotlib"):
        dp.read_trace(trace).plot()


def test_axes_of_others_and_other_graphs(trace: Path) -> None:
    figures = pytest.importorskip("matplotlib.figure", reason="needs the extra `plot`")
    figure = figures.Figure()
    upper, lower = figure.subplots(2)
    graph = dp.read_graph(trace.parent / "graph.json")
    assert dp.read_trace(trace).plot(upper) is figure
    assert graph.plot(ax=lower) is figure
    assert len(upper.collections) > 4
    with pytest.raises(GraphError, match="2 devices"):
        graph.plot(dp.Assignment([0, 1]))


def test_names_are_data(tmp_path: Path) -> None:
    """No dollar starts a formula, and no name an element."""
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    from report.making import HOSTILE, hostile

    from doppler.base.figures import write_figure

    graph, _, trace = hostile()
    for figure in (trace.plot(), graph.plot(dp.Assignment([0] * len(HOSTILE)))):
        write_figure(figure, tmp_path / "x.svg", force=True)
        assert b"<script" not in (tmp_path / "x.svg").read_bytes()
    empty = dp.GraphBuilder("empty").build()
    dp.simulate(empty, "p100x4", dp.place(empty, "p100x4", "single")).plot()
    empty.plot()
