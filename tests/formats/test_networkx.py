import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from strategies import graphs

from doppler.errors import GraphError, UnknownNameError
from doppler.formats import from_networkx, read_graph, to_networkx
from doppler.formats.networkx_graphs import CostWarning
from doppler.graph import Graph, write_graph
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


def costed() -> nx.DiGraph:
    source = nx.DiGraph(name="costed")
    for i, node in enumerate("abc"):
        source.add_node(node, cost=np.float32(i + 1), op="matmul", position=i)
    source.add_edge("a", "b", weight=np.int64(5))
    source.add_edge("b", "c", weight=7)
    return source


def test_arguments_name_the_attributes_to_read() -> None:
    graph = from_networkx(costed(), exec_s="cost", bytes="weight", kind="op")
    assert graph.exec_s is not None
    assert graph.exec_s[:, 0].tolist() == [1, 2, 3]
    assert graph.tensor_bytes.tolist() == [5, 7]
    assert graph.kinds == ("matmul",) * 3

    graph = from_networkx(
        costed(), flops="cost", touched_bytes="position", transfer_s="weight", dtype="op"
    )
    assert graph.flops.tolist() == [1, 2, 3]
    assert graph.touched_bytes.tolist() == [0, 1, 2]
    assert graph.transfer_s is not None
    assert graph.transfer_s.tolist() == [5, 7]
    assert graph.dtypes == ("matmul",) * 3


def test_named_attributes_count_and_not_those_that_to_networkx_wrote() -> None:
    source = to_networkx(from_networkx(costed(), exec_s="cost", bytes="weight"))
    for *_, data in source.edges(data=True):
        data["volume"] = 9
    assert from_networkx(source, bytes="volume").tensor_bytes.tolist() == [9, 9]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"exec_s": "cots"}, UnknownNameError, "no node attribute named `cots`\n.*mean `cost`"),
        ({"bytes": "wight"}, UnknownNameError, "no edge attribute named `wight`\n.*mean `weight`"),
        (
            {"flops": "flops"},
            UnknownNameError,
            "no node attribute named `flops`\n.*known: cost, op",
        ),
        ({"bytes": "cost"}, GraphError, "`bytes` is read from edges, and `cost` is an .* of nodes"),
        ({"kind": "weight"}, GraphError, "`kind` is read from nodes, and `weight` is an"),
        ({"flops": "op"}, GraphError, "vertices.flops must be a list of numbers"),
    ],
)
def test_wrong_attribute_names_are_refused(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        from_networkx(costed(), **arguments)


@pytest.mark.parametrize(
    ("node", "edge", "suggestion"),
    [
        ({"cost": 1}, {"weight": 2.0}, 'exec_s="cost", bytes="weight"'),
        ({"layer": 3, "runtime": 0.5}, {}, 'exec_s="runtime"'),
        ({"gflops": 1.0}, {"latency": 1e-6}, 'flops="gflops", transfer_s="latency"'),
        ({"x": np.float64(1)}, {}, 'exec_s="x"'),
        ({}, {"size": np.int64(4)}, 'bytes="size"'),
        ({"exec_s": 1.0}, {"weight": 4}, 'bytes="weight"'),
        ({"a\x1b[2Jcost": 1}, {}, r'exec_s="a\\x1b[2Jcost"'),
    ],
)
def test_costs_that_were_not_read_are_pointed_out(node, edge, suggestion) -> None:
    source = nx.DiGraph([("a", "b", edge)])
    source.add_node("a", **node)
    with pytest.warns(CostWarning, match="cost nothing") as caught:
        from_networkx(source)
    assert f"from_networkx(graph, {suggestion})" in str(caught[0].message).replace("\\", "\\\\")
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("node", "edge", "arguments"),
    [
        ({}, {}, {}),
        ({"exec_s": 1.0}, {"bytes": 1}, {}),
        ({"flops": 5, "cost": 3}, {"transfer_s": 1.0, "weight": 3}, {}),
        ({"cost": 0, "label": "x", "flag": True}, {"color": "red", "weight": 0.0}, {}),
        ({"cost": 0, "layer": 2}, {"weight": 0, "id": 3}, {"exec_s": "cost", "bytes": "weight"}),
    ],
)
def test_graphs_with_costs_or_without_numbers_are_taken_silently(node, edge, arguments) -> None:
    source = nx.DiGraph([("a", "b", edge)])
    source.add_node("a", **node)
    from_networkx(source, **arguments)  # warnings are errors


def test_numpy_scalars_as_attributes(tmp_path) -> None:
    source = nx.MultiDiGraph()
    source.add_node("a", flops=np.float32(8), exec_s=np.array([1.0, 2.0]), kind=np.str_("matmul"))
    source.add_node("b", flops=np.int64(3), exec_s=[np.float64(1), 1])
    source.add_edge("a", "b", bytes=np.int32(4), tensor=np.int64(0))
    source.add_edge("a", "b", bytes=np.float16(2), tensor=np.int64(1))
    graph = from_networkx(source)
    write_graph(graph, tmp_path / "g.json")
    assert read_graph(tmp_path / "g.json") == graph == from_networkx(to_networkx(graph))


def test_a_graph_without_edges_has_no_edge_attributes_to_miss() -> None:
    source = nx.DiGraph()
    source.add_node("a", cost=1)
    assert from_networkx(source, exec_s="cost", bytes="weight").num_tensors == 0
    assert from_networkx(nx.DiGraph(), exec_s="cost").num_vertices == 0
