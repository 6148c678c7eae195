"""The one way to make a Graph: collects its columns, checks them, derives its indices."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from doppler.base.arrays import (
    RANGE,
    FloatArray,
    IntArray,
    csr,
    frozen,
    in_range,
    integers,
    reals,
    rows,
)
from doppler.errors import GraphError
from doppler.graph.graph import Graph, Kernel
from doppler.graph.ops import OpKind

ROLES = ("", "shard", "reduce")
DEFAULT_DTYPE = "float32"


class GraphBuilder:
    """Collects vertices, tensors and edges one at a time; `build()` checks them.

    >>> b = GraphBuilder("two matmuls")
    >>> x = b.input("x", output_bytes=1e6)
    >>> h = b.op("h", "matmul", reads=[x], output_bytes=1e6, flops=2e9, touched_bytes=3e6)
    >>> y = b.op("y", "matmul", reads=[h], output_bytes=1e6, flops=2e9, touched_bytes=3e6)
    >>> b.build()
    <Graph 'two matmuls': 3 vertices (1 inputs), 3 tensors, 2 edges>
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._vertices: list[dict[str, Any]] = []
        self._tensors: list[tuple[int, float, float | None]] = []
        self._edges: list[tuple[int, int]] = []

    def input(self, name: str, *, output_bytes: float) -> int:
        """Add an input vertex; returns its tensor."""
        return self.op(name, OpKind.INPUT, reads=(), output_bytes=output_bytes)

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
    ) -> int:
        """Add a vertex; returns its id."""
        row = {"vertex_names": name, "kinds": str(kind), "flops": flops, "exec_s": exec_s}
        row |= {"touched_bytes": touched_bytes, "meta_ops": meta_op, "roles": role}
        row |= {"dtypes": dtype, "kernels": kernel}
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
            for name in ("vertex_names", "kinds", "flops", "touched_bytes", "meta_ops", "roles")
        }
        columns["dtypes"] = [row["dtypes"] for row in self._vertices]
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
        )

    def _explicit(self, values: list[Any], column: str) -> list[Any] | None:
        given = [v is not None for v in values]
        if not any(given):
            return None
        inputs = [row["kinds"] == OpKind.INPUT for row in self._vertices]
        if column == "transfer_s":
            producers = [t[0] for t in self._tensors]
            _ids("tensors.producer", producers, len(inputs), "vertices")
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
    flops: Sequence[float] | FloatArray | None = None,
    touched_bytes: Sequence[float] | FloatArray | None = None,
    meta_ops: Sequence[str] | None = None,
    roles: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    kernels: Sequence[Kernel | None] = (),
    exec_s: Sequence[Any] | FloatArray | None = None,
    transfer_s: Sequence[float] | FloatArray | None = None,
) -> Graph:
    """A Graph of these columns, or a `GraphError` that says what is wrong with them."""
    size = len(kinds)
    names = tuple(vertex_names) if vertex_names is not None else tuple(f"v{i}" for i in range(size))
    text = {"name": names, "kind": tuple(kinds)}
    text["meta_op"] = tuple(meta_ops) if meta_ops is not None else ("",) * size
    text["role"] = tuple(roles) if roles is not None else ("",) * size
    text["dtype"] = tuple(dtypes) if dtypes is not None else (DEFAULT_DTYPE,) * size
    for column, values in text.items():
        _check_text(column, values, size)
    _check_unique(names)
    if bad := next((r for r in text["role"] if r not in ROLES), None):
        raise GraphError(f"role `{bad}` is not one of `shard`, `reduce` or empty")

    producers = _ids("tensors.producer", tensor_producer, size, "vertices")
    tensors = len(producers)
    edge_tensors = _ids("edges.tensor", edge_tensor, tensors, "tensors")
    edge_readers = _ids("edges.reader", edge_reader, size, "vertices")
    if len(edge_tensors) != len(edge_readers):
        raise GraphError(f"{len(edge_tensors)} edge tensors but {len(edge_readers)} edge readers")
    is_input = np.array([k == OpKind.INPUT for k in text["kind"]], np.bool_)
    _check_edges(names, producers, edge_tensors, edge_readers, is_input)
    in_order = np.lexsort((edge_readers, edge_tensors))
    edge_tensors, edge_readers = edge_tensors[in_order], edge_readers[in_order]

    output_ptr, output_tensor = csr(producers, np.arange(tensors), size)
    reader_ptr, reader = csr(edge_tensors, edge_readers, tensors)
    read_ptr, read_tensor = csr(edge_readers, edge_tensors, size)
    successors = _successors(output_ptr, output_tensor, reader_ptr, reader)
    return Graph(
        name=_check_name(name),
        vertex_names=names,
        kinds=text["kind"],
        flops=_sizes("vertices.flops", flops, size, names),
        touched_bytes=_sizes("vertices.bytes", touched_bytes, size, names),
        meta_ops=text["meta_op"],
        roles=text["role"],
        dtypes=text["dtype"],
        kernels=_check_kernels(kernels, names, rows(read_ptr, read_tensor), np.diff(output_ptr)),
        exec_s=None if exec_s is None else _exec_table(exec_s, size, names),
        tensor_producer=frozen(producers),
        tensor_bytes=_sizes("tensors.bytes", tensor_bytes, tensors),
        transfer_s=(
            _sizes("tensors.transfer_s", transfer_s, tensors)
            if transfer_s is not None and tensors
            else None
        ),
        edge_tensor=frozen(edge_tensors),
        edge_reader=frozen(edge_readers),
        is_input=frozen(is_input),
        output_ptr=output_ptr,
        output_tensor=output_tensor,
        reader_ptr=reader_ptr,
        reader=reader,
        read_ptr=read_ptr,
        read_tensor=read_tensor,
        topological_order=_topological_order(successors, names),
    )


