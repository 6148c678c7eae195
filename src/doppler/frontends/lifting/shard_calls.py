"""Shards as the calls of a piece, in the form that the engine runs."""

import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from torch.fx import Node

from doppler.frontends.calls import call_name, encoded
from doppler.frontends.lifting.lift import Lifted, Value
from doppler.frontends.lifting.shards import REDUCE, Operand, Shard, Shards
from doppler.frontends.nodes import arguments, map_leaves, tensors_of

_FOLDS = {
    "add": "aten.add.Tensor",
    "mean": "aten.add.Tensor",
    "mul": "aten.mul.Tensor",
    "maximum": "aten.maximum.default",
    "minimum": "aten.minimum.default",
    "logical_or": "aten.logical_or.default",
    "logical_and": "aten.logical_and.default",
}


class ShardWriter:
    """One piece of shards that is being written; equal calls are made once."""

    def __init__(self, lifted: Lifted, shards: Shards, constants: Mapping[Node, Any]) -> None:
        self._lifted, self._shards, self._constants = lifted, shards, constants
        self.slots: dict[int, int] = {}  # of tensors that are read from outside
        self.calls: list[Any] = []
        self._at: dict[int, Any] = {}  # what the piece makes, by tensor
        self._known: dict[str, int] = {}  # calls

    def write(self, shard: Shard) -> None:
        """Write what a shard calls."""
        step = self._lifted.steps[shard.op]
        assert step is not None
        if shard.role == REDUCE:
            assert step.rule is not None
            partials = [self.reference(each.pieces[0].tensor) for each in shard.operands]
            self._at[shard.outputs[0]] = self._folded(step.rule.fold, partials)
            return
        operands = [self._operand(each) for each in shard.operands]
        if step.copies:
            (made,) = operands
        elif shard.is_rest and step.rule is not None and step.rule.rest:
            made = self._rest(step.call, step.rule.rest, operands)
        else:
            left = iter(operands)
            made = self._call_node(step.call, lambda leaf: next(left))
        for tensor, part in zip(shard.outputs, shard.parts, strict=True):
            self._at[tensor] = made if part is None else {"at": [made["at"], part]}

    def reference(self, tensor: int) -> Any:
        """A tensor that the piece makes, or reads from outside."""
        if tensor in self._at:
            return self._at[tensor]
        return {"in": self.slots.setdefault(tensor, len(self.slots))}

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """A reference to what a call returns."""
        row = [name, list(args), kwargs]
        key = json.dumps(row)
        if key not in self._known:
            self._known[key] = len(self.calls)
            self.calls.append(row)
        return {"at": self._known[key]}

    def act(self, name: str, *args: Any) -> None:
        """A call that is made for its effect."""
        self.calls.append([name, list(args), {}])
        self._known.clear()

    def view(self, value: Value, tensor: int) -> Any:
        """A value of an operation whose whole output is a tensor."""
        sizes = self._shards.tensors[tensor].sizes
        return self._arranged(self.reference(tensor), tensor, sizes, value.dims)

    def _call_node(self, node: Node, of: Callable[[Node], Any]) -> Any:
        """A call with other tensors; numbers are computed by calls of their own."""

        def leaf(other: Node) -> Any:
            if other in self._constants:
                return encoded(self._constants[other])
            return of(other) if tensors_of(other) else self._call_node(other, of)

        args, kwargs = map_leaves(node, leaf, encoded)
        return self.call(call_name(node), *args, **kwargs)

    def _rest(self, node: Node, rest: tuple[str, tuple[str, ...]], operands: list[Any]) -> Any:
        name, names = rest
        given, left = dict(arguments(node)), iter(operands)
        args = []
        for each in names:
            value = given.get(each)
            args.append(next(left) if isinstance(value, Node) else encoded(value))
        return self.call(name, *args)

    def _folded(self, fold: str, partials: Sequence[Any]) -> Any:
        made = partials[0]
        for other in partials[1:]:
            made = self.call(_FOLDS[fold], made, other)
        return self.call("aten.div.Scalar", made, len(partials)) if fold == "mean" else made

    def _operand(self, operand: Operand) -> Any:
        """An operand in the shape that the call takes."""
        tensors = self._shards.tensors
        first = operand.pieces[0]
        whole = tensors[first.tensor].sizes
        if len(operand.pieces) == 1 and [high - low for low, high in first.part] == whole:
            reference = self.reference(first.tensor)
            return self._arranged(reference, first.tensor, operand.sizes, operand.atoms)
        parts = [(piece.place, self._cut(piece.tensor, piece.part)) for piece in operand.pieces]
        joined = self._joined(parts, 0)
        return self._arranged(joined, None, operand.sizes, operand.atoms)

    def _cut(self, tensor: int, part: Sequence[tuple[int, int]]) -> Any:
        """A part of a tensor, with a dimension for every axis."""
        found = self._shards.tensors[tensor]
        made = self._reshaped(self.reference(tensor), found.shape, found.sizes)
        for axis, (low, high) in enumerate(part):
            if high - low < found.sizes[axis]:
                made = self.call("aten.slice.Tensor", made, axis, low, high)
        return made

    def _joined(self, parts: list[tuple[tuple[int, ...], Any]], axis: int) -> Any:
        """Parts put together, by their places along an axis and those after it."""
        if len(parts) == 1:
            return parts[0][1]
        along: dict[int, list[tuple[tuple[int, ...], Any]]] = {}
        for place, part in parts:
            along.setdefault(place[axis], []).append((place, part))
        made = [self._joined(each, axis + 1) for _, each in sorted(along.items())]
        return made[0] if len(made) == 1 else self.call("aten.cat.default", made, axis)

    def _arranged(self, made: Any, tensor: int | None, sizes: Sequence[int], atoms: Any) -> Any:
        """Something with these sizes along the axes of its operation, as a value of it."""
        shape = list(sizes if tensor is None else self._shards.tensors[tensor].shape)
        wanted = [prod(atom.size for atom in dim) for dim in atoms]
        flat = [atom for dim in atoms for atom in dim]
        order = [atom.axis for atom in flat if atom.axis is not None]
        if order == sorted(order) and len(order) == len(flat):
            return self._reshaped(made, shape, wanted)
        order += [axis for axis in range(len(sizes)) if axis not in order]
        made = self._reshaped(made, shape, list(sizes))
        if order != sorted(order):
            made = self.call("aten.permute.default", made, order)
        shape = [sizes[axis] for axis in order]
        if len(order) < len(flat) or any(atom.axis is None for atom in flat):
            single = [1 if atom.axis is None else atom.size for atom in flat]
            made = self._reshaped(made, shape, single)
            shape = [atom.size for atom in flat]
            made = self.call("aten.expand.default", made, shape)
        return self._reshaped(made, shape, wanted)

    def _reshaped(self, made: Any, shape: Sequence[int], wanted: Sequence[int]) -> Any:
        if list(shape) == list(wanted) or 0 in shape:
            return made
        return self.call("aten.reshape.default", made, list(wanted))
