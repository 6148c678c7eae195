"""ONNX models as graphs: what they compute equals what onnxruntime computes of the whole."""

import json

import numpy as np
import onnx_models as models
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import onnx
from strategies import examples

import doppler as dp
from doppler.errors import ConfigError, EngineError, FormatError, ModelError
from doppler.frontends.model_files import model_inputs
from doppler.frontends.onnx.protos import OnnxLimits

helper, numpy_helper = onnx.helper, onnx.numpy_helper


def check_equal(path, model, tolerance=1e-5, **inputs):
    """Run a model on two devices, and compare with the whole model."""
    assignment = dp.place(model.graph, "cpu2", "round-robin")
    found = model.run("cpu2", assignment, **inputs)
    expected = models.reference(path, **inputs)
    assert set(found) == set(expected)
    for name, value in expected.items():
        got = np.asarray(found[name])
        assert (got.shape, got.dtype) == (value.shape, value.dtype)
        np.testing.assert_allclose(got, value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("coarsen", ["pieces", "none", 2])
def test_a_perceptron(tmp_path, coarsen):
    path = models.save(models.make(*models.MLP), tmp_path / "mlp.onnx")
    model = dp.from_onnx(path, coarsen=coarsen)
    graph = model.graph
    assert len(graph.assigned) == {"pieces": 2, "none": 4, 2: 2}[coarsen]
    assert sorted(model.stored) == ["b1", "b2", "w1", "w2"]
    assert graph.is_resident.sum() == 4
    assert graph.flops.sum() == 2 * 4 * 16 * 32 + 2 * 4 * 32 * 8
    assert graph.name == "mlp"
    check_equal(path, model, x=models.random(4, 16))


def test_convolutions(tmp_path):
    path = models.save(models.make(*models.CONVOLUTIONS), tmp_path / "net.onnx")
    model = dp.from_onnx(path, dims={"batch": 2})
    assert len(model.graph.assigned) == 3
    first, second = 2 * 2 * 4 * 12 * 12 * 27, 2 * 2 * 6 * 4 * 4 * 18
    assert model.graph.flops.sum() == first + second + 2 * 2 * 6 * 5
    assert set(model.graph.kinds) == {"input", "conv", "matmul"}
    check_equal(path, model, image=models.random(2, 3, 12, 12))


def test_attention_with_computed_shapes(tmp_path):
    path = models.save(models.make(*models.ATTENTION), tmp_path / "attention.onnx")
    model = dp.from_onnx(path, dims={"batch": 2, "seq": 5})
    graph = model.graph
    assert len(graph.assigned) == 6  # two products of activations, four with weights
    assert graph.flops.sum() == 4 * 2 * 2 * 5 * 32 * 32 + 2 * (2 * 2 * 4 * 5 * 5 * 8)
    assert sorted(model.stored) == ["wk", "wo", "wq", "wv"]  # shapes are in the pieces
    assert not model.guessed
    models_of_pieces = [k.attributes["model"] for k in graph.kernels if k.op == "onnx"]
    assert len(set(models_of_pieces)) == 4  # the three projections are alike
    check_equal(path, model, x=models.random(2, 5, 32))


def test_several_outputs_of_a_vertex(tmp_path):
    path = models.save(models.split(), tmp_path / "split.onnx")
    model = dp.from_onnx(path)
    graph = model.graph
    counts = np.diff(graph.output_ptr)[graph.assigned]
    assert counts.max() == 2
    check_equal(path, model, x=models.random(6, 8))
    check_equal(path, dp.from_onnx(path, coarsen="none"), x=models.random(6, 8))


def test_an_input_and_a_constant_may_be_outputs(tmp_path):
    text = "same (float[2, 3] x, float[2] unused) => (float[2, 3] x, float[2, 3] y, int64[2] s) {"
    path = models.save(
        models.make(text + " y = Neg(x)  s = Shape(y) }", {}), tmp_path / "same.onnx"
    )
    model = dp.from_onnx(path)
    assert set(model.results) == {"x", "s"}
    assert model.graph.is_input.sum() == 2
    found = model.run(
        "cpu2", dp.place(model.graph, "cpu2", "single"), x=torch.ones(2, 3), unused=torch.ones(2)
    )
    assert found["s"].tolist() == [2, 3]
    assert torch.equal(found["x"], -found["y"])
    with pytest.raises(ModelError, match="takes the inputs x, unused"):
        model.inputs(x=torch.ones(2, 3))


def test_what_no_input_reaches_is_computed_ahead(tmp_path):
    text = (
        "folded (float[2, 8] x) => (float[2, 8] y) {"
        " t = Transpose(w)  c = Cast <to=16> (t)  d = Cast <to=1> (c)  dead = Exp(x)"
        " m = MatMul(x, d)  y = Add(m, b) }"
    )
    path = models.save(models.make(text, {"w": (8, 8), "b": (8,)}), tmp_path / "folded.onnx")
    model = dp.from_onnx(path)
    assert sorted(model.stored) == ["b", "d"]
    assert len(model.graph.assigned) == 1
    check_equal(path, model, x=models.random(2, 8))
    with pytest.raises(ModelError, match=r"`d` .*constant of 256 bytes"):
        dp.from_onnx(path, limits=OnnxLimits(max_folded_bytes=256))


def test_half_precision_and_truth_values(tmp_path):
    text = (
        "types (float16[2, 8] x, bool[2, 8] mask) => (bfloat16[2, 8] y, bool[2, 8] no) {"
        " h = Where(mask, x, w)  y = Cast <to=16> (h)  no = Not(mask) }"
    )
    model = models.make(text, {}, w=models.random(2, 8).astype(np.float16))
    found = dp.from_onnx(models.save(model, tmp_path / "types.onnx"), coarsen="none")
    x, mask = torch.randn(2, 8).half(), torch.arange(16).reshape(2, 8) % 3 == 0
    got = found.run("cpu2", dp.place(found.graph, "cpu2", "round-robin"), x=x, mask=mask)
    assert torch.equal(got["no"], ~mask)
    assert torch.equal(got["y"], torch.where(mask, x, found.weights["w"]).bfloat16())


def test_constants_of_types_that_numpy_lacks(tmp_path):
    text = "b (bfloat16[4] x) => (bfloat16[4] y, bfloat16[4] z) { c = Cast <to=16> (w)"
    text += " y = Identity(x)  d = Concat <axis=0> (c, c)  z = Slice(d, two, six) }"
    model = models.make(text, {"w": (4,)}, two=np.array([2]), six=np.array([6]))
    found = dp.from_onnx(models.save(model, tmp_path / "b.onnx"))
    weights = torch.from_numpy(numpy_helper.to_array(model.graph.initializer[0]).copy()).bfloat16()
    assert torch.equal(found.results["z"].tensor(), weights.roll(2))


def test_control_flow_stays_whole(tmp_path):
    text = (
        "branches (float[4, 4] x, bool flag) => (float[4, 4] y) {"
        " h = Relu(x)  y = If (flag) <"
        "   then_branch = yes () => (float[4, 4] a) { a = MatMul(h, w) },"
        "   else_branch = no () => (float[4, 4] b) { b = Neg(h) }> }"
    )
    path = models.save(models.make(text, {"w": (4, 4)}), tmp_path / "if.onnx")
    model = dp.from_onnx(path)
    (vertex,) = model.graph.assigned
    assert model.graph.kinds[vertex] == "if"
    assert model.graph.flops[vertex] == 2 * 4 * 4 * 4
    for flag in (True, False):
        check_equal(path, model, x=models.random(4, 4), flag=np.array(flag))


def test_a_loop_runs_as_one_piece(tmp_path):
    text = (
        "loop (float[4, 4] x) => (float[4, 4] y) {"
        " y = Loop (count, , x) <body = step (int64 i, bool go, float[4, 4] state)"
        "   => (bool on, float[4, 4] new) { on = Identity(go)  m = MatMul(state, w)"
        "   new = Tanh(m) }> }"
    )
    path = models.save(models.make(text, {"w": (4, 4)}, count=np.array(3)), tmp_path / "loop.onnx")
    model = dp.from_onnx(path)
    assert model.graph.flops.sum() == 3 * 2 * 4 * 4 * 4
    check_equal(path, model, x=models.random(4, 4))


def test_a_loop_without_a_limit_counts_once(tmp_path):
    text = (
        "loop (float[4, 4] x, bool begin) => (float[4, 4] y) {"
        " y = Loop (most, begin, x) <body = step (int64 i, bool go, float[4, 4] state)"
        "   => (bool on, float[4, 4] new) { on = Not(go)  new = MatMul(state, w) }> }"
    )
    most = np.array((1 << 63) - 1)
    path = models.save(models.make(text, {"w": (4, 4)}, most=most), tmp_path / "while.onnx")
    model = dp.from_onnx(path)
    assert model.graph.flops.sum() == 2 * 4 * 4 * 4
    check_equal(path, model, x=models.random(4, 4), begin=np.array(True))


def test_what_a_loop_makes_is_guessed_to_be_like_its_state(tmp_path):
    text = (
        "loop (float[n, 4] x) => (float[n, 4] y) { z = Loop (count, , x) <body = step"
        "   (int64 i, bool go, float[n, 4] state) => (bool on, float[n, 4] new)"
        "   { on = Identity(go)  new = Tanh(state) }>  y = MatMul(z, w) }"
    )
    model = models.make(text, {"w": (4, 4)}, count=np.array(3))
    path = models.save(model, tmp_path / "loop.onnx")
    model = dp.from_onnx(path, dims={"n": 3})
    assert model.graph.flops.sum() == 2 * 3 * 4 * 4
    check_equal(path, model, x=models.random(3, 4))


def test_sequences_stay_within_a_piece(tmp_path):
    text = (
        "sequences (float[6, 4] x) => (float[2, 4] y) {"
        " h = MatMul(x, w)  s = SplitToSequence <axis=0> (h, size)  a = SequenceAt(s, one)"
        " y = MatMul(a, w) }"
    )
    model = models.make(text, {"w": (4, 4)}, size=np.array(2), one=np.array(1))
    path = models.save(model, tmp_path / "sequence.onnx")
    for coarsen in ("pieces", "none"):
        check_equal(path, dp.from_onnx(path, coarsen=coarsen), x=models.random(6, 4))


def test_functions_are_put_where_they_are_called(tmp_path):
    header = '<ir_version: 8, opset_import: ["": 17, "own": 1]>'
    text = "calls (float[2, 4] x) => (float[2, 4] y) { h = own.twice(x)  y = own.twice(h) }"
    function = '<domain: "own", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }'
    path = models.save(models.make(text + function, {}, header), tmp_path / "calls.onnx")
    model = dp.from_onnx(path, coarsen="none")
    assert model.graph.kinds.count("add") == 2
    check_equal(path, model, x=models.random(2, 4))


def test_shapes_that_depend_on_values_are_guessed(tmp_path):
    text = (
        "nonzero (float[4, 4] x) => (float[picked] y) {"
        " i = NonZero(x)  t = Transpose(i)  p = GatherND(x, t)  y = Relu(p) }"
    )
    path = models.save(models.make(text, {}), tmp_path / "nonzero.onnx")
    model = dp.from_onnx(path, coarsen="none")
    assert set(model.guessed) == {"i", "t", "p", "y"}
    x = models.random(4, 4)
    x[0] = 0
    check_equal(path, model, x=x)


def test_an_unknown_operation_is_placed_but_not_run(tmp_path):
    header = '<ir_version: 8, opset_import: ["": 17, "acme": 1]>'
    text = (
        "odd (float[4, 8] x) => (float[4, 4] y) {"
        " h = MatMul(x, w)  o = acme.Shuffle(h)  n = NoSuchThing(o)  y = MatMul(n, u) }"
    )
    model = models.make(text, {"w": (8, 8), "u": (8, 4)}, header)
    path = models.save(model, tmp_path / "odd.onnx")
    found = dp.from_onnx(path)
    assert found.missing == ("operation `acme.Shuffle`", "operation `ai.onnx.NoSuchThing`")
    assert found.graph.flops.sum() == 2 * 4 * 8 * 8 + 2 * 4 * 8 * 4
    assignment = dp.place(found.graph, "cpu2", "critical-path")
    assert dp.simulate(found.graph, "cpu2", assignment).makespan_s > 0
    with pytest.raises(EngineError, match=r"vertex `o`: it needs operation `acme\.Shuffle`"):
        found.run("cpu2", assignment, x=torch.ones(4, 8))


def test_onnxruntimes_own_operations_run(tmp_path):
    header = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
    text = (
        "fused (float[4, 8] x) => (float[4, 8] y) {"
        " h = com.microsoft.FusedMatMul <transB=1, alpha=2.0> (x, w)"
        " y = com.microsoft.Gelu(h) }"
    )
    path = models.save(models.make(text, {"w": (8, 8)}, header), tmp_path / "fused.onnx")
    model = dp.from_onnx(path)
    assert not model.missing
    assert model.graph.flops.sum() == 2 * 4 * 8 * 8
    check_equal(path, model, x=models.random(4, 8))


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], 2 * 2 * 3 * 4 * 5),
        ("...ij,jk->...ik", [(2, 7, 3, 4), (4, 5)], 2 * 14 * 3 * 4 * 5),
        ("ij->ji", [(3, 4)], 0),
    ],
)
def test_flops_of_einsum(tmp_path, equation, shapes, flops):
    names, rank = ["x", "w"][: len(shapes)], len(equation.partition("->")[2])
    rank -= 1 if "..." in equation else 0  # three dots stand for two axes
    node = helper.make_node("Einsum", names, ["y"], equation=equation)
    values = [helper.make_tensor_value_info(n, 1, s) for n, s in zip(names, shapes, strict=True)]
    result = helper.make_tensor_value_info("y", 1, ["?"] * rank)
    graph = helper.make_graph([node], "g", values, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = dp.from_onnx(models.save(model, tmp_path / "einsum.onnx"))
    assert found.graph.flops.sum() == flops


def test_flops_of_attention_and_of_a_recurrent_layer(tmp_path):
    header = '<ir_version: 10, opset_import: ["": 23]>'
    text = (
        "a (float[2, 4, 6, 8] q, float[2, 4, 5, 8] k, float[2, 4, 5, 8] v)"
        " => (float[2, 4, 6, 8] y) { y = Attention(q, k, v) }"
    )
    path = models.save(models.make(text, {}, header), tmp_path / "attention.onnx")
    assert dp.from_onnx(path).graph.flops.sum() == 2 * 2 * 2 * 4 * 6 * 5 * 8
    text = "r (float[7, 2, 3] x) => (float[7, 1, 2, 4] y) { y = LSTM <hidden_size=4> (x, w, r) }"
    path = models.save(models.make(text, {"w": (1, 16, 3), "r": (1, 16, 4)}), tmp_path / "r.onnx")
    model = dp.from_onnx(path)
    assert model.graph.flops.sum() == 2 * 7 * 2 * 16 * (3 + 4)
    check_equal(path, model, x=models.random(7, 2, 3))


def test_bytes_that_are_touched_and_that_are_there_for_a_while(tmp_path):
    text = (
        "bytes (float[8, 4] x) => (float[2, 16] y) { a = Exp(x)  b = Reshape(a, shape)"
        " c = Neg(b)  y = Add(b, c) }"
    )
    path = models.save(models.make(text, {}, shape=np.array([2, 16])), tmp_path / "bytes.onnx")
    graph = dp.from_onnx(path).graph
    assert graph.touched_bytes.sum() == 7 * 128  # two each for Exp and Neg, three for Add
    assert graph.temporary_bytes.max() == 2 * 128  # what the view is of, and what Neg makes


def test_symbolic_dimensions_need_values(tmp_path):
    path = models.save(models.make(*models.ATTENTION), tmp_path / "a.onnx")
    with pytest.raises(ModelError, match="`x` has the dimension `batch`") as error:
        dp.from_onnx(path)
    assert "--dim batch=… --dim seq=…" in error.value.hint
    with pytest.raises(ModelError, match="no dimension `depth`"):
        dp.from_onnx(path, dims={"batch": 1, "seq": 2, "depth": 3})
    for size in (0, -1, True, "2", 1 << 50):
        with pytest.raises(ConfigError, match="dimension `seq`"):
            dp.from_onnx(path, dims={"batch": 1, "seq": size})
    model = models.make("u (float[?, 4] x) => (float[?, 4] y) { y = Relu(x) }", {})
    path = models.save(model, tmp_path / "u.onnx")
    with pytest.raises(ModelError, match=r"`x\.0`"):
        dp.from_onnx(path)
    assert dp.from_onnx(path, dims={"x.0": 3}).graph.num_vertices == 2


def test_an_old_opset_is_refused_with_a_cure(tmp_path):
    header = '<ir_version: 7, opset_import: ["": 11]>'
    path = models.save(models.make(*models.MLP, header), tmp_path / "old.onnx")
    with pytest.raises(ModelError, match="opset 11") as error:
        dp.from_onnx(path)
    assert "version_converter" in error.value.hint


def test_shapes_that_do_not_fit_are_refused_by_node(tmp_path):
    text = "bad (float[4, 8] x) => (float[4, 4] y) { h = Relu(x)  y = MatMul(h, w) }"
    path = models.save(models.make(text, {"w": (9, 4)}), tmp_path / "bad.onnx")
    with pytest.raises(ModelError, match=r"node `y` \(MatMul\) does not fit its inputs"):
        dp.from_onnx(path)


def test_random_numbers_are_refused(tmp_path):
    text = "noise (float[4] x) => (float[4] y) { n = RandomNormalLike(x)  y = Add(x, n) }"
    path = models.save(models.make(text, {}), tmp_path / "noise.onnx")
    with pytest.raises(ModelError, match="random numbers: node `n`"):
        dp.from_onnx(path)


def test_weights_are_found_again_by_their_digest(tmp_path):
    (tmp_path / "graphs").mkdir()
    path = models.save(models.make(*models.ATTENTION), tmp_path / "attention.onnx")
    graph = dp.from_onnx(path, dims={"batch": 1, "seq": 3}, folder=tmp_path / "graphs").graph
    dp.write_graph(graph, tmp_path / "graphs" / "g.json")
    graph = dp.read_graph(tmp_path / "graphs" / "g.json")
    assert graph.provenance["file"] == "../attention.onnx"
    assert json.loads(graph.provenance["dims"]) == {"batch": 1, "seq": 3}
    x = models.random(1, 3, 32)
    inputs = model_inputs(graph, tmp_path / "graphs", {"x": x})
    assignment = dp.place(graph, "cpu2", "round-robin")
    found = dp.execute(graph, "cpu2", assignment, inputs=inputs).outputs["y"]
    np.testing.assert_allclose(found, models.reference(path, x=x)["y"], rtol=1e-5, atol=1e-5)
    path.write_bytes(path.read_bytes() + b"\x08\x08")
    with pytest.raises(ModelError, match="has changed"):
        model_inputs(graph, tmp_path / "graphs")
    assert len(model_inputs(graph, None)) == graph.is_input.sum()


def test_external_data(tmp_path):
    path = tmp_path / "model.onnx"
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    models.save(models.make(*models.MLP), path, **options)
    x = models.random(4, 16)
    model = dp.from_onnx(path)
    check_equal(path, model, x=x)
    before = model.graph.provenance["sha256"]
    data = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(data[:-4] + b"abcd")
    assert dp.from_onnx(path).graph.provenance["sha256"] != before
    (tmp_path / "weights.bin").write_bytes(data[:-4])
    with pytest.raises(FormatError, match=r"initializer `\w+`: `.*weights.bin` has"):
        dp.from_onnx(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(FormatError, match="no such file"):
        dp.from_onnx(path)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link", "inner/../../x", "", "."])
def test_external_data_stays_in_the_folder(tmp_path, location):
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(64))
    (folder / "link").symlink_to(tmp_path / "secret")
    model = models.make("m (float[4, 4] x) => (float[4, 4] y) { y = Add(x, w) }", {"w": (4, 4)})
    (tensor,) = model.graph.initializer
    onnx.external_data_helper.set_external_data(tensor, location, 0, 64)
    tensor.ClearField("raw_data")
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match="initializer `w` has its data in"):
        dp.from_onnx(folder / "model.onnx")


