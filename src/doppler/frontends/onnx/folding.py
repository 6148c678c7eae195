"""The walk over a model's nodes: types are inferred, what no input reaches is computed ahead.

Every node is inferred as a model of its own, with the values of small constants. Sizes of tensors
are constants, so shapes that a model computes come out as numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from doppler.errors import MissingExtraError, ModelError
from doppler.frontends.model_files import why
from doppler.frontends.onnx.op_costs import node_flops
from doppler.frontends.onnx.protos import (
    CONTRIBUTED,
    OnnxLimits,
    Source,
    is_runnable,
    is_standard,
    load_onnx,
    node_name,
    reads_of,
    subgraphs,
)
from doppler.frontends.onnx.small_models import ModelWriter, SmallModel
from doppler.frontends.onnx.tensor_data import Weight, weight_of
from doppler.frontends.onnx.tensor_types import (
    FLOAT32,
    FLOATS,
    INT64,
    TensorType,
    is_whole,
    tensor_type,
)

UNKNOWN_SIZE = 8  # of a dimension that depends on values
_MAX_EMBEDDED_BYTES = 1024  # of a constant that pieces hold themselves


@dataclass(frozen=True, slots=True)
class Walked:
    """A model's live nodes, and what is known of all values."""

    nodes: tuple[Any, ...]  # live NodeProtos, in order
    types: Mapping[str, Any]  # TypeProto by value, with all sizes where it is a tensor
    guessed: frozenset[str]  # values whose types rest on a guess
    constants: Mapping[str, Weight]  # initializers, and what was computed ahead
    inferred: Mapping[int, Any] = field(repr=False)  # GraphProtos with types, by id of a node

    def tensor(self, name: str) -> TensorType | None:
        """The type of a value; None where it is no tensor of numbers."""
        return tensor_type(self.types.get(name))

    def is_embedded(self, name: str) -> bool:
        """Whether pieces hold a value themselves: a small constant that says how, not with what."""
        weight = self.constants.get(name)
        if weight is None or weight.type.bytes > _MAX_EMBEDDED_BYTES:
            return False
        return weight.type.element not in FLOATS or weight.type.size <= 1


def walk(source: Source, limits: OnnxLimits) -> Walked:
    """The live part of a model, and the values of the rest."""
    return _Walk(source, limits).walked()


class _Walk:
    def __init__(self, source: Source, limits: OnnxLimits) -> None:
        self._source = source
        self._bytes_left = limits.max_folded_bytes
        self._bytes_left += sum(weight.type.bytes for weight in source.weights.values())
        self._flops_left = limits.max_folded_flops
        self._writer = ModelWriter(source)
        self._types: dict[str, Any] = dict(source.inputs)
        self._constants: dict[str, Weight] = dict(source.weights)
        self._types |= {name: weight.type.proto() for name, weight in source.weights.items()}
        self._guessed: set[str] = set()
        self._inferred: dict[bytes, Any] = {}  # GraphProtos with types, by small model
        self._by_node: dict[int, Any] = {}

    def walked(self) -> Walked:
        live = []
        for node in self._source.nodes:
            if not self._fold(node):
                self._infer(node)
                live.append(node)
        return Walked(
            nodes=tuple(live),
            types=self._types,
            guessed=frozenset(self._guessed),
            constants=self._constants,
            inferred=self._by_node,
        )

    def _fold(self, node: Any) -> bool:
        """Compute a node ahead, if no input of the model reaches it."""
        op = node.op_type if is_standard(node) else ""
        if op == "Constant":
            self._keep(node, [_constant(node)])
            return True
        if op in ("Shape", "Size") and node.input[0] not in self._guessed:
            known = self._known(node.input[0])
            if known is not None:
                self._keep(node, [_sizes(node, known)])
                return True
        if not all(name in self._constants for name in reads_of(node)) or any(subgraphs(node)):
            return False  # a loop over constants may run for ever
        if not is_runnable(node, self._source.opsets) or node.domain == CONTRIBUTED:
            return False
        self._infer(node)
        made = [self._known(name) for name in node.output if name]
        if None in made or not self._guessed.isdisjoint(node.output):
            return False
        self._spend(node, sum(kind.bytes for kind in made if kind is not None))
        self._keep(node, self._computed(node))
        return True

    def _spend(self, node: Any, num_bytes: int) -> None:
        """Count what it takes to compute a node ahead; raise if that is too much."""
        flops = node_flops(node, self._known)
        self._bytes_left -= num_bytes
        self._flops_left -= flops
        if self._bytes_left < 0 or self._flops_left < 0:
            raise ModelError(
                f"node `{node_name(node)}` ({node.op_type}) makes a constant of {num_bytes} bytes "
                f"by {flops:.3g} operations, and more than may be computed ahead by now"
            )

    def _known(self, name: str) -> TensorType | None:
        return tensor_type(self._types.get(name))

    def _keep(self, node: Any, values: list[Weight]) -> None:
        for name, value in zip((n for n in node.output if n), values, strict=True):
            value.name = name
            self._constants[name] = value
            self._types[name] = value.type.proto()

    def _small(self, node: Any, outputs: list[str] | None = None) -> SmallModel:
        constants = {
            name: self._constants[name].proto()
            for name in reads_of(node)
            if name in self._constants and self._constants[name].type.bytes <= _MAX_EMBEDDED_BYTES
        }
        return self._writer.write(
            [node], self._types.__getitem__, embedded=constants, outputs=outputs
        )

    def _infer(self, node: Any) -> None:
        """Find the types of what a node makes, by a guess where they cannot be known."""
        found: dict[str, Any] = {}
        is_guess = any(name in self._guessed for name in reads_of(node))
        if is_runnable(node, self._source.opsets) and node.domain != CONTRIBUTED:
            try:
                graph = self._inferred_graph(node)
            except Exception as error:  # of onnx, or of protobuf
                if not is_guess:
                    raise ModelError(
                        f"node `{node_name(node)}` ({node.op_type}) does not fit its inputs: "
                        f"{why(error)}"
                    ) from None
            else:
                self._by_node[id(node)] = graph
                typed = {value.name: value.type for value in graph.value_info}
                own = dict(zip(node.output, graph.node[0].output, strict=True))
                found = {name: typed[inner] for name, inner in own.items() if inner in typed}
        for k, name in enumerate(node.output):
            if name:
                self._settle(node, k, found.get(name), is_guess=is_guess)

    def _inferred_graph(self, node: Any) -> Any:
        """The GraphProto of a node alone, with the types of all that is in it."""
        small = self._small(node)
        key = small.data()
        if key not in self._inferred:
            infer = load_onnx().shape_inference.infer_shapes
            self._inferred[key] = infer(small.proto, strict_mode=True, data_prop=True).graph
        return self._inferred[key]

    def _settle(self, node: Any, k: int, proto: Any, *, is_guess: bool) -> None:
        """Note the type of output k: as inferred, else as the file gives it, else a guess."""
        name = node.output[k]
        is_tensor = proto is None or not proto.WhichOneof("value") or proto.HasField("tensor_type")
        if (
            not is_tensor
            or (proto is not None and proto.tensor_type.elem_type == _STRING)
            or is_whole(proto)
        ):
            self._types[name] = proto
        elif name in self._source.declared:
            self._types[name] = self._source.declared[name]
        else:
            is_guess = True
            like = self._like(node, k)
            element = proto.tensor_type.elem_type if proto is not None else 0
            inferred = tensor_type(proto, unknown=UNKNOWN_SIZE)
            shape = inferred.shape if inferred else like.shape
            self._types[name] = TensorType(element or like.element, shape).proto()
        if is_guess:
            self._guessed.add(name)

    def _like(self, node: Any, k: int) -> TensorType:
        """The input that output k is most likely to have the type of: of a loop, its state."""
        inputs = node.input[2 + k :] if node.op_type == "Loop" else node.input
        known = (self._known(name) for name in inputs)
        return next((kind for kind in known if kind is not None), TensorType(FLOAT32, ()))

    def _computed(self, node: Any) -> list[Weight]:
        """What a node makes of constants, as onnxruntime computes it."""
        names = [name for name in node.output if name]
        small = self._small(node, names)
        try:
            return _run(small, [self._constants[name] for name in small.inputs])
        except MissingExtraError:
            raise
        except Exception as error:  # of onnxruntime
            raise ModelError(
                f"node `{node_name(node)}` ({node.op_type}), which is constant, cannot be computed:"
                f" {why(error)}"
            ) from None


