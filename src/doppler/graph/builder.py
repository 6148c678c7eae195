"""The one way to make a Graph: collects its columns, checks them, derives its indices."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from doppler.base.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    csr,
    frozen,
    rows,
)
from doppler.errors import GraphError
from doppler.graph.columns import (
    DEFAULT_DTYPE,
    check_edges,
    checked_kernels,
    checked_name,
    checked_provenance,
    edge_columns,
    exec_table,
    ids_of,
    input_kind_column,
    sizes_of,
    text_columns,
)
from doppler.graph.graph import Graph, Kernel
from doppler.graph.ops import InputKind, OpKind


class GraphBuilder:
    """Collects vertices, tensors and edges one at a time; `build()` checks them.

    >>> b = GraphBuilder("two matmuls")
    >>> x = b.input("x", output_bytes=1e6)
    >>> h = b.op("h", "matmul", reads=[x], output_bytes=1e6, flops=2e9, touched_bytes=3e6)
    >>> y = b.op("y", "matmul", reads=[h], output_bytes=1e6, flops=2e9, touched_bytes=3e6)
    >>> b.build()
    <Graph 'two matmuls': 3 vertices (1 inputs), 3 tensors, 2 edges>
    """

    def __init__(self, name: str = "graph", provenance: Mapping[str, str] | None = None) -> None:
        self.name, self.provenance = name, provenance
        self._vertices: list[dict[str, Any]] = []
        self._tensors: list[tuple[int, float, float | None]] = []
        self._edges: list[tuple[int, int]] = []

    def input(self, name: str, *, output_bytes: float, kind: str = InputKind.EVERYWHERE) -> int:
        """Add an input vertex, whose `kind` is an `InputKind`; returns its tensor."""
        return self.op(name, OpKind.INPUT, reads=(), output_bytes=output_bytes, input_kind=kind)

    def op(
        self,
        name: str,
        kind: str,
        *,
        reads: Sequence[int],
        output_bytes: float,
        transfer_s: float | None = None,
        **columns: Any,
    ) -> int:
        """Add a vertex that reads some tensors and makes one; returns that one."""
        vertex = self.vertex(name, kind, **columns)
        for tensor in reads:
            self.edge(tensor, vertex)
        return self.tensor(vertex, output_bytes, transfer_s=transfer_s)

    def vertex(
        self,
        name: str,
        kind: str,
        *,
        flops: float = 0.0,
        touched_bytes: float = 0.0,
        meta_op: str = "",
        role: str = "",
        dtype: str = DEFAULT_DTYPE,
        kernel: Kernel | None = None,
        exec_s: float | Sequence[float] | None = None,
        input_kind: str = "",
        temporary_bytes: float = 0.0,
    ) -> int:
        """Add a vertex; returns its id."""
        row = {"vertex_names": name, "kinds": str(kind), "flops": flops, "exec_s": exec_s}
        row |= {"touched_bytes": touched_bytes, "meta_ops": meta_op, "roles": role}
        row |= {"dtypes": dtype, "kernels": kernel}
        row |= {"input_kinds": input_kind, "temporary_bytes": temporary_bytes}
        self._vertices.append(row)
        return len(self._vertices) - 1

    def tensor(self, producer: int, tensor_bytes: float, *, transfer_s: float | None = None) -> int:
        """Add a tensor that a vertex produces; returns its id."""
        self._tensors.append((producer, tensor_bytes, transfer_s))
        return len(self._tensors) - 1

    def edge(self, tensor: int, reader: int) -> None:
        """Say that a vertex reads a tensor."""
        self._edges.append((tensor, reader))

    def build(self) -> Graph:
        """The graph, or a `GraphError` that says what is wrong with it."""
        columns = {
            name: [row[name] for row in self._vertices]
            for name in (
                *("vertex_names", "kinds", "input_kinds", "flops", "touched_bytes"),
                *("temporary_bytes", "meta_ops", "roles", "dtypes"),
            )
        }
        return build_graph(
            name=self.name,
            **columns,
            kernels=[row["kernels"] for row in self._vertices],
            exec_s=self._explicit([row["exec_s"] for row in self._vertices], "exec_s"),
            tensor_producer=[t[0] for t in self._tensors],
            tensor_bytes=[t[1] for t in self._tensors],
            transfer_s=self._explicit([t[2] for t in self._tensors], "transfer_s"),
            edge_tensor=[e[0] for e in self._edges],
            edge_reader=[e[1] for e in self._edges],
            provenance=self.provenance,
        )

    def _explicit(self, values: list[Any], column: str) -> list[Any] | None:
        given = [v is not None for v in values]
        if not any(given):
            return None
        inputs = [row["kinds"] == OpKind.INPUT for row in self._vertices]
        if column == "transfer_s":
            producers = [t[0] for t in self._tensors]
            ids_of("tensors.producer", producers, len(inputs), "vertices")
            inputs = [inputs[p] for p in producers]
        for i, (is_given, is_input) in enumerate(zip(given, inputs, strict=True)):
            if not is_given and not is_input:
                raise GraphError(f"`{column}` is given for some but not for number {i}")
        return [0.0 if v is None else v for v in values]


def build_graph(
    *,
    name: str,
    kinds: Sequence[str],
    tensor_producer: Sequence[int] | IntArray,
    tensor_bytes: Sequence[float] | FloatArray,
    edge_tensor: Sequence[int] | IntArray,
    edge_reader: Sequence[int] | IntArray,
    vertex_names: Sequence[str] | None = None,
    input_kinds: Sequence[str] | None = None,
    flops: Sequence[float] | FloatArray | None = None,
    touched_bytes: Sequence[float] | FloatArray | None = None,
    temporary_bytes: Sequence[float] | FloatArray | None = None,
    meta_ops: Sequence[str] | None = None,
    roles: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    kernels: Sequence[Kernel | None] = (),
    exec_s: Sequence[Any] | FloatArray | None = None,
    transfer_s: Sequence[float] | FloatArray | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Graph:
    """A Graph of these columns, or a `GraphError` that says what is wrong with them."""
    size = len(kinds)
    text = text_columns(size, vertex_names, kinds, meta_ops, roles, dtypes)
    names = text["name"]
    producers = ids_of("tensors.producer", tensor_producer, size, "vertices")
    tensors = len(producers)
    of_inputs = input_kind_column(input_kinds, text["kind"], names)
    edge_tensors, edge_readers = edge_columns(edge_tensor, edge_reader, tensors, size)
    flags = _input_flags(of_inputs)
    check_edges(names, producers, edge_tensors, edge_readers, flags["is_input"])
    in_order = np.lexsort((edge_readers, edge_tensors))
    edge_tensors, edge_readers = edge_tensors[in_order], edge_readers[in_order]
    indices = _indices(producers, edge_tensors, edge_readers, names)
    reads = rows(indices["read_ptr"], indices["read_tensor"])
    has_moves = transfer_s is not None and tensors > 0
    moves_s = sizes_of("tensors.transfer_s", transfer_s, tensors) if has_moves else None
    derived: dict[str, Any] = {**flags, **indices}
    return Graph(
        name=checked_name(name),
        vertex_names=names,
        kinds=text["kind"],
        input_kinds=of_inputs,
        flops=sizes_of("vertices.flops", flops, size, names),
        touched_bytes=sizes_of("vertices.bytes", touched_bytes, size, names),
        temporary_bytes=sizes_of("vertices.temporary_bytes", temporary_bytes, size, names),
        meta_ops=text["meta_op"],
        roles=text["role"],
        dtypes=text["dtype"],
        kernels=checked_kernels(kernels, names, reads, np.diff(indices["output_ptr"])),
        exec_s=None if exec_s is None else exec_table(exec_s, size, names),
        tensor_producer=frozen(producers),
        tensor_bytes=sizes_of("tensors.bytes", tensor_bytes, tensors),
        transfer_s=moves_s,
        edge_tensor=frozen(edge_tensors),
        edge_reader=frozen(edge_readers),
        provenance=checked_provenance(provenance),
        **derived,
    )


def _input_flags(input_kinds: tuple[str, ...]) -> dict[str, BoolArray]:
    """(V,) whether a vertex is an input, one that arrives, one that stays."""
    kinds = np.array(input_kinds, np.str_)
    is_loaded = kinds == InputKind.LOADED
    return {
        "is_input": frozen(kinds != ""),
        "arrives": frozen((kinds == InputKind.STREAMED) | is_loaded),
        "stays": frozen((kinds == InputKind.RESIDENT) | is_loaded),
    }


def _indices(
    producers: IntArray, edge_tensors: IntArray, edge_readers: IntArray, names: tuple[str, ...]
) -> dict[str, IntArray]:
    """The rows of tensors and readers, and the topological order, by the names of their fields."""
    size, tensors = len(names), len(producers)
    output_ptr, output_tensor = csr(producers, np.arange(tensors), size)
    reader_ptr, reader = csr(edge_tensors, edge_readers, tensors)
    read_ptr, read_tensor = csr(edge_readers, edge_tensors, size)
    successors = _successors(output_ptr, output_tensor, reader_ptr, reader)
    return {
        "output_ptr": output_ptr,
        "output_tensor": output_tensor,
        "reader_ptr": reader_ptr,
        "reader": reader,
        "read_ptr": read_ptr,
        "read_tensor": read_tensor,
        "topological_order": _topological_order(successors, names),
    }


def _successors(
    output_ptr: IntArray, output_tensor: IntArray, reader_ptr: IntArray, reader: IntArray
) -> list[list[int]]:
    readers = rows(reader_ptr, reader)
    return [[r for t in tensors for r in readers[t]] for tensors in rows(output_ptr, output_tensor)]


def _topological_order(successors: list[list[int]], names: tuple[str, ...]) -> IntArray:
    """Kahn's algorithm, first in first out, so that the order is by levels and stable."""
    missing = [0] * len(successors)
    for readers in successors:
        for r in readers:
            missing[r] += 1
    order = [v for v, count in enumerate(missing) if count == 0]
    for v in order:
        for r in successors[v]:
            missing[r] -= 1
            if missing[r] == 0:
                order.append(r)
    if len(order) < len(successors):
        raise GraphError(
            f"the graph has a cycle: {_name_cycle(successors, missing, names)}",
            hint="a dataflow graph is acyclic; unroll loops before placing it",
        )
    return frozen(np.array(order, np.int64))


def _name_cycle(
    successors: list[list[int]], missing: list[int], names: Mapping[int, str] | Any
) -> str:
    """One cycle, spelled out; vertices with `missing` > 0 are on or behind one."""
    predecessor = {r: v for v, readers in enumerate(successors) if missing[v] > 0 for r in readers}
    vertex = next(v for v, count in enumerate(missing) if count > 0)
    seen: dict[int, int] = {}
    walk: list[int] = []
    while vertex not in seen:
        seen[vertex] = len(walk)
        walk.append(vertex)
        vertex = predecessor[vertex]
    cycle = [names[v] for v in reversed(walk[seen[vertex] :])]
    shown = cycle if len(cycle) <= 8 else [*cycle[:7], "…"]
    return " → ".join(f"`{n}`" if n != "…" else n for n in [*shown, cycle[0]])
