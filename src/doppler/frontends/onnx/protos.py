"""Files of ONNX models: parsed, bounded and checked before anything is computed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doppler.base.files import source_name
from doppler.errors import DopplerError, FormatError, MissingExtraError, ModelError
from doppler.frontends.model_files import why
from doppler.frontends.onnx.tensor_data import Weight, check_inside, weight_of
from doppler.frontends.onnx.tensor_types import TensorType, filled, is_element

MIN_OPSET = 13
_MAX_OPSET = 1 << 30  # that onnx takes for a number
CONTRIBUTED = "com.microsoft"  # domain of onnxruntime's own operations
UNKNOWN = "unknown"  # domain of operations that are in no standard
_STANDARD = ("", "ai.onnx")
_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
    | {"Multinomial", "Bernoulli"}
)
_MAX_FILE_BYTES = (1 << 31) - 1  # of a protobuf message
_MAX_DEPTH = 64  # functions that call each other


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxLimits:
    """How large a model may be.

    >>> OnnxLimits().max_nodes
    100000
    """

    max_nodes: int = 100_000  # with those of functions, wherever these are called
    max_folded_bytes: int = 1 << 30  # of all tensors computed ahead, beside as many as weights have
    max_folded_flops: float = 1e12  # of all that is computed ahead


@dataclass(frozen=True, slots=True)
class Source:
    """A model that was read and checked, its initializers apart."""

    nodes: tuple[Any, ...]  # NodeProtos that results depend on, in order
    inputs: Mapping[str, Any]  # TypeProto by name, with all sizes
    outputs: tuple[str, ...]
    weights: Mapping[str, Weight]  # initializers by name
    declared: Mapping[str, Any]  # TypeProtos that the file gives for values, by name
    opsets: tuple[Any, ...]  # OperatorSetIdProtos
    ir_version: int


def read_proto(path: str | Path) -> Any:
    """The ModelProto in a file, without external data."""
    onnx, source = load_onnx(), source_name(path)
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise FormatError(f"{source} is no regular file")
        if Path(path).stat().st_size > _MAX_FILE_BYTES:
            raise FormatError(
                f"{source} is larger than 2 GiB, which no ONNX file is",
                hint="save it with external data: onnx.save(model, path, save_as_external_data=…)",
            )
        model = onnx.ModelProto.FromString(Path(path).read_bytes())
    except FileNotFoundError:
        raise FormatError(f"no file {source}", hint="check the path") from None
    except (OSError, ValueError) as error:
        if isinstance(error, DopplerError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"cannot read {source}: {reason}") from None
    except Exception as error:  # protobuf's own
        raise FormatError(
            f"{source} is no ONNX model, or was cut off: {why(error)}",
            hint="an ONNX model is what onnx.save and torch.onnx.export write",
        ) from None
    if not model.HasField("graph") or not model.graph.node:
        raise FormatError(f"{source} is no ONNX model: it has no graph, or one without nodes")
    return model


def read_source(path: str | Path, dims: Mapping[str, int], limits: OnnxLimits) -> Source:
    """The model in a file, with these sizes for its symbolic dimensions."""
    model = read_proto(path)
    graph = model.graph
    _check_opset(model)
    _check_size(model, limits)
    if graph.sparse_initializer:
        raise ModelError("the model has sparse initializers, which cannot be imported")
    weights = {}
    for tensor in graph.initializer:
        if tensor.name in weights:
            raise FormatError(f"two initializers have the name `{tensor.name[:80]}`")
        weights[tensor.name] = weight_of(tensor, Path(path), "initializer")
    inputs = _inputs(graph, weights, dims)
    _strip(model, weights)
    model = _checked(model)
    nodes, outputs = tuple(model.graph.node), tuple(value.name for value in model.graph.output)
    for node in nodes:
        _check_node(node, f"node `{node_name(node)}`")
    return Source(
        nodes=_needed(nodes, outputs),
        inputs=inputs,
        outputs=outputs,
        weights=weights,
        declared=_declared(model.graph, dims),
        opsets=tuple(model.opset_import),
        ir_version=model.ir_version,
    )


def load_onnx() -> Any:
    """The module onnx, with what is needed of it."""
    try:
        import onnx
        import onnx.inliner
        import onnx.shape_inference
        import onnxruntime  # noqa: F401
    except ImportError:
        raise MissingExtraError("onnx and onnxruntime", "an ONNX model", extra="onnx") from None
    return onnx


def node_name(node: Any) -> str:
    """What a node is called: by its own name, else by that of its first output."""
    return node.name or next((name for name in node.output if name), "") or node.op_type


def subgraphs(node: Any) -> Iterator[Any]:
    """The GraphProtos in a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def reads_of(node: Any) -> list[str]:
    """The values that a node reads, those that its subgraphs take from outside too, in order."""
    found = dict.fromkeys(name for name in node.input if name)
    for graph in subgraphs(node):
        found |= dict.fromkeys(_free_names(graph))
    return list(found)


