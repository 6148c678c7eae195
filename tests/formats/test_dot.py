"""Graphviz's DOT, in and out."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from strategies import edited, examples, graphs

from doppler.errors import DopplerError, FormatError, GraphError
from doppler.formats import graph_from_text, graph_to_text
from doppler.graph import Graph, build_graph

TEXT = r"""
// a workflow
strict digraph "two \"steps\"" {
  rankdir=LR; node [kind=task, shape=box]
  load [cost=2, color="red" label=<<b>Load</b>>];
  /* the
     middle */
  subgraph cluster_0 { node [weight="1.5"]; a; b [kind="mat" + "mul"] }
  load -> {a b} [size=1000];
  a:p:n -> end [bytes=10 , transfer_s=.5]; b -> end [bytes="20"]
# a line for the preprocessor
  end [cost=3, flops=7];
}
"""


def read(text: str) -> Graph:
    return graph_from_text(text, "g.dot", "g")


def test_defaults_subgraphs_and_quotes() -> None:
    graph = read(TEXT)
    assert graph.name == 'two "steps"'
    assert graph.vertex_names == ("load", "a", "b", "end")
    assert graph.kinds == ("task", "task", "matmul", "task")
    assert graph.exec_s is not None
    assert graph.exec_s[:, 0].tolist() == [2, 1.5, 1.5, 3]
    assert graph.flops.tolist() == [0, 0, 0, 7]
    assert graph.tensor_producer.tolist() == [0, 1, 2]  # one tensor for both readers
    assert graph.tensor_bytes.tolist() == [1000, 10, 20]
    assert graph.transfer_s is not None
    assert graph.transfer_s.tolist() == [0, 0.5, 0]
    pairs = zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True)
    assert list(pairs) == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_numbers_may_have_exponents() -> None:
    graph = read('digraph { a -> b [size=4e9] a -> c [size="1e-3"] a -> d [size=.5] }')
    assert graph.tensor_bytes.tolist() == [4e9, 1e-3, 0.5]


def test_labels_are_costs_where_they_are_numbers() -> None:
    graph = read('digraph { a [label="5"]; b [label=add cost=1]; a -> b [label=2.5] }')
    assert graph.kinds == ("unknown", "add")
    assert graph.exec_s is not None
    assert graph.exec_s[:, 0].tolist() == [5, 1]
    assert graph.transfer_s is not None
    assert graph.transfer_s.tolist() == [2.5]


def test_edges_that_differ_are_tensors_of_their_own() -> None:
    graph = read(
        "digraph { a -> b [size=1] a -> c [size=2] a -> d [size=1] a -> e [size=1 tensor=x] }"
    )
    assert graph.tensor_bytes.tolist() == [1, 2, 1]
    with pytest.raises(FormatError, match="line 1: edges of tensor `x`"):
        read("digraph { a -> b [size=1 tensor=x] a -> c [size=2 tensor=x] }")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("graph { a -- b }", "line 1: the graph is not directed"),
        ("digraph { a -- b }", "`--` is for graphs without directions"),
        ("digraph {\n a -> \n}", "line 3: `}` where a node should be"),
        ("digraph {\n a [cost=x] }", "line 2: `cost` of node `a` is `x`, no number"),
        ("digraph {\n a -> b [size=x] }", "line 2: `size` of edge `a` -> `b` is `x`"),
        ("digraph {\n a [cost=1]\n b }", "line 3: node `b` has no seconds"),
        ("digraph { a", "not closed"),
        ("digraph { a [x=<b }", "never closed"),
        ('digraph { a [x="b }', "is no DOT"),
        ("digraph {\n a [cost=4x9] }", "line 2: `4x9] }` is no DOT"),
        ("digraph { a } digraph { b }", "something after the graph"),
        ("digraph { a [b=+] }", "where a value should be"),
        ('digraph { a [b="c" + d] }', "joins quoted texts"),
        ("digraph " + "{" * 200, "nested more than 100 deep"),
    ],
)
def test_mistakes_name_the_line(text: str, why: str) -> None:
    with pytest.raises(FormatError) as error:
        read(text)
    assert why in str(error.value)


def test_a_cycle_and_too_many_edges() -> None:
    with pytest.raises(GraphError, match="cycle"):
        read("digraph { a -> b -> a }")
    many = " ".join(f"v{i}" for i in range(3000))
    with pytest.raises(FormatError, match="more than 5000000 edges"):
        read(f"digraph {{ {{ {many} }} -> {{ {many} }} }}")


def without_kernels_and_unread(graph: Graph) -> Graph:
    """What DOT has a place for."""
    columns = graph.columns()
    kept = sorted(set(graph.edge_tensor.tolist()))
    number = {t: i for i, t in enumerate(kept)}
    moves = columns["transfer_s"]
    columns |= {
        "tensor_producer": graph.tensor_producer[kept],
        "tensor_bytes": graph.tensor_bytes[kept],
        "transfer_s": None if moves is None else moves[kept],
        "edge_tensor": [number[t] for t in graph.edge_tensor.tolist()],
    }
    return build_graph(**columns)


@settings(max_examples=examples(90), deadline=None)
@given(graphs(num_devices=2))
def test_what_is_written_reads_back_equal(graph: Graph) -> None:
    columns = without_kernels_and_unread(graph).columns()
    odd = ["a b", 'q"', "back\\", '\\"', "node", "->", "ä", "1.5e3", "line\nbreak"]
    columns["vertex_names"] = odd[: graph.num_vertices]
    plain = build_graph(**columns)
    again = read(graph_to_text(plain, "dot"))
    if plain.num_edges:
        assert again == plain
    else:
        assert again.vertex_names == plain.vertex_names


@settings(max_examples=examples(150), deadline=None)
@given(edited(TEXT))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(DopplerError):
        assert isinstance(graph_from_text(text, "g.dot", "g", format_name="dot"), Graph)
