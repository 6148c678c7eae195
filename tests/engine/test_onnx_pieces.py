"""Pieces of ONNX models: what sessions run, and models that reach beyond themselves."""

import base64

import onnx_models as models
import pytest
import torch
from onnx_models import onnx

from doppler.engine.onnx_pieces import onnx_function
from doppler.errors import EngineError
from doppler.graph.graph import Kernel

RELU = "relu (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }"


def piece(model, *, inputs=(0,), outputs=1, **more):
    text = model if isinstance(model, str) else base64.b64encode(model.SerializeToString()).decode()
    attributes = {"model": text, **more}
    return Kernel("onnx", inputs, ((2, 3),) * outputs, ("float32",) * outputs, attributes)


def test_tensors_are_handed_over():
    run = onnx_function(piece(models.make(RELU, {})))
    x = torch.randn(3, 2).T  # not contiguous
    (y,) = run(x)
    assert torch.equal(y, x.relu())
    (none,) = onnx_function(
        piece(models.make("e (float[0, 3] x) => (float[0, 3] y) { y = Relu(x) }", {}))
    )(torch.empty(0, 3))
    assert none.shape == (0, 3)


def test_kernels_with_the_same_model_share_a_session():
    from doppler.engine.onnx_pieces import _session

    kernel = piece(models.make(RELU, {}))
    onnx_function(kernel)
    before = _session.cache_info().currsize
    onnx_function(piece(kernel.attributes["model"]))
    assert _session.cache_info().currsize == before


def test_what_is_missing_is_named():
    kernel = piece(models.make(RELU, {}), missing=["operation `acme.Shuffle`"])
    with pytest.raises(EngineError, match=r"needs operation `acme\.Shuffle`"):
        onnx_function(kernel)


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "needs a `model`"), ("§", "not in base64"), ("AAAA", "cannot be read|inputs")],
)
def test_what_is_no_model(text, why):
    with pytest.raises(EngineError, match=why):
        onnx_function(Kernel("onnx", (0,), ((2, 3),), ("float32",), {"model": text}))


def test_slots_must_fit_the_model():
    with pytest.raises(EngineError, match="1 inputs and 1 outputs, the kernel 2 and 1"):
        onnx_function(piece(models.make(RELU, {}), inputs=(0, 1)))


def test_a_model_may_not_reach_beyond_itself():
    model = models.make("m (float[2, 3] x) => (float[2, 3] y) { y = Add(x, w) }", {"w": (2, 3)})
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "/etc/passwd", 0, 24)
    with pytest.raises(EngineError, match="data in another file"):
        onnx_function(piece(model))
    for domain, op in (("acme", "Relu"), ("com.microsoft", "EPContext")):
        model = models.make(RELU, {})
        model.graph.node[0].domain, model.graph.node[0].op_type = domain, op
        with pytest.raises(EngineError, match=f"operation `{domain}.{op}`, which it may not"):
            onnx_function(piece(model))


def test_what_onnxruntime_refuses_is_an_error_of_the_engine():
    model = models.make(RELU, {})
    model.graph.node[0].op_type = "NoSuchThing"
    with pytest.raises(EngineError, match="onnxruntime cannot run it"):
        onnx_function(piece(model))


def test_a_gpu_needs_a_provider():
    from doppler.engine.onnx_pieces import _session

    if "CUDAExecutionProvider" in models.onnxruntime.get_available_providers():
        pytest.skip("there is one")
    kernel = piece(models.make(RELU, {}))
    with pytest.raises(EngineError, match="no provider for GPUs"):
        _session(kernel.attributes["model"], ("cuda:0", 1, 0))
