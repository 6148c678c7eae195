"""Hostile and broken ONNX files: clear errors, within bounded time and memory."""

import sys

import numpy as np
import onnx_models as models
import pytest
from onnx_models import onnx

import doppler as dp
from doppler.errors import FormatError, MissingExtraError, ModelError
from doppler.frontends.onnx.protos import OnnxLimits, read_proto

helper = onnx.helper
RELU = "relu (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }"


def written(tmp_path, model):
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    "data",
    [b"", b"\x08", b"not a model", bytes(100), b"\x08\x08\x3a\xff\xff\xff\xff\x0f", b"\x08\x08"],
)
def test_what_is_no_model(tmp_path, data):
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(FormatError, match="is no ONNX model"):
        dp.from_onnx(tmp_path / "m.onnx")


def test_a_model_that_was_cut_off(tmp_path):
    whole = models.make(*models.MLP).SerializeToString()
    for size in range(10, len(whole), 97):
        (tmp_path / "m.onnx").write_bytes(whole[:size])
        with pytest.raises((FormatError, ModelError)):
            dp.from_onnx(tmp_path / "m.onnx")


def test_files_that_are_none(tmp_path):
    with pytest.raises(FormatError, match="no file"):
        dp.from_onnx(tmp_path / "none.onnx")
    with pytest.raises(FormatError, match="no regular file"):
        dp.from_onnx(tmp_path)


def test_a_file_larger_than_any_message(tmp_path):
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 31)  # a hole: no bytes on disk
    with pytest.raises(FormatError, match="larger than 2 GiB"):
        read_proto(path)


@pytest.mark.parametrize("field", ["raw_data", "float_data"])
def test_a_tensor_that_declares_more_than_it_has(tmp_path, field):
    model = models.make(RELU, {"w": (2, 3)})
    (tensor,) = model.graph.initializer
    tensor.dims[0] = 1 << 40
    if field == "float_data":
        tensor.ClearField("raw_data")
        tensor.float_data.extend([1.0] * 6)
    with pytest.raises(FormatError, match=r"initializer `w` of shape .* needs .* and has"):
        dp.from_onnx(written(tmp_path, model))
    tensor.dims[0] = -1
    with pytest.raises(FormatError, match="negative size"):
        dp.from_onnx(written(tmp_path, model))


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Tile", "Range"])
def test_constants_that_would_fill_memory(tmp_path, op):
    """A few bytes that unfold into terabytes are refused before they do."""
    nodes = {
        "ConstantOfShape": "c = ConstantOfShape(big)",
        "Expand": "c = Expand(one, big)",
        "Tile": "c = Tile(one, big)",
        "Range": "f = Cast <to=7> (many)  c = Range(none, f, step)",
    }
    text = f"bomb (float[1] x) => (float[n] y) {{ {nodes[op]} d = Cast <to=1> (c) y = Add(x, d) }}"
    more = {"big": np.array([1 << 42]), "one": np.ones(1, np.float32)}
    more |= {"many": np.array(1 << 42), "none": np.array(0), "step": np.array(1)}
    with pytest.raises(ModelError, match=rf"node `c` \({op}\) makes a constant of \d+ bytes"):
        dp.from_onnx(written(tmp_path, models.make(text, {}, **more)))


def test_work_that_would_never_end(tmp_path):
    text = "work (float[1] x) => (float[64, 64] y) { m = MatMul(w, w)  y = Add(x, m) }"
    path = written(tmp_path, models.make(text, {"w": (64, 64)}))
    with pytest.raises(ModelError, match=r"node `m` .* by 5.24e\+05 operations"):
        dp.from_onnx(path, limits=OnnxLimits(max_folded_flops=1e5))
    text = (
        "loop (float[2] x) => (float[2] y) { z = Loop (count, , w) <body = step"
        "   (int64 i, bool go, float[2] state) => (bool on, float[2] new)"
        "   { on = Identity(go)  new = Tanh(state) }>  y = Add(x, z) }"
    )
    model = models.make(text, {"w": (2,)}, count=np.array(1 << 62))
    assert len(dp.from_onnx(written(tmp_path, model)).graph.assigned) == 1