_STRING = 8  # TensorProto.STRING


def _is_other(proto: Any) -> bool:
    """Whether a type is known, and not that of a tensor of numbers."""
    if proto is None or not proto.WhichOneof("value"):
        return False
    return not proto.HasField("tensor_type") or proto.tensor_type.elem_type == _STRING


def _run(small: SmallModel, inputs: list[Weight]) -> list[Weight]:
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtValue

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        small.data(), options, providers=["CPUExecutionProvider"]
    )
    names, results = [v.name for v in session.get_inputs()], [v.name for v in session.get_outputs()]
    arrays = [np.ascontiguousarray(weight.array()) for weight in inputs]  # to outlive the run
    given = {
        name: OrtValue.ortvalue_from_numpy_with_onnx_type(array, weight.type.element)
        for name, array, weight in zip(names, arrays, inputs, strict=True)
    }
    made = session._sess.run_with_ort_values(given, results, None)
    return [Weight("", TensorType(v.element_type(), tuple(v.shape())), _array(v)) for v in made]


def _array(value: Any) -> Any:
    """A result as an array, by way of torch where numpy has no such type."""
    from onnx import helper

    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(value.element_type()))
    if dtype.isbuiltin == 1:
        return value.numpy()
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", f"constants of dtype {dtype}", extra="torch") from None
    tensor = torch.utils.dlpack.from_dlpack(value.to_dlpack())
    return tensor.view(torch.uint8).numpy().view(dtype).reshape(tuple(value.shape())).copy()


def _sizes(node: Any, known: TensorType) -> Weight:
    """What Shape and Size make."""
    shape = known.shape
    if node.op_type == "Size":
        value: Any = np.array(known.size, np.int64)
    else:
        bounds = {each.name: each.i for each in node.attribute}
        value = np.array(shape[slice(bounds.get("start", 0), bounds.get("end"))], np.int64)
    return Weight("", TensorType(INT64, value.shape), value)


def _constant(node: Any) -> Weight:
    """What a Constant holds."""
    from pathlib import Path

    where = f"node `{node_name(node)}`"
    (attribute,) = node.attribute
    match attribute.name:
        case "value":
            return weight_of(attribute.t, Path(), where)
        case "value_float" | "value_floats":
            values = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            array = np.array(values, np.float32)
            return Weight("", TensorType(FLOAT32, array.shape), array)
        case "value_int" | "value_ints":
            values = attribute.i if attribute.name == "value_int" else list(attribute.ints)
            array = np.array(values, np.int64)
            return Weight("", TensorType(INT64, array.shape), array)
    raise ModelError(f"{where} is a Constant with the attribute `{attribute.name}`")
