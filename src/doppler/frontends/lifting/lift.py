"""Lifting: the live calls of an exported program as a `Program` that can be sharded.

A call with a rule becomes an operation over join axes, which are the factors of its dimensions.
Views become no operation: a `Value` says which axes of an operation's output lie behind each
dimension. A call without a rule becomes an operation that is never cut.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from torch.fx import Node

from doppler.frontends.fold import Folded, owner
from doppler.frontends.lifting.factors import Dim, Factors
from doppler.frontends.lifting.op_rules import rule_of
from doppler.frontends.lifting.rule import Rule
from doppler.frontends.lifting.views import TensorView, view_of
from doppler.frontends.nodes import (
    VertexNames,
    dtype_name,
    is_heavy,
    memory_of,
    shape_of,
    tensor_leaves,
    tensors_of,
)
from doppler.graph.ops import OpKind
from doppler.programs.program import Axis, Op, Program, Read

Joins = tuple[tuple[int, ...], ...]  # join axes behind each dimension


@dataclass(frozen=True, slots=True)
class Atom:
    """A factor of a dimension."""

    axis: int | None  # of the operation's output; None where the value is repeated along it
    size: int


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: the output of an operation, or a view of it."""

    op: int
    dims: tuple[tuple[Atom, ...], ...]  # factors of each dimension, outermost first
    fixed: Mapping[int, int]  # position on each axis that no dimension has

    def is_plain(self) -> bool:
        """Whether it is the output itself, but for factors."""
        axes = [atom.axis for dim in self.dims for atom in dim]
        return not self.fixed and axes == list(range(len(axes)))


@dataclass(frozen=True, slots=True)
class Step:
    """What an operation of the program calls."""

    node: Node  # its value; what it calls too, unless it `copies`
    operands: tuple[Value, ...]  # tensors among the arguments, in order
    targets: tuple[Joins, ...]  # of each operand
    output: Joins
    rule: Rule | None = None  # None: whole
    copies: bool = False  # it only brings a view into its own shape

    @property
    def call(self) -> Node:
        """The call that makes the value."""
        return owner(self.node)


@dataclass(frozen=True, slots=True)
class Lifted:
    """A program, and what its operations call."""

    program: Program
    steps: tuple[Step | None, ...]  # of each operation; None for inputs
    inputs: Mapping[int, Node]  # by operation
    values: Mapping[Node, Value]
    kept: tuple[int, ...]  # operations whose outputs are results, or written to buffers
    written: tuple[int, ...]  # inputs that are buffers which are written


def lift(folded: Folded, nodes: Iterable[Node], names: VertexNames) -> Lifted:
    """The live calls of a program, given all its nodes in order."""
    return _Lifting(folded, list(nodes), names).run()