def _check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise GraphError(f"the graph's name must be text, not {name!r}")
    return name


def _check_text(column: str, values: tuple[Any, ...], size: int) -> None:
    if len(values) != size:
        raise GraphError(f"vertices.{column} has {len(values)} entries for {size} vertices")
    if not set(map(type, values)) <= {str, OpKind}:
        bad = next((i for i, v in enumerate(values) if not isinstance(v, str)), None)
        if bad is not None:
            raise GraphError(f"vertices.{column}[{bad}] must be text, not {values[bad]!r}")


def _check_unique(names: tuple[str, ...]) -> None:
    if len(set(names)) == len(names):
        return
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        if name in seen:
            raise GraphError(f"vertices {seen[name]} and {i} are both named `{name}`")
        seen[name] = i


def _ids(column: str, values: Any, size: int, of: str) -> IntArray:
    ids = integers(values)
    if ids is None:
        raise GraphError(f"{column} must be a list of whole numbers")
    bad = np.flatnonzero((ids < 0) | (ids >= size))
    if len(bad):
        raise GraphError(
            f"{column}[{bad[0]}] is {ids[bad[0]]}, but there are {size} {of}",
            hint=f"ids run from 0 to {size - 1}" if size else None,
        )
    return ids


def _sizes(column: str, values: Any, size: int, names: tuple[str, ...] = ()) -> FloatArray:
    if values is None:
        return frozen(np.zeros(size))
    array = reals(values)
    if array is None:
        raise GraphError(f"{column} must be a list of numbers")
    if len(array) != size:
        raise GraphError(f"{column} has {len(array)} entries, expected {size}")
    bad = np.flatnonzero(~in_range(array))
    if len(bad):
        where = f" (vertex `{names[bad[0]]}`)" if names else ""
        raise GraphError(
            f"{column}[{bad[0]}]{where} is {array[bad[0]]}",
            hint=f"sizes and seconds are 0, or {RANGE}",
        )
    return frozen(abs(array))  # -0.0 would change the digest