def opset_of(opsets: Any, domain: str) -> int:
    """The version of a domain's operations that a model uses; 0 for none."""
    names = _STANDARD if domain in _STANDARD else (domain,)
    return max((each.version for each in opsets if each.domain in names), default=0)


def is_standard(node: Any) -> bool:
    """Whether a node's operation is one of ONNX itself."""
    return node.domain in _STANDARD


def _free_names(graph: Any) -> list[str]:
    own = {value.name for value in graph.input} | {value.name for value in graph.initializer}
    found: dict[str, None] = {}
    for node in graph.node:
        found |= dict.fromkeys(name for name in reads_of(node) if name not in own)
        own.update(node.output)
    found |= dict.fromkeys(value.name for value in graph.output if value.name not in own)
    return list(found)


def _check_opset(model: Any) -> None:
    opset = opset_of(model.opset_import, "")
    if not opset:
        raise FormatError("the model does not say which version of ONNX's operations it uses")
    if opset < MIN_OPSET:
        raise ModelError(
            f"the model uses opset {opset}, and {MIN_OPSET} or later is needed",
            hint="convert it: onnx.save(onnx.version_converter.convert_version("
            "onnx.load('model.onnx'), 17), 'new.onnx')",
        )
    newest = load_onnx().defs.onnx_opset_version()
    if opset > newest:
        raise ModelError(
            f"the model uses opset {opset}, and the installed onnx knows up to {newest}",
            hint="install a newer onnx and onnxruntime, or convert the model",
        )


def _check_size(model: Any, limits: OnnxLimits) -> None:
    """Raise if there are too many nodes, or functions call each other in a circle."""
    functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions}
    counts: dict[Any, int] = {}

    def count(nodes: Any, depth: int) -> int:
        if depth > _MAX_DEPTH:
            raise ModelError("the model's functions call each other too deeply, or in a circle")
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, getattr(node, "overload", ""))
            if key in functions:
                if key not in counts:
                    counts[key] = count(functions[key].node, depth + 1)
                total += counts[key]
            total += 1 + sum(count(graph.node, depth + 1) for graph in subgraphs(node))
            if total > limits.max_nodes:
                raise ModelError(f"the model has more than {limits.max_nodes} nodes")
        return total

    count(model.graph.node, 0)


def _inputs(graph: Any, weights: Mapping[str, Weight], dims: Mapping[str, int]) -> dict[str, Any]:
    """The types of inputs with all sizes, or an error that names those without."""
    found, used, missing = {}, dict[str, None](), dict[str, str]()
    for value in graph.input:
        if value.name in weights:
            continue
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value") or "unknown"
            raise ModelError(f"input `{value.name}` is a {kind}, and only tensors can be inputs")
        tensor = value.type.tensor_type
        if not is_element(tensor.elem_type):
            raise ModelError(f"input `{value.name}` is of element type {tensor.elem_type}")
        if not tensor.HasField("shape"):
            raise ModelError(f"input `{value.name}` has no shape")
        sizes = []
        for axis, size in enumerate(tensor.shape.dim):
            if size.HasField("dim_value"):
                if size.dim_value < 0:
                    raise FormatError(f"input `{value.name}` has the size {size.dim_value}")
                sizes.append(size.dim_value)
                continue
            name = size.dim_param or f"{value.name}.{axis}"
            used[name] = None
            if name not in dims:
                missing.setdefault(name, value.name)
            sizes.append(dims.get(name, 0))
        found[value.name] = filled(value.type, sizes)
    if missing:
        name, where = next(iter(missing.items()))
        values = " ".join(f"--dim {each}=…" for each in missing)
        raise ModelError(
            f"input `{where}` has the dimension `{name}`, which has no value",
            hint=f"give one: {values}; in Python, dims={{{name!r}: …}}",
        )
    if unknown := next((name for name in dims if name not in used), None):
        known = ", ".join(used) or "none"
        raise ModelError(f"the model has no dimension `{unknown}`", hint=f"it has: {known}")
    return found


