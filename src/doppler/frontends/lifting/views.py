"""Views: calls that rearrange a tensor's axes, or pick a part of one, and compute nothing."""

import operator
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from doppler.frontends.nodes import arguments, op_name, tensors_of

_SAME = frozenset({"alias", "clone", "contiguous", "detach", "lift_fresh_copy"})
_RESHAPES = frozenset(
    {"view", "_unsafe_view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze"}
    | {"view_copy", "ravel"}
)


@dataclass(frozen=True, slots=True)
class TensorView:
    """What a view does; axes of size 1 come and go freely."""

    source: Node
    order: tuple[int, ...] | None = None  # dimensions of the source, in another order
    expands: bool = False
    dim: int | None = None  # of the source: cut into `count` equal parts, of which one is left
    count: int = 1
    index: int = 0
    selects: bool = False  # the dimension is gone


def view_of(node: Node) -> TensorView | None:
    """What a node does if it is a view; None else."""
    if node.target is operator.getitem:
        return _part_of(node)
    name = op_name(node)
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or not _is_static(node) or not _is_static(source):
        return None
    if name in _SAME | _RESHAPES:
        if name == "view" and _is_other_dtype(node, source):
            return None
        return TensorView(source)
    given = dict(arguments(node))
    rank = len(_shape(source))
    if name == "expand":
        return TensorView(source, expands=True)
    if name in ("permute", "transpose", "t"):
        return TensorView(source, order=_order(name, given, rank))
    if name == "select":
        dim = given["dim"] % rank
        size = _shape(source)[dim]
        return TensorView(source, dim=dim, count=size, index=given["index"] % size, selects=True)
    if name == "slice" and given["step"] == 1:
        dim = given["dim"] % rank
        size = _shape(source)[dim]
        start = given["start"] or 0
        return _aligned(source, dim, max(start + size, 0) if start < 0 else start, _shape(node))
    return None


def _part_of(node: Node) -> TensorView | None:
    """One of the parts that a dimension is split into."""
    split: Any = node.args[0]
    name, index = op_name(split), int(node.args[1])  # type: ignore[arg-type]
    if name not in ("split", "split_with_sizes", "chunk", "unbind") or not _is_static(node):
        return None
    source = split.args[0]
    if not _is_static(source):
        return None
    given = dict(arguments(split))
    dim = given["dim"] % len(_shape(source))
    if name == "unbind":
        size = _shape(source)[dim]
        return TensorView(source, dim=dim, count=size, index=index, selects=True)
    start = sum(int(t.shape[dim]) for t in tensors_of(split)[:index])
    return _aligned(source, dim, start, _shape(node))


def _aligned(source: Node, dim: int, start: int, shape: tuple[int, ...]) -> TensorView | None:
    """A part of a dimension that is one of several of its size."""
    size, whole = shape[dim], _shape(source)[dim]
    if not size or whole % size or start % size:
        return None
    return TensorView(source, dim=dim, count=whole // size, index=start // size)


def _order(name: str, given: dict[str, Any], rank: int) -> tuple[int, ...]:
    order = list(range(rank))
    if name == "permute":
        return tuple(d % rank for d in given["dims"])
    if name == "transpose" and rank:
        a, b = given["dim0"] % rank, given["dim1"] % rank
        order[a], order[b] = order[b], order[a]
    return tuple(reversed(order)) if name == "t" else tuple(order)


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(tensors_of(node)[0].shape)


def _is_static(node: Node) -> bool:
    found = tensors_of(node)
    one = len(found) == 1 and not isinstance(node.meta.get("val"), (list, tuple))
    return one and all(type(n) is int and n > 0 for n in found[0].shape)


def _is_other_dtype(node: Node, source: Node) -> bool:
    return tensors_of(node)[0].dtype != tensors_of(source)[0].dtype
