import dataclasses
import math

import numpy as np
import pytest
import strategies
from hypothesis import given

from doppler.errors import GraphError
from doppler.graph import Graph, GraphBuilder, InputKind, Kernel, OpKind, build_graph


def chain(**changes):
    """x → a → b, with some columns changed."""
    columns = {
        "name": "chain",
        "vertex_names": ["x", "a", "b"],
        "kinds": ["input", "matmul", "matmul"],
        "tensor_producer": [0, 1, 2],
        "tensor_bytes": [1, 2, 3],
        "edge_tensor": [0, 1],
        "edge_reader": [1, 2],
    }
    return build_graph(**columns | changes)


def kernel(inputs=(0,), outputs=1, **fields):
    shapes, dtypes = ((2, 2),) * outputs, ("float32",) * outputs
    return Kernel(op="relu", inputs=inputs, shapes=shapes, dtypes=dtypes, **fields)


def arrays(graph):
    values = {f.name: getattr(graph, f.name) for f in dataclasses.fields(Graph)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def test_builder_makes_the_columns_and_indices_of_its_vertices():
    b = GraphBuilder("split")
    x = b.input("x", output_bytes=8)
    split = b.vertex("split", OpKind.SELECT, flops=5, touched_bytes=6, meta_op="cut", role="shard")
    low, high = b.tensor(split, 4), b.tensor(split, 5)
    b.edge(x, split)
    y = b.op("y", "my-kind", reads=[high, low], output_bytes=7, dtype="float16")
    graph = b.build()

    assert (x, split, low, high, y) == (0, 1, 1, 2, 3)
    assert graph.vertex_names == ("x", "split", "y")
    assert graph.kinds == ("input", "select", "my-kind")
    assert graph.flops.tolist() == [0, 5, 0]
    assert graph.touched_bytes.tolist() == [0, 6, 0]
    assert graph.meta_ops == ("", "cut", "")
    assert graph.roles == ("", "shard", "")
    assert graph.dtypes == ("float32", "float32", "float16")
    assert graph.kernels == ()
    assert graph.exec_s is None
    assert graph.transfer_s is None
    assert graph.tensor_producer.tolist() == [0, 1, 1, 2]
    assert graph.tensor_bytes.tolist() == [8, 4, 5, 7]
    assert graph.edge_tensor.tolist() == [0, 1, 2]
    assert graph.edge_reader.tolist() == [1, 2, 2]
    assert graph.is_input.tolist() == [True, False, False]
    assert graph.assigned.tolist() == [1, 2]
    assert graph.output_tensor[graph.output_ptr[1] : graph.output_ptr[2]].tolist() == [1, 2]
    assert graph.reader[graph.reader_ptr[1] : graph.reader_ptr[2]].tolist() == [2]
    assert graph.read_tensor[graph.read_ptr[2] : graph.read_ptr[3]].tolist() == [1, 2]
    assert graph.topological_order.tolist() == [0, 1, 2]
    assert repr(graph) == "<Graph 'split': 3 vertices (1 inputs), 4 tensors, 3 edges>"


def test_builder_keeps_explicit_costs_and_fills_those_of_inputs():
    b = GraphBuilder()
    x = b.input("x", output_bytes=8)
    b.op("a", "matmul", reads=[x], output_bytes=4, exec_s=[1, 2], transfer_s=0.5)
    graph = b.build()
    assert graph.exec_s.tolist() == [[0, 0], [1, 2]]
    assert graph.transfer_s.tolist() == [0, 0.5]


def test_a_number_among_exec_s_lists_counts_for_every_device():
    assert chain(exec_s=[0, [1, 2], 3]).exec_s.tolist() == [[0, 0], [1, 2], [3, 3]]


@pytest.mark.parametrize("exec_s", [[0, 1, 2], [[0], [1], [2]], np.array([0.0, 1.0, 2.0])])
def test_one_exec_s_per_vertex_makes_one_column(exec_s):
    assert chain(exec_s=exec_s).exec_s.tolist() == [[0], [1], [2]]


def test_exec_s_may_be_a_table():
    table = np.arange(6.0).reshape(3, 2)
    assert np.array_equal(chain(exec_s=table).exec_s, table)


def test_kernels_are_kept():
    kernels = [None, kernel(inputs=(0, 0), attributes={"axis": 1}), None]
    assert chain(kernels=kernels).kernels == tuple(kernels)


def test_columns_left_out_get_defaults():
    graph = chain(vertex_names=None)
    assert graph.vertex_names == ("v0", "v1", "v2")
    assert graph.flops.tolist() == graph.touched_bytes.tolist() == [0, 0, 0]
    assert graph.dtypes == ("float32",) * 3


def test_texts_may_be_of_a_kind_of_text():
    assert chain(kinds=np.array(["input", "matmul", "mine"])).kinds == ("input", "matmul", "mine")


def test_inputs_are_everywhere_unless_their_kind_is_given():
    b = GraphBuilder()
    inputs = [
        b.input("x", output_bytes=1),
        b.input("w", output_bytes=1, kind="resident"),
        b.input("q", output_bytes=1, kind=InputKind.STREAMED),
    ]
    b.op("y", "matmul", reads=inputs, output_bytes=1, temporary_bytes=7)
    graph = b.build()
    assert graph.input_kinds == ("everywhere", "resident", "streamed", "")
    assert {type(kind) for kind in graph.input_kinds} == {str}
    assert graph.is_input.tolist() == [True, True, True, False]
    assert graph.is_resident.tolist() == [False, True, False, False]
    assert graph.is_streamed.tolist() == [False, False, True, False]
    cold = graph.cold()
    assert cold.input_kinds == ("everywhere", "loaded", "streamed", "")
    assert cold.arrives.tolist() == [False, True, True, False]
    assert cold.stays.tolist() == graph.stays.tolist() == [False, True, False, False]
    assert build_graph(**cold.columns()) == cold
    assert graph.temporary_bytes.tolist() == [0, 0, 0, 7]
    assert chain().input_kinds == ("everywhere", "", "")
    assert chain(input_kinds=["", "", ""]) == chain(input_kinds=["everywhere", "", ""]) == chain()
    assert not chain().temporary_bytes.any()


def test_an_unknown_input_kind_gets_a_hint():
    with pytest.raises(GraphError) as error:
        chain(input_kinds=["weights", "", ""])
    assert error.value.hint == "known: everywhere, resident, streamed, loaded"


def test_a_graph_may_be_empty():
    graph = GraphBuilder().build()
    assert (graph.num_vertices, graph.num_tensors, graph.num_edges) == (0, 0, 0)


CYCLES = {
    "of three": ("abc", ["ab", "bc", "ca"], "`b` → `c` → `a` → `b`"),
    "of one": ("ab", ["ab", "bb"], "`b` → `b`"),
    "behind other vertices": ("abcd", ["ab", "bc", "cb", "cd"], "`c` → `b` → `c`"),
    "of many": ("abcdefghij", ["ab", "bc", "cd", "de", "ef", "fg", "gh", "hi", "ij", "ja"], "…"),
}


@pytest.mark.parametrize(("vertices", "edges", "cycle"), CYCLES.values(), ids=CYCLES)
def test_a_cycle_is_named_with_its_vertices(vertices, edges, cycle):
    b = GraphBuilder()
    for name in vertices:
        b.op(name, "matmul", reads=[], output_bytes=1)
    for producer, reader in edges:
        b.edge(vertices.index(producer), vertices.index(reader))
    with pytest.raises(GraphError, match=f"the graph has a cycle: .*{cycle}"):
        b.build()


BAD_COLUMNS = [
    ({"tensor_producer": [0, 1, 3]}, r"tensors.producer\[2\] is 3, but there are 3 vertices"),
    ({"tensor_producer": [0, 1, -1]}, r"tensors.producer\[2\] is -1"),
    ({"edge_tensor": [0, 7]}, r"edges.tensor\[1\] is 7, but there are 3 tensors"),
    ({"edge_reader": [1, 3]}, r"edges.reader\[1\] is 3"),
    ({"edge_reader": [1, 2**70]}, "edges.reader must be a list of whole numbers"),
    ({"edge_reader": [1, 2.0]}, "edges.reader must be a list of whole numbers"),
    ({"edge_reader": [1, True]}, "edges.reader must be a list of whole numbers"),
    ({"edge_reader": [1, None]}, "edges.reader must be a list of whole numbers"),
    ({"edge_reader": "12"}, "edges.reader must be a list of whole numbers"),
    ({"edge_reader": np.array([1.0, 2.0])}, "edges.reader must be a list of whole numbers"),
    ({"edge_tensor": [0]}, "1 edge tensors but 2 edge readers"),
    ({"edge_tensor": [0, 0], "edge_reader": [1, 1]}, r"`a` reads tensor 0 \(of `x`\) twice"),
    ({"edge_reader": [1, 0]}, "edge 1: the input `x` reads tensor 1"),
    ({"vertex_names": ["x", "a", "a"]}, "vertices 1 and 2 are both named `a`"),
    ({"vertex_names": ["x", "a"]}, "vertices.name has 2 entries for 3 vertices"),
    ({"vertex_names": ["x", "a", 3]}, r"vertices.name\[2\] must be text, not 3"),
    ({"kinds": ["input", None, "matmul"]}, r"vertices.kind\[1\] must be text, not None"),
    ({"meta_ops": ["", ""]}, "vertices.meta_op has 2 entries"),
    ({"roles": ["", "shard", "both"]}, "role `both` is not one of"),
    ({"dtypes": ["float32"] * 4}, "vertices.dtype has 4 entries"),
    ({"name": None}, "the graph's name must be text, not None"),
    ({"flops": [0, 1]}, "vertices.flops has 2 entries, expected 3"),
    ({"flops": [0, -1, 0]}, r"vertices.flops\[1\] \(vertex `a`\) is -1"),
    ({"input_kinds": ["", ""]}, "vertices.input_kind has 2 entries for 3 vertices"),
    ({"input_kinds": [None, "", ""]}, r"vertices.input_kind\[0\] must be text, not None"),
    ({"input_kinds": ["here", "", ""]}, "input `x` has the unknown kind `here`"),
    ({"input_kinds": ["", "resident", ""]}, "vertex `a` has the input kind `resident`, but is a"),
    ({"temporary_bytes": [0, -1, 0]}, r"vertices.temporary_bytes\[1\] \(vertex `a`\) is -1"),
    ({"temporary_bytes": [0, 0, math.nan]}, r"vertices.temporary_bytes\[2\] .* is nan"),
    ({"temporary_bytes": [0]}, "vertices.temporary_bytes has 1 entries, expected 3"),
    ({"flops": [0, math.nan, 0]}, r"vertices.flops\[1\] \(vertex `a`\) is nan"),
    ({"flops": [0, math.inf, 0]}, r"vertices.flops\[1\] \(vertex `a`\) is inf"),
    ({"flops": [0, 10**400, 0]}, r"vertices.flops\[1\] \(vertex `a`\) is inf"),
    ({"flops": [0, "1", 0]}, "vertices.flops must be a list of numbers"),
    ({"flops": [0, True, 0]}, "vertices.flops must be a list of numbers"),
    ({"flops": [0, None, 0]}, "vertices.flops must be a list of numbers"),
    ({"flops": np.zeros((3, 1))}, "vertices.flops must be a list of numbers"),
    ({"touched_bytes": [0, -1, 0]}, "vertices.bytes"),
    ({"tensor_bytes": [1, 2, math.nan]}, r"tensors.bytes\[2\] is nan"),
    ({"tensor_bytes": [1, 2]}, "tensors.bytes has 2 entries, expected 3"),
    ({"transfer_s": [0, 1, -2]}, r"tensors.transfer_s\[2\] is -2"),
    ({"exec_s": [0, 1]}, "vertices.exec_s has 2 entries, expected 3"),
    ({"exec_s": [0, 1, math.inf]}, r"vertices.exec_s\[2\] \(vertex `b`\) is inf"),
    ({"exec_s": [0, [1, 2], [1, 2, 3]]}, r"lists of different lengths: \[2, 3\]"),
    ({"exec_s": [[], [], []]}, "vertices.exec_s has an empty list"),
    ({"exec_s": [0, [1, -2], 3]}, r"vertices.exec_s.*\(vertex `a`\) is -2"),
    ({"exec_s": [0, [1, [2]], 3]}, "vertices.exec_s must be a list of numbers"),
    ({"exec_s": [0, "1", 3]}, "vertices.exec_s must be a list of numbers"),
    ({"exec_s": 1.0}, "vertices.exec_s must be a list of numbers"),
    ({"kernels": [None, kernel()]}, "vertices.kernel has 2 entries for 3 vertices"),
    ({"kernels": [None, kernel(inputs=(1,)), None]}, r"inputs \[1\].*reads tensors \[0\]"),
    ({"kernels": [None, kernel(outputs=2), None]}, "2 shapes and 2 dtypes for 1 outputs"),
    ({"kernels": [None, kernel(attributes={"a": math.nan}), None]}, "kernel of `a` .*attributes"),
    ({"kernels": [None, kernel(attributes={"a": object()}), None]}, "kernel of `a` .*attributes"),
]


@pytest.mark.parametrize(("change", "message"), BAD_COLUMNS)
def test_a_bad_column_is_named(change, message):
    with pytest.raises(GraphError, match=message):
        chain(**change)


def test_exec_s_must_be_given_for_every_vertex_that_works():
    b = GraphBuilder()
    a = b.op("a", "matmul", reads=[], output_bytes=1, exec_s=1)
    b.op("b", "matmul", reads=[a], output_bytes=1)
    with pytest.raises(GraphError, match="`exec_s` is given for some but not for number 1"):
        b.build()


@pytest.mark.parametrize("producer", [9, -9, "a", None])
def test_a_tensor_of_no_vertex_with_explicit_seconds_is_refused(producer):
    b = GraphBuilder()
    b.op("a", "matmul", reads=[], output_bytes=1, transfer_s=1)
    b.tensor(producer, 1)
    with pytest.raises(GraphError):
        b.build()


def test_arrays_are_read_only():
    graph = chain(exec_s=[0, 1, 2], transfer_s=[0, 1, 2])
    writable = [name for name, array in arrays(graph).items() if array.flags.writeable]
    assert writable == []


def test_arrays_do_not_follow_what_they_were_made_from():
    sizes = np.array([1.0, 2.0, 3.0])
    graph = chain(tensor_bytes=sizes)
    sizes[0] = 99
    assert graph.tensor_bytes.tolist() == [1, 2, 3]


OTHER_DATAFLOW = [
    {"vertex_names": ["x", "a", "c"]},
    {"kinds": ["input", "matmul", "select"]},
    {"tensor_producer": [0, 1, 1]},
    {"tensor_bytes": [1, 2, 4]},
    {"edge_tensor": [0, 0]},
    {"edge_reader": [2, 2]},
    {"edge_tensor": [0], "edge_reader": [1]},
]
SAME_DATAFLOW = [
    {"name": "other"},
    {"input_kinds": ["resident", "", ""]},
    {"input_kinds": ["streamed", "", ""]},
    {"flops": [0, 1, 2]},
    {"touched_bytes": [0, 1, 2]},
    {"temporary_bytes": [0, 1, 0]},
    {"meta_ops": ["", "m", "m"]},
    {"roles": ["", "shard", "reduce"]},
    {"dtypes": ["float16"] * 3},
    {"exec_s": [0, 1, 2]},
    {"transfer_s": [0, 1, 2]},
    {"kernels": [None, kernel(), None]},
]


def test_graphs_of_equal_columns_are_equal():
    assert chain() == chain()
    assert hash(chain()) == hash(chain())
    assert chain() != "chain"


def test_the_order_in_which_edges_are_given_does_not_matter():
    swapped = chain(edge_tensor=[1, 0], edge_reader=[2, 1])
    assert swapped == chain()
    assert swapped.digest() == chain().digest()


@pytest.mark.parametrize("change", OTHER_DATAFLOW + SAME_DATAFLOW)
def test_graphs_that_differ_in_a_column_are_not_equal(change):
    assert chain() != chain(**change)


@pytest.mark.parametrize("change", OTHER_DATAFLOW)
def test_digest_changes_with_the_dataflow(change):
    assert chain().digest() != chain(**change).digest()


@pytest.mark.parametrize("change", SAME_DATAFLOW)
def test_digest_does_not_change_with_costs(change):
    assert chain().digest() == chain(**change).digest()


def test_digest_does_not_know_a_negative_zero():
    assert chain(tensor_bytes=[0.0, 2, 3]).digest() == chain(tensor_bytes=[-0.0, 2, 3]).digest()


@given(strategies.graphs(max_vertices=12))
def test_topological_order_has_every_producer_before_its_readers(graph):
    assert sorted(graph.topological_order.tolist()) == list(range(graph.num_vertices))
    position = np.argsort(graph.topological_order)
    assert np.all(position[graph.tensor_producer[graph.edge_tensor]] < position[graph.edge_reader])


@given(strategies.graphs(max_vertices=12))
def test_indices_hold_each_tensor_and_each_edge_once(graph):
    producer = np.repeat(np.arange(graph.num_vertices), np.diff(graph.output_ptr))
    assert np.array_equal(graph.tensor_producer[graph.output_tensor], producer)
    by_tensor = np.repeat(np.arange(graph.num_tensors), np.diff(graph.reader_ptr))
    by_reader = np.repeat(np.arange(graph.num_vertices), np.diff(graph.read_ptr))
    edges = sorted(zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True))
    assert sorted(zip(by_tensor.tolist(), graph.reader.tolist(), strict=True)) == edges
    assert sorted(zip(graph.read_tensor.tolist(), by_reader.tolist(), strict=True)) == edges
