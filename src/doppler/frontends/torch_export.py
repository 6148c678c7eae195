"""PyTorch modules as graphs: exported, folded, coarsened into pieces, priced."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._pytree import SequenceKey, tree_flatten_with_path, tree_unflatten

from doppler.engine.pieces import PIECE
from doppler.errors import ModelError, ShardingError
from doppler.frontends.calls import CallWriter, PieceCalls
from doppler.frontends.coarsen import NONE, PIECES, check_coarsening, make_pieces
from doppler.frontends.device_map import STATE, UNREAD
from doppler.frontends.fold import Folded, fold, owner
from doppler.frontends.lifting.cut_rules import PAPER, choose_cuts
from doppler.frontends.lifting.sharded import add_sharded
from doppler.frontends.lifting.shards import ChooseCuts
from doppler.frontends.node_costs import NodeCosts, temporary_bytes
from doppler.frontends.nodes import (
    VertexNames,
    bytes_of,
    compute_dtype,
    dtype_name,
    is_heavy,
    is_view,
    kind_of,
    memory_of,
    shape_of,
    tensors_of,
)
from doppler.frontends.torch_model import Named, TorchModel
from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Kernel
from doppler.graph.ops import InputKind, OpKind
from doppler.plan import MODULES
from doppler.sharding.partitioner import MAX_PARTS


def from_torch(
    module: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    coarsen: str | int = PIECES,
    parts: int | None = None,
    method: str = PAPER,
    name: str | None = None,
) -> TorchModel:
    """A module as a graph, traced with these arguments, whose shapes it keeps.

    Vertices are pieces: sequences of operations with at most one heavy operation, such as a product
    of matrices. `coarsen` is `pieces`, `none` for a vertex for every operation that is not a view,
    or a number of pieces to merge down to. With `parts`, a power of two, operations are cut into
    that many shards wherever their axes allow; `lifting` says how much was. `method` is `paper`,
    which moves the fewest elements, `tokens`, which needs all weights on every device, or
    `columns`, which is tensor parallelism. On the meta device
    nothing is computed or allocated, so a model that no machine here could hold can be placed and
    simulated.

    >>> import doppler as dp, torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> dp.from_torch(module, (torch.ones(1, 8),)).graph.kinds
    ('input', 'input', 'input', 'matmul', 'input', 'input', 'matmul')
    """
    check_coarsening(coarsen)
    check_parts(parts)
    choose_cuts(method)
    with torch.no_grad():
        program = exported(module, args, kwargs)
    name = name or type(module).__name__
    program = make_functional(program)
    return from_functional(program, coarsen=coarsen, parts=parts, method=method, name=name)


def exported(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> ExportedProgram:
    """What torch.export makes of a module; a `ModelError` where it cannot."""
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"`module` is a {type(module).__name__}, not a torch.nn.Module")
    if not isinstance(args, (tuple, list)):
        raise ModelError("`args` must be a tuple of the module's arguments")
    with quiet():
        try:
            return torch.export.export(module, tuple(args), dict(kwargs or {}), strict=False)
        except ModelError:
            raise
        except Exception as error:  # what a module raises while it is traced may be anything
            raise ModelError(
                f"torch.export cannot trace the module: {type(error).__name__}: {_first(error)}",
                hint="branches on values of tensors need torch.cond; see torch.export's guide",
            ) from error


def make_functional(program: ExportedProgram) -> ExportedProgram:
    """A program without calls that change tensors in place."""
    with quiet(), torch.no_grad():
        try:
            made: ExportedProgram = program.run_decompositions({})
        except Exception as error:  # as above
            why = f"{type(error).__name__}: {_first(error)}"
            raise ModelError(f"the program cannot be made functional: {why}") from error
    return made


def from_functional(
    program: ExportedProgram,
    *,
    coarsen: str | int = PIECES,
    parts: int | None = None,
    method: str | ChooseCuts = PAPER,
    name: str = "model",
    provenance: Mapping[str, str] | None = None,
) -> TorchModel:
    """A functional program as a graph."""
    check_coarsening(coarsen)
    cut = choose_cuts(method)
    check_parts(parts)
    with quiet(), torch.no_grad():
        return _Importer(program, coarsen, GraphBuilder(name, provenance)).model(parts or 1, cut)


def check_parts(parts: int | None) -> None:
    """Raise a `ShardingError` unless `parts` is a valid number of shards."""
    if parts is None:
        return
    if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= MAX_PARTS:
        raise ShardingError(f"parts is {parts!r}, must be a whole number from 1 to {MAX_PARTS}")
    if parts & (parts - 1):
        raise ShardingError(f"parts is {parts}, must be a power of two", hint="choose 2, 4, 8, …")


class _Importer:
    """One program that becomes a graph."""

    def __init__(self, program: ExportedProgram, coarsen: str | int, builder: GraphBuilder) -> None:
        self._program, self._coarsen, self._builder = program, coarsen, builder
        self._folded: Folded = fold(program)
        self._costs = NodeCosts()
        folded = self._folded
        self._writer = CallWriter(folded.free, folded.constants, folded.mutations)
        self._tensors: dict[Node, int] = {}  # by value
        self._weights: dict[str, torch.Tensor] = {}
        self._shared: dict[Any, int] = {}  # tensors by memory: tied weights are one input
        self._names = VertexNames(folded.names.values())  # of vertices
        self._read: set[str] = set()  # what is read of the module's state

    def model(self, parts: int, cut: ChooseCuts) -> TorchModel:
        """The graph and what belongs to it."""
        folded, spec = self._folded, self._program.call_spec
        results, lifting = self._result_names(), None
        if parts == 1:
            self._add_pieces(results)
        else:
            nodes = list(self._program.graph.nodes)
            lifting = add_sharded(
                self._builder, folded, nodes, results,
                parts=parts, coarsen=self._coarsen, weights=self._weights, cut=cut,
            )  # fmt: skip
        given = {n for n in folded.arguments if isinstance(n, Node)}
        unread = [name for name in self._program.state_dict if name not in self._read]
        if unread and parts == 1:
            self._builder.provenance = {
                **(self._builder.provenance or {}),
                UNREAD: "\n".join(unread),
            }
        return TorchModel(
            graph=self._builder.build(),
            weights=self._weights,
            arguments=[Named(n.name) if isinstance(n, Node) else n for n in folded.arguments],
            results=[
                Named(results.get(n, n.name), is_input=n in given) if isinstance(n, Node) else n
                for n in folded.results
            ],
            in_spec=spec.in_spec,
            out_spec=spec.out_spec,
            mutated=tuple(folded.names[buffer] for buffer in folded.mutations),
            sources=folded.sources,
            gradients={
                name: Named(results[node]) if isinstance(node, Node) else node
                for name, node in folded.gradients.items()
            },
            lifting=lifting,
        )

    def _add_pieces(self, results: Mapping[Node, str]) -> None:
        for nodes, outputs in self._pieces(set(results)):
            self._add_piece(nodes, self._writer.piece(nodes, outputs), results)
        for node in self._folded.arguments:
            if isinstance(node, Node):  # what nobody reads is an input nonetheless
                self._input(node)

    def _pieces(self, results: set[Node]) -> list[tuple[list[Node], list[Node]]]:
        """The nodes of each piece, and the values that leave it."""
        nodes, number = self._folded.nodes, {n: i for i, n in enumerate(self._folded.nodes)}
        values: list[set[Node]] = [set(self._writer.reads(node)) for node in nodes]
        heavy = [not is_view(n) if self._coarsen == NONE else is_heavy(n) for n in nodes]
        mutations, pins = self._folded.mutations, []
        for buffer, new in mutations.items():
            if owner(new) not in number:
                raise ModelError(f"the model writes an input to its buffer `{buffer.name}`")
            pins.append([number[owner(new)], *(i for i, v in enumerate(values) if buffer in v)])
        place = {node: i for i, node in enumerate(self._program.graph.nodes)}
        found = make_pieces(
            values,
            lambda value: number.get(owner(value)),
            heavy=heavy,
            kept=(*results, *mutations.values()),
            rank=place.__getitem__,
            pins=pins,
            coarsen=self._coarsen,
            flops=lambda i: self._costs.flops(nodes[i]),
        )
        return [([nodes[i] for i in members], outputs) for members, outputs in found]

    def _add_piece(
        self, nodes: Sequence[Node], piece: PieceCalls, results: Mapping[Node, str]
    ) -> None:
        inputs = tuple(self._input(value) for value in piece.inputs)
        flops = [self._costs.flops(node) for node in nodes]
        touched = [self._costs.touched_bytes(node) for node in nodes]
        head = max(range(len(nodes)), key=lambda i: (flops[i], touched[i], -i))
        made = [tensors_of(value)[0] for value in piece.outputs]
        attributes: dict[str, Any] = {"calls": piece.calls, "returns": piece.returns}
        attributes["results"] = [results.get(value) for value in piece.outputs]
        paths = dict.fromkeys(map(_module_of, (nodes[head], *nodes)))
        attributes[MODULES] = list(paths)
        shapes, dtypes = tuple(map(shape_of, made)), tuple(map(dtype_name, made))
        name = self._names.of(nodes[head])
        vertex = self._builder.vertex(
            name,
            kind_of(nodes[head]),
            flops=sum(flops),
            touched_bytes=sum(touched),
            temporary_bytes=temporary_bytes(nodes, piece.outputs),
            meta_op=name,
            dtype=compute_dtype(nodes[head]),
            kernel=Kernel(PIECE, inputs, shapes, dtypes, attributes),
        )
        for tensor in dict.fromkeys(inputs):
            self._builder.edge(tensor, vertex)
        for value, like in zip(piece.outputs, made, strict=True):
            self._tensors[value] = self._builder.tensor(vertex, bytes_of(like))

    def _input(self, value: Node) -> int:
        """The tensor of a value; of one that no piece makes, that of a new input vertex."""
        weight = self._folded.weights.get(value)
        memory = None if weight is None or value in self._folded.mutations else memory_of(weight)
        if value not in self._tensors and memory in self._shared:
            self._tensors[value] = self._shared[memory]
        if value not in self._tensors:
            name = self._folded.names.get(value, value.name)
            like = tensors_of(value)[0] if weight is None else weight
            shape, dtype = shape_of(like), dtype_name(like)
            attributes: dict[str, Any] = {"block": [[0, size] for size in shape]}
            if (state := self._folded.state.get(value)) is not None:
                attributes[STATE] = state
                self._read.add(state)
            kernel = Kernel("input", (), (shape,), (dtype,), attributes)
            self._names.take(name)
            kind = InputKind.STREAMED if weight is None else InputKind.RESIDENT
            options: Any = {"meta_op": name, "dtype": dtype, "input_kind": kind}
            vertex = self._builder.vertex(name, OpKind.INPUT, kernel=kernel, **options)
            self._tensors[value] = self._builder.tensor(vertex, bytes_of(like))
            if weight is not None:
                self._weights[name] = weight
            if memory is not None:
                self._shared[memory] = self._tensors[value]
        return self._tensors[value]

    def _result_names(self) -> dict[Node, str]:
        """A name for each tensor that is computed and returned: where it is in what is returned."""
        spec, found = self._program.call_spec.out_spec, self._folded.results
        whole = tree_unflatten(list(range(spec.num_leaves)), spec)
        paths = [path for path, _ in tree_flatten_with_path(whole)[0]]
        given = {n for n in self._folded.arguments if isinstance(n, Node)}
        names: dict[Node, str] = {}
        for path, node in zip(paths, found, strict=True):
            if isinstance(node, Node) and node not in given:
                names.setdefault(node, ".".join(map(_word, path)) or "output")
        for parameter, node in self._folded.gradients.items():
            if isinstance(node, Node):
                names.setdefault(node, f"gradient.{parameter}")
        return names


def _module_of(node: Node) -> str:
    """The path of the innermost module that calls a node; empty for that of all."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return str(stack[-1][0]) if stack else ""


def _word(key: Any) -> str:
    if isinstance(key, SequenceKey):
        return str(key.idx)
    return str(getattr(key, "key", getattr(key, "name", key)))


def _first(error: BaseException) -> str:
    return (str(error).strip() or "no reason given").split("\n")[0][:300]


@contextmanager
def quiet() -> Any:
    """Without torch's warnings about what it is asked to do here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
