"""The values of a sharded graph, computed vertex by vertex in numpy: the oracle of execution."""

from collections.abc import Mapping
from typing import Any

import numpy as np

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


def input_blocks(graph: Graph, inputs: Mapping[str, Array]) -> dict[int, Array]:
    """The block of an input that each input vertex holds, by tensor, for whole inputs by name."""
    if not graph.kernels:
        raise GraphError(f"graph `{graph.name}` has no kernels to evaluate")
    whole = _whole_inputs(graph, inputs)
    return {
        output_of(graph, v): whole[graph.meta_ops[v]][_slices(kernel_of(graph, v))]
        for v in np.flatnonzero(graph.is_input).tolist()
    }


def result_names(graph: Graph) -> dict[int, str]:
    """The name of the result that each tensor is a block of, for those that are.

    They are the tensors whose kernels name a `result`; in a graph where none does, those that
    nobody reads.
    """
    is_read = np.zeros(graph.num_tensors, np.bool_)
    is_read[graph.edge_tensor] = True
    named = any(kernel is not None and "result" in kernel.attributes for kernel in graph.kernels)
    names = {}
    for tensor, v in enumerate(graph.tensor_producer.tolist()):
        unread = None if named or is_read[tensor] or graph.is_input[v] else graph.meta_ops[v]
        name = kernel_of(graph, v).attributes.get("result", unread)
        if name is not None:
            names[tensor] = name
    return names


def join_results(graph: Graph, values: Mapping[int, Array]) -> dict[str, Array]:
    """The results by name, put together from the tensors that hold blocks of them."""
    blocks: dict[str, list[tuple[Kernel, Array]]] = {}
    for tensor, name in result_names(graph).items():
        kernel = kernel_of(graph, int(graph.tensor_producer[tensor]))
        blocks.setdefault(name, []).append((kernel, values[tensor]))
    results = {}
    for name, parts in blocks.items():
        result = np.zeros(_whole_shape([kernel for kernel, _ in parts]), parts[0][1].dtype)
        for kernel, value in parts:
            result[_slices(kernel)] = value
        results[name] = result
    return results


def kernel_of(graph: Graph, v: int) -> Kernel:
    """The kernel of a vertex, which must have one."""
    kernel = graph.kernels[v] if graph.kernels else None
    if kernel is None:
        raise GraphError(f"vertex `{graph.vertex_names[v]}` has no kernel to evaluate")
    return kernel


def output_of(graph: Graph, v: int) -> int:
    """The one tensor that a vertex produces."""
    (tensor,) = graph.output_tensor[graph.output_ptr[v] : graph.output_ptr[v + 1]].tolist()
    return int(tensor)


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


def _whole_inputs(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The inputs that the graph reads blocks of, each of the shape that its blocks make up."""
    blocks: dict[str, list[Kernel]] = {}
    for v in np.flatnonzero(graph.is_input).tolist():
        blocks.setdefault(graph.meta_ops[v], []).append(kernel_of(graph, v))
    result = {}
    for name, kernels in blocks.items():
        if name not in inputs:
            given = ", ".join(inputs) or "none"
            raise GraphError(f"input `{name}` is missing", hint=f"given: {given}")
        value = np.asarray(inputs[name])
        shape, dtype = _whole_shape(kernels), kernels[0].dtypes[0]
        if value.shape != shape or value.dtype != dtype:
            raise GraphError(
                f"input `{name}` is {value.dtype} {value.shape}, expected {dtype} {shape}"
            )
        result[name] = value
    return result


def _whole_shape(kernels: list[Kernel]) -> tuple[int, ...]:
    """The shape of a tensor from the blocks that kernels hold."""
    ends = [[high for _, high in kernel.attributes["block"]] for kernel in kernels]
    return tuple(max(along) for along in zip(*ends, strict=True))


def _slices(kernel: Kernel) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in kernel.attributes["block"])
