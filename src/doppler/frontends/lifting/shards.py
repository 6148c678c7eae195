"""Shards: the operations of a lifted program, cut, each shard with the blocks that it reads.

As in `doppler.sharding.lowering`, a shard reads every block of its operands that overlaps what it
needs, and partial results are put together by a shard of its own. Here an input has no blocks of
its own: each region that is read is one, so that no shard ever puts weights together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from torch.fx import Node

from doppler.errors import ShardingError
from doppler.frontends.lifting.lift import Atom, Joins, Lifted, Step, Value
from doppler.frontends.node_costs import NodeCosts, traffic
from doppler.frontends.nodes import arguments, shape_of, tensors_of
from doppler.graph.ops import OpKind
from doppler.programs.program import Op
from doppler.sharding.cuts import Cut, candidates, contraction_cost
from doppler.sharding.lowering import MAX_BLOCKS, Blocks, Range
from doppler.sharding.paper import paper_cuts

SHARD, REDUCE = "shard", "reduce"  # roles


@dataclass(frozen=True, slots=True)
class BlockTensor:
    """A block of an operation's output, or of an input."""

    op: int
    region: tuple[Range, ...]  # of the output's axes
    shape: tuple[int, ...]  # as it is passed on: one size for each dimension
    bytes: int

    @property
    def sizes(self) -> list[int]:
        """The size along each axis."""
        return [high - low for low, high in self.region]


@dataclass(frozen=True, slots=True)
class Overlap:
    """A part of a tensor, and where it goes in an operand."""

    tensor: int
    part: tuple[Range, ...]
    place: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """What a shard reads in one place of its arguments."""

    pieces: tuple[Overlap, ...]
    sizes: tuple[int, ...]  # of all pieces together, along each axis of the operation
    atoms: tuple[tuple[Atom, ...], ...]  # of each dimension, as large as the shard needs them
    element_bytes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the call takes."""
        return tuple(prod(atom.size for atom in dim) for dim in self.atoms)

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * self.element_bytes


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of an operation."""

    op: int
    index: tuple[int, ...]
    role: str
    operands: tuple[Operand, ...]
    outputs: tuple[int, ...]  # tensors; several of a whole call that returns several
    parts: tuple[int | None, ...]  # which of the call's results each output is
    is_rest: bool  # it computes a partial result without the bias
    flops: float
    touched_bytes: float

    def reads(self) -> dict[int, None]:
        """The tensors that it reads, in order."""
        return dict.fromkeys(p.tensor for operand in self.operands for p in operand.pieces)

    def copied_bytes(self) -> int:
        """Bytes of operands that are put together from several pieces."""
        return sum(each.bytes for each in self.operands if len(each.pieces) > 1)


@dataclass(frozen=True, slots=True)
class Shards:
    """All shards, in an order in which they can run, and the tensors between them."""

    shards: list[Shard]
    tensors: list[BlockTensor]
    blocks: Mapping[int, Blocks]  # by operation


ChooseCuts = Callable[[Lifted, int], Sequence[Cut]]  # of each operation, for a number of parts


def cut_axes(lifted: Lifted, parts: int) -> list[Cut]:
    """The cuts of all operations that move the fewest elements; one that no axis allows stays."""
    program, fixed = lifted.program, {}
    for number, op in enumerate(program.ops):
        if op.is_contraction and not candidates(op, parts):
            plain = candidates(replace(op, kind=OpKind.INPUT_ELEMWISE), parts)
            most = [cut for cut in plain if prod(cut) == prod(plain[0])]
            fixed[number] = min(most, key=lambda cut: contraction_cost(op, cut, parts))
    return paper_cuts(program, parts, fixed)


def make_shards(lifted: Lifted, cuts: Sequence[Cut], costs: NodeCosts) -> Shards:
    """The shards of operations that are cut like this."""
    count = sum(prod(cut) for cut in cuts)
    if count > MAX_BLOCKS:
        raise ShardingError(
            f"the model would become {count} shards, at most {MAX_BLOCKS} are supported",
            hint="cut it into fewer parts",
        )
    made = _Sharding(lifted, costs)
    for number in lifted.written:
        made.add_input(number)
    for number, (step, cut) in enumerate(zip(lifted.steps, cuts, strict=True)):
        if step is not None:
            made.add(number, step, cut)
    kept = {t for op in lifted.kept for t in made.blocks[op].tensors}
    return Shards(_needed(made.shards, kept), made.tensors, made.blocks)


