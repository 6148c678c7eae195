"""Lowering: a program and the cuts of its operations become a Graph that can be executed.

Operations become blocks, row-major over their join axes. A contraction or reduction becomes
shards, each with a partial result, and one formation per block of its output, which aggregates
the partials. A block reads every block of its operands that overlaps the region it needs; what it
takes of each, and where it puts it, is in its kernel. The kernels that make the blocks of an
output of the program name it as their `result`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from numbers import Integral
from typing import Any

from doppler.base.progress import track
from doppler.errors import ShardingError, UnknownNameError
from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Graph, Kernel
from doppler.graph.ops import InputKind, OpKind
from doppler.graph.signatures import Described
from doppler.programs.program import Op, Program, Read
from doppler.sharding.cuts import Cut
from doppler.sharding.flops import (
    TRANSFER_FACTOR,
    abstract_cost,
    exec_cost,
    formation_cost,
    item_bytes,
)
from doppler.sharding.temporaries import temporary_bytes

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The tensors that hold an operation's output, row-major over its cut."""

    shape: tuple[int, ...]  # of one block
    cut: tuple[int, ...]  # blocks along each axis
    tensors: list[int]

    def overlapping(self, region: Sequence[Range]) -> Iterator[tuple[int, list[Range], list[int]]]:
        """Blocks that overlap a region: tensor, the part of it, and its place in the region."""
        along = [
            range(low // n, -(-high // n))
            for (low, high), n in zip(region, self.shape, strict=True)
        ]
        for index in product(*along):
            number, part, place = 0, [], []
            for i, c, n, (low, high) in zip(index, self.cut, self.shape, region, strict=True):
                number = number * c + i
                begin, end = max(low, i * n), min(high, (i + 1) * n)
                part.append((begin - i * n, end - i * n))
                place.append(begin - low)
            yield self.tensors[number], part, place


INPUTS = ("resident", "marked", "everywhere")  # kinds that the inputs of a graph can get
MAX_BLOCKS = 1_000_000  # vertices that a graph file can hold, and that placers get through


def lower(
    program: Program,
    cuts: Sequence[Cut],
    *,
    abstract_costs: bool = False,
    preaggregate: int = 0,
    inputs: str = "resident",
) -> Graph:
    """The graph of a program whose operations are cut like this.

    `abstract_costs` adds the explicit costs of the authors' files: that of the whole operation
    for every shard, and four times that for a transfer. `preaggregate` ≥ 2 sums partial results
    in groups of that size before they are formed. `inputs` says what kind the inputs get:
    `resident` or `everywhere` for all of them; with `marked`, weights are resident and data is
    streamed.
    """
    if inputs not in INPUTS:
        raise UnknownNameError("kind of inputs", inputs, INPUTS)
    if not isinstance(preaggregate, Integral) or preaggregate < 0 or preaggregate == 1:
        raise ShardingError(f"preaggregate is {preaggregate!r}, must be 0 or at least 2")
    blocks = sum(prod(cut) for cut in cuts)
    if blocks > MAX_BLOCKS:
        raise ShardingError(
            f"program `{program.name}` would become {blocks} blocks, at most {MAX_BLOCKS} are "
            "supported",
            hint="cut it into fewer parts",
        )
    lowering = _Lowering(program, abstract_costs, preaggregate, inputs)
    for number, cut in enumerate(track(cuts, "sharding")):
        lowering.add(number, cut)
    return lowering.builder.build()


class _Lowering:
    """Builds the graph operation by operation."""

    def __init__(
        self, program: Program, abstract_costs: bool, preaggregate: int, inputs: str
    ) -> None:
        self.program = program
        self.builder = GraphBuilder(program.name)
        self.outputs: list[Blocks] = []  # of each operation added so far
        self.described: dict[int, Described] = {}  # by tensor
        self.abstract_costs = abstract_costs
        self.preaggregate = preaggregate
        self.inputs = inputs
        self.names = {op.name for op in program.ops}
        self.results = {program.ops[i].name for i in program.outputs}

    def add(self, number: int, cut: Cut) -> None:
        """Add the blocks of an operation, whose operands were added before."""
        op = self.program.ops[number]
        rank = len(op.shape)
        size = tuple(n // c for n, c in zip(op.join, cut, strict=True))
        partials: dict[tuple[int, ...], list[int]] = {}
        for index in product(*(range(c) for c in cut)):
            tensor = self._shard(op, index, _ranges(index, size))
            partials.setdefault(index[:rank], []).append(tensor)
        tensors = [
            self._formation(op, index, _ranges(index, size[:rank]), parts)
            if op.is_aggregated
            else parts[0]
            for index, parts in partials.items()
        ]
        self.outputs.append(Blocks(size[:rank], tuple(cut[:rank]), tensors))

    def _shard(self, op: Op, index: tuple[int, ...], ranges: list[Range]) -> int:
        rank = len(op.shape)
        inputs, operands = self._operands(op, ranges)
        attributes: dict[str, Any] = dict(op.attributes)
        attributes["block"] = [list(r) for r in ranges[:rank]]
        if op.name in self.results and not op.is_aggregated:
            attributes["result"] = op.name
        if op.reads:
            attributes["operands"] = operands
            attributes["axes"] = [[axis.join for axis in read.axes] for read in op.reads]
        join = tuple(high - low for low, high in ranges)
        read_bytes = sum(
            prod(high - low for low, high in region) * item_bytes(self.program.ops[read.op].dtype)
            for read in op.reads
            if (region := _region(read, ranges)) is not None
        )
        flops, touched = exec_cost(op, join, read_bytes)
        return self._vertex(
            op,
            name=f"{op.name}{_label(index)}",
            kind=op.kind,
            role="" if op.kind == OpKind.INPUT else "shard",
            kernel=Kernel(str(op.kind), tuple(inputs), (join[:rank],), (op.dtype,), attributes),
            cost=(flops, touched, abstract_cost(op, formed=False)),
        )

    def _operands(self, op: Op, ranges: list[Range]) -> tuple[list[int], list[Any]]:
        """Tensors read by a shard, and for each operand the pieces it is put together from.

        An operand is a number, where it is just that input; otherwise its shape and its pieces:
        input, the part of it, and where that goes. A select puts its pieces into its output.
        """
        inputs: list[int] = []
        operands: list[Any] = []
        for read in op.reads:
            region = _region(read, ranges)
            blocks = self.outputs[read.op]
            pieces: list[Any] = []
            for tensor, part, place in blocks.overlapping(region) if region is not None else ():
                pieces.append([len(inputs), [list(p) for p in part], place])
                inputs.append(tensor)
            if op.kind == OpKind.SELECT:
                begins = [
                    max(ranges[a.join][0], a.begin) - ranges[a.join][0]
                    for a in read.axes
                    if a.join is not None
                ]
                for piece in pieces:
                    piece[2] = [p + b for p, b in zip(piece[2], begins, strict=True)]
            shape = [high - low for low, high in region or []]
            if op.kind != OpKind.SELECT and len(pieces) == 1 and shape == list(blocks.shape):
                operands.append(pieces[0][0])
            else:
                operands.append({"shape": shape, "pieces": pieces})
        return inputs, operands

    def _formation(
        self, op: Op, index: tuple[int, ...], ranges: list[Range], partials: list[int]
    ) -> int:
        """Add what aggregates the partial results of one block; returns its tensor."""
        if self.preaggregate and len(partials) > self.preaggregate:
            name = self._unique(f"{op.name}.pre")
            starts = range(0, len(partials), self.preaggregate)
            groups = [partials[i : i + self.preaggregate] for i in starts]
            partials = [
                self._aggregate(op, f"{name}{_label((*index, i))}", ranges, group, final=False)
                for i, group in enumerate(groups)
            ]
        name = f"{self._unique(f'{op.name}.form')}{_label(index)}"
        return self._aggregate(op, name, ranges, partials, final=True)

    def _unique(self, name: str) -> str:
        """The name, with a number if an operation of the program has it already."""
        unique, count = name, 1
        while unique in self.names:
            count += 1
            unique = f"{name}.{count}"
        return unique

    def _aggregate(
        self, op: Op, name: str, ranges: list[Range], partials: list[int], *, final: bool
    ) -> int:
        shape = tuple(high - low for low, high in ranges)
        flops, touched = formation_cost(prod(shape), op.dtype, len(partials))
        attributes: dict[str, Any] = {
            "fn": op.attributes.get("fn", "sum"),
            "block": [list(r) for r in ranges],
            "operands": list(range(len(partials))),
        }
        if final and op.name in self.results:
            attributes["result"] = op.name
        return self._vertex(
            op,
            name=name,
            kind=OpKind.FORMATION,
            role="reduce",
            kernel=Kernel("formation", tuple(partials), (shape,), (op.dtype,), attributes),
            cost=(flops, touched, abstract_cost(op, formed=True)),
        )

    def _vertex(
        self,
        op: Op,
        *,
        name: str,
        kind: OpKind,
        role: str,
        kernel: Kernel,
        cost: tuple[float, float, float],
    ) -> int:
        """Add a vertex with one output; returns its tensor."""
        flops, touched, abstract = cost
        explicit: dict[str, Any] = {}
        if self.abstract_costs:
            explicit = {"exec_s": abstract, "transfer_s": TRANSFER_FACTOR * abstract}
        temporary = temporary_bytes(kernel, [self.described[t] for t in kernel.inputs])
        tensor = self.builder.op(
            name,
            kind,
            reads=list(dict.fromkeys(kernel.inputs)),
            output_bytes=prod(kernel.shapes[0]) * item_bytes(op.dtype),
            flops=flops,
            touched_bytes=touched,
            temporary_bytes=temporary,
            meta_op=op.name,
            role=role,
            dtype=op.dtype,
            kernel=kernel,
            input_kind=self._input_kind(op),
            **explicit,
        )
        self.described[tensor] = kernel.shapes[0], op.dtype
        return tensor

    def _input_kind(self, op: Op) -> str:
        if op.kind != OpKind.INPUT:
            return ""
        if self.inputs != "marked":
            return self.inputs
        return InputKind.RESIDENT if op.is_weight else InputKind.STREAMED


def _ranges(index: Sequence[int], size: Sequence[int]) -> list[Range]:
    return [(i * n, (i + 1) * n) for i, n in zip(index, size, strict=True)]


def _region(read: Read, ranges: list[Range]) -> list[Range] | None:
    """The part of an operand that a block with these join ranges reads; None if none of it."""
    region = []
    for axis in read.axes:
        part = axis.region(*ranges[axis.join]) if axis.join is not None else (0, 1)
        if part is None:
            return None
        region.append(part)
    return region


def _label(index: Sequence[int]) -> str:
    return f"[{','.join(map(str, index))}]"
