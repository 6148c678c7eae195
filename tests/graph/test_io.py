import json

import numpy as np
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples

from doppler.errors import DopplerError, FormatError, GraphError, OutputError
from doppler.formats import read_graph
from doppler.graph import Kernel, build_graph, graph_from_json, graph_to_json, write_graph

FFNN = """
{"format": "doppler-graph", "version": 1, "name": "ffnn",
 "vertices": {"name": ["x", "m0", "m1"], "kind": ["input", "matmul", "matmul"],
              "flops": [0, 2e9, 2e9], "bytes": [0, 3e6, 3e6],
              "meta_op": ["", "xw", "xw"], "role": ["", "shard", "shard"], "exec_s": [0, 0.1, 0.2]},
 "tensors":  {"producer": [0, 1, 2], "bytes": [1e6, 1e6, 1e6], "transfer_s": [0, 0.05, 0.05]},
 "edges":    {"tensor": [0, 1], "reader": [1, 2]}}
"""
KERNEL = {"op": "relu", "inputs": [0], "shapes": [[2, 3]], "dtypes": ["float32"]}
KERNEL |= {"attributes": {"axis": [1, None, "a"]}}
KERNEL_AND_DEVICES = {
    "vertices.kernel": [None, KERNEL, None],
    "vertices.exec_s": [0, [1, 2], [3, 4]],
}

names = st.text(st.characters(codec="utf-8"), max_size=6)
finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | names,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def graphs_with_every_column(draw):
    graph = draw(strategies.graphs(max_vertices=5, num_devices=draw(st.integers(1, 3))))
    size = graph.num_vertices

    def column(entries, **options):
        return draw(st.lists(entries, min_size=size, max_size=size, **options))

    kernels = [
        Kernel(
            op=draw(names),
            inputs=tuple(graph.edge_tensor[graph.edge_reader == v].tolist()),
            shapes=((2, 0),) * outputs,
            dtypes=("int8",) * outputs,
            attributes=draw(st.dictionaries(names, json_values, max_size=2)),
        )
        for v, outputs in enumerate(np.diff(graph.output_ptr).tolist())
    ]
    with_kernel = column(st.booleans())
    changes = {
        "name": draw(names),
        "vertex_names": column(names, unique=True),
        "meta_ops": column(names),
        "roles": column(st.sampled_from(["", "shard", "reduce"])),
        "dtypes": column(st.sampled_from(["float32", "bfloat16"])),
        "flops": column(st.just(0.0) | st.floats(1e-30, 1e30)),
        "kernels": [k if kept else None for k, kept in zip(kernels, with_kernel, strict=True)],
    }
    return build_graph(**graph.columns() | changes)


def ffnn_with(changes):
    return json.dumps(strategies.changed(json.loads(FFNN), changes))


@given(graphs_with_every_column())
def test_a_graph_survives_a_round_trip(graph):
    again = graph_from_json(graph_to_json(graph))
    assert again == graph
    assert again.digest() == graph.digest()


def test_a_graph_survives_its_file(tmp_path):
    graph = graph_from_json(ffnn_with({"name": "größe", "vertices.name": ["x", "乘", "🙂"]}))
    write_graph(graph, tmp_path / "graph.json")
    assert read_graph(tmp_path / "graph.json") == graph
    assert [p.name for p in tmp_path.iterdir()] == ["graph.json"]


def test_the_documented_example_reads():
    graph = graph_from_json(FFNN)
    assert graph.name == "ffnn"
    assert graph.vertex_names == ("x", "m0", "m1")
    assert graph.kinds == ("input", "matmul", "matmul")
    assert graph.flops.tolist() == [0, 2e9, 2e9]
    assert graph.touched_bytes.tolist() == [0, 3e6, 3e6]
    assert graph.meta_ops == ("", "xw", "xw")
    assert graph.roles == ("", "shard", "shard")
    assert graph.exec_s.tolist() == [[0], [0.1], [0.2]]
    assert graph.tensor_producer.tolist() == [0, 1, 2]
    assert graph.tensor_bytes.tolist() == [1e6] * 3
    assert graph.transfer_s.tolist() == [0, 0.05, 0.05]
    assert graph.edge_tensor.tolist() == [0, 1]
    assert graph.edge_reader.tolist() == [1, 2]


