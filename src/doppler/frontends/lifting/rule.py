"""Rules: along which axes an ATen operation can be cut, and what its shards read then.

An operation joins axes, as in `doppler.programs.program`: those of its output, then those that it
aggregates over. A rule names them, and says which of them every dimension of an operand lies on. A
shard is the same operation on blocks of its operands. An axis is `whole` where a shard would have
to know its position, or needs all of it: a normalised axis, the rows of a table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from doppler.frontends.nodes import tensors_of

Dims = tuple[tuple[str, ...], ...]  # axes that each dimension is the product of, outermost first


@dataclass(frozen=True, slots=True)
class Rule:
    """The join axes of one operation; dimensions of size 1 lie on none."""

    sizes: Mapping[str, int]  # of the axes
    output: Dims
    operands: tuple[Dims, ...]  # of every tensor among the arguments, in order
    whole: frozenset[str] = frozenset()  # axes that are never cut
    fold: str = ""  # what puts partial results together, where the output lacks a cut axis
    # What computes all partial results but the first, which takes the bias: a call, and the names
    # of its arguments.
    rest: tuple[str, tuple[str, ...]] | None = None

    def aggregated(self) -> list[str]:
        """The axes that the output does not have."""
        kept = {axis for dim in self.output for axis in dim}
        return [axis for axis in self.sizes if axis not in kept]


@dataclass(slots=True)
class Call:
    """A call that a rule is made for."""

    node: Node
    given: Mapping[str, Any]  # arguments by name, with defaults
    sizes: dict[str, int] = field(default_factory=dict)  # of axes named so far

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that is an argument."""
        return tensor_shape(self.given[name])

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the output."""
        return tensor_shape(self.node)

    def dims(self, shape: Sequence[int], axes: Sequence[str]) -> Dims:
        """The axes of dimensions of these sizes, one for each that is longer than 1."""
        for size, axis in zip(shape, axes, strict=True):
            if size > 1:
                self.sizes[axis] = size
        return tuple((axis,) if n > 1 else () for n, axis in zip(shape, axes, strict=True))

    def rule(self, output: Dims, operands: Mapping[str, Any], **options: Any) -> Rule | None:
        """The rule with these dimensions of arguments, by name; a list for a list of tensors."""
        found: list[Dims] = []
        for name, value in self.given.items():
            nodes = [value] if isinstance(value, Node) else value
            if not isinstance(nodes, (list, tuple)):
                continue
            dims = operands.get(name)
            rows = [dims] if isinstance(value, Node) else dims or [None] * len(nodes)
            for node, row in zip(nodes, rows, strict=True):
                if isinstance(node, Node) and tensors_of(node):
                    if row is None:
                        return None
                    found.append(row)
        kept = [axis for dim in output for axis in dim]
        order = dict.fromkeys([*kept, *self.sizes])
        rule = Rule({a: self.sizes[a] for a in order}, output, tuple(found), **options)
        assert rule.fold or set(rule.aggregated()) <= rule.whole, self.node.target
        return rule


def tensor_shape(node: Node) -> tuple[int, ...]:
    """The shape of the tensor that a node is."""
    return tuple(tensors_of(node)[0].shape)


def numbered(count: int, begin: int = 0) -> list[str]:
    """Names of axes that are dimensions in a row."""
    return [str(i) for i in range(begin, begin + count)]