class _Lifting:
    """One program that is being lifted."""

    def __init__(self, folded: Folded, nodes: list[Node], names: VertexNames) -> None:
        self._folded, self._names = folded, names
        given = {n for n in folded.arguments if isinstance(n, Node)}
        self._given = given | set(folded.weights)
        live = set(folded.nodes) | folded.free
        self._nodes = [n for n in nodes if n in self._given or owner(n) in live]
        self._factors = Factors()
        self._dims: dict[Node, list[Dim]] = {}
        self._views: dict[
            Node, tuple[TensorView, int | None]
        ] = {}  # and the number of its relation
        self._rules: dict[Node, tuple[Rule, dict[str, Dim], list[int]]] = {}
        self._ops: list[Op] = []
        self._steps: list[Step | None] = []
        self._inputs: dict[Node, int] = {}
        self._memory: dict[Any, Node] = {}  # weights
        self._claimed: set[int] = set()  # operations that make results
        self._values: dict[Node, Value] = {}

    def run(self) -> Lifted:
        """The program."""
        pinned = self._pinned()
        for node in self._nodes:
            self._relate(node, is_pinned=node in pinned)
        wrong = self._factors.solve()
        for node in self._nodes:
            self._build(node, wrong)
        wanted = dict.fromkeys(n for n in self._folded.results if isinstance(n, Node))
        results = [self._result(n) for n in wanted if n not in self._given]
        mutations = self._folded.mutations
        written = tuple(self._value(buffer).op for buffer in mutations)
        kept = (*results, *(self._values[new].op for new in mutations.values()))
        program = Program("model", tuple(self._ops), tuple(results))
        inputs = {op: node for node, op in self._inputs.items()}
        return Lifted(program, tuple(self._steps), inputs, self._values, kept, written)

    def _pinned(self) -> set[Node]:
        """Calls that read or write buffers which are written: they are never cut."""
        mutations = self._folded.mutations
        behind = set(mutations)
        found: set[Node] = set()
        for node in self._nodes:
            if any(n in behind for n in node.all_input_nodes):
                found.add(node)
                if view_of(node):
                    behind.add(node)
        for new in mutations.values():
            base = new
            while (view := view_of(base)) and base not in self._given:
                base = view.source
            found.add(owner(base))
        return found

    # Which dimensions are the same axis.

    def _relate(self, node: Node, *, is_pinned: bool) -> None:
        if node in self._given:
            first = self._first(node)
            self._dims[node] = self._new_dims(node) if first is node else self._dims[first]
        elif owner(node) is not node and not view_of(node):
            self._dims[node] = self._new_dims(node)
        elif view := view_of(node):
            self._relate_view(node, view)
        elif tensors_of(node):
            counts = any(n in self._folded.free and not tensors_of(n) for n in node.all_input_nodes)
            rule = None if is_pinned or counts else rule_of(node)
            if rule is not None:
                self._relate_rule(node, rule)
            elif not isinstance(node.meta["val"], (list, tuple)):
                self._dims[node] = self._new_dims(node)

    def _first(self, node: Node) -> Node:
        """The first of the weights that are the same memory: tied weights are one input."""
        weight = self._folded.weights.get(node)
        if weight is None or node in self._folded.mutations:
            return node
        return self._memory.setdefault(memory_of(weight), node)

    def _new_dims(self, node: Node) -> list[Dim]:
        return [self._factors.new(n) for n in shape_of(tensors_of(node)[0])]

    def _relate_view(self, node: Node, view: TensorView) -> None:
        factors, before = self._factors, self._dims[view.source]
        after, number = self._new_dims(node), None
        if view.order is not None:
            after = [before[d] for d in view.order]
        elif view.expands:
            at = len(after) - len(before)
            old = [None] * at + before
            after = [a if b is None else b for a, b in zip(after, old, strict=True)]
        elif view.dim is not None:
            dim = view.dim
            if view.selects:
                after = before[:dim] + before[dim + 1 :]
            else:
                after = [*before[:dim], after[dim], *before[dim + 1 :]]
                number = factors.view([before[dim]], [factors.new(view.count), after[dim]])
        else:
            number = factors.view(before, after)
        self._dims[node], self._views[node] = after, (view, number)

    def _relate_rule(self, node: Node, rule: Rule) -> None:
        factors = self._factors
        axes = {name: factors.new(size) for name, size in rule.sizes.items()}
        numbers = []
        for leaf, dims in zip(tensor_leaves(node, ()), rule.operands, strict=True):
            for dim, names in zip(self._dims[leaf], dims, strict=True):
                if len(names) == 1:
                    factors.same(dim, axes[names[0]])
                elif names:
                    numbers.append(factors.view([dim], [axes[n] for n in names]))
        found: list[Dim] = []
        for size, names in zip(shape_of(tensors_of(node)[0]), rule.output, strict=True):
            if len(names) > 1:
                found.append(factors.new(size))
                numbers.append(factors.view([found[-1]], [axes[n] for n in names]))
            else:
                found.append(axes[names[0]] if names else None)
        self._dims[node], self._rules[node] = found, (rule, axes, numbers)

    # Operations over these axes.

    def _build(self, node: Node, wrong: set[int]) -> None:
        if node in self._given:
            return
        if node in self._views:
            view, number = self._views[node]
            if number is None or number not in wrong:
                self._values[node] = self._viewed(node, view)
                return
        if node in self._rules:
            rule, axes, numbers = self._rules[node]
            if wrong.isdisjoint(numbers):
                self._add_lifted(node, rule, axes)
                return
        if node in self._dims:
            self._add_whole(node)

    def _value(self, node: Node) -> Value:
        """The value of a node; that of an input makes it an operation of the program."""
        if node not in self._values and node in self._given:
            first = self._first(node)
            if first is not node:
                return self._value(first)
            name = self._names.take(self._folded.names.get(node, node.name))
            self._inputs[node] = len(self._ops)
            self._values[node] = self._add(node, name, OpKind.INPUT, self._own_joins(node), None)
        return self._values[node]

    def _own_joins(self, node: Node) -> list[tuple[int, ...]]:
        """The factors of each dimension of a node; 1 itself, where that is its size."""
        return [self._factors.of(dim) or (1,) for dim in self._dims[node]]

    def _viewed(self, node: Node, view: TensorView) -> Value:
        source, fixed = self._value(view.source), dict[int, int]()
        dims = [list(dim) for dim in source.dims]
        fixed |= source.fixed
        if view.order is not None:
            return Value(source.op, tuple(source.dims[d] for d in view.order), fixed)
        if view.dim is not None:
            rest, inner = view.index, prod(a.size for a in dims[view.dim]) // view.count
            span = view.count * inner
            while span > inner:  # positions on the factors that the part leaves
                atom = dims[view.dim].pop(0)
                span //= atom.size
                place, rest = divmod(rest, span // inner)
                if atom.axis is not None:
                    fixed[atom.axis] = place
            if view.selects:
                del dims[view.dim]
        flat = [atom for dim in dims for atom in dim]
        fixed |= {a.axis: 0 for a in flat if a.size == 1 and a.axis is not None}
        flat = [atom for atom in flat if atom.size > 1]
        found, at = [], 0
        for i, dim in enumerate(self._dims[node]):
            sizes = self._factors.of(dim)
            is_new = view.expands and sizes and not self._has_size(view.source, node, i)
            if is_new:
                found.append(tuple(Atom(None, size) for size in sizes))
            else:
                found.append(tuple(flat[at : at + len(sizes)]))
                at += len(sizes)
        return Value(source.op, tuple(found), fixed)

    def _has_size(self, source: Node, node: Node, dim: int) -> bool:
        """Whether a dimension of an expanded tensor is that of its source."""
        before = self._dims[source]
        at = dim - (len(self._dims[node]) - len(before))
        return at >= 0 and before[at] is not None

    def _add_lifted(self, node: Node, rule: Rule, axes: Mapping[str, Dim]) -> None:
        kept = [name for dim in rule.output for name in dim]
        joins: dict[str, tuple[int, ...]] = {}
        sizes: list[int] = []
        for name in [*kept, *rule.aggregated()]:
            found = self._factors.of(axes[name])
            joins[name] = tuple(range(len(sizes), len(sizes) + len(found)))
            sizes += found

        def target(dims: tuple[tuple[str, ...], ...]) -> Joins:
            return tuple(tuple(j for name in dim for j in joins[name]) for dim in dims)

        operands = tuple(self._value(leaf) for leaf in tensor_leaves(node, ()))
        targets = tuple(target(dims) for dims in rule.operands)
        step = Step(node, operands, targets, target(rule.output), rule)
        whole = frozenset(j for name in rule.whole for j in joins[name])
        rank = sum(len(joins[name]) for name in kept)
        kind = OpKind.MATMUL if is_heavy(node) else OpKind.INPUT_ELEMWISE
        self._values[node] = self._add_op(step, kind, sizes, rank, whole)

    def _add_whole(self, node: Node) -> None:
        operands = tuple(
            self._value(leaf) for leaf in tensor_leaves(owner(node), self._folded.free)
        )
        sizes = [size for dim in self._own_joins(node) for size in dim]
        rank, targets = len(sizes), []
        for value in operands:
            found = []
            for dim in value.dims:
                long = [atom.size for atom in dim if atom.size > 1]
                found.append(tuple(range(len(sizes), len(sizes) + len(long))))
                sizes += long
            targets.append(tuple(found))
        output, at = [], 0
        for own in self._own_joins(node):
            output.append(tuple(range(at, at + len(own))))
            at += len(own)
        step = Step(node, operands, tuple(targets), tuple(output))
        everything = frozenset(range(len(sizes)))
        self._values[node] = self._add_op(step, OpKind.SELECT, sizes, rank, everything)

    def _add_op(
        self, step: Step, kind: OpKind, sizes: list[int], rank: int, whole: frozenset[int]
    ) -> Value:
        reads = tuple(
            self._read(value, target)
            for value, target in zip(step.operands, step.targets, strict=True)
        )
        dims = [tuple(sizes[j] for j in dim) for dim in step.output]
        name = self._names.of(step.node)
        return self._add(step.node, name, kind, dims, step, tuple(sizes[rank:]), reads, whole)

    def _add(
        self,
        node: Node,
        name: str,
        kind: OpKind,
        dims: Iterable[tuple[int, ...]],
        step: Step | None,
        aggregated: tuple[int, ...] = (),
        reads: tuple[Read, ...] = (),
        whole: frozenset[int] = frozenset(),
    ) -> Value:
        dims = list(dims)
        shape = tuple(size for dim in dims for size in dim)
        is_weight = node in self._folded.weights
        dtype = dtype_name(tensors_of(node)[0])
        join = shape + aggregated
        self._ops.append(Op(name, kind, shape, dtype, join, reads, {}, is_weight, whole))
        self._steps.append(step)
        found, at = [], 0
        for dim in dims:
            found.append(tuple(Atom(at + i, size) for i, size in enumerate(dim)))
            at += len(dim)
        return Value(len(self._ops) - 1, tuple(found), {})

    def _read(self, value: Value, target: Joins) -> Read:
        """Where the axes of an operand's operation lie among the join axes of its reader."""
        shape = self._ops[value.op].shape
        axes = {axis: Axis(None, offset=place) for axis, place in value.fixed.items()}
        for dim, joins in zip(value.dims, target, strict=True):
            long = [atom for atom in dim if atom.size > 1]
            for atom, join in zip(long, joins, strict=True):
                if atom.axis is not None:
                    axes[atom.axis] = Axis(join, end=atom.size)
        return Read(value.op, tuple(axes.get(a, Axis(None)) for a in range(len(shape))))

    def _result(self, node: Node) -> int:
        """The operation that makes a result: a copy, where it is a view, or another result too."""
        value = self._values[node]
        if not value.is_plain() or self._steps[value.op] is None or value.op in self._claimed:
            dims = [tuple(a.size for a in dim if a.size > 1) for dim in value.dims]
            output, sizes = [], list[int]()
            for dim in dims:
                output.append(tuple(range(len(sizes), len(sizes) + len(dim))))
                sizes += dim
            step = Step(node, (value,), (tuple(output),), tuple(output), copies=True)
            kind = OpKind.INPUT_ELEMWISE
            is_written = value.op in {self._inputs.get(n) for n in self._folded.mutations}
            whole = frozenset(range(len(sizes))) if is_written else frozenset[int]()
            value = self._add_op(step, kind, sizes, len(sizes), whole)
            self._values[node] = value
        self._claimed.add(value.op)
        return value.op
