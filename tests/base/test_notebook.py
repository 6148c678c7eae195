"""Reprs and HTML: short, and names in them are text and nothing else."""

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples

import doppler as dp
from doppler.base.notebook import Bar, brief, cut, html_table
from doppler.base.text import visible
from doppler.engine.execution import Execution
from doppler.graph import build_graph
from doppler.machine.validation import Validation
from doppler.placers import make_placer, placer_names
from doppler.placers.base import Shown
from doppler.placers.comparison import ComparisonRow
from doppler.placers.learned.rivals import LearnedPlacer
from doppler.placers.solution import Member, Solution

TAGS = {"table", "caption", "tr", "th", "td", "code", "div", "progress"}
DRAWN = {"svg", "rect", "path", "text"}
SAFE = {"style", "value", "max", "viewbox", "role", "aria-label", "x", "y", "width", "height", "d"}
SAFE |= {"fill", "fill-opacity", "stroke", "stroke-opacity", "text-anchor"}
SAFE |= {"font-family", "font-size"}
odd_names = st.text(
    st.characters() | st.sampled_from("<>&\"'\\\x1b\n\r\u202e\u2066\ud800"), min_size=1
)
longest = st.sampled_from(["x" * 5000, "\U000e0001" * 5000, "<" * 5000, "\\" * 5000])
names = odd_names | longest | st.just("<script>alert('x')</script>")


def values(name: str, size: int = 3):
    """One of every value that shows itself, with the name wherever a name can be."""
    graph = build_graph(
        name=name,
        kinds=[f"{name}{i}" for i in range(size)],
        vertex_names=[f"{name}{i}" for i in range(size)],
        exec_s=[1.0] * size,
        tensor_producer=list(range(size)),
        tensor_bytes=[1.0] * size,
        transfer_s=[1.0] * size,
        edge_tensor=list(range(size - 1)),
        edge_reader=list(range(1, size)),
    )
    topology = dp.Topology.uniform(2, name=name)
    devices = tuple(
        replace(d, name=f"{name}{i}", group=name) for i, d in enumerate(topology.devices)
    )
    topology = replace(topology, devices=devices)
    assignment = dp.Assignment([i % 2 for i in range(size)], placer=name, topology=name)
    trace = dp.ReferenceSimulator(topology).run(graph, assignment)

    class Own(Shown):
        pass

    placer = Own()
    placer.name = name
    bounds = dp.lower_bounds(graph, topology)
    execution = Execution(trace, np.array([1.0, 2.0]), np.array([8]), {name: np.zeros((2, 3))})
    solution = Solution(assignment, name, 1.0, members=(Member(name, 1.0, 2.0, name),))
    rows = [ComparisonRow(name, *[1.0] * 8, error=error) for error in ("", name)]
    bar = Bar()
    bar.update(name, 1, 2)
    return [graph, topology, assignment, trace, placer, bounds, execution, solution, *rows], bar


class Reader(HTMLParser):
    """The texts and tags of HTML; it must be well-formed."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS | DRAWN
        assert {key for key, _ in attrs} <= SAFE
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def handle_comment(self, data):
        raise AssertionError(data)

    handle_decl = handle_pi = unknown_decl = handle_comment


@settings(max_examples=examples(200), deadline=None)
@given(name=names)
def test_whatever_the_names_html_is_well_formed_and_reprs_are_short(name: str) -> None:
    shown, bar = values(name)
    for value in shown:
        text = repr(value)
        assert len(text) <= 200
        assert text.isprintable()
        html = value._repr_html_()
        assert html.isprintable()  # so no control character and no bidirectional override
        Reader(html)
    assert bar.html().isprintable()
    Reader(bar.html())


@given(name=names)
def test_names_can_be_read_in_the_html(name: str) -> None:
    html = html_table("title", ["name"], [[name]], count=1)
    assert cut(name, 200) in Reader(html).texts
    if len(visible(name)) <= 200:
        assert cut(name, 200) == visible(name)
    assert unescape(re.findall("<td[^>]*>(.*)</td>", html)[0]) == cut(name, 200)


def test_reprs_by_example() -> None:
    shown, _ = values("n")
    graph, topology, assignment, trace, _, bounds, execution, solution, row, failed = shown
    assert repr(graph) == "<Graph 'n': 3 vertices (0 inputs), 3 tensors, 2 edges>"
    assert repr(topology) == "<Topology 'n': 2 devices, 2 links>"
    assert repr(assignment) == "<Assignment by 'n' on 'n': 3 vertices on 2 devices>"
    assert repr(dp.Assignment([-1, 0])) == "<Assignment: 1 vertices on 1 devices>"
    assert repr(trace) == "<Trace of 'n' on 'n' by 'n': 3 execs, 2 transfers, makespan 5 s>"
    assert repr(bounds).startswith("<LowerBounds: best_s 3 (path_s 3, work_s 1.5, ")
    assert repr(execution) == "<Execution: 2 runs, 1 outputs, makespan 1.5 ± 0.5 s>"
    assert repr(solution) == "<Solution of 'n': 3 vertices placed, no makespan is below 1 s>"
    assert repr(row) == "<ComparisonRow 'n': makespan 1 s, gap 100.0%, planned in 1 s>"
    assert repr(failed) == "<ComparisonRow 'n': failed, n>"
    costs = dp.Problem(graph, topology).costs
    assert repr(costs) == "<Costs: 3 vertices on 2 devices, 3 tensors>"
    one = np.ones(1)
    validation = Validation("g", "t", ("heft",), one, one, one * 1.5)
    assert repr(validation) == "<Validation of 'g' on 't': 1 assignments, mean error 50.0%>"


def test_graphs_assignments_and_traces_are_drawn() -> None:
    graph, _, assignment, trace = values("n")[0][:4]
    for value in (graph, assignment, trace):
        html = value._repr_html_()
        assert html.count("<svg") == 1
        assert html.index("<table") < html.index("<svg")
    assert ">n0</text>" in trace._repr_html_()
    boxes = re.findall(r"M[^M]*z", trace._repr_html_())
    assert len(boxes) == 3 + 3  # a box for each exec, and for each kind in the legend
    assert "levels of at most" in values("n", size=500)[0][0]._repr_html_()


def test_large_values_stay_short() -> None:
    shown, _ = values("name", size=500)
    for value in shown:
        assert len(repr(value)) <= 200
        html = value._repr_html_()
        assert html.count("<tr>") <= 18
        assert len(html) < 60_000
    assert "… 484 more" in shown[0]._repr_html_()


@pytest.mark.parametrize("name", placer_names())
def test_every_placer_shows_its_class_and_name(name: str) -> None:
    placer = make_placer(name)
    assert repr(placer) == f"<{type(placer).__name__} {name}>"
    assert placer._repr_html_() == f"<code>&lt;{type(placer).__name__} {name}&gt;</code>"
    assert LearnedPlacer.__repr__ is Shown.__repr__


def test_names_are_cut_and_made_visible() -> None:
    assert brief("a\x1b[2J") == "'a\\x1b[2J'"
    assert len(brief("x" * 1000)) == 34
    assert brief("x" * 32) == f"'{'x' * 32}'"