def _needed(shards: list[Shard], needed: set[int]) -> list[Shard]:
    """The shards whose tensors are needed, or read by those that are."""
    found = []
    for shard in reversed(shards):
        if not needed.isdisjoint(shard.outputs):
            found.append(shard)
            needed |= shard.reads().keys()
    return found[::-1]


class _Sharding:
    """Adds shards operation by operation."""

    def __init__(self, lifted: Lifted, costs: NodeCosts) -> None:
        self._ops, self._costs = lifted.program.ops, costs
        self._inputs, self._values = lifted.inputs, lifted.values
        self.shards: list[Shard] = []
        self.tensors: list[BlockTensor] = []
        self.blocks: dict[int, Blocks] = {}
        self._regions: dict[tuple[int, tuple[Range, ...]], int] = {}  # tensors of inputs
        self._calls: dict[Node, int] = {}  # shards of whole calls

    def add(self, number: int, step: Step, cut: Cut) -> None:
        """Add the shards of an operation, whose operands were added before."""
        op = self._ops[number]
        rank = len(op.shape)
        if self._join_whole(number, step):
            return
        size = [n // c for n, c in zip(op.join, cut, strict=True)]
        partials: dict[tuple[int, ...], list[int]] = {}
        for index in product(*map(range, cut)):
            ranges = [(i * n, (i + 1) * n) for i, n in zip(index, size, strict=True)]
            is_rest = any(index[rank:])
            tensor = self._shard(number, step, index, ranges, is_rest=is_rest)
            partials.setdefault(index[:rank], []).append(tensor)
        tensors = [
            found[0] if len(found) == 1 else self._formed(number, step, index, found)
            for index, found in partials.items()
        ]
        self.blocks[number] = Blocks(tuple(size[:rank]), tuple(cut[:rank]), tensors)

    def add_input(self, number: int) -> None:
        """Add all of an input."""
        shape = self._ops[number].shape
        tensor = self._input(number, tuple((0, n) for n in shape))
        self.blocks[number] = Blocks(shape, (1,) * len(shape), [tensor])

    def _join_whole(self, number: int, step: Step) -> bool:
        """Add one more output to a whole call that is there already; False if it is not."""
        at = self._calls.get(step.call)
        if step.rule is not None or step.copies or at is None:
            return False
        shape = self._ops[number].shape
        tensor = self._tensor(number, step, [(0, n) for n in shape])
        shard = self.shards[at]
        self.shards[at] = replace(
            shard,
            outputs=(*shard.outputs, tensor),
            parts=(*shard.parts, _part(step)),
            touched_bytes=shard.touched_bytes + self.tensors[tensor].bytes,
        )
        self.blocks[number] = Blocks(shape, (1,) * len(shape), [tensor])
        return True

    def _shard(
        self,
        number: int,
        step: Step,
        index: tuple[int, ...],
        ranges: list[Range],
        *,
        is_rest: bool,
    ) -> int:
        op = self._ops[number]
        tensor = self._tensor(number, step, ranges[: len(op.shape)])
        operands = tuple(
            self._operand(op, i, value, target, ranges)
            for i, (value, target) in enumerate(zip(step.operands, step.targets, strict=True))
        )
        flops = 0.0
        if step.rule is not None:
            flops = self._costs.shard_flops(step.call, [operand.shape for operand in operands])
            if is_rest and step.rule.rest:
                taken = taken_by_rest(step)
                operands = tuple(o for o, is_taken in zip(operands, taken, strict=True) if is_taken)
        elif not step.copies:
            flops = self._costs.flops(step.call)
            self._calls[step.call] = len(self.shards)
        written = self.tensors[tensor].bytes
        read = [operand.bytes for operand in operands]
        touched = written if step.copies else traffic(step.call, written, read)
        copied = 2 * sum(each.bytes for each in operands if len(each.pieces) > 1)
        shard = Shard(
            number, index, SHARD, operands, (tensor,), (_part(step),), is_rest, flops,
            float(touched + copied),
        )  # fmt: skip
        self.shards.append(shard)
        return tensor

    def _tensor(self, number: int, step: Step, region: Sequence[Range]) -> int:
        """A new tensor that holds a region of an operation's output."""
        sizes = [high - low for low, high in region]
        like = tensors_of(step.node)[0]
        shape = tuple(
            prod(sizes[j] for j in dim) if n else 0
            for n, dim in zip(shape_of(like), step.output, strict=True)
        )
        return self._new(number, region, shape, like.element_size())

    def _new(
        self, number: int, region: Sequence[Range], shape: tuple[int, ...], element_bytes: int
    ) -> int:
        self.tensors.append(BlockTensor(number, tuple(region), shape, prod(shape) * element_bytes))
        return len(self.tensors) - 1

    def _operand(
        self, op: Op, slot: int, value: Value, target: Joins, ranges: list[Range]
    ) -> Operand:
        read = op.reads[slot]
        region = [axis.region(*ranges[axis.join or 0]) or (0, 0) for axis in read.axes]
        atoms = tuple(
            tuple(
                Atom(atom.axis, ranges[j][1] - ranges[j][0])
                for atom, j in zip([a for a in dim if a.size > 1], joins, strict=True)
            )
            for dim, joins in zip(value.dims, target, strict=True)
        )
        if value.op in self._inputs:
            tensor = self._input(value.op, tuple(region))
            sizes = self.tensors[tensor].sizes
            pieces = [Overlap(tensor, tuple((0, n) for n in sizes), (0,) * len(sizes))]
        else:
            pieces = [
                Overlap(tensor, tuple(part), tuple(place))
                for tensor, part, place in self.blocks[value.op].overlapping(region)
            ]
        sizes = [high - low for low, high in region]
        first = self.tensors[pieces[0].tensor]
        element_bytes = first.bytes // max(prod(first.shape), 1)
        return Operand(tuple(pieces), tuple(sizes), atoms, element_bytes)

    def _input(self, number: int, region: tuple[Range, ...]) -> int:
        """The tensor of a region of an input."""
        if (number, region) not in self._regions:
            node = self._inputs[number]
            box = box_of(self._values[node].dims, region) or region
            shape = tuple(high - low for low, high in box)
            element_bytes = tensors_of(node)[0].element_size()
            self._regions[number, region] = self._new(number, region, shape, element_bytes)
        return self._regions[number, region]

    def _formed(self, number: int, step: Step, index: tuple[int, ...], partials: list[int]) -> int:
        """Add what puts partial results together."""
        first = self.tensors[partials[0]]
        tensor = self._new(number, first.region, first.shape, first.bytes // prod(first.shape))
        operands = tuple(
            Operand(
                (Overlap(t, tuple((0, n) for n in first.sizes), (0,) * len(first.sizes)),),
                tuple(first.sizes),
                tuple((Atom(d, n),) for d, n in enumerate(first.shape)),
                first.bytes // prod(first.shape),
            )
            for t in partials
        )
        steps = len(partials) - 1
        flops, touched = float(steps * prod(first.shape)), float(3 * steps * first.bytes)
        self.shards.append(
            Shard(number, index, REDUCE, operands, (tensor,), (None,), False, flops, touched)
        )
        return tensor


def taken_by_rest(step: Step) -> list[bool]:
    """Whether each operand is one of a partial result that takes no bias."""
    assert step.rule is not None
    taken = step.rule.rest[1] if step.rule.rest else None
    given = [name for name, x in arguments(step.call) if isinstance(x, Node) and tensors_of(x)]
    return [taken is None or name in taken for name in given]


def box_of(dims: Sequence[Sequence[Atom]], region: Sequence[Range]) -> list[Range] | None:
    """The ranges of dimensions behind a region of their factors; None if one of them has gaps.

    >>> box_of([[Atom(0, 2), Atom(1, 4)]], [(1, 2), (1, 3)])
    [(5, 7)]
    >>> box_of([[Atom(0, 2), Atom(1, 4)]], [(0, 2), (1, 3)]) is None
    True
    """
    found = []
    for dim in dims:
        low, high = 0, 1
        for atom in dim:
            begin, end = region[atom.axis or 0]
            if high - low == 1:
                low, high = low * atom.size + begin, low * atom.size + end
            elif (begin, end) == (0, atom.size):
                low, high = low * atom.size, high * atom.size
            else:
                return None
        found.append((low, high))
    return found


def _part(step: Step) -> int | None:
    return None if step.copies or step.node is step.call else int(step.node.args[1])  # type: ignore[arg-type]
