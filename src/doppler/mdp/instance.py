"""Instance: a problem as the decision process of Sec. 4.1 sees it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.assignment import Assignment, assignment_for
from doppler.base.arrays import FloatArray, IntArray, csr
from doppler.graph.fast_levels import bottom_levels
from doppler.graph.graph import Graph
from doppler.mdp.features import outlook
from doppler.mdp.guide import NO_GUIDE, Guide
from doppler.problem import Problem
from doppler.topology.topology import Topology

VERTEX_FEATURES = (  # App. E, the static features; seconds over `Tables.scale_s`
    "exec",
    "input_transfer",
    "output_transfer",
    "top_level",
    "bottom_level",
)


class Tables(NamedTuple):
    """The arrays of an instance that episodes work on. Vertices are the n assigned ones."""

    num_reads: IntArray  # (n,) edges that enter a vertex
    edge_ptr: IntArray  # (n+1,) edges that leave a vertex
    edge_reader: IntArray  # (m,)
    edge_producer: IntArray  # (m,)
    edge_tensor: IntArray  # (m,) number of the tensor that is read, among those that are
    read_ptr: IntArray  # (n+1,) edges that enter a vertex
    read_edge: IntArray  # (m,)
    edge_fixed_s: FloatArray  # (m,) a transfer takes fixed + latency + bytes * s_per_byte
    edge_bytes: FloatArray  # (m,)
    edge_move_s: FloatArray  # (m,) seconds of that transfer, averaged over pairs of devices
    latency_s: FloatArray  # (D, D) 0 on the diagonal
    s_per_byte: FloatArray  # (D, D) 0 on the diagonal
    route: IntArray  # (D, D) link of a pair, -1 on the diagonal
    lanes: IntArray  # (L,) transfers that a link makes at a time; 0: any number
    hop_s: float  # from the end of a task to the begin of one that waits for it: the host
    exec_s: FloatArray  # (n, D)
    slot_ptr: IntArray  # (D+1,) slots of a device
    edge_meets: IntArray  # (m,) where the tensor of an edge, or what becomes of it, meets others
    is_head: IntArray  # (n,) 1 but for vertices inside or at the end of a chain: see `_meetings`
    num_siblings: FloatArray  # (n,) edges of others that come to where a vertex's tensors meet them
    made_bytes: FloatArray  # (n,) whole bytes of all that a vertex makes
    temporary_bytes: FloatArray  # (n,) that a vertex takes besides; see `_memory_tables`
    input_ptr: IntArray  # (n+1,) inputs that a vertex reads
    input: IntArray  # (reads,) number of the input among those that take memory
    input_bytes: FloatArray  # (inputs,)
    arriving_ptr: IntArray  # (n+1,) inputs from the host that a vertex reads
    arriving: IntArray  # (reads,) number of the input among those that come from the host
    arriving_s: FloatArray  # (arriving, D) seconds to each device
    host_links: IntArray  # (D,) link from the host, -1 where nothing comes from there
    tensor_bytes: FloatArray  # (tensors,) whole bytes of those that are read, see `edge_tensor`
    tensor_reads: IntArray  # (tensors,) edges of each
    memory_bytes: FloatArray  # (D,) infinity where there is no limit
    bottom_s: FloatArray  # (n,) longest path to an exit, by mean seconds
    work_s: FloatArray  # (n,) mean seconds over the devices
    outlook: npt.NDArray[np.float32]  # (4,) the features that never change
    dispatch_s: float  # that the host takes to start a task
    scale_s: float  # what all features are divided by: mean work per device, or see `_scale_s`


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """A problem: what a policy sees of it before anything is placed."""

    problem: Problem
    vertices: IntArray  # (n,) the assigned vertices; everything below counts in their order
    tables: Tables
    vertex_features: npt.NDArray[np.float32]  # (n, 5) the columns of VERTEX_FEATURES
    edge_features: npt.NDArray[np.float32]  # (m, 1) mean transfer seconds over scale_s
    edges: IntArray  # (2, m) producer and reader of each edge
    entry_path: IntArray  # (n,) next vertex on the longest path to an entry, -1 at its end
    exit_path: IntArray  # (n,) next vertex on the longest path to an exit, -1 at its end
    guide: Guide = NO_GUIDE  # an assignment to compare with, if there is one

    @property
    def graph(self) -> Graph:
        """The graph to be placed."""
        return self.problem.graph

    @property
    def topology(self) -> Topology:
        """What it is placed on."""
        return self.problem.topology

    @property
    def num_vertices(self) -> int:
        """Number of decisions in an episode."""
        return len(self.vertices)

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return self.topology.num_devices

    def expand(self, devices: IntArray) -> IntArray:
        """(…, V) devices of all vertices, -1 for inputs, from (…, n) of the assigned ones."""
        full = np.full((*devices.shape[:-1], self.graph.num_vertices), -1, np.int64)
        full[..., self.vertices] = devices
        return full

    def assignment(self, devices: IntArray, order: IntArray, placer: str) -> Assignment:
        """The Assignment of one episode: (n,) devices, chosen in (n,) order."""
        return assignment_for(
            self.graph,
            self.topology,
            self.expand(devices),
            order=self.vertices[order],
            placer=placer,
        )


def make_instance(problem: Problem) -> Instance:
    """The instance of a problem, without a guide."""
    graph, move_s = problem.graph, problem.mean_transfer_s[problem.edges.tensor]
    vertices = graph.assigned
    index = np.full(graph.num_vertices, -1, np.int64)
    index[vertices] = np.arange(len(vertices))
    edges = np.stack([index[problem.edges.producer], index[problem.edges.reader]])
    bottom, top = problem.bottom_levels, problem.top_levels
    work_s = problem.mean_exec_s.sum() / problem.topology.num_devices
    scale_s = _scale_s(work_s, move_s.sum())
    static = _static_features(problem.mean_exec_s[vertices], edges, move_s)
    levels = np.stack([top.length_s[vertices], bottom.length_s[vertices]], axis=1)
    return Instance(
        problem=problem,
        vertices=vertices,
        tables=_tables(problem, edges, scale_s),
        vertex_features=(np.concatenate([static, levels], axis=1) / scale_s).astype(np.float32),
        edge_features=(move_s[:, None] / scale_s).astype(np.float32),
        edges=edges,
        entry_path=_renumbered(top.via[vertices], index),
        exit_path=_renumbered(bottom.via[vertices], index),
    )


def _scale_s(work_s: float, moves_s: float) -> float:
    """Mean work per device, or a thousandth of all transfers where they dwarf it: no feature is
    then too large for float32, nor infinite.
    """
    scale_s = max(float(work_s), float(moves_s) / 1000)
    return scale_s if scale_s > 1e-200 else 1.0


def _static_features(exec_s: FloatArray, edges: IntArray, move_s: FloatArray) -> FloatArray:
    """(n, 3) seconds of exec, of the transfers in and of the transfers out."""
    received = np.bincount(edges[1], move_s, minlength=len(exec_s))
    sent = np.bincount(edges[0], move_s, minlength=len(exec_s))
    return np.stack([exec_s, received, sent], axis=1)


def _memory_tables(problem: Problem) -> dict[str, Any]:
    """What else takes memory than outputs and copies; nothing where all devices hold everything.

    How full such devices are does not matter, so that policies see there what they were trained
    on: the share that outputs and copies take.
    """
    graph, size = problem.graph, len(problem.graph.assigned)
    counted = (problem.counted_bytes > 0) & ~problem.is_produced & problem.may_run_out
    read = np.flatnonzero(counted[graph.edge_tensor])
    tensor, number = np.unique(graph.edge_tensor[read], return_inverse=True)
    reader = np.searchsorted(graph.assigned, graph.edge_reader[read])
    input_ptr, inputs = csr(reader, number.astype(np.int64), size)
    temporary = problem.temporary_bytes[graph.assigned]
    return {
        "temporary_bytes": temporary if problem.may_run_out else np.zeros(size),
        "input_ptr": input_ptr,
        "input": inputs,
        "input_bytes": problem.whole_bytes[tensor],
    }


def _arrival_tables(problem: Problem) -> dict[str, Any]:
    """What comes from the host, and how long that takes."""
    graph, topology = problem.graph, problem.topology
    read = np.flatnonzero(problem.is_arriving[graph.edge_tensor])
    tensor, number = np.unique(graph.edge_tensor[read], return_inverse=True)
    reader = np.searchsorted(graph.assigned, graph.edge_reader[read])
    arriving_ptr, arriving = csr(reader, number.astype(np.int64), len(graph.assigned))
    seconds, links = np.zeros((0, topology.num_devices)), np.full(topology.num_devices, -1)
    if len(tensor):
        links = np.array(topology.host_links, np.int64)
        seconds = problem.transfer_s(tensor[:, None], links)
    return {
        "arriving_ptr": arriving_ptr,
        "arriving": arriving,
        "arriving_s": seconds,
        "host_links": links,
    }


def _tables(problem: Problem, edges: IntArray, scale_s: float) -> Tables:
    graph, topology, costs = problem.graph, problem.topology, problem.costs
    size, tensor = len(graph.assigned), problem.edges.tensor
    num_reads = problem.num_reads[graph.assigned]
    meets = _meetings(edges, size)
    ends = np.stack([edges[0], meets])
    others = np.bincount(edges[0], num_reads[meets] - _parallel(ends, size), minlength=size)
    read_ptr, read_edge = csr(edges[1], np.arange(edges.shape[1]), size)
    read, which, reads = np.unique(tensor, return_inverse=True, return_counts=True)
    return Tables(
        num_reads=num_reads,
        edge_ptr=np.concatenate([[0], np.cumsum(np.bincount(edges[0], minlength=size))]),
        edge_reader=edges[1],
        edge_producer=edges[0],
        edge_tensor=which.astype(np.int64),
        read_ptr=read_ptr,
        read_edge=read_edge,
        edge_fixed_s=costs.fixed_s[tensor],
        edge_bytes=graph.tensor_bytes[tensor],
        edge_move_s=problem.mean_transfer_s[tensor],
        latency_s=problem.latency_s,
        s_per_byte=problem.s_per_byte,
        route=topology.route,
        lanes=problem.lanes,
        hop_s=float(topology.host.completion_s + topology.host.dispatch_s),
        exec_s=costs.exec_s[graph.assigned],
        slot_ptr=problem.slot_ptr,
        edge_meets=meets,
        is_head=_heads(edges, size),
        num_siblings=others.astype(np.float64),
        made_bytes=problem.made_bytes[graph.assigned],
        **_memory_tables(problem),
        **_arrival_tables(problem),
        tensor_bytes=problem.whole_bytes[read],
        tensor_reads=reads.astype(np.int64),
        memory_bytes=problem.memory_bytes,
        bottom_s=problem.bottom_levels.length_s[graph.assigned],
        work_s=np.ascontiguousarray(problem.mean_exec_s[graph.assigned]),
        outlook=_outlook(problem),
        dispatch_s=float(topology.host.dispatch_s),
        scale_s=scale_s,
    )


def _outlook(problem: Problem) -> npt.NDArray[np.float32]:
    """(4,) what there is to gain from many devices."""
    work_s, no_moves = problem.mean_exec_s, np.zeros_like(problem.mean_transfer_s)
    path_s = bottom_levels(problem.graph, work_s, no_moves).length_s.max(initial=0.0)
    moved = np.unique(problem.edges.tensor)
    moves_s = problem.mean_transfer_s[moved].sum()
    topology, dispatched = problem.topology, len(problem.graph.assigned)
    return outlook(
        topology.num_devices,
        float(work_s.sum()),
        float(moves_s),
        float(path_s),
        dispatched * float(topology.host.dispatch_s),
    )


def _meetings(edges: IntArray, size: int) -> IntArray:
    """(m,) the vertex at which the tensor of each edge meets others.

    That is its reader; or, where the reader reads nothing else and has one reader itself, where
    that one's tensor meets others, and so on along the chain.
    """
    num_reads = np.bincount(edges[1], minlength=size)
    num_readers = np.bincount(edges[0], minlength=size)
    following = np.arange(size)
    passes_on = ((num_reads == 1) & (num_readers == 1))[edges[0]]
    following[edges[0][passes_on]] = edges[1][passes_on]
    while not np.array_equal(further := following[following], following):
        following = further
    meets: IntArray = following[edges[1]]
    return meets


def _heads(edges: IntArray, size: int) -> IntArray:
    """(n,) 1 for vertices that do not just pass on what one other vertex made for them alone."""
    num_reads = np.bincount(edges[1], minlength=size)
    num_readers = np.bincount(edges[0], minlength=size)
    passes_on = (num_reads[edges[1]] == 1) & (num_readers[edges[0]] == 1)
    heads = np.ones(size, np.int64)
    heads[edges[1][passes_on]] = 0
    return heads


def _parallel(edges: IntArray, size: int) -> IntArray:
    """(m,) how many edges have the same two ends as each."""
    ends = edges[0] * size + edges[1]
    _, which, counts = np.unique(ends, return_inverse=True, return_counts=True)
    return counts[which]


def _renumbered(via: IntArray, index: IntArray) -> IntArray:
    return np.where(via >= 0, index[np.maximum(via, 0)], -1)
