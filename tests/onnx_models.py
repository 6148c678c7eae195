"""Small ONNX models for tests, with random weights, and their outputs as onnxruntime computes them.

A module that imports this one is skipped where onnx or onnxruntime is not installed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

HEADER = '<ir_version: 8, opset_import: ["": 17]>'

MLP = (
    "mlp (float[4, 16] x) => (float[4, 8] y) {"
    " h = Gemm <transB=1> (x, w1, b1)  r = Relu(h)  m = MatMul(r, w2)  y = Add(m, b2) }",
    {"w1": (32, 16), "b1": (32,), "w2": (32, 8), "b2": (8,)},
)
CONVOLUTIONS = (
    "convolutions (float[batch, 3, 12, 12] image) => (float[batch, 5] scores) {"
    " a = Conv <pads=[1,1,1,1]> (image, k1, c1)  b = Relu(a)"
    " c = MaxPool <kernel_shape=[2,2], strides=[2,2]> (b)"
    " d = Conv <group=2, kernel_shape=[3,3]> (c, k2)  e = GlobalAveragePool(d)"
    " f = Flatten(e)  scores = Gemm(f, w, v) }",
    {"k1": (4, 3, 3, 3), "c1": (4,), "k2": (6, 2, 3, 3), "w": (6, 5), "v": (5,)},
)
# Four heads of eight; the shapes of its reshapes are computed, as exporters write them.
ATTENTION = (
    "attention (float[batch, seq, 32] x) => (float[batch, seq, 32] y) {"
    " q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)"
    " s = Shape(x)  zero = Constant <value = int64 {0}> ()  one = Constant <value = int64 {1}> ()"
    " b0 = Gather(s, zero)  s0 = Gather(s, one)  axis = Constant <value = int64[1] {0}> ()"
    " b1 = Unsqueeze(b0, axis)  s1 = Unsqueeze(s0, axis)"
    " heads = Constant <value = int64[2] {4, 8}> ()  shape = Concat <axis=0> (b1, s1, heads)"
    " qh = Reshape(q, shape)  kh = Reshape(k, shape)  vh = Reshape(v, shape)"
    " qt = Transpose <perm=[0,2,1,3]> (qh)  kt = Transpose <perm=[0,2,3,1]> (kh)"
    " vt = Transpose <perm=[0,2,1,3]> (vh)  l = MatMul(qt, kt)"
    " scale = Constant <value = float {0.3535534}> ()  z = Mul(l, scale)  p = Softmax(z)"
    " o = MatMul(p, vt)  t = Transpose <perm=[0,2,1,3]> (o)"
    " back = Constant <value = int64[3] {0, 0, 32}> ()  m = Reshape(t, back)"
    " n = MatMul(m, wo)  y = Add(n, x) }",
    {"wq": (32, 32), "wk": (32, 32), "wv": (32, 32), "wo": (32, 32)},
)
SPLIT = (
    "split (float[6, 8] x) => (float[6, 4] left, float[6, 4] right, float[6, 8] both) {"
    " h = MatMul(x, w)  a, b = Split <axis=1> (h, sizes)  left = MatMul(a, u)"
    " right = MatMul(b, u)  both = Concat <axis=1> (right, left) }",
    {"w": (8, 8), "u": (4, 4)},
)


def make(
    text: str, shapes: Mapping[str, tuple[int, ...]], header: str = HEADER, **more: Any
) -> Any:
    """The model of a text, with random initializers of these shapes, and other arrays."""
    model = onnx.parser.parse_model(header + text)
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        name: generator.standard_normal(shape).astype(np.float32) / 4
        for name, shape in shapes.items()
    }
    for name, array in {**arrays, **more}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def split() -> Any:
    """A model one of whose operations has two outputs."""
    return make(*SPLIT, sizes=np.array([4, 4]))


def save(model: Any, path: Path, **options: Any) -> Path:
    onnx.save(model, path, **options)
    return path


def reference(path: Path, **inputs: Any) -> dict[str, Any]:
    """What onnxruntime computes, of the whole model, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def random(*shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
