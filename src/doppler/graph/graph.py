"""Graph: a sharded dataflow graph of vertices, tensors and edges."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray, frozen, unbox_fields
from doppler.base.notebook import brief, html_table, number
from doppler.errors import GraphError
from doppler.graph.ops import InputKind

if TYPE_CHECKING:
    from doppler.assignment import Assignment


@dataclass(frozen=True, slots=True)
class Kernel:
    """What to execute at a vertex, enough to run it without the rest of the graph.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> next(kernel.op for kernel in graph.kernels if kernel is not None)
    'input'
    """

    op: str  # name of the executable operation
    inputs: tuple[int, ...]  # tensor read in each input slot; a tensor may fill several
    shapes: tuple[tuple[int, ...], ...]  # shape of each output
    dtypes: tuple[str, ...]  # dtype of each output
    attributes: Mapping[str, Any] = field(default_factory=dict)  # JSON values

    def __post_init__(self) -> None:
        unbox_fields(self)

    def result_names(self) -> list[Any]:
        """What result each output is, or is a block of; None for those that are none.

        The attribute `results` has one for each output, `result` one for them all.
        """
        count = len(self.shapes)
        names = self.attributes.get("results")
        if isinstance(names, (list, tuple)) and len(names) == count:
            return list(names)
        return [self.attributes.get("result")] * count


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A dataflow graph: V vertices, T tensors with one producer each, E edges tensor → reader.

    Made by `build_graph` or `GraphBuilder` only, which check everything the rest relies on:
    it is acyclic, ids are in range, names are unique, sizes and seconds are 0 or between 1e-30
    and 1e30.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> graph.num_vertices == len(graph.assigned) + int(graph.is_input.sum())
    True
    >>> graph.kinds[int(graph.assigned[0])]
    'matmul'
    """

    name: str
    vertex_names: tuple[str, ...]  # (V,) unique
    kinds: tuple[str, ...]  # (V,) an OpKind or a kind of the user's own
    input_kinds: tuple[str, ...]  # (V,) an InputKind for inputs, "" for all other vertices
    flops: FloatArray  # (V,) floating-point operations
    touched_bytes: FloatArray  # (V,) bytes read and written by the operation
    temporary_bytes: FloatArray  # (V,) bytes beside inputs and outputs while the kernel runs
    meta_ops: tuple[str, ...]  # (V,) the program operation it comes from, or ""
    roles: tuple[str, ...]  # (V,) its role in the meta-op: "shard", "reduce" or ""
    dtypes: tuple[str, ...]  # (V,) dtype it computes in
    kernels: tuple[Kernel | None, ...]  # (V,) or empty
    exec_s: FloatArray | None  # (V, 1) or (V, D) explicit seconds, on any or on each device
    tensor_producer: IntArray  # (T,) vertex
    tensor_bytes: FloatArray  # (T,)
    transfer_s: FloatArray | None  # (T,) explicit seconds between any two devices
    edge_tensor: IntArray  # (E,) tensor that is read; edges are sorted by (tensor, reader)
    edge_reader: IntArray  # (E,) vertex that reads it
    provenance: Mapping[str, str]  # what it was made from, where that is known: file, digest, …
    # Derived from the above.
    is_input: BoolArray  # (V,) kind is "input": never assigned
    arrives: BoolArray  # (V,) an input that comes from the host: "streamed" or "loaded"
    stays: BoolArray  # (V,) an input that keeps its memory: "resident" or "loaded"
    output_ptr: IntArray  # (V+1,) CSR: tensors produced by a vertex
    output_tensor: IntArray  # (T,)
    reader_ptr: IntArray  # (T+1,) CSR: vertices that read a tensor
    reader: IntArray  # (E,)
    read_ptr: IntArray  # (V+1,) CSR: tensors read by a vertex
    read_tensor: IntArray  # (E,)
    topological_order: IntArray  # (V,) vertices, producers before readers

    @property
    def num_vertices(self) -> int:
        """Number of vertices, inputs included."""
        return len(self.vertex_names)

    @property
    def is_resident(self) -> BoolArray:
        """(V,) whether a vertex is an input that is in place before the clock starts, and stays."""
        return self.stays & ~self.arrives

    @property
    def is_streamed(self) -> BoolArray:
        """(V,) whether a vertex is an input that arrives and leaves after its last use."""
        return self.arrives & ~self.stays

    @property
    def is_result(self) -> BoolArray:
        """(T,) whether a tensor is part of a result that a kernel names, and so stays."""
        named = [k is not None and "result" in k.attributes for k in self.kernels]
        found = np.array(named or [False] * self.num_vertices, np.bool_)[self.tensor_producer]
        for v, kernel in enumerate(self.kernels):
            if kernel is not None and "results" in kernel.attributes:
                outputs = self.output_tensor[self.output_ptr[v] : self.output_ptr[v + 1]]
                found[outputs] = [name is not None for name in kernel.result_names()]
        return found

    @property
    def num_tensors(self) -> int:
        """Number of tensors."""
        return len(self.tensor_bytes)

    @property
    def num_edges(self) -> int:
        """Number of edges, those from inputs included."""
        return len(self.edge_tensor)

    @property
    def assigned(self) -> IntArray:
        """The vertices that get a device: all but the inputs, ascending."""
        return np.flatnonzero(~self.is_input)

    def cold(self) -> "Graph":
        """The graph at a cold start: resident inputs are loaded from the host first.

        >>> import doppler as dp
        >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
        >>> sorted(set(graph.input_kinds)), sorted(set(graph.cold().input_kinds))
        (['', 'resident'], ['', 'loaded'])
        """
        loaded, resident = str(InputKind.LOADED), InputKind.RESIDENT
        kinds = tuple([loaded if kind == resident else kind for kind in self.input_kinds])
        arrives = frozen(self.arrives | self.stays)
        return replace(self, input_kinds=kinds, arrives=arrives)

    def columns(self) -> dict[str, Any]:
        """The columns that define the graph, by the names of their fields."""
        return {name: getattr(self, name) for name in _DEFINING}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        mine, theirs = self.columns(), other.columns()
        return all(_same(mine[name], theirs[name]) for name in _DEFINING)

    def __hash__(self) -> int:
        return hash((self.name, self.vertex_names, self.num_tensors, self.num_edges))

    def __repr__(self) -> str:
        inputs = int(self.is_input.sum())
        return (
            f"<Graph {brief(self.name)}: {self.num_vertices} vertices ({inputs} inputs), "
            f"{self.num_tensors} tensors, {self.num_edges} edges>"
        )

    def _repr_html_(self) -> str:
        kinds = Counter(self.kinds)
        flops = dict.fromkeys(kinds, 0.0)
        for kind, value in zip(self.kinds, self.flops.tolist(), strict=True):
            flops[kind] += value
        table = ((kind, str(count), number(flops[kind])) for kind, count in kinds.most_common())
        from doppler.graph.drawing import graph_svg

        columns = ("kind", "vertices", "flops")
        return html_table(repr(self), columns, table, count=len(kinds)) + graph_svg(self)

    def plot(self, assignment: "Assignment | None" = None, ax: Any = None) -> Any:
        """The graph as a matplotlib figure, coloured by device; into `ax` where axes are given."""
        from doppler.graph.plotting import plot_graph

        if assignment is None:
            return plot_graph(self, None, (), ax)
        if len(assignment.devices) != self.num_vertices:
            raise GraphError(
                f"the assignment has {len(assignment.devices)} devices, "
                f"graph `{self.name}` has {self.num_vertices} vertices"
            )
        return plot_graph(self, assignment.devices, assignment.device_names, ax)

    def digest(self) -> str:
        """`sha256:…` of the dataflow itself: vertices, tensors and edges, whatever they cost.

        Input kinds and temporary bytes do not count: an assignment of a graph fits it whatever
        they are. They are part of `Problem.digest()`.
        """
        sha = hashlib.sha256()
        for column in (self.vertex_names, self.kinds):
            sha.update("\0".join(column).encode() + b"\1")
        for array in (self.tensor_producer, self.tensor_bytes, self.edge_tensor, self.edge_reader):
            sha.update(np.ascontiguousarray(array).tobytes() + b"\1")
        return f"sha256:{sha.hexdigest()}"


_DEFINING = (
    "name",
    "vertex_names",
    "kinds",
    "input_kinds",
    "flops",
    "touched_bytes",
    "temporary_bytes",
    "meta_ops",
    "roles",
    "dtypes",
    "kernels",
    "exec_s",
    "tensor_producer",
    "tensor_bytes",
    "transfer_s",
    "edge_tensor",
    "edge_reader",
    "provenance",
)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a is not None and b is not None and np.array_equal(a, b)
    return bool(a == b)
