"""Coarse problems: groups of vertices as vertices, so that few choices place a large graph."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from doppler.base.arrays import FloatArray, IntArray, csr, frozen
from doppler.cost import Costs, GivenCosts
from doppler.graph.builder import build_graph
from doppler.problem import Problem

KIND = "group"  # of a coarse vertex
SPARE = 2.0  # work of the largest group, over the mean of as many groups as are wanted
LESS = 0.95  # share of the groups that a merge must leave at most, or the next kind has its turn


@dataclass(frozen=True, eq=False)
class Coarse:
    """A problem whose vertices are groups of those of another one, and inputs as they were."""

    fine: Problem
    problem: Problem
    group: IntArray  # (V,) coarse vertex of each vertex of the fine problem

    def expand(self, devices: IntArray) -> IntArray:
        """(…, V) devices of the fine problem, -1 for inputs, from (…, W) of the coarse one."""
        expanded: IntArray = devices[..., self.group]
        return expanded

    def condense(self, devices: IntArray) -> IntArray:
        """(W,) the device of most work of each group, from (V,) devices; -1 for inputs."""
        assigned, size = self.fine.graph.assigned, self.problem.graph.num_vertices
        work = np.zeros((size, self.fine.topology.num_devices))
        work_s = self.fine.mean_exec_s[assigned] + np.finfo(np.float64).tiny
        np.add.at(work, (self.group[assigned], devices[assigned]), work_s)
        return np.where(self.problem.graph.is_input, -1, work.argmax(axis=1))

    @cached_property
    def depth_first(self) -> IntArray:
        """(V,) fine vertices, group after group as the coarse graph has them, inputs among them."""
        place = np.empty(self.problem.graph.num_vertices, np.int64)
        place[self.problem.graph.topological_order] = np.arange(len(place))
        own = np.empty(len(self.group), np.int64)
        own[self.fine.graph.topological_order] = np.arange(len(own))
        return np.lexsort((own, place[self.group]))


def coarsen(problem: Problem, groups: int) -> Coarse:
    """About that many groups of vertices that much is moved between, as a problem of its own.

    The graph of the groups is acyclic. A group runs as one vertex that takes the seconds of all of
    its vertices, waits for all that they read and passes on what others read when it ends. So its
    makespans are estimates; what is found counts once it is simulated on the fine problem.
    """
    group = group_vertices(problem, groups)
    return Coarse(problem, _coarse_problem(problem, group), group)


def group_vertices(problem: Problem, groups: int) -> IntArray:
    """(V,) number of each vertex's group, 0 … K-1; each input is one by itself, from K on."""
    graph = problem.graph
    assigned, index = graph.assigned, np.full(graph.num_vertices, -1, np.int64)
    index[assigned] = np.arange(len(assigned))
    work_s = problem.mean_exec_s[assigned]
    edges, move_s = _joined_edges(
        np.stack([index[problem.edges.producer], index[problem.edges.reader]]),
        problem.mean_transfer_s[problem.edges.tensor],
    )
    group = np.arange(len(assigned))
    most_s = max(SPARE * work_s.sum() / max(groups, 1), np.finfo(np.float64).tiny)
    while (size := len(work_s)) > groups:
        for merged in _merges(edges, move_s, work_s, most_s, groups):
            kept, number = np.unique(merged, return_inverse=True)
            if len(kept) <= LESS * size or len(kept) <= groups:
                break
        else:
            most_s *= 2  # what is left is too large to be merged
            continue
        group, work_s = number[group], np.bincount(number, work_s)
        edges, move_s = _joined_edges(number[edges], move_s)
    found = np.empty(graph.num_vertices, np.int64)
    found[assigned] = group
    found[graph.is_input] = size + np.arange(int(graph.is_input.sum()))
    return frozen(found)


def _merges(
    edges: IntArray, move_s: FloatArray, work_s: FloatArray, most_s: float, fewest: int
) -> Iterator[IntArray]:
    """(m,) what each group is merged into, by kinds of merges, those that save most first."""
    from doppler.placers.levels.kernel import depths, merge_alike, merge_ends

    size, (producer, reader) = len(work_s), edges
    ptr, readers = csr(producer, reader, size)
    depth = depths(ptr, readers, size)
    work_of_ends = np.maximum(work_s[producer] + work_s[reader], np.finfo(np.float64).tiny)
    by_weight = np.argsort(-move_s / work_of_ends, kind="stable")
    for first in range(2):
        yield merge_ends(producer, reader, by_weight, depth, first, work_s, most_s, fewest)
    for hub, other in ((reader, producer), (producer, reader)):
        near = np.lexsort((-move_s, depth[other], hub))
        yield merge_alike(other[near], hub[near], depth, work_s, most_s, fewest)
    near = np.lexsort((work_s, depth))
    yield merge_alike(near, np.zeros(size, np.int64), depth, work_s, most_s, fewest)


