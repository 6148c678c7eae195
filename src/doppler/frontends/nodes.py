"""What the nodes of an exported program are: views, heavy work, sizes, randomness."""

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from doppler.errors import ModelError
from doppler.graph.ops import OpKind

aten = torch.ops.aten

UNKNOWN_SIZE = 8  # of a dimension that depends on values
_CHECKS = frozenset(
    {"_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range"}
    | {
        "sym_constrain_range_for_size",
        "_functional_assert_async",
        "_functional_sym_constrain_range",
    }
    | {"_functional_sym_constrain_range_for_size"}
)
_HEAVY = frozenset(
    {"linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "addbmm", "einsum", "mv", "dot"}
    | {"conv1d", "conv2d", "conv3d", "convolution", "_convolution"}
    | {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
    | {"scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu"}
    | {"embedding_bag", "_embedding_bag", "grouped_mm", "_grouped_mm", "_scaled_mm", "sort"}
    | {"topk", "index_add", "scatter_add", "cdist", "fft_fft", "fft_ifft"}
)
_PRODUCTS = frozenset({"linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "addbmm", "einsum"})
_FOREIGN = frozenset({"prims", "prim"})


class VertexNames:
    """Unique names of vertices."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._reserved, self._taken = set(reserved), set[str]()

    def take(self, name: str) -> str:
        """A name that is nobody else's, though it may be a reserved one."""
        while name in self._taken:
            name += "'"
        self._taken.add(name)
        return name

    def of(self, node: Node) -> str:
        """Where in the module a node is, or its own name if that is taken."""
        stack = list(node.meta.get("nn_module_stack", {}).values())
        path = stack[-1][0] if stack else ""
        name = f"{path}.{node.name}" if path in self._taken or not path else path
        name = name.removeprefix(".")
        while name in self._taken or name in self._reserved:
            name += "'"
        return self.take(name)


def op_name(node: Node) -> str:
    """The plain name of what a node calls, such as `linear`."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.split("::")[1]
    return getattr(target, "__name__", str(target))


def is_check(node: Node) -> bool:
    """Whether a node only asserts something."""
    return op_name(node) in _CHECKS


def is_view(node: Node) -> bool:
    """Whether a node returns its operand's memory under another shape, or may."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return any(
        each.alias_info is not None and not each.alias_info.is_write
        for each in target._schema.returns
    ) or op_name(node) in ("reshape", "_unsafe_view", "contiguous")


def is_heavy(node: Node) -> bool:
    """Whether a node is work enough for a piece of its own."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target.namespace not in ("aten", *_FOREIGN):
        return True  # of a library: nobody knows what it does
    name = op_name(node)
    return name in _HEAVY or name.startswith("_scaled_dot_product")


def kind_of(node: Node) -> str:
    """The kind of a vertex that is this call."""
    name = op_name(node)
    return str(OpKind.MATMUL) if name in _PRODUCTS else name


def compute_dtype(node: Node) -> str:
    """The dtype that a call computes in."""
    tensors = [*tensors_of(node), *(t for n in node.all_input_nodes for t in tensors_of(n))]
    floats = [t for t in tensors if t.dtype.is_floating_point or t.dtype.is_complex]
    return dtype_name(floats[0]) if floats else "float32"


def is_tensor(node: Node) -> bool:
    """Whether a node is a tensor, or several; else it is a number."""
    value = node.meta.get("val")
    return not isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def tensors_of(node: Node) -> list[torch.Tensor]:
    """The tensors that a node returns, of which only shapes and dtypes are known."""
    found = tree_leaves(node.meta.get("val"))
    return [each for each in found if isinstance(each, torch.Tensor)]


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The sizes of a tensor; where one depends on values, an example."""
    return tuple(size_of(size) for size in tensor.shape)


def size_of(size: Any) -> int:
    """A size; the example that it was exported with, where it is a symbol."""
    if isinstance(size, torch.SymInt):
        hint = size.node.hint if size.node.has_hint() else None
        return UNKNOWN_SIZE if hint is None else int(hint)
    return int(size)


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    count = 1
    for size in shape_of(tensor):
        count *= size
    return count * tensor.element_size()


def memory_of(tensor: torch.Tensor) -> Any:
    """What two tensors share exactly where they are the same part of the same memory."""
    place = tensor.untyped_storage()._cdata, tensor.storage_offset()
    return (*place, tuple(tensor.shape), tensor.stride(), tensor.dtype)


def dtype_name(tensor: torch.Tensor) -> str:
    """The dtype of a tensor as graphs name it."""
    return str(tensor.dtype).removeprefix("torch.")


def tensor_leaves(node: Node, free: Container[Node] = ()) -> Iterator[Node]:
    """The tensors among a call's arguments, and those of the free calls for its numbers."""
    found: list[Node] = []
    map_leaves(node, found.append)
    for leaf in found:
        if tensors_of(leaf):
            yield leaf
        elif leaf in free:
            yield from tensor_leaves(leaf, free)


def map_leaves(
    node: Node, of: Callable[[Node], Any], constant: Callable[[Any], Any] = lambda value: value
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, with other values for nodes and constants, in its schema's order."""

    def mapped(value: Any) -> Any:
        if isinstance(value, Node):
            return of(value)
        if isinstance(value, (list, tuple)):
            return [mapped(each) for each in value]
        return constant(value)

    schema = getattr(node.target, "_schema", None)
    order = [each.name for each in schema.arguments] if schema else list(node.kwargs)
    args = [mapped(value) for value in node.args]
    return args, {name: mapped(node.kwargs[name]) for name in order if name in node.kwargs}


def check_plain(node: Node) -> None:
    """Raise a `ModelError` if a node is control flow, or draws random numbers."""
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        raise ModelError(
            f"the model calls `{op_name(node)}` at `{node.name}`, which cannot be imported",
            hint="control flow that depends on values has no place in a dataflow graph",
        )
    if not isinstance(target, torch._ops.OpOverload):
        return
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return
    for name, value in arguments(node):
        if name in ("train", "training") and value is False:
            return
        if name in ("dropout_p", "dropout", "p") and value == 0:
            return
    raise ModelError(
        f"the model draws random numbers: `{node.name}` calls `{target}`",
        hint="import it in evaluation mode: `module.eval()` turns dropout off",
    )


def arguments(node: Node) -> Iterator[tuple[str, Any]]:
    """The arguments of a call by name, defaults included."""
    target: Any = node.target
    for i, parameter in enumerate(target._schema.arguments):
        default = parameter.default_value if parameter.has_default_value() else None
        given = node.args[i] if i < len(node.args) else default
        yield parameter.name, node.kwargs.get(parameter.name, given)
