"""What ONNX nodes cost: floating-point operations of contractions, and bytes they touch."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from doppler.frontends.coarsen import peak_bytes
from doppler.frontends.onnx.protos import is_runnable, is_standard, reads_of, subgraphs
from doppler.frontends.onnx.tensor_types import TensorType, tensor_type

if TYPE_CHECKING:
    from doppler.frontends.onnx.folding import Walked

_PAST = {"Attention": 4, "MultiHeadAttention": 6, "GroupQueryAttention": 3}  # input: earlier keys
_MOST_TRIPS = 1_000_000  # a larger number of a loop stands for no limit

TypeOf = Callable[[str], TensorType | None]
Types = Sequence[TensorType | None]

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
# They read as much of their first operand as they return.
_GATHERS = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split", "Compress"})
_CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_ALSO_HEAVY = frozenset(
    {"TopK", "NonMaxSuppression", "Unique", "DFT", "STFT", "RoiAlign", "GridSample", "Resize"}
    | {"ScatterND", "ScatterElements", "CumSum"}
)


def _product(inputs: Types, outputs: Types, _: Any) -> float:
    """Of A (…, m, k) and B (…, k, n): 2 k for each element of the result."""
    return 2.0 * _size(outputs[0]) * (_shape(inputs[0])[-1:] or (1,))[0]


def _gemm(inputs: Types, outputs: Types, node: Any) -> float:
    transposed = next((each.i for each in node.attribute if each.name == "transA"), 0)
    inner = _shape(inputs[0])[0 if transposed else 1]
    return 2.0 * _size(outputs[0]) * inner


def _conv(inputs: Types, outputs: Types, _: Any) -> float:
    """With weights (channels out, channels in a group, …kernel)."""
    return 2.0 * _size(outputs[0]) * prod(_shape(inputs[1])[1:])


def _quantized_conv(inputs: Types, outputs: Types, _: Any) -> float:
    return 2.0 * _size(outputs[0]) * prod(_shape(inputs[3])[1:])


def _conv_transpose(inputs: Types, _: Types, __: Any) -> float:
    return 2.0 * _size(inputs[0]) * prod(_shape(inputs[1])[1:])


def _attention(inputs: Types, outputs: Types, node: Any) -> float:
    """Of Q, K, V and a past: scores and their product with V, as if nothing were masked."""
    keys = _shape(inputs[1] if inputs[1] is not None else inputs[0])[-2]
    past = _PAST[node.op_type]
    if len(inputs) > past and inputs[past] is not None:
        keys += _shape(inputs[past])[-2]
    return 2.0 * keys * (_size(inputs[0]) + _size(outputs[0]))


def _packed_attention(inputs: Types, outputs: Types, _: Any) -> float:
    """Of x (batch, s, d) and weights (d, 3 d): the projections too."""
    rows, sequence = _size(inputs[0]), _shape(inputs[0])[-2]
    return 2.0 * rows * _shape(inputs[1])[-1] + 4.0 * sequence * _size(outputs[0])


def _recurrent(inputs: Types, _: Types, __: Any) -> float:
    """Of x (steps, batch, …), and weights of inputs and of states, for all directions."""
    steps, batch = _shape(inputs[0])[:2]
    return 2.0 * steps * batch * (_size(inputs[1]) + _size(inputs[2]))


def _einsum(inputs: Types, outputs: Types, node: Any) -> float:
    """As many multiplications and additions as there are values of all indices together."""
    equation = next((each.s.decode("utf-8", "replace") for each in node.attribute), "")
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    spread = 1
    for term, kind in zip(terms, inputs, strict=False):
        shape = _shape(kind)
        before, dots, after = term.partition("...")
        sizes |= dict(zip(before, shape, strict=False))
        sizes |= dict(zip(reversed(after), reversed(shape), strict=False))
        if dots:
            spread = max(spread, prod(shape[len(before) : len(shape) - len(after)]))
    return 2.0 * max(len(terms) - 1, 0) * prod(sizes.values()) * spread


_FLOPS: dict[str, Callable[[Types, Types, Any], float]] = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _product),
    **dict.fromkeys(("FusedMatMul", "MatMulNBits", "MatMulIntegerToFloat"), _product),
    **dict.fromkeys(("Gemm", "FusedGemm"), _gemm),
    **dict.fromkeys(("Conv", "ConvInteger", "FusedConv", "DeformConv"), _conv),
    "QLinearConv": _quantized_conv,
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(("MultiHeadAttention", "GroupQueryAttention"), _attention),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Einsum": _einsum,
}
_PRODUCTS = frozenset(
    {"MatMul", "Gemm", "Einsum", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "FusedGemm"}
)


class OnnxCosts:
    """Costs of the nodes of a model."""

    def __init__(self, walked: "Walked", opsets: Any) -> None:
        self._walked, self._opsets = walked, opsets

    def is_heavy(self, node: Any) -> bool:
        """Whether a node is work enough for a piece of its own."""
        heavy = node.op_type in _FLOPS or node.op_type in _CONTROL | _ALSO_HEAVY
        return heavy or node.op_type == "Attention" or not is_runnable(node, self._opsets)

    def flops(self, node: Any) -> float:
        """Floating-point operations of contractions; of control flow, those of its bodies."""
        if node.op_type in _CONTROL:
            whole = self._walked.inferred.get(id(node))
            if whole is None:  # of another domain, whatever it is called
                return 0.0
            bodies = [_body_flops(body, _types_in(whole)) for body in subgraphs(whole.node[0])]
            return self._trips(node) * max(bodies, default=0.0)
        return node_flops(node, self._walked.tensor)

    def touched_bytes(self, node: Any) -> float:
        """Bytes of all tensors that a node reads and writes; none, where it is a view."""
        if is_view(node):
            return 0.0
        written = sum(self._bytes(name) for name in node.output)
        read = [self._bytes(name) for name in reads_of(node)]
        if read and node.op_type in _GATHERS:
            read[0] = min(read[0], written)
        return float(written + sum(read))

    def temporary_bytes(self, nodes: Sequence[Any], outputs: Sequence[str]) -> float:
        """The most bytes of tensors that are neither read from outside nor returned, at a time."""
        root: dict[str, str] = {}  # a view lives in the memory of its operand
        last: dict[str, int] = {}
        for i, node in enumerate(nodes):
            if is_view(node):
                root[node.output[0]] = root.get(node.input[0], node.input[0])
            for name in (*node.output, *reads_of(node)):
                last[root.get(name, name)] = i
        kept = {root.get(name, name) for name in outputs}
        sizes, ends = [], []
        for i, node in enumerate(nodes):
            inner = [n for n in node.output if n and n not in kept and n not in root]
            sizes.append(float(sum(map(self._bytes, inner))))
            ends.append(max((last[name] for name in inner), default=i))
        return peak_bytes(sizes, ends)

    def kind(self, node: Any) -> str:
        """The kind of a piece, by its heaviest node."""
        return "matmul" if node.op_type in _PRODUCTS else node.op_type.lower()

    def _bytes(self, name: str) -> int:
        found = self._walked.tensor(name)
        return 0 if found is None else found.bytes

    def _trips(self, node: Any) -> int:
        """How often a body runs, where that is known; else once."""
        if node.op_type == "Loop" and node.input[0] in self._walked.constants:
            count = int(self._walked.constants[node.input[0]].array().item())
            return max(count, 0) if count <= _MOST_TRIPS else 1
        if node.op_type == "Scan":
            count = next((each.i for each in node.attribute if each.name == "num_scan_inputs"), 0)
            first = self._walked.tensor(node.input[-count]) if count else None
            return first.shape[0] if first is not None and first.shape else 1
        return 1


def is_view(node: Any) -> bool:
    """Whether a node gives its operand another shape, and no other values."""
    return is_standard(node) and node.op_type in VIEWS


def node_flops(node: Any, type_of: TypeOf) -> float:
    """Floating-point operations of a contraction; 0 of what is none."""
    inputs = [type_of(name) if name else None for name in node.input]
    outputs = [type_of(name) if name else None for name in node.output]
    rule = _FLOPS.get(node.op_type)
    if node.op_type == "Attention":
        rule = _attention if is_standard(node) else _packed_attention
    try:
        return 0.0 if rule is None else float(rule(inputs, outputs, node))
    except (IndexError, ValueError):  # of a shape that is not known, or none at all
        return 0.0


def _body_flops(graph: Any, outside: Mapping[str, TensorType | None]) -> float:
    """Of a subgraph whose types were inferred; what is not inferred there is not counted."""
    types = {**outside, **_types_in(graph)}
    total = 0.0
    for node in graph.node:
        total += node_flops(node, types.get)
        total += max((_body_flops(inner, types) for inner in subgraphs(node)), default=0.0)
    return total


def _types_in(graph: Any) -> dict[str, TensorType | None]:
    values = (*graph.value_info, *graph.input, *graph.output)
    found = {value.name: tensor_type(value.type, unknown=1) for value in values}
    for tensor in graph.initializer:
        found[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
    return found


def _shape(kind: TensorType | None) -> tuple[int, ...]:
    return () if kind is None else kind.shape


def _size(kind: TensorType | None) -> int:
    return 0 if kind is None else kind.size
