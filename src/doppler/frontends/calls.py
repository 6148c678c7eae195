"""Nodes of an exported program as the calls of a piece, in the form that the engine runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from doppler.engine.pieces import FUNCTIONS
from doppler.errors import ModelError
from doppler.frontends.fold import owner
from doppler.frontends.nodes import aten, is_view

_NAMES = {function: name for name, function in FUNCTIONS.items()}
_RESHAPES = (aten.view.default, aten._unsafe_view.default)


@dataclass(frozen=True, slots=True)
class PieceCalls:
    """A piece: what it reads, calls and returns."""

    inputs: tuple[Node, ...]  # values in the input slots
    outputs: tuple[Node, ...]  # values that it returns
    calls: list[Any]
    returns: list[Any]


class CallWriter:
    """Writes pieces of one program; each makes the free calls that it needs itself."""

    def __init__(
        self, free: Iterable[Node], constants: Mapping[Node, Any], mutations: Mapping[Node, Node]
    ) -> None:
        self._free, self._constants, self._mutations = set(free), constants, mutations

    def piece(self, nodes: Sequence[Node], outputs: Sequence[Node]) -> PieceCalls:
        """The piece of these nodes, in the order of the program, that returns those values."""
        return _Writing(self._free, self._constants, self._mutations).piece(nodes, outputs)

    def reads(self, node: Node) -> list[Node]:
        """The tensors that a node reads, itself or by way of free calls, in order."""
        found: dict[Node, None] = {}
        pending = list(reversed(node.all_input_nodes))
        while pending:
            one = pending.pop()
            if owner(one) in self._free:
                pending += reversed(owner(one).all_input_nodes)
            elif one not in self._constants:
                found[one] = None
        return list(found)


class _Writing:
    """One piece that is being written."""

    def __init__(
        self, free: set[Node], constants: Mapping[Node, Any], mutations: Mapping[Node, Node]
    ) -> None:
        self._free, self._constants, self._mutations = free, constants, mutations
        self._slots: dict[Node, int] = {}
        self._at: dict[Node, int] = {}  # call by node
        self._calls: list[Any] = []
        self._own: set[Node] = set()

    def piece(self, nodes: Sequence[Node], outputs: Sequence[Node]) -> PieceCalls:
        """The piece of these nodes."""
        self._own = set(nodes)
        for node in nodes:
            self._write(node)
        written = [b for b, new in self._mutations.items() if owner(new) in self._own]
        returns = [self._returned(value, written) for value in outputs]
        for buffer in written:
            new = self._reference(self._mutations[buffer])
            self._calls.append(["aten.copy_.default", [self._reference(buffer), new], {}])
        return PieceCalls(tuple(self._slots), tuple(outputs), self._calls, returns)

    def _write(self, node: Node) -> None:
        args = [self._encoded(arg) for arg in node.args]
        kwargs = {name: self._encoded(arg) for name, arg in node.kwargs.items()}
        self._at[node] = len(self._calls)
        self._calls.append([call_name(node), args, kwargs])

    def _returned(self, value: Node, written: Sequence[Node]) -> Any:
        """A reference to an output; to a clone, if it shares memory that is about to change."""
        reference = self._reference(value)
        base = value
        while base in self._own and is_view(base):
            base = base.all_input_nodes[0]
        if base not in written:
            return reference
        self._calls.append(["aten.clone.default", [reference], {}])
        return {"at": len(self._calls) - 1}

    def _reference(self, node: Node) -> Any:
        maker = owner(node)
        if maker in self._free and maker not in self._at:
            self._write(maker)
        if maker in self._at:
            call = self._at[maker]
            return {"at": call} if node is maker else {"at": [call, node.args[1]]}
        return {"in": self._slots.setdefault(node, len(self._slots))}

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, Node):
            if value in self._constants:
                return self._encoded(self._constants[value])
            return self._reference(value)
        if isinstance(value, (list, tuple)):
            return [self._encoded(each) for each in value]
        return encoded(value)


def call_name(node: Node) -> str:
    """What a piece calls the operation of a node; views become reshapes, which take any strides."""
    target: Any = node.target
    if target in _RESHAPES:
        return "aten.reshape.default"
    if isinstance(target, torch._ops.OpOverload):
        return f"{target._schema.name.replace('::', '.')}.{target._overloadname}"
    if target in _NAMES:
        return _NAMES[target]
    raise ModelError(
        f"the model calls `{getattr(target, '__name__', target)}` at `{node.name}`, "
        "which cannot be imported"
    )


def encoded(value: Any) -> Any:
    """A constant argument as JSON."""
    if isinstance(value, (list, tuple)):
        return [encoded(each) for each in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": True}
    for kind in ("dtype", "layout", "memory_format"):
        if isinstance(value, getattr(torch, kind)):
            return {kind: str(value).removeprefix("torch.")}
    raise ModelError(f"the model calls an operation with {value!r}, which cannot be imported")
