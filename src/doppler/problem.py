"""Problem: one graph on one topology, priced once; what bounds, placers and simulators read."""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray, frozen
from doppler.cost import CostModel, Costs, DefaultCostModel
from doppler.errors import ConfigError
from doppler.graph.fast_levels import bottom_levels, top_levels
from doppler.graph.graph import Graph
from doppler.graph.levels import Levels
from doppler.topology.topology import Topology

Kept = TypeVar("Kept")


class EdgeArrays(NamedTuple):
    """The edges between assigned vertices, by producer. F of them."""

    ptr: IntArray  # (V+1,) edges that leave a vertex
    producer: IntArray  # (F,)
    tensor: IntArray  # (F,)
    reader: IntArray  # (F,)


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph to be placed on a topology, and the costs of a cost model.

    The graph is priced when the costs are first read, and never again, so that bounds, placers and
    simulations of one problem reckon with the same seconds. Arrays that several of them derive
    from it are made on first use and kept. All are read-only.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> problem = dp.Problem(graph, dp.Topology.preset("p100x4"))
    >>> problem.costs.exec_s.shape[1]
    4
    """

    graph: Graph
    topology: Topology
    cost_model: CostModel = field(default_factory=DefaultCostModel)

    def __repr__(self) -> str:
        return f"<Problem: {self.graph!r} on {self.topology!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Problem, (self.graph, self.topology, self.cost_model)

    def keeping(self) -> "Problem":
        """The same problem, which also keeps what `kept` makes; itself if it does."""
        if self._kept is not None:
            return self
        twin = replace(self)
        twin.__dict__.update(self.__dict__, _kept={})
        return twin

    def kept(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What is made for a key: once, if the problem is one that is `keeping`.

        So the members of a portfolio share what several of them need. Others make everything
        themselves, so that each is measured by its own work.
        """
        if self._kept is None:
            return make()
        if key not in self._kept:
            self._kept[key] = make()
        found: Kept = self._kept[key]
        return found

    @cached_property
    def _kept(self) -> dict[Hashable, Any] | None:
        return None

    @cached_property
    def costs(self) -> Costs:
        """Seconds of every task, by the cost model; a `ConfigError` if they cannot be costs."""
        return _checked(self.cost_model.costs(self.graph, self.topology), self.graph, self.topology)

    @cached_property
    def mean_exec_s(self) -> FloatArray:
        """(V,) seconds of each vertex, averaged over the devices."""
        return self.costs.mean_exec_s()

    @cached_property
    def mean_transfer_s(self) -> FloatArray:
        """(T,) seconds to move each tensor, averaged over the ordered pairs of devices."""
        return self.costs.mean_transfer_s(self.graph, self.topology)

    @cached_property
    def bottom_levels(self) -> Levels:
        """Longest paths to an exit by mean exec and transfer seconds."""
        return bottom_levels(self.graph, self.mean_exec_s, self.mean_transfer_s)

    @cached_property
    def top_levels(self) -> Levels:
        """Longest paths from an entry by mean exec and transfer seconds."""
        return top_levels(self.graph, self.mean_exec_s, self.mean_transfer_s)

    def transfer_s(self, tensor: IntArray, link: IntArray) -> FloatArray:
        """Seconds of tensors over links, of the shape that the two arrays have together."""
        costs, total_bytes = self.costs, self.graph.tensor_bytes
        fixed_s = costs.fixed_s[tensor] + costs.latency_s[link]
        moved_s = total_bytes[tensor] * costs.s_per_byte[link]
        total: FloatArray = fixed_s + moved_s
        return total

    def transfer_table(self, links: Sequence[int] | IntArray) -> FloatArray:
        """(T, len(links)) seconds of each tensor over each of these links."""
        return self.transfer_s(
            np.arange(self.graph.num_tensors)[:, None], np.asarray(links, np.int64)
        )

    @cached_property
    def distinct_links(self) -> IntArray:
        """(C,) the first link of each latency and bandwidth: over others transfers take as long."""
        return self._link_classes[0]

    @cached_property
    def link_class(self) -> IntArray:
        """(L,) which of the distinct links is as fast as each link."""
        return self._link_classes[1]

    @cached_property
    def _link_classes(self) -> tuple[IntArray, IntArray]:
        speeds = np.stack([self.costs.latency_s, self.costs.s_per_byte])
        _, first, number = np.unique(speeds, axis=1, return_index=True, return_inverse=True)
        return frozen(first), frozen(number.reshape(-1))

    @cached_property
    def transfers_take_time(self) -> bool:
        """Whether moving any tensor that is made, or arrives, takes time over each link."""
        moved = np.flatnonzero(self.is_produced | self.is_arriving)
        return all((self.transfer_s(moved, link) > 0).all() for link in self.distinct_links)

    @cached_property
    def latency_s(self) -> FloatArray:
        """(D, D) seconds that a transfer takes whatever its size; 0 on the diagonal."""
        return self._by_pair(self.costs.latency_s)

    @cached_property
    def s_per_byte(self) -> FloatArray:
        """(D, D) seconds that a byte takes; 0 on the diagonal."""
        return self._by_pair(self.costs.s_per_byte)

    @cached_property
    def is_produced(self) -> BoolArray:
        """(T,) whether a tensor is made by a vertex that is no input."""
        return frozen(~self.graph.is_input[self.graph.tensor_producer])

    @cached_property
    def is_arriving(self) -> BoolArray:
        """(T,) whether a tensor comes from the host, over the host link of each reader's device."""
        known = self.topology.has_host_links
        return frozen(self.graph.arrives[self.graph.tensor_producer] & known)

    @cached_property
    def is_in_place(self) -> BoolArray:
        """(T,) whether an input is in the memory of its readers' devices from the beginning."""
        graph = self.graph
        counted = (graph.arrives | graph.stays)[graph.tensor_producer]
        return frozen(counted & ~self.is_arriving)

    @cached_property
    def is_released(self) -> BoolArray:
        """(T,) whether a tensor leaves a device's memory after its last use there.

        Unless it is a result. Inputs that stay or are everywhere are not released.
        """
        streamed = self.graph.is_streamed[self.graph.tensor_producer]
        return frozen(self.is_produced | streamed)

    @cached_property
    def edges(self) -> EdgeArrays:
        """The edges that leave vertices that are no inputs."""
        graph = self.graph
        kept = np.flatnonzero(self.is_produced[graph.edge_tensor])
        producer = graph.tensor_producer[graph.edge_tensor[kept]]
        by_producer = np.argsort(producer, kind="stable")
        kept, producer = kept[by_producer], producer[by_producer]
        leaving = np.bincount(producer, minlength=graph.num_vertices)
        arrays = (np.concatenate([[0], np.cumsum(leaving)]), producer)
        return EdgeArrays(*map(frozen, (*arrays, graph.edge_tensor[kept], graph.edge_reader[kept])))

    @cached_property
    def num_reads(self) -> IntArray:
        """(V,) tensors that each vertex reads, those of inputs left out."""
        return frozen(np.bincount(self.edges.reader, minlength=self.graph.num_vertices))

    @cached_property
    def whole_bytes(self) -> FloatArray:
        """(T,) bytes of each tensor, rounded up: sums of them are exact."""
        return frozen(np.ceil(self.graph.tensor_bytes))

    @cached_property
    def counted_bytes(self) -> FloatArray:
        """(T,) whole bytes of each tensor, 0 for inputs that are everywhere at no cost."""
        counted = self.is_produced | self.is_in_place | self.is_arriving
        return frozen(np.where(counted, self.whole_bytes, 0.0))

    @cached_property
    def made_bytes(self) -> FloatArray:
        """(V,) bytes of what a vertex makes; 0 for inputs."""
        graph, made = self.graph, np.where(self.is_produced, self.whole_bytes, 0.0)
        return frozen(np.bincount(graph.tensor_producer, made, graph.num_vertices) + 0.0)

    @cached_property
    def temporary_bytes(self) -> FloatArray:
        """(V,) whole bytes that a vertex takes while it runs, and gives back; 0 for inputs."""
        return frozen(np.where(self.graph.is_input, 0.0, np.ceil(self.graph.temporary_bytes)))

    @cached_property
    def working_bytes(self) -> FloatArray:
        """(V,) bytes on a vertex's device while it runs: what it reads, makes and needs besides."""
        graph, counted = self.graph, self.counted_bytes
        read = np.bincount(graph.edge_reader, counted[graph.edge_tensor], graph.num_vertices)
        return frozen(self.made_bytes + self.temporary_bytes + read)

    @cached_property
    def memory_bytes(self) -> FloatArray:
        """(D,) bytes that each device holds; infinity where there is no limit."""
        return frozen(np.array([d.memory_bytes for d in self.topology.devices], np.float64))

    @cached_property
    def may_run_out(self) -> bool:
        """Whether some device cannot hold everything at once, so that memory may matter."""
        total_bytes = self.counted_bytes.sum() + self.temporary_bytes.sum()
        return bool(total_bytes > self.memory_bytes.min())

    @cached_property
    def slots(self) -> IntArray:
        """(D,) execs that each device runs at a time."""
        return frozen(np.array([d.slots for d in self.topology.devices], np.int64))

    @cached_property
    def lanes(self) -> IntArray:
        """(L,) transfers that each link makes at a time; 0: any number."""
        return frozen(np.array([link.lanes for link in self.topology.links], np.int64))

    @cached_property
    def slot_ptr(self) -> IntArray:
        """(D+1,) slots of a device, numbered over all devices."""
        return frozen(np.concatenate([[0], np.cumsum(self.slots)]))

    @cached_property
    def _digest(self) -> str:
        costs, topology = self.costs, self.topology
        arrays = [costs.exec_s, costs.fixed_s, costs.latency_s, costs.s_per_byte, topology.route]
        arrays += [self.memory_bytes, self.graph.tensor_bytes]
        sizes = [self.slots.tolist(), self.lanes.tolist()]
        sha = hashlib.sha256(f"{self.graph.digest()} {topology.host} {sizes}".encode())
        if self.graph.arrives.any() or self.graph.stays.any():
            sha.update("\0".join(self.graph.input_kinds).encode() + b"\1")
        if self.graph.temporary_bytes.any():
            sha.update(np.ascontiguousarray(self.graph.temporary_bytes).tobytes() + b"\1")
        if topology.has_host_links:
            sha.update(f"host links {topology.host_links}".encode())
        for array in arrays:
            sha.update(np.ascontiguousarray(array).tobytes() + b"\1")
        return f"sha256:{sha.hexdigest()}"

    def digest(self) -> str:
        """`sha256:…` of all that a makespan depends on: the graph, the machine and every cost."""
        return self._digest

    def _by_pair(self, per_link: FloatArray) -> FloatArray:
        route = self.topology.route
        if not len(per_link):
            return frozen(np.zeros(route.shape))
        return frozen(np.where(route < 0, 0.0, per_link[np.maximum(route, 0)]))


def _checked(costs: Costs, graph: Graph, topology: Topology) -> Costs:
    """The costs, read-only, if they have their shapes, nothing is negative and inputs are free."""
    shapes = {
        "exec_s": (graph.num_vertices, topology.num_devices),
        "fixed_s": (graph.num_tensors,),
        "latency_s": (topology.num_links,),
        "s_per_byte": (topology.num_links,),
    }
    for name, shape in shapes.items():
        array = getattr(costs, name)
        if array.shape != shape:
            raise ConfigError(f"the cost model gives {name} of shape {array.shape}, not {shape}")
        if not (np.isfinite(array) & (array >= 0)).all():
            raise ConfigError(f"the cost model gives {name} that is negative or not finite")
    if costs.exec_s[graph.is_input].any():
        raise ConfigError("the cost model gives inputs exec_s other than 0")
    return replace(costs, **{name: frozen(getattr(costs, name)) for name in shapes})