def test_input_kinds_and_temporary_bytes_are_read_and_written_where_there_are_some():
    changes = {
        "vertices.input_kind": ["resident", "", ""],
        "vertices.temporary_bytes": [0, 5, 0],
    }
    graph = graph_from_json(ffnn_with(changes))
    assert graph.is_resident.tolist() == [True, False, False]
    assert graph.temporary_bytes.tolist() == [0, 5, 0]
    vertices = json.loads(graph_to_json(graph))["vertices"]
    assert vertices["input_kind"] == ["resident", "", ""]
    assert vertices["temporary_bytes"] == [0, 5, 0]
    defaults = {
        "vertices.input_kind": ["everywhere", "", ""],
        "vertices.temporary_bytes": [0, 0, 0],
    }
    graph = graph_from_json(ffnn_with(defaults))
    assert graph == graph_from_json(FFNN)
    vertices = json.loads(graph_to_json(graph))["vertices"]
    assert not {"input_kind", "temporary_bytes"} & vertices.keys()


def test_optional_columns_may_be_absent():
    vertices = {"kind": ["input", "matmul", "matmul"]}
    changes = {"name": ..., "vertices": vertices, "tensors.transfer_s": ...}
    graph = graph_from_json(ffnn_with(changes))
    assert graph.vertex_names == ("v0", "v1", "v2")
    assert graph.exec_s is None
    assert graph.transfer_s is None
    assert graph_from_json(graph_to_json(graph)) == graph


def test_kernels_and_exec_s_per_device_read():
    graph = graph_from_json(ffnn_with(KERNEL_AND_DEVICES))
    assert graph.kernels[1] == Kernel(
        "relu", (0,), ((2, 3),), ("float32",), {"axis": [1, None, "a"]}
    )
    assert graph.exec_s.tolist() == [[0, 0], [1, 2], [3, 4]]


def test_a_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(FFNN, "utf-8-sig")
    assert read_graph(path) == graph_from_json(FFNN)


BAD_FILES = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\t ", "is empty"),
    "binary": (b"\x7fELF\0\0\1", "is a binary file"),
    "not utf-8": (b'{"format": "\xff"}', r"is not UTF-8 text \(byte 12\)"),
    "truncated": (FFNN[:-40].encode(), r"is not valid JSON: .*line 7"),
    "text after the end": (FFNN.encode() + b"}", "is not valid JSON: Extra data"),
    "deeply nested": (b"[" * 100_000, "is not valid JSON: maximum recursion depth"),
    "a number of 5000 digits": (b"1" * 5000, "is not valid JSON: Exceeds the limit"),
    "half a surrogate pair": (ffnn_with({"name": "\ud83d"}).encode(), "is not valid JSON: half"),
    "a list": (b"[]", "holds a JSON list, not an object"),
    "null": (b"null", "holds a JSON NoneType, not an object"),
    "no format": (b"{}", "`format` is None, expected 'doppler-graph'"),
}


