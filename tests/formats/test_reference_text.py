from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import edited, examples

from doppler.assignment import Assignment
from doppler.errors import DopplerError, FormatError, GraphError, UnknownNameError
from doppler.formats import graph_formats, read_graph
from doppler.graph import graph_to_json
from doppler.sim import simulate
from doppler.topology import Topology

# Blocks 0, 2 and 5 are inputs; the others are 1, 3, 4, 6, numbered 0 to 3 in the edges.
TEXT = """7
0, 2, 5,
0, 0, 1, 2,
1, 2, 3, 3,
2,10,einsummable
3,20,formation
4,30
1,40,select
"""


def write(folder: Path, text: str, name: str = "toy.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_blocks_keep_their_numbers_and_edges_skip_inputs(tmp_path: Path) -> None:
    graph = read_graph(write(tmp_path, TEXT))
    assert graph.name == "toy"
    assert graph.kinds == (
        "input",
        "einsummable",
        "input",
        "formation",
        "unknown",
        "input",
        "select",
    )
    assert graph.exec_s is not None
    assert graph.exec_s[:, 0].tolist() == [0, 2, 0, 3, 4, 0, 1]
    assert graph.tensor_producer.tolist() == [1, 3, 4, 6]
    assert graph.transfer_s is not None
    assert graph.transfer_s.tolist() == [10, 20, 30, 40]
    pairs = sorted(zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True))
    assert pairs == [(0, 3), (0, 4), (1, 6), (2, 6)]


def test_one_unit_is_one_second_under_reference_semantics(tmp_path: Path) -> None:
    """Block 1 (2 s) → 3 (3 s) here and → 4 (4 s) there after 10 s; 6 (1 s) gets 4's after 30 s."""
    graph = read_graph(write(tmp_path, TEXT))
    assignment = Assignment([-1, 0, -1, 0, 1, -1, 0])
    trace = simulate(graph, Topology.preset("reference:2"), assignment)
    assert trace.makespan_s == 2 + 10 + 4 + 30 + 1


def test_an_edge_listed_twice_is_one_edge(tmp_path: Path) -> None:
    doubled = TEXT.replace("0, 0, 1, 2,", "0, 0, 1, 2,2, ").replace("1, 2, 3, 3,", "1, 2, 3, 3,3, ")
    assert read_graph(write(tmp_path, doubled)) == read_graph(write(tmp_path, TEXT))


def test_a_block_with_costs_is_assigned_whatever_its_type(tmp_path: Path) -> None:
    graph = read_graph(write(tmp_path, TEXT.replace("1,40,select", "1,40,input")))
    assert len(graph.assigned) == 4


def test_no_inputs_and_no_edges(tmp_path: Path) -> None:
    graph = read_graph(write(tmp_path, "1\n\n\n\n5,20\n"))
    assert (graph.num_vertices, graph.num_edges) == (1, 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("7\n", "8\n", "leave 5, but 4 have costs"),
        ("0, 2, 5,", "0, 2, 2,", "listed twice"),
        ("0, 2, 5,", "0, 2, 9,", "input block 9"),
        ("1, 2, 3, 3,", "1, 2, 3,", "4 edge sources but 3"),
        ("1, 2, 3, 3,", "1, 2, 3, 4,", "names block 4"),
        ("0, 0, 1, 2,", "0, 0, 3, 2,", "cycle"),
        ("0, 0, 1, 2,", "0, 0, -1, 2,", "`-1` is not a whole number"),
        ("0, 0, 1, 2,", "0, 0, x, 2,", "`x` is not a whole number"),
        ("2,10,einsummable", "2,10,einsum", "unknown type `einsum`"),
        ("2,10,einsummable", "2", "has 1 fields"),
        ("2,10,einsummable", "2,x", "two numbers"),
        ("2,10,einsummable", "-2,10", "-2"),
        ("2,10,einsummable", "nan,10", "nan"),
        ("2,10,einsummable", "2,inf", "inf"),
    ],
)
def test_what_does_not_add_up_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises((FormatError, GraphError), match=message):
        read_graph(write(tmp_path, TEXT.replace(old, new)), format_name="reference-text")


@pytest.mark.parametrize(
    "text", ["", "  \n", "7", "7\n0,\n", "hello\nworld\n", "1.5\n\n\n\n", "\x00\x01"]
)
def test_what_is_no_graph_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FormatError):
        read_graph(write(tmp_path, text))


def test_format_is_told_by_content(tmp_path: Path) -> None:
    graph = read_graph(write(tmp_path, TEXT))
    assert read_graph(write(tmp_path, graph_to_json(graph), "no-suffix")) == graph
    with pytest.raises(FormatError, match="not valid JSON"):
        read_graph(write(tmp_path, TEXT), format_name="doppler")
    with pytest.raises(UnknownNameError, match="did you mean `reference-text`"):
        read_graph(write(tmp_path, TEXT), format_name="reference_text")
    assert [f.name for f in graph_formats()] == [
        "wfformat",
        "doppler",
        "stg",
        "reference-text",
        "dot",
    ]


def test_a_very_long_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="in no format known here"):
        read_graph(write(tmp_path, "7" * 5_000_000))


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_whatever_the_text_only_doppler_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = data.draw(edited(TEXT))
    path = tmp_path_factory.mktemp("fuzz") / "graph.txt"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with suppress(DopplerError):
        read_graph(path, format_name="reference-text")
