"""Sharded models: shards grouped into pieces, as a graph."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch.fx import Node

from doppler.engine.pieces import PIECE
from doppler.errors import ModelError
from doppler.frontends.coarsen import NONE, Groups
from doppler.frontends.fold import Folded
from doppler.frontends.lifting.lift import Lifted, lift
from doppler.frontends.lifting.lift_report import Lifting
from doppler.frontends.lifting.shard_calls import ShardWriter
from doppler.frontends.lifting.shards import (
    REDUCE,
    ChooseCuts,
    Shard,
    Shards,
    box_of,
    cut_axes,
    make_shards,
)
from doppler.frontends.node_costs import NodeCosts
from doppler.frontends.nodes import (
    VertexNames,
    compute_dtype,
    dtype_name,
    is_heavy,
    kind_of,
    op_name,
    shape_of,
    tensors_of,
)
from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Kernel
from doppler.graph.ops import InputKind, OpKind


def add_sharded(
    builder: GraphBuilder,
    folded: Folded,
    nodes: Sequence[Node],
    results: Mapping[Node, str],
    *,
    parts: int,
    coarsen: str | int,
    weights: dict[str, torch.Tensor],
    cut: ChooseCuts = cut_axes,
) -> Lifting:
    """Add the vertices of a model whose operations are cut into `parts`, and its weights."""
    costs, names = NodeCosts(), VertexNames(folded.names.values())
    lifted = lift(folded, nodes, names)
    shards = make_shards(lifted, cut(lifted, parts), costs)
    groups = _groups(lifted, shards, folded, coarsen)
    graph = _Building(builder, folded, lifted, shards, results, names)
    leaving = _leaving(shards, groups, lifted)
    for members in groups:
        graph.add([shards.shards[i] for i in members], leaving)
    for node in folded.arguments:
        if isinstance(node, Node):  # what nobody reads is an input nonetheless
            graph.add_unread(node)
    weights |= graph.weights
    return _lifting(lifted, shards, costs, parts)


def _lifting(lifted: Lifted, shards: Shards, costs: NodeCosts, parts: int) -> Lifting:
    flops = lifted_flops = cut_flops = 0.0
    count = Counter(shard.op for shard in shards.shards if shard.role != REDUCE)
    calls: dict[Node, None] = {}
    for number, step in enumerate(lifted.steps):
        if step is None or step.copies or step.call in calls:
            continue
        own = costs.flops(step.call)
        flops += own
        if step.rule is None:
            calls[step.call] = None
        else:
            lifted_flops += own
            cut_flops += own if count[number] > 1 else 0.0
    whole = Counter(op_name(call) for call in calls)
    return Lifting(parts, flops, lifted_flops, cut_flops, dict(whole.most_common()))


def _groups(lifted: Lifted, shards: Shards, folded: Folded, coarsen: str | int) -> list[list[int]]:
    """The shards of each piece."""
    made = {t: i for i, shard in enumerate(shards.shards) for t in shard.outputs}
    reads = [{made[t] for t in shard.reads() if t in made} for shard in shards.shards]
    heavy = [_is_heavy(lifted, shard) or coarsen == NONE for shard in shards.shards]
    groups = Groups(reads, heavy)
    for buffer, new in folded.mutations.items():
        at = lifted.values[new].op
        if at in lifted.inputs:
            raise ModelError(f"the model writes an input to its buffer `{buffer.name}`")
        held = lifted.values.get(buffer)
        readers = [
            i
            for i, shard in enumerate(shards.shards)
            if held is not None and any(shards.tensors[t].op == held.op for t in shard.reads())
        ]
        groups.pin([made[shards.blocks[at].tensors[0]], *readers])
    groups.merge_light()
    if isinstance(coarsen, int):
        groups.merge_to(coarsen, [shard.flops for shard in shards.shards])
    return groups.members()


def _is_heavy(lifted: Lifted, shard: Shard) -> bool:
    step = lifted.steps[shard.op]
    return shard.role != REDUCE and step is not None and not step.copies and is_heavy(step.call)


def _leaving(shards: Shards, groups: Sequence[Sequence[int]], lifted: Lifted) -> set[int]:
    """The tensors that leave their pieces."""
    group_of = {i: g for g, members in enumerate(groups) for i in members}
    made = {t: group_of[i] for i, shard in enumerate(shards.shards) for t in shard.outputs}
    found = {t for op in lifted.kept for t in shards.blocks[op].tensors if t in made}
    for i, shard in enumerate(shards.shards):
        found |= {t for t in shard.reads() if made.get(t, group_of[i]) != group_of[i]}
    return found


class _Building:
    """Adds pieces to a graph."""

    def __init__(
        self,
        builder: GraphBuilder,
        folded: Folded,
        lifted: Lifted,
        shards: Shards,
        results: Mapping[Node, str],
        names: VertexNames,
    ) -> None:
        self._builder, self._folded, self._lifted = builder, folded, lifted
        self._shards, self._names = shards, names
        self.weights: dict[str, torch.Tensor] = {}
        self._tensor_of: dict[int, int] = {}  # of the graph
        self._results = {
            t: (n, name)
            for n, name in results.items()
            for t in shards.blocks[lifted.values[n].op].tensors
        }
        self._numbers: Counter[str] = Counter()  # of blocks of inputs

    def add(self, members: Sequence[Shard], leaving: set[int]) -> None:
        """Add a piece."""
        writer = ShardWriter(self._lifted, self._shards, self._folded.constants)
        for shard in members:
            writer.write(shard)
        outputs = [t for shard in members for t in shard.outputs if t in leaving]
        returns = self._write_buffers(writer, members, [writer.reference(t) for t in outputs])
        inputs = tuple(self._read(t) for t in writer.slots)
        head = max(
            members, key=lambda s: (_is_heavy(self._lifted, s), s.flops, s.touched_bytes, s.index)
        )
        step, op = self._lifted.steps[head.op], self._lifted.program.ops[head.op]
        assert step is not None
        made = [self._shards.tensors[t] for t in outputs]
        attributes: dict[str, Any] = {"calls": writer.calls, "returns": returns}
        attributes |= self._result_blocks(outputs)
        dtypes = tuple(self._lifted.program.ops[t.op].dtype for t in made)
        kernel = Kernel(PIECE, inputs, tuple(t.shape for t in made), dtypes, attributes)
        label = ".form" if head.role == REDUCE else ""
        where = f"[{','.join(map(str, head.index))}]"
        vertex = self._builder.vertex(
            self._names.take(f"{op.name}{label}{where}"),
            str(OpKind.FORMATION) if head.role == REDUCE else kind_of(step.call),
            flops=sum(shard.flops for shard in members),
            touched_bytes=sum(shard.touched_bytes for shard in members),
            temporary_bytes=self._temporary_bytes(members, set(outputs)),
            meta_op=op.name,
            role=head.role,
            dtype=compute_dtype(step.call),
            kernel=kernel,
        )
        for tensor in dict.fromkeys(inputs):
            self._builder.edge(tensor, vertex)
        for t in outputs:
            self._tensor_of[t] = self._builder.tensor(vertex, self._shards.tensors[t].bytes)

    def add_unread(self, node: Node) -> None:
        """Add an argument as an input, unless a piece reads it."""
        if not self._numbers[node.name]:
            tensor = tensors_of(node)[0]
            self._add_input(node, node.name, [(0, n) for n in shape_of(tensor)], {})

    def _result_blocks(self, outputs: Sequence[int]) -> dict[str, Any]:
        """What result each output is a block of, and which."""
        names: list[str | None] = []
        blocks: list[Any] = []
        for t in outputs:
            tensor = self._shards.tensors[t]
            node, name = self._results.get(t, (None, None))
            names.append(name)
            blocks.append(None)
            if node is not None and tensor.shape != shape_of(tensors_of(node)[0]):
                atoms = self._lifted.program.ops[tensor.op].shape
                ranges = [list(each) for each in tensor.region]
                shape = list(shape_of(tensors_of(node)[0]))
                blocks[-1] = {"block": ranges, "atoms": list(atoms), "whole": shape}
        return {"results": names} | ({"blocks": blocks} if any(blocks) else {})

    def _write_buffers(
        self, writer: ShardWriter, members: Sequence[Shard], returns: list[Any]
    ) -> list[Any]:
        """Write the new values of buffers that a piece makes; returns what it returns then."""
        own, held = {shard.op for shard in members}, self._shards.blocks
        pairs = [
            (self._lifted.values[buffer], self._lifted.values[new])
            for buffer, new in self._folded.mutations.items()
            if self._lifted.values[new].op in own
        ]
        if not pairs:
            return returns
        returns = [writer.call("aten.clone.default", each) for each in returns]
        new = [writer.view(value, held[value.op].tensors[0]) for _, value in pairs]
        for (buffer, _), value in zip(pairs, new, strict=True):
            writer.act("aten.copy_.default", writer.view(buffer, held[buffer.op].tensors[0]), value)
        return returns

    def _read(self, tensor: int) -> int:
        """The tensor of the graph; of an input, that of a new vertex."""
        if tensor not in self._tensor_of:
            found = self._shards.tensors[tensor]
            node = self._lifted.inputs[found.op]
            shape, dims = shape_of(tensors_of(node)[0]), self._lifted.values[node].dims
            box = box_of(dims, found.region)
            name, more = self._folded.names.get(node, node.name), dict[str, Any]()
            if found.shape != shape:
                more = {"whole": list(shape)}
            if box is None:
                more["atoms"] = list(self._lifted.program.ops[found.op].shape)
            vertex = self._add_input(node, name, box or found.region, more)
            self._tensor_of[tensor] = vertex
        return self._tensor_of[tensor]

    def _add_input(
        self, node: Node, name: str, block: Sequence[tuple[int, int]], more: dict[str, Any]
    ) -> int:
        """Add an input vertex that holds a block; returns its tensor."""
        weight = self._folded.weights.get(node)
        like = tensors_of(node)[0] if weight is None else weight
        dtype, shape = dtype_name(like), tuple(high - low for low, high in block)
        attributes = {"block": [list(each) for each in block], **more}
        kernel = Kernel("input", (), (shape,), (dtype,), attributes)
        kind = InputKind.STREAMED if weight is None else InputKind.RESIDENT
        if weight is not None:
            self.weights[name] = weight
        number, label = self._numbers[name], name
        self._numbers[name] += 1
        if more:
            label = f"{name}[{number}]"
        elif number:
            label = f"{name}[whole]"
        vertex = self._builder.vertex(
            self._names.take(label) if label != name else name,
            OpKind.INPUT,
            meta_op=name,
            dtype=dtype,
            input_kind=kind,
            kernel=kernel,
        )
        return self._builder.tensor(vertex, prod(shape) * like.element_size())

    def _temporary_bytes(self, members: Sequence[Shard], outputs: set[int]) -> float:
        """The most bytes of tensors that do not leave the piece, at a time."""
        tensors, last = self._shards.tensors, dict[int, int]()
        for i, shard in enumerate(members):
            last |= dict.fromkeys([*shard.reads(), *shard.outputs], i)
        own = {t for shard in members for t in shard.outputs} - outputs
        now = most = 0
        for i, shard in enumerate(members):
            now += sum(tensors[t].bytes for t in shard.outputs if t in own)
            most = max(most, now + shard.copied_bytes())
            now -= sum(tensors[t].bytes for t in own if last[t] == i)
        return float(most)
