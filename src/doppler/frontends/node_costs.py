"""What nodes cost: floating-point operations by torch's own counter, and bytes they touch."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from doppler.frontends.coarsen import peak_bytes
from doppler.frontends.fold import owner
from doppler.frontends.nodes import bytes_of, is_view, op_name, shape_of, size_of, tensors_of

# They read as much of their first operand as they return.
_GATHERS = frozenset({"embedding", "index", "index_select", "gather", "embedding_bag"})
_GATHERS_TOO = frozenset({"_embedding_bag", "select_scatter", "take_along_dim"})


class NodeCosts:
    """NodeCosts of nodes; what does the same to the same shapes is counted once."""

    def __init__(self) -> None:
        self._flops: dict[str, float] = {}

    def flops(self, node: Node) -> float:
        """Floating-point operations; 0 where torch's counter knows none.

        The node runs on the meta device: there composite operations fall apart into what the
        counter knows, whatever device they are for.
        """
        if is_view(node) or node.target is operator.getitem:
            return 0.0
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), _example)
        key = repr((str(node.target), tree_map(_described, args), tree_map(_described, kwargs)))
        if key not in self._flops:
            self._flops[key] = _counted(node.target, args, kwargs)
        return self._flops[key]

    def touched_bytes(self, node: Node) -> float:
        """Bytes of all tensors that a node reads and writes; none, where it is a view."""
        if is_view(node) or node.target is operator.getitem:
            return 0.0
        written = sum(map(bytes_of, tensors_of(node)))
        operands = [n for n in node.all_input_nodes if tensors_of(n)]
        read = [sum(map(bytes_of, tensors_of(n))) for n in operands]
        if read and op_name(node) in _GATHERS | _GATHERS_TOO:
            read[0] = min(read[0], written)
        return float(written + sum(read))


def temporary_bytes(nodes: Sequence[Node], outputs: Iterable[Node]) -> float:
    """The most bytes of tensors that are neither read from outside nor returned, at a time.

    Each goes after its last use in the piece; a view lives in the memory of its operand.
    """
    root: dict[Node, Node] = {}
    for node in nodes:
        base = node.all_input_nodes[0] if is_view(node) and node.all_input_nodes else node
        root[node] = root.get(owner(base), base) if base is not node else node
    kept = {root.get(owner(value), value) for value in outputs}
    last: dict[Node, int] = {}
    for i, node in enumerate(nodes):
        for read in (node, *node.all_input_nodes):
            if owner(read) in root:
                last[root[owner(read)]] = i
    sizes = {n: sum(map(bytes_of, tensors_of(n))) for n in nodes if root[n] is n and n not in kept}
    made = [float(sizes.get(node, 0)) for node in nodes]
    return peak_bytes(made, [last.get(node, i) for i, node in enumerate(nodes)])


def _counted(target: Any, args: Any, kwargs: dict[str, Any]) -> float:
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "meta"}
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad():
            target(*args, **kwargs)
    except Exception:  # what an operation that cannot run on shapes raises may be anything
        return 0.0
    return float(counter.get_total_flops())


def _example(node: Node) -> Any:
    return tree_map(_on_meta, node.meta.get("val"))


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty(shape_of(value), dtype=value.dtype, device="meta")
    return size_of(value) if isinstance(value, torch.SymInt) else value


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), str(value.dtype)
    return value
