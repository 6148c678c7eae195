"""CostModel: seconds of each exec and each transfer, from a roofline or as given."""

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, frozen
from doppler.errors import TopologyError
from doppler.graph.graph import Graph
from doppler.graph.ops import OpKind
from doppler.graph.signatures import signatures
from doppler.topology.topology import Topology

_WIDTH = {"16": "float16", "32": "float32", "64": "float64", "128": "float64", "8": "float16"}
_ELEMENTWISE = (
    *(OpKind.INPUT_ELEMWISE, OpKind.STRAIGHT_ELEMWISE, OpKind.BCAST_ELEMWISE, OpKind.FORMATION),
    *(OpKind.COMPLEXER, OpKind.FILL, OpKind.SQUEEZER, OpKind.SELECT),
)
_REDUCTIONS = (
    *(OpKind.MAX_REDUCTION, OpKind.MIN_REDUCTION),
    *(OpKind.SUM_REDUCTION, OpKind.PRODUCT_REDUCTION),
)
# Family of kernels by kind of vertex; kinds that a graph names itself have none.
FAMILIES: dict[str, str] = {
    str(OpKind.MATMUL): "matmul",
    **dict.fromkeys(map(str, _ELEMENTWISE), "elementwise"),
    **dict.fromkeys(map(str, _REDUCTIONS), "reduction"),
}


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of every task a graph can need on a topology.

    A transfer of tensor t over link l takes
    `fixed_s[t] + latency_s[l] + tensor_bytes[t] * s_per_byte[l]`.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> costs = dp.Problem(graph, dp.Topology.preset("p100x4")).costs
    >>> costs.exec_s.shape == (graph.num_vertices, 4)
    True
    """

    exec_s: FloatArray  # (V, D) of a vertex on a device; 0 for inputs
    fixed_s: FloatArray  # (T,)
    latency_s: FloatArray  # (L,)
    s_per_byte: FloatArray  # (L,)

    def __repr__(self) -> str:
        vertices, devices = self.exec_s.shape
        return f"<Costs: {vertices} vertices on {devices} devices, {len(self.fixed_s)} tensors>"

    def transfer_s(self, graph: Graph, tensor: int, link: int) -> float:
        """Seconds to move a tensor over a link."""
        return float(
            self.fixed_s[tensor]
            + self.latency_s[link]
            + graph.tensor_bytes[tensor] * self.s_per_byte[link]
        )

    def mean_exec_s(self) -> FloatArray:
        """(V,) seconds of each vertex, averaged over the devices."""
        return frozen(self.exec_s.mean(axis=1))

    def mean_transfer_s(self, graph: Graph, topology: Topology) -> FloatArray:
        """(T,) seconds to move each tensor, averaged over the ordered pairs of devices."""
        links = topology.route[topology.route >= 0]
        if not len(links):
            return frozen(np.zeros(graph.num_tensors))
        latency, slope = self.latency_s[links].mean(), self.s_per_byte[links].mean()
        return frozen(self.fixed_s + latency + graph.tensor_bytes * slope)


class CostModel(Protocol):
    """Anything that prices a graph on a topology.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> class Doubled:
    ...     def costs(self, graph, topology):
    ...         usual = dp.Problem(graph, topology).costs
    ...         return dp.Costs(2 * usual.exec_s, usual.fixed_s, usual.latency_s, usual.s_per_byte)
    >>> usual, doubled = (dp.lower_bounds(graph, "p100x4", cost_model=m) for m in (None, Doubled()))
    >>> doubled.path_s > usual.path_s
    True
    """

    def costs(self, graph: Graph, topology: Topology) -> Costs:
        """Seconds of every task."""
        ...


@dataclass(frozen=True, slots=True)
class GivenCosts:
    """The cost model of one graph on one topology whose costs are known already."""

    given: Costs

    def costs(self, graph: Graph, topology: Topology) -> Costs:
        """Those that were given."""
        return self.given


class DefaultCostModel:
    """The graph's explicit costs; else what was measured on the topology; else a roofline.

    Each vertex gets the first of these that there is for it. A roofline is for a kernel alone on
    the machine: what it gives is multiplied by the topology's factor of contention, as a good
    assignment keeps all devices busy. Seconds measured in runs of a graph have that in them.
    """

    def costs(self, graph: Graph, topology: Topology) -> Costs:
        """Seconds of every task; a `TopologyError` where the topology cannot price one."""
        exec_s = explicit_exec_s(graph, topology)
        if exec_s is None:
            exec_s, is_measured = measured_exec_s(graph, topology)
            alone_s = roofline_exec_s(graph, topology, skipped=is_measured)
            exec_s += alone_s * contention(graph, topology)[:, None]
        exec_s[graph.is_input] = 0.0
        if graph.transfer_s is not None:
            zeros = np.zeros(topology.num_links)
            return Costs(frozen(exec_s), graph.transfer_s, frozen(zeros), frozen(zeros))
        return Costs(
            frozen(exec_s), extra_transfer_s(graph, topology), *_link_costs(graph, topology)
        )


def explicit_exec_s(graph: Graph, topology: Topology) -> FloatArray | None:
    """(V, D) the graph's own exec seconds, or None where it has none."""
    if graph.exec_s is None:
        return None
    width = graph.exec_s.shape[1]
    if width not in (1, topology.num_devices):
        raise TopologyError(
            f"graph `{graph.name}` gives exec_s for {width} devices, "
            f"topology `{topology.name}` has {topology.num_devices}",
            hint=f"choose a topology of {width} devices, or give one number per vertex",
        )
    return np.array(np.broadcast_to(graph.exec_s, (graph.num_vertices, topology.num_devices)))


