"""EnumerativeOptimizer (Alg. 4): meta-op by meta-op, the cheapest spread over all devices."""

from heapq import heapify, heappop, heappush

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray, rows
from doppler.graph.graph import Graph
from doppler.graph.levels import depths
from doppler.placers.base import Shown, assign, refuse_budget
from doppler.placers.lists.trivial import ONE_RULE
from doppler.problem import Problem

MAX_ROWS = 256  # vertices assigned at once: the method is cubic in them


class EnumerativePlacer(Shown):
    """Shards of each meta-op spread over all devices, where their inputs are cheapest to bring.

    Alg. 4 (App. B): meta-ops in topological order, first the shards, then what reduces them; of
    all ways to give each device as many as any other, the one whose inputs take the least time
    to move. Each (vertex, device) pair costs the same whatever the others do, so that the best
    is a linear assignment and need not be enumerated. With more vertices than devices each
    device takes several. A graph without meta-ops is grouped by level and kind.
    """

    name = "enumerative"

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The assignment of Alg. 4; the seed does not matter."""
        refuse_budget(self, budget_s, ONE_RULE)
        graph, network = problem.graph, NetworkTimes(problem)
        devices = np.full(graph.num_vertices, -1, np.int64)
        for group in groups(graph):
            for begin in range(0, len(group), MAX_ROWS):
                vertices = group[begin : begin + MAX_ROWS]
                devices[vertices] = best_assignment(network.table(vertices, devices))
        return assign(self, problem, devices)


class NetworkTimes:
    """getNetworkTime of Alg. 4: seconds to bring a vertex's inputs to each device."""

    def __init__(self, problem: Problem) -> None:
        graph, costs = problem.graph, problem.costs
        self._reads = rows(graph.read_ptr, graph.read_tensor)
        self._producer = graph.tensor_producer.tolist()
        self._fixed, self._bytes = costs.fixed_s.tolist(), graph.tensor_bytes.tolist()
        self._away = (problem.topology.route >= 0).astype(np.float64)
        self._latency, self._slope = problem.latency_s, problem.s_per_byte

    def table(self, vertices: IntArray, devices: IntArray) -> FloatArray:
        """(len(vertices), D) seconds, given where the producers are; inputs are everywhere."""
        table = np.zeros((len(vertices), len(self._away)))
        for row, v in enumerate(vertices.tolist()):
            for tensor in self._reads[v]:
                source = devices[self._producer[tensor]]
                if source >= 0:
                    table[row] += self._fixed[tensor] * self._away[source]
                    table[row] += self._latency[source] + self._bytes[tensor] * self._slope[source]
        return table


def best_assignment(table: FloatArray) -> IntArray:
    """The device of each row, every device as often as any other (or once less), at least cost."""
    from scipy.optimize import linear_sum_assignment

    count, size = table.shape
    copies = -(-count // size)
    _, column = linear_sum_assignment(np.tile(table, copies))
    devices: IntArray = column % size
    return devices


def groups(graph: Graph) -> list[IntArray]:
    """Vertices to be spread over the devices together: shards, then reductions, of each meta-op."""
    level = depths(graph)
    keys: dict[tuple[object, ...], list[int]] = {}
    for v in graph.topological_order.tolist():
        if graph.is_input[v]:
            continue
        if graph.meta_ops[v]:
            key: tuple[object, ...] = (graph.meta_ops[v], graph.roles[v] == "reduce")
        else:
            key = (int(level[v]), graph.kinds[v])
        keys.setdefault(key, []).append(v)
    members = [sorted(group) for group in keys.values()]
    order = _topological(graph, members)
    if order is None:  # meta-ops that depend on each other: take them apart by level
        return [
            np.array([v for v in group if level[v] == depth])
            for depth in range(int(level.max()) + 1)
            for group in members
            if any(level[v] == depth for v in group)
        ]
    return [np.array(members[i]) for i in order]


def _topological(graph: Graph, members: list[list[int]]) -> list[int] | None:
    """An order of the groups in which producers come first, lowest vertex first; None if none."""
    group_of = np.full(graph.num_vertices, -1)
    for i, group in enumerate(members):
        group_of[group] = i
    a = group_of[graph.tensor_producer[graph.edge_tensor]]
    b = group_of[graph.edge_reader]
    pairs = np.unique(np.stack([a, b], axis=1)[(a >= 0) & (a != b)], axis=0)
    missing = np.bincount(pairs[:, 1], minlength=len(members)).tolist()
    after: list[list[int]] = [[] for _ in members]
    for x, y in pairs.tolist():
        after[x].append(y)
    ready = [(group[0], i) for i, group in enumerate(members) if missing[i] == 0]
    heapify(ready)
    order = []
    while ready:
        _, i = heappop(ready)
        order.append(i)
        for j in after[i]:
            missing[j] -= 1
            if missing[j] == 0:
                heappush(ready, (members[j][0], j))
    return order if len(order) == len(members) else None