@pytest.mark.parametrize(("data", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_is_no_graph_is_named_with_the_reason(tmp_path, data, message):
    path = tmp_path / "broken.json"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=f"`{path}`:? {message}"):
        read_graph(path, format_name="doppler")


def test_a_missing_file_and_a_folder_are_no_graphs(tmp_path):
    with pytest.raises(FormatError, match=f"no file `{tmp_path}/none.json`"):
        read_graph(tmp_path / "none.json")
    with pytest.raises(FormatError, match=f"cannot read `{tmp_path}`: Is a directory"):
        read_graph(tmp_path)


BAD_DOCUMENTS = [
    ({"format": "doppler-trace"}, "`format` is 'doppler-trace', expected 'doppler-graph'"),
    ({"version": 2}, "`version` is 2, this reader knows 1"),
    ({"version": "1"}, "`version` is '1'"),
    ({"version": True}, "`version` is True"),
    ({"version": ...}, "`version` is None"),
    ({"extra": 1}, "unknown key `extra`"),
    ({"vertices": ...}, "key `vertices` is missing"),
    ({"vertices": [1]}, "vertices must be an object, not list"),
    ({"vertices.colour": [1, 2, 3]}, "vertices: unknown key `colour`"),
    ({"vertices.kind": ...}, "vertices: key `kind` is missing"),
    ({"vertices.kind": "input"}, "vertices.kind must be a list"),
    ({"vertices.kind": ["input", 1, "matmul"]}, r"vertices.kind\[1\] must be text, not 1"),
    ({"vertices.flops": None}, "vertices.flops must be a list"),
    ({"vertices.flops": [0, "1", 2]}, "vertices.flops must be a list of numbers"),
    ({"vertices.flops": [0, float("nan"), 2]}, r"vertices.flops\[1\] \(vertex `m0`\) is nan"),
    ({"vertices.flops": [0, float("inf"), 2]}, r"vertices.flops\[1\] \(vertex `m0`\) is inf"),
    ({"vertices.bytes": [0, -1, 2]}, r"vertices.bytes\[1\] \(vertex `m0`\) is -1"),
    ({"vertices.exec_s": {}}, "vertices.exec_s must be a list"),
    ({"vertices.exec_s": [0, [1], [1, 2]]}, r"lists of different lengths: \[1, 2\]"),
    ({"vertices.name": ["x", "m0", "m0"]}, "both named `m0`"),
    ({"vertices.kernel": {}}, "vertices.kernel must be a list"),
    ({"vertices.kernel": [1]}, r"vertices.kernel\[0\] must be an object, not int"),
    ({"vertices.kernel": [None, {}, None]}, r"vertices.kernel\[1\]: key `op` is missing"),
    ({"vertices.kernel": [None, KERNEL | {"a": 1}, None]}, r"kernel\[1\]: unknown key `a`"),
    ({"vertices.kernel": [None, KERNEL | {"op": 1}, None]}, r"vertices.kernel\[1\] is malformed"),
    ({"vertices.kernel": [None, KERNEL | {"inputs": ["0"]}, None]}, "malformed"),
    ({"vertices.kernel": [None, KERNEL | {"shapes": [[-1]]}, None]}, "malformed"),
    ({"vertices.kernel": [None, KERNEL | {"dtypes": [None]}, None]}, "malformed"),
    ({"vertices.kernel": [None, KERNEL | {"attributes": []}, None]}, "malformed"),
    ({"vertices.kernel": [None, KERNEL | {"inputs": [2]}, None]}, "the kernel of `m0` has inputs"),
    ({"tensors.producer": [0, 1, 3]}, r"tensors.producer\[2\] is 3"),
    ({"tensors.producer": 0}, "tensors.producer must be a list"),
    ({"tensors.bytes": ...}, "tensors: key `bytes` is missing"),
    ({"tensors.bytes": [1, 1, None]}, "tensors.bytes must be a list of numbers"),
    ({"tensors.transfer_s": [0]}, "tensors.transfer_s has 1 entries, expected 3"),
    ({"edges.tensor": [0, 9]}, r"edges.tensor\[1\] is 9"),
    ({"edges.reader": [1, 1.5]}, "edges.reader must be a list of whole numbers"),
    ({"edges.bytes": []}, "edges: unknown key `bytes`"),
    ({"name": 7}, "the graph's name must be text, not 7"),
]


@pytest.mark.parametrize(("change", "message"), BAD_DOCUMENTS)
def test_a_bad_document_is_named_with_its_key(tmp_path, change, message):
    path = tmp_path / "graph.json"
    path.write_text(ffnn_with(change), "utf-8")
    with pytest.raises((FormatError, GraphError), match=f"`{path}`: .*{message}"):
        read_graph(path)


@pytest.mark.parametrize("spot", ["missing/graph.json", "file/graph.json", "folder"])
def test_an_unwritable_place_is_named_and_left_as_it_was(tmp_path, spot):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=f"cannot write `{tmp_path / spot}`"):
        write_graph(graph_from_json(FFNN), tmp_path / spot)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder"]


@settings(max_examples=examples(1000))
@given(st.data())
def test_a_broken_file_raises_nothing_but_our_errors(data):
    text = data.draw(strategies.broken_files(ffnn_with(KERNEL_AND_DEVICES)))
    try:
        graph = graph_from_json(text)
    except DopplerError:
        return
    assert graph_from_json(graph_to_json(graph)).digest() == graph.digest()


def test_a_graph_of_100000_vertices_survives_a_round_trip(tmp_path):
    size = 100_000
    vertices = np.arange(size)
    graph = build_graph(
        name="long",
        kinds=["input"] + ["matmul"] * (size - 1),
        flops=vertices * 1.5,
        tensor_producer=vertices,
        tensor_bytes=vertices,
        edge_tensor=vertices[:-1],
        edge_reader=vertices[1:],
    )
    write_graph(graph, tmp_path / "long.json")
    assert read_graph(tmp_path / "long.json") == graph