def test_a_model_in_a_cache_of_links(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    path = tmp_path / "blobs" / "model.onnx"
    options = {"save_as_external_data": True, "location": "data", "size_threshold": 0}
    models.save(models.make(*models.MLP), path, **options)
    for name, blob in (("model.onnx", "abc"), ("data", "def")):
        (tmp_path / "blobs" / name).rename(tmp_path / "blobs" / blob)
        (tmp_path / "snapshot" / name).symlink_to(f"../blobs/{blob}")
    model = dp.from_onnx(tmp_path / "snapshot" / "model.onnx")
    assert model.weights["w1"].shape == (32, 16)


def test_numpy_arrays_will_do_as_inputs_and_names_may_be_taken(tmp_path):
    text = "names (float[2, 2] x) => (float[2, 2] w) { w = MatMul(x, y)  }"
    model = models.make(text, {"y": (2, 2)})
    model.graph.node[0].name = "y"
    path = models.save(model, tmp_path / "names.onnx")
    found = dp.from_onnx(path)
    assert found.graph.vertex_names == ("x", "y", "y'")
    check_equal(path, found, x=numpy_helper.to_array(numpy_helper.from_array(models.random(2, 2))))


def test_weights_of_four_bits_are_computed_ahead(tmp_path):
    header = '<ir_version: 10, opset_import: ["": 21]>'
    text = "q (float[2, 4] x) => (float[2, 4] y) { w = DequantizeLinear(q, s)  y = MatMul(x, w) }"
    model = models.make(text, {}, header, s=np.array(0.5, np.float32))
    values = np.arange(16).reshape(4, 4) % 8
    model.graph.initializer.append(
        helper.make_tensor("q", onnx.TensorProto.INT4, [4, 4], values.ravel())
    )
    path = models.save(model, tmp_path / "q.onnx")
    found = dp.from_onnx(path)
    assert torch.equal(found.weights["w"], torch.from_numpy(values) / 2)
    x = models.random(2, 4)  # of the whole, onnxruntime would round it to eight bits
    got = found.run("cpu2", dp.place(found.graph, "cpu2", "single"), x=x)["y"]
    np.testing.assert_allclose(got, x @ (values / 2), rtol=1e-5)


@st.composite
def random_models(draw):
    """Products, elementwise operations, and splits, each of what was made before."""
    names, nodes = ["x"], []
    for i in range(draw(st.integers(1, 9))):
        op = draw(st.sampled_from(["MatMul", "Relu", "Add", "Split", "Reshape"]))
        a, b = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        if op == "Split":
            nodes.append(helper.make_node("Split", [a, "halves"], [f"l{i}", f"r{i}"], axis=1))
            nodes.append(helper.make_node("Concat", [f"r{i}", f"l{i}"], [f"v{i}"], axis=1))
        else:
            others = {"MatMul": ["w"], "Add": [b], "Relu": [], "Reshape": ["shape"]}[op]
            nodes.append(helper.make_node(op, [a, *others], [f"v{i}"]))
        names.append(f"v{i}")
    results = draw(st.lists(st.sampled_from(names[1:]), min_size=1, max_size=3, unique=True))
    values = [helper.make_tensor_value_info(name, 1, [4, 4]) for name in ("x", *results)]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    arrays = {"w": models.random(4, 4) / 4, "halves": np.array([2, 2]), "shape": np.array([4, 4])}
    graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@settings(max_examples=examples(45), deadline=None)
@given(random_models(), st.sampled_from(["pieces", "none", 1, 3]))
def test_any_model_computes_what_the_whole_does(tmp_path_factory, model, coarsen):
    path = models.save(model, tmp_path_factory.mktemp("models") / "m.onnx")
    check_equal(path, dp.from_onnx(path, coarsen=coarsen), x=models.random(4, 4))