def measured_exec_s(graph: Graph, topology: Topology) -> tuple[FloatArray, BoolArray]:
    """(V, D) seconds measured on the topology, 0 where there are none; (V,) where there are."""
    if not topology.exec_s:
        shape = graph.num_vertices, topology.num_devices
        return np.zeros(shape), np.zeros(graph.num_vertices, np.bool_)
    row = {signature: i for i, signature in enumerate(topology.exec_s, start=1)}
    rows = [row.get(signature, 0) if signature else 0 for signature in signatures(graph)]
    seconds = np.array([(0.0,) * topology.num_devices, *topology.exec_s.values()])
    return seconds[rows], np.array(rows) > 0


def roofline_exec_s(
    graph: Graph, topology: Topology, *, skipped: BoolArray | None = None
) -> FloatArray:
    """(V, D) `launch + max(flops / rate, bytes / bandwidth)`; a vertex without work is free.

    0 for the vertices that are `skipped`, whether the topology has speeds for them or not.
    """
    classes = [dtype_class(d) for d in graph.dtypes]
    known, which = np.unique(classes, return_inverse=True)
    table = np.zeros((graph.num_vertices, topology.num_devices))
    needed = ~graph.is_input if skipped is None else ~graph.is_input & ~skipped
    working = ((graph.flops > 0) | (graph.touched_bytes > 0)) & needed
    for d, device in enumerate(topology.devices):
        if not device.flops_per_s and np.any(working):
            raise TopologyError(
                f"topology `{topology.name}` has no speeds, and graph `{graph.name}` no exec_s",
                hint="give the graph's vertices exec_s, or choose a topology such as p100x4",
            )
        rate = np.array([device.flops_per_s.get(c, 0.0) for c in known.tolist()])[which]
        missing = np.flatnonzero((rate == 0) & (graph.flops > 0) & needed)
        if len(missing):
            raise TopologyError(
                f"device `{device.name}` has no flops_per_s for {classes[missing[0]]}, "
                f"which vertex `{graph.vertex_names[missing[0]]}` needs"
            )
        compute_s = np.divide(graph.flops, rate, out=np.zeros(len(rate)), where=rate > 0)
        memory_s = graph.touched_bytes / device.memory_bytes_per_s
        table[:, d] = np.where(working, device.launch_s + np.maximum(compute_s, memory_s), 0.0)
    return table


def contention(graph: Graph, topology: Topology) -> FloatArray:
    """(V,) times longer that each vertex takes than alone, where all devices are busy."""
    if topology.num_devices == 1 or not topology.contention:
        return np.ones(graph.num_vertices)
    family = [FAMILIES.get(kind, "") for kind in graph.kinds]
    return np.array([topology.contention.get(name, 1.0) for name in family])


def extra_transfer_s(graph: Graph, topology: Topology) -> FloatArray:
    """(T,) seconds that each tensor's transfer takes beyond latency and bandwidth of a link."""
    if not topology.extra_transfer_s:
        return frozen(np.zeros(graph.num_tensors))
    sizes, extra = np.array(topology.extra_transfer_s).T
    return frozen(np.interp(graph.tensor_bytes, sizes, extra))


def dtype_class(dtype: str) -> str:
    """The dtype class whose rate a dtype computes at: bfloat16 → float16, complex64 → float32."""
    number = re.search(r"\d+", dtype)
    digits = number[0] if number else ""
    if dtype.startswith("complex"):
        return {"32": "float16", "64": "float32"}.get(digits, "float64")
    return _WIDTH.get(digits, "float32")


def _link_costs(graph: Graph, topology: Topology) -> tuple[FloatArray, FloatArray]:
    latency = np.array([link.latency_s for link in topology.links], np.float64)
    bandwidth = np.array([link.bandwidth_bytes_per_s for link in topology.links], np.float64)
    if np.isinf(bandwidth).any() and np.any(graph.tensor_bytes > 0):
        raise TopologyError(
            f"topology `{topology.name}` has no bandwidths, and graph `{graph.name}` no transfer_s",
            hint="give the graph's tensors transfer_s, or choose a topology such as p100x4",
        )
    return frozen(latency), frozen(1.0 / bandwidth)
