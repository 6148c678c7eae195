"""Pieces of ONNX models: kernels that sessions of onnxruntime run.

Such a kernel has the op `onnx` and the attributes

- `model`: a ModelProto in base64, whose inputs are the input slots and whose outputs are those of
  the kernel, both in order;
- `missing`: what a run would need that cannot be had, such as an operation that nobody knows.

Tensors are handed over in place. There is a session for each model, and kernels with the same model
share it.
"""

import base64
import binascii
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from doppler.errors import EngineError, MissingExtraError
from doppler.graph.graph import Kernel

_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
_CLOSED_OPS = frozenset({"EPContext", "PythonOp", "PythonOpGrad", "ATen"})  # they reach beyond
_MAX_MODEL_BYTES = 1 << 26
_EXTERNAL = 1  # TensorProto.EXTERNAL


class _Model(NamedTuple):
    data: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class OnnxFunction:
    """The function of a piece: tensors in its input slots to those that it returns."""

    def __init__(self, text: str, model: _Model) -> None:
        self._text, self._model = text, model
        self._where: Any = None
        self._run: Any = None

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the piece returns, on the device of its first input."""
        where = _place_of(tensors[0]) if tensors else ("cpu", torch.get_num_threads(), 0)
        if where != self._where:
            session, value_type = _session(self._text, where)
            self._run = session._sess.run_with_ort_values, value_type, _run_options()
            self._where = where
        run, value_type, options = self._run
        given = {
            name: value_type.from_dlpack(*_exported(x))
            for name, x in zip(self._model.inputs, tensors, strict=True)
        }
        return tuple([_imported(v) for v in run(given, self._model.outputs, options)])


def onnx_function(kernel: Kernel) -> OnnxFunction:
    """The function of a piece, whose session is made now; an `EngineError` where it cannot be."""
    missing = kernel.attributes.get("missing")
    if missing:
        first = missing[0] if isinstance(missing, (list, tuple)) else missing
        raise EngineError(
            f"it needs {first}, which cannot be run",
            hint="a graph with such an operation can be placed and simulated, not run",
        )
    text = kernel.attributes.get("model")
    if not isinstance(text, str):
        raise EngineError("a piece of ONNX needs a `model` in base64")
    model = _model(text)
    found = (len(model.inputs), len(model.outputs))
    if found != (len(kernel.inputs), len(kernel.shapes)):
        raise EngineError(
            f"its model has {found[0]} inputs and {found[1]} outputs, "
            f"the kernel {len(kernel.inputs)} and {len(kernel.shapes)}"
        )
    _session(text, ("cpu", 1, 0))
    return OnnxFunction(text, model)


@lru_cache(maxsize=4096)
def _model(text: str) -> _Model:
    """The model in a text, which must keep to itself."""
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("onnx", "pieces of ONNX models", extra="onnx") from None
    if len(text) > _MAX_MODEL_BYTES:
        raise EngineError(f"the model of a piece is larger than {_MAX_MODEL_BYTES >> 20} MiB")
    try:
        data = base64.b64decode(text, validate=True)
        proto = onnx.ModelProto.FromString(data)
    except (binascii.Error, ValueError):
        raise EngineError("the model of a piece is not in base64") from None
    except Exception as error:  # protobuf's own
        raise EngineError(f"the model of a piece cannot be read: {error}") from None
    if proto.functions or proto.graph.sparse_initializer:
        raise EngineError("the model of a piece has functions or sparse initializers")
    _check_graph(proto.graph)
    inputs = [value.name for value in proto.graph.input]
    outputs = [value.name for value in proto.graph.output]
    return _Model(data, tuple(inputs), tuple(outputs))


def _check_graph(graph: Any) -> None:
    """Raise if a graph reaches beyond itself: to files, or to code."""
    for tensor in _tensors(graph):
        if tensor.data_location == _EXTERNAL:
            raise EngineError("the model of a piece has data in another file, which it may not")
    for node in graph.node:
        if node.domain not in _DOMAINS or node.op_type in _CLOSED_OPS:
            name = f"{node.domain or 'ai.onnx'}.{node.op_type}"
            raise EngineError(f"the model of a piece has the operation `{name}`, which it may not")
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _check_graph(inner)


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors


def _place_of(tensor: torch.Tensor) -> tuple[str, int, int]:
    """Where a session runs: on as many threads of the CPU, or on a GPU's stream."""
    if tensor.device.type == "cpu":
        return "cpu", torch.get_num_threads(), 0
    stream = torch.cuda.current_stream(tensor.device)
    return f"cuda:{tensor.device.index}", 1, int(stream.cuda_stream)


@lru_cache(maxsize=4096)
def _session(text: str, where: tuple[str, int, int]) -> tuple[Any, Any]:
    """A session for a model at a place, and the class of its values."""
    try:
        import onnxruntime
        from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue
    except ImportError:
        raise MissingExtraError("onnxruntime", "pieces of ONNX models", extra="onnx") from None
    device, threads, stream = where
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = ["CPUExecutionProvider"]
    if device != "cpu":
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise EngineError(
                "the installed onnxruntime has no provider for GPUs",
                hint="pip install onnxruntime-gpu in place of onnxruntime",
            )
        on_gpu = {"device_id": device.partition(":")[2], "user_compute_stream": str(stream)}
        providers.insert(0, ("CUDAExecutionProvider", on_gpu))
    try:
        session = onnxruntime.InferenceSession(_model(text).data, options, providers=providers)
    except Exception as error:  # onnxruntime's own
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EngineError(f"onnxruntime cannot run it: {first[:300]}") from None
    return session, OrtValue


@lru_cache(maxsize=1)
def _run_options() -> Any:
    """Options of all runs: tasks end when their stream says so, not the call."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    options.log_severity_level = 4
    return options


def _exported(x: torch.Tensor) -> tuple[Any, bool]:
    """A tensor as onnxruntime takes it, and whether its bytes are truth values."""
    x = x.detach().contiguous()
    if x.dtype is torch.bool:
        return x.view(torch.uint8).__dlpack__(), True
    return x.__dlpack__(), False


def _imported(value: Any) -> torch.Tensor:
    is_bool = value.data_type() == "tensor(bool)"
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(value.to_dlpack())
    return tensor.view(torch.bool) if is_bool else tensor
