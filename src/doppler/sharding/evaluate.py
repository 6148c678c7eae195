"""The values of a sharded graph, computed vertex by vertex in numpy: the oracle of execution."""

from collections.abc import Container, Mapping
from math import prod
from typing import Any

import numpy as np

from doppler.base.arrays import rows
from doppler.errors import GraphError
from doppler.graph.graph import Graph, Kernel
from doppler.graph.ops import OpKind
from doppler.programs.numpy_ops import Array, compute


def evaluate_graph(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The results of a graph by meta-op, for whole inputs by name."""
    values = input_blocks(graph, inputs)
    for v in graph.topological_order.tolist():
        if not graph.is_input[v]:
            kernel = kernel_of(graph, v)
            values[output_of(graph, v)] = run_kernel(kernel, [values[t] for t in kernel.inputs])
    return join_results(graph, values)


def input_blocks(
    graph: Graph, inputs: Mapping[str, Array], *, skipped: Container[int] = ()
) -> dict[int, Array]:
    """The block of an input that each input vertex holds, by tensor, for whole inputs by name.

    Inputs are arrays, or tensors of torch; a block that is all of its input is that itself. Some
    vertices may be skipped, which hold all of their inputs.
    """
    if not graph.kernels:
        raise GraphError(f"graph `{graph.name}` has no kernels to evaluate")
    vertices = [v for v in np.flatnonzero(graph.is_input).tolist() if v not in skipped]
    whole = _whole_inputs(graph, inputs, vertices)
    blocks = {}
    for v in vertices:
        value, kernel = whole[graph.meta_ops[v]], kernel_of(graph, v)
        if tuple(value.shape) == kernel.shapes[0]:
            block = value
        elif "atoms" in kernel.attributes:
            block = _copied(value.reshape(_sizes(graph, v, "atoms"))[_slices(graph, v)])
        else:
            block = value[_slices(graph, v)]
        blocks[output_of(graph, v)] = block
    return blocks


def _copied(block: Any) -> Any:
    """A block that its dimensions' factors tear apart, in memory of its own."""
    return block.contiguous() if hasattr(block, "contiguous") else np.ascontiguousarray(block)


def _sizes(graph: Graph, v: int, name: str) -> tuple[int, ...]:
    """A shape among the attributes of an input: of its `whole` tensor, or of the factors of it."""
    attributes = kernel_of(graph, v).attributes
    found: Any = attributes.get(name)
    is_shape = isinstance(found, (list, tuple)) and all(
        type(n) is int and 0 < n < 1 << 62 for n in found
    )
    if is_shape and name == "atoms":
        is_shape = prod(found) == prod(_sizes(graph, v, "whole"))
    ends = [high for _, high in block_of(graph, v)]
    if is_shape and (name == "atoms" or "atoms" not in attributes):
        fits = len(ends) == len(found)
        is_shape = fits and all(end <= n for end, n in zip(ends, found, strict=True))
    if not is_shape:
        raise GraphError(f"the kernel of `{graph.vertex_names[v]}` has {name} {found!r}")
    return tuple(found)


def result_names(graph: Graph) -> dict[int, str]:
    """The name of the result that each tensor is a block of, for those that are.

    They are the tensors whose kernels name a `result`; in a graph where none does, those that
    nobody reads.
    """
    is_read = np.zeros(graph.num_tensors, np.bool_)
    is_read[graph.edge_tensor] = True
    named = any(
        kernel is not None and not kernel.attributes.keys().isdisjoint(("result", "results"))
        for kernel in graph.kernels
    )
    names = {}
    for v, tensors in enumerate(rows(graph.output_ptr, graph.output_tensor)):
        for tensor, name in zip(tensors, kernel_of(graph, v).result_names(), strict=True):
            if not named and not is_read[tensor] and not graph.is_input[v]:
                name = graph.meta_ops[v]
            if name is None:
                continue
            if not isinstance(name, str):
                raise GraphError(f"the kernel of `{graph.vertex_names[v]}` has the result {name!r}")
            names[tensor] = name
    return names


def join_results(graph: Graph, values: Mapping[int, Array]) -> dict[str, Array]:
    """The results by name, put together from the tensors that hold blocks of them."""
    blocks: dict[str, dict[int, Array]] = {}
    for tensor, name in result_names(graph).items():
        blocks.setdefault(name, {})[int(graph.tensor_producer[tensor])] = values[tensor]
    results = {}
    for name, parts in blocks.items():
        shape, dtypes = _whole_shape(graph, list(parts)), {part.dtype for part in parts.values()}
        if len(dtypes) > 1:
            found = ", ".join(sorted(map(str, dtypes)))
            raise GraphError(f"result `{name}` has blocks of several dtypes: {found}")
        try:
            results[name] = np.zeros(shape, dtypes.pop())
        except (MemoryError, ValueError) as error:  # larger than memory, or than any array
            raise GraphError(f"result `{name}` of shape {shape}: {error}") from None
        for v, part in parts.items():
            results[name][_slices(graph, v)] = part
    return results


def kernel_of(graph: Graph, v: int) -> Kernel:
    """The kernel of a vertex, which must have one."""
    kernel = graph.kernels[v] if graph.kernels else None
    if kernel is None:
        raise GraphError(f"vertex `{graph.vertex_names[v]}` has no kernel to evaluate")
    return kernel


def output_of(graph: Graph, v: int) -> int:
    """The one tensor that a vertex produces."""
    tensors = graph.output_tensor[graph.output_ptr[v] : graph.output_ptr[v + 1]].tolist()
    if len(tensors) != 1:
        raise GraphError(
            f"vertex `{graph.vertex_names[v]}` has {len(tensors)} outputs, must have one"
        )
    return int(tensors[0])


def block_of(graph: Graph, v: int) -> list[tuple[int, int]]:
    """The part of a whole tensor that a vertex holds: where it begins and ends on each axis."""
    kernel = kernel_of(graph, v)
    block, shape = kernel.attributes.get("block"), kernel.shapes[0]
    if not isinstance(block, (list, tuple)) or len(block) != len(shape):
        raise _no_block(graph, v)
    for ends, size in zip(block, shape, strict=True):
        if not (isinstance(ends, (list, tuple)) and len(ends) == 2):
            raise _no_block(graph, v)
        if not all(type(end) is int for end in ends) or not 0 <= ends[0] == ends[1] - size:
            raise _no_block(graph, v)
    return [(low, high) for low, high in block]


def _no_block(graph: Graph, v: int) -> GraphError:
    kernel = kernel_of(graph, v)
    return GraphError(
        f"the kernel of `{graph.vertex_names[v]}` has the block "
        f"{kernel.attributes.get('block')!r}, which does not fit its shape {kernel.shapes[0]}",
        hint="a beginning and an end for each axis, such as [[0, 2], [4, 8]]",
    )


def run_kernel(kernel: Kernel, inputs: list[Array]) -> Array:
    """The output of one kernel for the tensors in its input slots."""
    attributes = kernel.attributes
    shape, dtype = kernel.shapes[0], kernel.dtypes[0]
    if kernel.op == OpKind.SELECT:
        whole = {"shape": shape, "pieces": [p for o in attributes["operands"] for p in o["pieces"]]}
        return assemble(whole, inputs)
    operands = [assemble(operand, inputs) for operand in attributes.get("operands", ())]
    axes = attributes.get("axes", [[]] * len(operands))
    return compute(kernel.op, attributes, operands, axes, shape, dtype)


def assemble(operand: Any, inputs: list[Array]) -> Array:
    """An operand: one of the inputs, or put together from pieces of several."""
    if isinstance(operand, int):
        return inputs[operand]
    first = inputs[operand["pieces"][0][0]]
    result = np.empty(operand["shape"], first.dtype)
    for slot, part, place in operand["pieces"]:
        source = tuple(slice(low, high) for low, high in part)
        target = tuple(
            slice(at, at + high - low) for at, (low, high) in zip(place, part, strict=True)
        )
        result[target] = inputs[slot][source]
    return result


def whole_shape(graph: Graph, v: int) -> tuple[int, ...]:
    """The shape of the tensor that an input vertex holds a block of, or all."""
    kernel = kernel_of(graph, v)
    return _sizes(graph, v, "whole") if "whole" in kernel.attributes else kernel.shapes[0]


def _whole_inputs(graph: Graph, inputs: Mapping[str, Array], of: list[int]) -> dict[str, Array]:
    """The inputs that vertices hold blocks of, each of the shape that its blocks make up."""
    blocks: dict[str, list[int]] = {}
    for v in of:
        output_of(graph, v)
        blocks.setdefault(graph.meta_ops[v], []).append(v)
    result = {}
    for name, vertices in blocks.items():
        if name not in inputs:
            given = ", ".join(inputs) or "none"
            raise GraphError(f"input `{name}` is missing", hint=f"given: {given}")
        value = inputs[name]
        if not hasattr(value, "dtype"):
            value = np.asarray(value)
        shape, dtype = _whole_shape(graph, vertices), kernel_of(graph, vertices[0]).dtypes[0]
        own_shape, own_dtype = tuple(value.shape), str(value.dtype).removeprefix("torch.")
        if own_shape != shape or own_dtype != dtype:
            raise GraphError(f"input `{name}` is {own_dtype} {own_shape}, expected {dtype} {shape}")
        result[name] = value
    return result


def _whole_shape(graph: Graph, vertices: list[int]) -> tuple[int, ...]:
    """The shape of a tensor from the blocks that vertices hold, or as one of them names it."""
    named = [v for v in vertices if "whole" in kernel_of(graph, v).attributes]
    if named:
        return _sizes(graph, named[0], "whole")
    ends = [[high for _, high in block_of(graph, v)] for v in vertices]
    if len(set(map(len, ends))) > 1:
        names = " and ".join(f"`{graph.vertex_names[v]}`" for v in vertices[:2])
        raise GraphError(f"{names} hold blocks with different numbers of axes of one tensor")
    return tuple(max(along) for along in zip(*ends, strict=True))


def _slices(graph: Graph, v: int) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in block_of(graph, v))
