"""Standard task graphs, in and out."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from strategies import edited, examples, graphs

from doppler.errors import ConfigError, DopplerError, FormatError, GraphError
from doppler.formats import graph_from_text, graph_to_text
from doppler.graph import Graph, build_graph

# The example of the set's own documentation, in part.
PLAIN = """         4
         0          0          0
         1         20          1          0
         2          3          1          0
         3          4          2          1          2
         4          5          1          2
         5          0          2          3          4
# Standard Task Graph Set Project
"""
COSTLY = """4
0 0 0
1 20 1 0 0
2 3 1
  0 0
3 4 2 1 7 2 8
4 5 1 2 9
5 0 2 3 0 4 0
"""


def read(text: str) -> Graph:
    return graph_from_text(text, "g.stg", "g")


def test_tasks_without_communication() -> None:
    graph = read(PLAIN)
    assert graph.vertex_names == ("0", "1", "2", "3", "4", "5")
    assert graph.exec_s is not None
    assert graph.exec_s[:, 0].tolist() == [0, 20, 3, 4, 5, 0]
    assert graph.num_tensors == 6
    assert graph.num_edges == 7
    assert graph.transfer_s is not None
    assert not graph.transfer_s.any()


def test_tasks_with_communication() -> None:
    graph = read(COSTLY)
    assert graph.transfer_s is not None
    found = {
        (int(graph.tensor_producer[t]), reader): float(graph.transfer_s[t])
        for t, reader in zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True)
    }
    assert found == {(0, 1): 0, (0, 2): 0, (1, 3): 7, (2, 3): 8, (2, 4): 9, (3, 5): 0, (4, 5): 0}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("         3          4          2", "         7          4          2", "line 5: task 7"),
        ("         2          3 ", "         2          x ", "line 4: processing time is `x`"),
        ("         4          5          1          2", "", "line 7: task 5, expected task 4"),
        (
            "          2          3          4\n#",
            "          2          3          9\n#",
            "predecessor 9",
        ),
        (
            "          2          3          4\n#",
            "          2          3\n#",
            "line 7: the file ends",
        ),
        ("         1          2\n", "         1          1\n", "predecessor 1 twice"),
    ],
)
def test_mistakes_name_the_line(old: str, new: str, why: str) -> None:
    assert old in PLAIN
    with pytest.raises(FormatError) as error:
        read(PLAIN.replace(old, new))
    assert why in str(error.value)


def test_a_cycle_is_refused() -> None:
    with pytest.raises(GraphError, match="cycle"):
        read("2\n0 0 0\n1 2 1 2\n2 3 1 1\n3 0 1 2\n")


@pytest.mark.parametrize("text", [PLAIN, COSTLY])
def test_what_is_read_is_written_again(text: str) -> None:
    graph = read(text)
    assert read(graph_to_text(graph, "stg")) == graph


@settings(max_examples=examples(90), deadline=None)
@given(graphs())
def test_any_graph_with_seconds_keeps_them(graph: Graph) -> None:
    if graph.exec_s is None:
        with pytest.raises(GraphError, match="no seconds"):
            graph_to_text(graph, "stg")
        columns = graph.columns() | {"exec_s": [1.0] * graph.num_vertices}
        graph = build_graph(**columns)
    assert graph.exec_s is not None
    text = graph_to_text(graph, "stg")
    again = read(text)
    assert again.exec_s is not None
    own = graph.exec_s[:, 0].tolist()
    assert again.exec_s[:, 0].tolist() in ([0.0, *own, 0.0], own)
    assert graph_to_text(again, "stg") == text


@settings(max_examples=examples(90), deadline=None)
@given(edited(COSTLY))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(DopplerError):
        assert isinstance(graph_from_text(text, "g.stg", "g", format_name="stg"), Graph)


def test_a_format_that_cannot_be_written() -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        graph_to_text(read(PLAIN), "reference-text")
