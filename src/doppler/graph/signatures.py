"""Signatures: texts that vertices share where they run the same code on the same shapes."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any

from doppler.base.arrays import rows
from doppler.errors import GraphError
from doppler.graph.graph import Graph, Kernel
from doppler.graph.ops import OpKind

LONGEST = 120  # characters of a signature, its hash not counted

Described = tuple[tuple[int, ...] | None, str]  # shape and dtype of a tensor

_PLAIN_MATMUL = ((0, 2), (2, 1))
_KNOWN = frozenset(
    {"fn", "operands", "axes", "modules"}
    | {"block", "result", "results", "value", "above", "scale", "shift"}
)  # attributes that are spelled out, and those that cost no time


def signature(kernel: Kernel, inputs: Sequence[Described]) -> str:
    """What a kernel does to inputs of these shapes and dtypes, in a line.

    >>> kernel = Kernel("formation", (0, 1), ((8, 4),), ("float32",), {"fn": "sum"})
    >>> signature(kernel, [((8, 4), "float32"), ((8, 4), "float32")])
    'formation sum 2*8x4 -> 8x4 float32'

    Kernels have the same one exactly where they run the same code on the same shapes and dtypes.
    Where a block lies, what it is a result of and the values of numbers do not matter. A hash at
    the end stands for what is not spelled out: an order of axes, pieces of operands.
    """
    return _text(kernel, tuple(inputs), _layout(kernel))


def signatures(graph: Graph) -> tuple[str, ...]:
    """(V,) the signature of every vertex; empty for inputs and for vertices without a kernel."""
    if not graph.kernels:
        return ("",) * graph.num_vertices
    described, found = _described(graph), [""] * graph.num_vertices
    texts: dict[Any, str] = {}
    for v in graph.assigned.tolist():
        kernel = graph.kernels[v]
        if kernel is None:
            continue
        inputs = tuple([described[t] for t in kernel.inputs])
        try:
            layout, fn = _layout(kernel), kernel.attributes.get("fn")
            key = (kernel.op, fn, kernel.shapes, kernel.dtypes, inputs, layout)
            text = texts.get(key)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            raise GraphError(
                f"the kernel of `{graph.vertex_names[v]}` has attributes that make no sense"
            ) from None
        if text is None:
            text = texts[key] = _text(kernel, inputs, layout)
        found[v] = text
    return tuple(found)


def first_diagonal_above(kernel: Kernel) -> int:
    """The first diagonal of a fill's block that lies above that of the whole tensor.

    Counted as numpy's `triu` does. A block of r × c elements lies above altogether where it is at
    most 1 - r, and below or on the diagonal where it is at least c.
    """
    (top, _), (left, _) = (kernel.attributes.get("block") or [(0, 0), (0, 0)])[-2:]
    return int(top) - int(left) + 1


def _described(graph: Graph) -> list[Described]:
    """(T,) shape and dtype of every tensor; its bytes, where no kernel makes it."""
    described: dict[int, Described] = {}
    outputs = rows(graph.output_ptr, graph.output_tensor)
    for kernel, made in zip(graph.kernels, outputs, strict=True):
        if kernel is not None:
            described.update(zip(made, zip(kernel.shapes, kernel.dtypes, strict=True), strict=True))
    sizes = enumerate(graph.tensor_bytes.tolist())
    return [described.get(t) or (None, f"{size:.15g}B") for t, size in sizes]


def _layout(kernel: Kernel) -> tuple[Any, ...]:
    """What matters beside the function, shapes and dtypes; empty if all is in its plain order."""
    attributes = kernel.attributes
    operands, axes = attributes.get("operands", ()), attributes.get("axes", ())
    if kernel.op == OpKind.SELECT:  # where it puts its pieces is all there is
        return tuple([piece for operand in operands for piece in _pieces(operand["pieces"])])
    if kernel.op == OpKind.FILL:
        return _triangle(kernel)
    layout: list[Any] = []
    if list(operands) != list(range(len(operands))):
        layout.append(("operands", tuple([_operand(operand) for operand in operands])))
    order = tuple([tuple(one) for one in axes])
    if order != _PLAIN_MATMUL if kernel.op == OpKind.MATMUL else not _is_straight(order):
        layout.append(("axes", order))
    if others := attributes.keys() - _KNOWN:
        layout += [(name, _hashable(attributes[name])) for name in sorted(others)]
    return tuple(layout)


def _is_straight(order: tuple[tuple[int | None, ...], ...]) -> bool:
    return all(one == tuple(range(len(one))) for one in order)


def _triangle(kernel: Kernel) -> tuple[Any, ...]:
    """Whether the diagonal crosses a fill's block, and it has to set more than zeros then."""
    if "above" not in kernel.attributes:
        return ()
    rows, columns = kernel.shapes[0][-2:]
    crossed = 1 - rows < first_diagonal_above(kernel) < columns
    return ("triangle", float(kernel.attributes["value"]) == 0) if crossed else ()


def _operand(operand: Any) -> Any:
    if isinstance(operand, int):
        return operand
    return tuple(operand["shape"]), _pieces(operand["pieces"])


def _pieces(pieces: Any) -> tuple[Any, ...]:
    """Slot, size and place of each piece; where it is taken from costs nothing."""
    return tuple(
        [
            (slot, tuple([high - low for low, high in part]), tuple(place))
            for slot, part, place in pieces
        ]
    )


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple([(name, _hashable(inner)) for name, inner in sorted(value.items())])
    return tuple([_hashable(v) for v in value]) if isinstance(value, (list, tuple)) else value


def _text(kernel: Kernel, inputs: tuple[Described, ...], layout: tuple[Any, ...]) -> str:
    words = [kernel.op]
    if fn := kernel.attributes.get("fn"):
        words.append(str(fn))
    dtype = kernel.dtypes[0] if kernel.dtypes else ""
    for one, group in groupby(_sizes(inputs, dtype)):
        count = len(list(group))
        words.append(one if count == 1 else f"{count}*{one}")
    outputs = _sizes(zip(kernel.shapes, kernel.dtypes, strict=True), dtype)
    text = " ".join([*words, "->", *outputs, dtype]).rstrip()
    if not layout and len(text) <= LONGEST:
        return text
    hashed = blake2b(repr((text, layout)).encode(), digest_size=6).hexdigest()
    return f"{text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'} #{hashed}"


def _sizes(tensors: Any, dtype: str) -> list[str]:
    """Tensors as texts such as `8x4`, with their dtype where it is another one."""
    return [
        own if shape is None
        else ("x".join(map(str, shape)) or "scalar") + ("" if own == dtype else f":{own}")
        for shape, own in tensors
    ]  # fmt: skip