def _strip(model: Any, weights: Mapping[str, Weight]) -> None:
    """Make initializers inputs of their types, and give operations that nobody knows a domain."""
    onnx, graph = load_onnx(), model.graph
    del graph.initializer[:]
    given = {value.name for value in graph.input}
    for name, weight in weights.items():
        if name not in given:
            graph.input.append(onnx.helper.make_value_info(name, weight.type.proto()))
    graph.ClearField("quantization_annotation")  # it names initializers
    opset = opset_of(model.opset_import, "")
    bodies = [graph.node, *(function.node for function in model.functions)]
    strange = [n for body in bodies for n in _all_nodes(body) if _is_strange(n, opset)]
    for node in strange:
        node.domain = UNKNOWN
    if strange:
        model.opset_import.append(onnx.helper.make_opsetid(UNKNOWN, 1))
        for function in model.functions:
            function.opset_import.append(onnx.helper.make_opsetid(UNKNOWN, 1))


def _is_strange(node: Any, opset: int) -> bool:
    return is_standard(node) and not has_schema(node, opset)


def has_schema(node: Any, opset: int) -> bool:
    """Whether ONNX knows a node's operation, of that version of its domain."""
    onnx = load_onnx()
    domain = "" if is_standard(node) else node.domain
    try:
        schema = onnx.defs.get_schema(node.op_type, min(max(opset, 1), _MAX_OPSET), domain)
    except onnx.defs.SchemaError:
        return False
    return not schema.deprecated


def is_runnable(node: Any, opsets: Any) -> bool:
    """Whether onnxruntime is known to have a node's operation, and those in its subgraphs."""
    known = node.domain == CONTRIBUTED or has_schema(node, opset_of(opsets, node.domain))
    return known and all(is_runnable(n, opsets) for g in subgraphs(node) for n in g.node)


def _all_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _all_nodes(graph.node)


def _checked(model: Any) -> Any:
    """The model as the checker of ONNX accepts it, with its functions where they are called."""
    onnx = load_onnx()
    try:
        onnx.checker.check_model(model)
        return onnx.inliner.inline_local_functions(model) if model.functions else model
    except Exception as error:  # of the checker, or of protobuf
        raise ModelError(f"the model is not valid: {why(error)}") from None


def _check_node(node: Any, where: str) -> None:
    if is_standard(node) and node.op_type in _RANDOM:
        raise ModelError(
            f"the model draws random numbers: {where} is a {node.op_type}",
            hint="export it in evaluation mode",
        )
    for attribute in node.attribute:
        check_inside([attribute.t, *attribute.tensors], where)
        if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
            raise ModelError(f"{where} has a sparse tensor, which cannot be imported")
    for graph in subgraphs(node):
        check_inside(graph.initializer, where)
        for inner in graph.node:
            _check_node(inner, where)


def _needed(nodes: tuple[Any, ...], outputs: tuple[str, ...]) -> tuple[Any, ...]:
    """The nodes that outputs depend on."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            kept.append(node)
            wanted.update(reads_of(node))
    return tuple(reversed(kept))


def _declared(graph: Any, dims: Mapping[str, int]) -> dict[str, Any]:
    """Types of values that the file gives, where all sizes are numbers or have values."""
    found = {}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            continue
        sizes = [
            d.dim_value if d.HasField("dim_value") else dims.get(d.dim_param, -1)
            for d in tensor.shape.dim
        ]
        if is_element(tensor.elem_type) and min(sizes, default=0) >= 0:
            found[value.name] = TensorType(tensor.elem_type, tuple(sizes)).proto()
    return found
