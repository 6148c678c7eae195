import networkx as nx
import pytest
from hypothesis import given, settings
from strategies import graphs

from doppler.errors import GraphError
from doppler.formats import from_networkx, to_networkx
from doppler.graph import Graph
from doppler.programs import random_dag


@settings(max_examples=100, deadline=None)
@given(graph=graphs(num_devices=2))
def test_there_and_back_is_the_same_graph(graph: Graph) -> None:
    assert from_networkx(to_networkx(graph)) == graph


def test_networkx_sees_the_dataflow() -> None:
    graph = random_dag(seed=0)
    converted = to_networkx(graph)
    assert nx.is_directed_acyclic_graph(converted)
    assert converted.number_of_edges() == graph.num_edges
    assert converted.nodes["l0.0"]["flops"] == graph.flops[graph.vertex_names.index("l0.0")]


def test_a_plain_digraph_becomes_a_graph() -> None:
    source = nx.DiGraph(name="plain")
    source.add_node("x", kind="input")
    source.add_node("y", kind="matmul", flops=5.0)
    source.add_edge("x", "y", bytes=3)
    source.add_edge("y", 7, bytes=2)
    graph = from_networkx(source)
    assert (graph.name, graph.vertex_names) == ("plain", ("x", "y", "7"))
    assert graph.kinds == ("input", "matmul", "unknown")
    assert graph.tensor_bytes.tolist() == [3, 2]


def test_edges_of_one_node_carry_one_tensor_unless_told_apart() -> None:
    source = nx.DiGraph([("a", "b", {"bytes": 1}), ("a", "c", {"bytes": 1})])
    assert from_networkx(source).num_tensors == 1
    source.edges["a", "c"]["bytes"] = 2
    with pytest.raises(GraphError, match="differ in bytes"):
        from_networkx(source)
    source.edges["a", "b"]["tensor"], source.edges["a", "c"]["tensor"] = "left", "right"
    assert sorted(from_networkx(source).tensor_bytes.tolist()) == [1, 2]


@pytest.mark.parametrize("source", [nx.Graph([("a", "b")]), "no graph", None])
def test_what_is_not_directed_is_refused(source: object) -> None:
    with pytest.raises(GraphError, match="directed"):
        from_networkx(source)


def test_cycles_and_bad_attributes_are_refused() -> None:
    with pytest.raises(GraphError, match="cycle"):
        from_networkx(nx.DiGraph([("a", "b"), ("b", "a")]))
    source = nx.DiGraph()
    source.add_node("a", flops="many")
    with pytest.raises(GraphError, match="flops"):
        from_networkx(source)
