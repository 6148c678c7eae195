"""Folding: what no user input reaches is computed once; what only looks at tensors costs nothing.

What is left of an exported program are its live nodes. Parameters, buffers and constants that
these read are inputs that stay, and so are the values that were computed ahead. Views of these are
not computed ahead, since their memory is that of another tensor, which would be there twice.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.fx import Node

from doppler.errors import ModelError
from doppler.frontends.nodes import check_plain, is_check, is_tensor, is_view

_GRADIENTS = (OutputKind.GRADIENT_TO_PARAMETER, OutputKind.GRADIENT_TO_USER_INPUT)
_KEPT = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True, slots=True)
class Folded:
    """An exported program without what can be computed ahead."""

    nodes: tuple[Node, ...]  # live calls, in order
    free: frozenset[Node]  # calls for each reader to make: of numbers, and views of what stays
    arguments: tuple[Node | Any, ...]  # a node for each tensor of the user, else the constant
    weights: Mapping[Node, torch.Tensor]  # what stays, by node; of those that are read
    names: Mapping[Node, str]  # of weights: where in the module they are
    state: Mapping[Node, str]  # of parameters and buffers that are saved: their names
    constants: Mapping[Node, Any]  # numbers that were computed ahead
    results: tuple[Node | Any, ...]  # a live node or the user's tensor, else what is returned
    mutations: Mapping[Node, Node]  # new values of buffers, by the nodes of these
    sources: tuple[torch.Tensor, ...]  # what stays and was computed with
    gradients: Mapping[str, Node | Any]  # of a joint graph, by parameter; as results are


def fold(program: ExportedProgram) -> Folded:
    """The live part of a program, and the values of the rest."""
    by_name = {node.name: node for node in program.graph.nodes}
    values, names = _kept(program, by_name)
    arguments = _arguments(program, by_name)
    results, mutations, gradients = _outputs(program, by_name)
    calls = [n for n in program.graph.nodes if n.op == "call_function" and not is_check(n)]
    for node in calls:
        check_plain(node)
    # A written buffer is live, and so is what is written to it.
    live = {n for n in arguments if isinstance(n, Node)} | set(mutations)
    for node in calls:
        if node in mutations.values() or any(n in live for n in node.all_input_nodes):
            live.add(node)
    ahead = _Ahead(values)
    needed = {n for node in calls if node in live for n in node.all_input_nodes if n not in live}
    free = {node for node in calls if node in live and not is_tensor(node)}
    for node in reversed(calls):  # views of what is computed ahead, the last first
        if node in needed and _stays_a_view(node):
            free.add(node)
            needed.discard(node)
            needed |= {n for n in node.all_input_nodes if n not in live}

    def found(each: Node | Any) -> Node | Any:
        return ahead.value(each) if isinstance(each, Node) and each not in live else each

    constants = {node: ahead.value(node) for node in by_name.values() if node in needed}
    weights = {n: value for n, value in constants.items() if isinstance(value, torch.Tensor)}
    weights |= {buffer: values[buffer] for buffer in mutations}
    return Folded(
        nodes=tuple(n for n in calls if n in live and n not in free and not _is_part(n)),
        free=frozenset(node for node in free if not _is_part(node)),
        arguments=arguments,
        weights=weights,
        names=_unique_names(weights, names, arguments),
        state={node: name for node, name in names.items() if name in program.state_dict},
        constants={n: value for n, value in constants.items() if n not in weights},
        results=tuple(found(each) for each in results),
        gradients={name: found(each) for name, each in gradients.items()},
        mutations=mutations,
        sources=tuple(ahead.sources.values()),
    )


def owner(node: Node) -> Node:
    """The call that makes a value: of a part of a tuple, the one that makes the tuple."""
    while _is_part(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _is_part(node: Node) -> bool:
    return node.target is operator.getitem and isinstance(node.args[0], Node)


def _stays_a_view(node: Node) -> bool:
    return is_tensor(node) and is_view(node) and not _is_part(node)


class _Ahead:
    """Values of nodes that no user input reaches, each computed when it is first asked for."""

    def __init__(self, values: Mapping[Node, torch.Tensor]) -> None:
        self._values: dict[Node, Any] = dict(values)
        self._given = values
        self.sources: dict[Node, torch.Tensor] = {}  # of these, what was computed with

    def value(self, node: Node) -> Any:
        """The value of a node; on the meta device, where that of an operand is there."""
        pending = [node]
        while pending:
            missing = [n for n in pending[-1].all_input_nodes if n not in self._values]
            if missing:
                pending += missing
            else:
                one = pending.pop()
                if one not in self._values:
                    self._values[one] = self._compute(one)
        return self._values[node]

    def _compute(self, node: Node) -> Any:
        if node.op != "call_function":
            raise ModelError(f"the model reads `{node.name}`, which has no value")
        operands = [self._values[n] for n in node.all_input_nodes]
        self.sources |= {n: self._given[n] for n in node.all_input_nodes if n in self._given}
        if any(_is_meta(x) for x in operands):
            return torch.utils._pytree.tree_map(_like, node.meta["val"])
        args, kwargs = torch.fx.node.map_arg(
            (node.args, dict(node.kwargs)), lambda n: self._values[n]
        )
        with torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]


def _is_meta(value: Any) -> bool:
    leaves = torch.utils._pytree.tree_leaves(value)
    return any(isinstance(x, torch.Tensor) and x.is_meta for x in leaves)


def _like(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _kept(
    program: ExportedProgram, by_name: Mapping[str, Node]
) -> tuple[dict[Node, torch.Tensor], dict[Node, str]]:
    """Parameters, buffers and constants by node, and where in the module they are."""
    values, names = {}, {}
    for spec in program.graph_signature.input_specs:
        if spec.kind not in _KEPT:
            continue
        target = spec.target or ""
        found = program.state_dict.get(target, program.constants.get(target))
        if not isinstance(found, torch.Tensor):
            raise ModelError(f"the model's `{target}` is no tensor, so it cannot be imported")
        node = by_name[spec.arg.name]
        values[node], names[node] = found, target
    return values, names


def _arguments(program: ExportedProgram, by_name: Mapping[str, Node]) -> tuple[Node | Any, ...]:
    found: list[Node | Any] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind in _KEPT:
            continue
        if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument):
            found.append(by_name[spec.arg.name])
        elif spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, ConstantArgument):
            found.append(spec.arg.value)
        else:
            what = type(spec.arg).__name__
            raise ModelError(f"the model has an input of kind {what}, which cannot be imported")
    return tuple(found)


def _outputs(
    program: ExportedProgram, by_name: Mapping[str, Node]
) -> tuple[tuple[Node | Any, ...], dict[Node, Node], dict[str, Node]]:
    """What is returned, what is written to buffers, and gradients by the names of parameters."""
    results: list[Node | Any] = []
    mutations, gradients = {}, {}
    buffers = program.graph_signature.inputs_to_buffers
    nodes = {target: by_name[name] for name, target in buffers.items()}
    for spec in program.graph_signature.output_specs:
        is_tensor_output = isinstance(spec.arg, TensorArgument)
        if spec.kind == OutputKind.BUFFER_MUTATION:
            mutations[nodes[str(spec.target)]] = by_name[spec.arg.name]
        elif spec.kind in _GRADIENTS and is_tensor_output:
            gradients[str(spec.target)] = by_name[spec.arg.name]
        elif spec.kind == OutputKind.USER_INPUT_MUTATION:
            raise ModelError(
                f"the model changes its input `{spec.target}` in place",
                hint="let it change a clone of it",
            )
        elif spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT) and is_tensor_output:
            results.append(by_name[spec.arg.name])
        elif spec.kind == OutputKind.USER_OUTPUT and isinstance(spec.arg, ConstantArgument):
            results.append(spec.arg.value)
        else:
            raise ModelError(
                f"the model returns a {type(spec.arg).__name__}, which cannot be imported"
            )
    return tuple(results), mutations, gradients


def _unique_names(
    weights: Mapping[Node, torch.Tensor],
    names: Mapping[Node, str],
    arguments: tuple[Node | Any, ...],
) -> dict[Node, str]:
    """A name for each weight: where it is in the module, unless that is the name of an argument."""
    taken = {node.name for node in arguments if isinstance(node, Node)}
    found = {}
    for node in weights:
        name = names.get(node, f"folded.{node.name}")
        while name in taken:
            name = f"weight.{name}"
        taken.add(name)
        found[node] = name
    return found