def test_functions_that_call_each_other_often_or_forever(tmp_path):
    header = '<ir_version: 8, opset_import: ["": 17, "f": 1]>'
    text = "laughs (float[1] x) => (float[1] y) { y = f.f0(x) }"
    each = '<domain: "f", opset_import: ["": 17, "f": 1]> f{} (a) => (c) {{ b = f.f{}(a) c = {} }}'
    functions = "".join(each.format(i, i + 1, f"f.f{i + 1}(b)") for i in range(40))
    last = '<domain: "f", opset_import: ["": 17]> f40 (a) => (b) { b = Neg(a) }'
    with pytest.raises(ModelError, match="more than 100000 nodes"):
        dp.from_onnx(written(tmp_path, models.make(text + functions + last, {}, header)))
    circle = each.format(0, 0, "Neg(b)")
    with pytest.raises(ModelError, match="too deeply, or in a circle"):
        dp.from_onnx(written(tmp_path, models.make(text + circle, {}, header)))


def test_deeply_nested_subgraphs(tmp_path):
    value = helper.make_tensor_value_info("y", 1, [1])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [], [value])
    for _ in range(20):
        node = helper.make_node("If", ["flag"], ["y"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([node], "g", [], [value])
        if graph.ByteSize() > 1 << 17:
            break
    graph.input.append(helper.make_tensor_value_info("x", 1, [1]))
    graph.input.append(helper.make_tensor_value_info("flag", 9, []))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises((FormatError, ModelError)):
        dp.from_onnx(written(tmp_path, model), limits=OnnxLimits(max_nodes=500))


def test_a_chain_of_subgraphs_deeper_than_protobuf_reads(tmp_path):
    """Written field by field: no library would."""

    def field(number, data):
        size, found = len(data), b""
        while size > 127:
            found += bytes([size % 128 | 128])
            size //= 128
        return bytes([number << 3 | 2]) + found + bytes([size]) + data

    graph = b""
    for _ in range(2000):
        attribute = field(1, b"then_branch") + field(6, graph)  # AttributeProto.g
        graph = field(1, field(4, b"If") + field(5, attribute))  # GraphProto.node
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08" + field(7, graph))
    with pytest.raises(FormatError, match="is no ONNX model"):
        dp.from_onnx(tmp_path / "m.onnx")


def test_a_cycle_and_doubled_names(tmp_path):
    model = models.make(RELU, {})
    model.graph.node.append(helper.make_node("Neg", ["b"], ["a"]))
    model.graph.node.append(helper.make_node("Neg", ["a"], ["b"]))
    with pytest.raises(ModelError, match="not valid"):
        dp.from_onnx(written(tmp_path, model))
    model = models.make(RELU, {"w": (2,)})
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(FormatError, match="two initializers"):
        dp.from_onnx(written(tmp_path, model))


def test_sparse_strings_and_foreign_files_are_refused(tmp_path):
    model = models.make(RELU, {"w": (2,)})
    model.graph.initializer[0].data_type = onnx.TensorProto.STRING
    with pytest.raises(ModelError, match="element type 8"):
        dp.from_onnx(written(tmp_path, model))
    node = helper.make_node(
        "Constant", [], ["c"], value=helper.make_tensor("t", 1, [1], bytes(4), raw=True)
    )
    onnx.external_data_helper.set_external_data(node.attribute[0].t, "/etc/passwd", 0, 4)
    model = models.make(RELU, {})
    model.graph.node.insert(0, node)
    with pytest.raises((FormatError, ModelError)):
        dp.from_onnx(written(tmp_path, model))
    model = models.make(RELU, {})
    model.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1
    with pytest.raises(ModelError, match="only tensors can be inputs"):
        dp.from_onnx(written(tmp_path, model))


def test_a_newer_opset_than_the_library_knows(tmp_path):
    model = models.make(RELU, {})
    model.opset_import[0].version = 1 << 50
    with pytest.raises(ModelError, match="knows up to"):
        dp.from_onnx(written(tmp_path, model))


def test_without_onnx_the_extra_is_named(tmp_path, monkeypatch):
    path = written(tmp_path, models.make(RELU, {}))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError) as error:
        dp.from_onnx(path)
    assert "doppler-placement[onnx]" in error.value.hint


def test_a_file_whose_name_is_no_text(tmp_path):
    path = tmp_path / "\udcff.onnx"
    path.write_bytes(models.make(RELU, {}).SerializeToString())
    with pytest.raises(FormatError, match="not UTF-8"):
        dp.from_onnx(path)