def _exec_table(values: Any, size: int, names: tuple[str, ...]) -> FloatArray:
    """(V, 1) or (V, D): an entry is one number for all devices, or a list with one for each."""
    if isinstance(values, np.ndarray) and values.ndim == 2:
        values = values.tolist()
    if not isinstance(values, (list, tuple, np.ndarray)):
        raise GraphError("vertices.exec_s must be a list of numbers")
    if len(values) != size:
        raise GraphError(f"vertices.exec_s has {len(values)} entries, expected {size}")
    if not isinstance(values, np.ndarray):  # a row may be an array
        values = [v.tolist() if isinstance(v, np.ndarray) and v.ndim else v for v in values]
    widths = {len(v) for v in values if isinstance(v, (list, tuple))}
    if len(widths) > 1:
        raise GraphError(f"vertices.exec_s has lists of different lengths: {sorted(widths)}")
    width = widths.pop() if widths else 1
    if width == 0:
        raise GraphError("vertices.exec_s has an empty list")
    if width == 1 and not any(isinstance(v, (list, tuple)) for v in values):
        return frozen(_sizes("vertices.exec_s", values, size, names).reshape(size, 1))
    flat = [x for v in values for x in (v if isinstance(v, (list, tuple)) else [v] * width)]
    repeated = tuple(n for n in names for _ in range(width))
    return frozen(_sizes("vertices.exec_s", flat, size * width, repeated).reshape(size, width))


def _check_edges(
    names: tuple[str, ...],
    producers: IntArray,
    edge_tensors: IntArray,
    edge_readers: IntArray,
    is_input: np.ndarray[Any, np.dtype[np.bool_]],
) -> None:
    reading = np.flatnonzero(is_input[edge_readers])
    if len(reading):
        vertex = edge_readers[reading[0]]
        raise GraphError(
            f"edge {reading[0]}: the input `{names[vertex]}` reads tensor "
            f"{edge_tensors[reading[0]]}",
            hint="inputs read nothing; give the vertex another kind",
        )
    pairs = edge_tensors * max(len(names), 1) + edge_readers
    _, first, count = np.unique(pairs, return_index=True, return_counts=True)
    if len(first) < len(pairs):
        i = int(first[np.argmax(count > 1)])
        raise GraphError(
            f"vertex `{names[edge_readers[i]]}` reads tensor {edge_tensors[i]} "
            f"(of `{names[producers[edge_tensors[i]]]}`) twice: a duplicate edge",
            hint="one edge per tensor and reader; a kernel may use the tensor in several slots",
        )


def _check_kernels(
    kernels: Sequence[Kernel | None],
    names: tuple[str, ...],
    reads: list[list[int]],
    num_outputs: IntArray,
) -> tuple[Kernel | None, ...]:
    if not any(kernels):
        return ()
    if len(kernels) != len(names):
        raise GraphError(f"vertices.kernel has {len(kernels)} entries for {len(names)} vertices")
    for i, kernel in enumerate(kernels):
        if kernel is None:
            continue
        if set(kernel.inputs) != set(reads[i]):
            raise GraphError(
                f"the kernel of `{names[i]}` has inputs {sorted(set(kernel.inputs))}, "
                f"but the vertex reads tensors {sorted(reads[i])}"
            )
        if not len(kernel.shapes) == len(kernel.dtypes) == num_outputs[i]:
            raise GraphError(
                f"the kernel of `{names[i]}` has {len(kernel.shapes)} shapes and "
                f"{len(kernel.dtypes)} dtypes for {num_outputs[i]} outputs"
            )
        _check_attributes(kernel, names[i])
    return tuple(kernels)


def _check_attributes(kernel: Kernel, name: str) -> None:
    try:
        json.dumps(dict(kernel.attributes), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise GraphError(
            f"the kernel of `{name}` has attributes that are not JSON: {error}"
        ) from None


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