def _joined_edges(edges: IntArray, weight: FloatArray) -> tuple[IntArray, FloatArray]:
    """(2, m) the distinct edges between two groups, and the sums of their weights."""
    kept = edges[0] != edges[1]
    distinct, number = np.unique(edges[:, kept], axis=1, return_inverse=True)
    return distinct, np.bincount(number.reshape(-1), weight[kept], distinct.shape[1])


def _coarse_problem(problem: Problem, group: IntArray) -> Problem:
    """The problem of the groups; tensors that the same groups read of one are one."""
    graph, costs = problem.graph, problem.costs
    size, inputs = int(group.max(initial=-1)) + 1, np.flatnonzero(graph.is_input)
    exec_s = np.zeros((size, problem.topology.num_devices))
    np.add.at(exec_s, group, costs.exec_s)
    tensors = _Tensors(problem, group)
    kinds = np.full(size, KIND, object)
    kinds[group[inputs]] = [graph.kinds[v] for v in inputs.tolist()]
    input_kinds = np.full(size, "", object)
    input_kinds[group[inputs]] = [graph.input_kinds[v] for v in inputs.tolist()]
    temporary = np.zeros(size)
    if problem.may_run_out:
        temporary = _peak_bytes(problem, group, size)
    coarse = build_graph(
        name=graph.name,
        kinds=kinds.tolist(),
        input_kinds=input_kinds.tolist(),
        temporary_bytes=temporary,
        tensor_producer=tensors.producer,
        tensor_bytes=tensors.bytes_,
        edge_tensor=tensors.edge_tensor,
        edge_reader=tensors.edge_reader,
    )
    given = Costs(
        exec_s=frozen(exec_s),
        fixed_s=frozen(np.array(tensors.fixed_s, np.float64)),
        latency_s=costs.latency_s,
        s_per_byte=costs.s_per_byte,
    )
    return Problem(coarse, problem.topology, GivenCosts(given))


class _Tensors:
    """The tensors of a coarse graph, and who reads them."""

    def __init__(self, problem: Problem, group: IntArray) -> None:
        graph = problem.graph
        self.producer: list[int] = []
        self.bytes_: list[float] = []
        self.fixed_s: list[float] = []
        self.edge_tensor: list[int] = []
        self.edge_reader: list[int] = []
        known: dict[tuple[int, ...], int] = {}
        pairs = np.unique(np.stack([graph.edge_tensor, group[graph.edge_reader]]), axis=1)
        ptr, readers = csr(pairs[0], pairs[1], graph.num_tensors)
        read_by, bounds = readers.tolist(), ptr.tolist()
        made_by = group[graph.tensor_producer].tolist()
        is_input = graph.is_input[graph.tensor_producer].tolist()
        sizes, fixed = graph.tensor_bytes.tolist(), problem.costs.fixed_s.tolist()
        for t, producer in enumerate(made_by):
            others = [r for r in read_by[bounds[t] : bounds[t + 1]] if r != producer]
            if not others and bounds[t] != bounds[t + 1]:
                continue  # it stays within its group
            key = (producer, *others)
            number = len(self.producer) if is_input[t] else known.setdefault(key, len(self.producer))
            if number == len(self.producer):
                self.producer.append(producer)
                self.bytes_.append(0.0)
                self.fixed_s.append(0.0)
                self.edge_tensor += [number] * len(others)
                self.edge_reader += others
            self.bytes_[number] += sizes[t]
            self.fixed_s[number] += fixed[t]


def _peak_bytes(problem: Problem, group: IntArray, size: int) -> FloatArray:
    """(W,) the most bytes at a time of what no other group reads, and temporary ones besides."""
    graph = problem.graph
    place = np.empty(graph.num_vertices, np.int64)
    place[graph.topological_order] = np.arange(len(place))
    same = group[graph.edge_reader] == group[graph.tensor_producer[graph.edge_tensor]]
    leaves = np.ones(graph.num_tensors, bool)  # or is a result
    leaves[graph.edge_tensor[same]] = False
    leaves[graph.edge_tensor[~same]] = True
    last = np.zeros(graph.num_tensors, np.int64)
    np.maximum.at(last, graph.edge_tensor, place[graph.edge_reader])
    inner = np.flatnonzero(~leaves & problem.is_produced)
    producer = graph.tensor_producer[inner]
    bytes_ = problem.whole_bytes[inner]
    # An event for each begin and end of a tensor, in the order in which a group's vertices run.
    of = np.concatenate([group[producer], group[producer]])
    when = np.concatenate([2 * place[producer], 2 * last[inner] + 1])
    change = np.concatenate([bytes_, -bytes_])
    order = np.lexsort((when, of))
    held = np.cumsum(change[order])  # every group's changes add up to 0
    peak = np.zeros(size)
    np.maximum.at(peak, of[order], held)
    temporary = np.zeros(size)
    np.maximum.at(temporary, group, problem.temporary_bytes)
    return np.ceil(np.maximum(peak, 0.0) + temporary)
