"""Lower bounds: seconds that no assignment of a graph on a topology can go below."""

from dataclasses import dataclass

import numpy as np

from doppler.arrays import FloatArray, rows
from doppler.cost import Costs, DefaultCostModel
from doppler.graph.graph import Graph
from doppler.topology.topology import Topology

MAX_LP_ROWS = 2000  # distinct vertices up to which the linear program is solved
CUTS = 24  # points in time that windows of work may begin and end at


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Seconds every deterministic run of the graph takes at least, for different reasons."""

    path_s: float  # the longest path, every vertex on its fastest device, nothing moved
    work_s: float  # all work spread perfectly over all slots
    window_s: float  # what can neither begin early nor end late, spread over all slots
    host_s: float  # the host starts one exec after the other

    @property
    def best_s(self) -> float:
        """The largest of them."""
        return max(self.path_s, self.work_s, self.window_s, self.host_s)


def lower_bounds(graph: Graph, topology: Topology) -> LowerBounds:
    """Lower bounds on the makespan of `graph` on `topology` under any assignment."""
    costs = DefaultCostModel().costs(graph, topology)
    assigned = graph.assigned
    if not len(assigned):
        return LowerBounds(0.0, 0.0, 0.0, 0.0)
    table = costs.exec_s[assigned]
    weights = _device_weights(table, topology)
    begin, tail = _earliest_begins(graph, topology, costs), _shortest_tails(graph, topology, costs)
    fastest = table.min(axis=1)
    return LowerBounds(
        path_s=float((begin + tail)[assigned].max() + 0.0),
        work_s=_spread_s(table, topology, weights),
        window_s=_window_s(begin[assigned], tail[assigned], table, topology, weights),
        # The last exec to be started has waited for all the others to be dispatched.
        host_s=float(len(assigned) * topology.host.dispatch_s + fastest.min()),
    )


def gap(makespan_s: float, bound_s: float) -> float:
    """`makespan / bound - 1`: 0 is proven optimal."""
    return makespan_s / bound_s - 1.0 if bound_s > 0 else 0.0


def _earliest_begins(graph: Graph, topology: Topology, costs: Costs) -> FloatArray:
    """(V,) seconds before which a vertex cannot begin: all before it on the fastest devices.

    Every hop costs an exec, a completion to be seen and a dispatch; nothing is moved.
    """
    fastest, host = costs.exec_s.min(axis=1).tolist(), topology.host
    producer, reads = graph.tensor_producer.tolist(), rows(graph.read_ptr, graph.read_tensor)
    inputs, begin = graph.is_input.tolist(), [0.0] * graph.num_vertices
    for v in graph.topological_order.tolist():
        if not inputs[v]:
            makers = {producer[t] for t in reads[v]}
            seen = [begin[p] + fastest[p] + host.completion_s for p in makers if not inputs[p]]
            begin[v] = max(seen, default=0.0) + host.dispatch_s
    return np.array(begin)


def _shortest_tails(graph: Graph, topology: Topology, costs: Costs) -> FloatArray:
    """(V,) seconds from the begin of a vertex to the end of everything after it, at least."""
    fastest, host = costs.exec_s.min(axis=1).tolist(), topology.host
    readers, outputs = (
        rows(graph.reader_ptr, graph.reader),
        rows(graph.output_ptr, graph.output_tensor),
    )
    inputs, tail = graph.is_input.tolist(), [0.0] * graph.num_vertices
    for v in reversed(graph.topological_order.tolist()):
        if not inputs[v]:
            after = max((tail[r] for t in outputs[v] for r in readers[t]), default=None)
            hop = 0.0 if after is None else host.completion_s + host.dispatch_s + after
            tail[v] = fastest[v] + hop
    return np.array(tail)


def _window_s(
    begin: FloatArray,
    tail: FloatArray,
    table: FloatArray,
    topology: Topology,
    weights: list[FloatArray],
) -> float:
    """The best bound of the form: nothing of a set can begin before a, all is followed by b.

    Then its work, spread over all slots, fits between: makespan ≥ a + work + b.
    """
    after = tail - table.min(axis=1)  # from the end of a vertex to the end of all
    best = 0.0
    for a in np.unique(np.quantile(begin, np.linspace(0, 1, CUTS), method="lower")):
        late = begin >= a
        for b in np.unique(np.quantile(after[late], np.linspace(0, 1, CUTS), method="lower")):
            members = late & (after >= b)
            best = max(best, float(a + b) + _dual_s(table[members], topology, weights))
    return best


def _device_weights(table: FloatArray, topology: Topology) -> list[FloatArray]:
    """Weights of the devices that give good bounds: equal ones, and those by speed."""
    weights = [np.ones(topology.num_devices)]
    total = table.sum(axis=0)
    if total.min() > 0:
        weights.append(total.min() / total)
    return weights


def _dual_s(table: FloatArray, topology: Topology, weights: list[FloatArray]) -> float:
    """Σ_v min_d(y_d · exec_s[v, d]) / Σ_d(y_d · slots_d), a bound for any weights y ≥ 0.

    The dual of spreading work over unequal devices; exact where they differ by a factor.
    """
    slots = np.array([d.slots for d in topology.devices], np.float64)
    return max(float((table * y).min(axis=1).sum() / (y * slots).sum()) for y in weights)


def _spread_s(table: FloatArray, topology: Topology, weights: list[FloatArray]) -> float:
    """The linear program of spreading all work over the devices; its dual where that is large."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    kinds, count = np.unique(table, axis=0, return_counts=True)
    bound = _dual_s(table, topology, weights)
    if len(kinds) > MAX_LP_ROWS or topology.num_devices == 1:
        return bound
    size, devices = kinds.shape
    scale = float(kinds.max()) or 1.0
    amount = kinds * count[:, None] / scale  # seconds if all of a kind ran on a device
    slots = [d.slots for d in topology.devices]
    # Variables: the share of each kind on each device, then the makespan.
    shares = np.arange(size * devices)
    load = coo_array(
        (
            np.concatenate([amount.ravel(), -np.array(slots, np.float64)]),
            (
                np.concatenate([shares % devices, np.arange(devices)]),
                np.concatenate([shares, np.full(devices, size * devices)]),
            ),
        )
    )
    whole = coo_array(
        (np.ones(size * devices), (shares // devices, shares)), shape=(size, size * devices + 1)
    )
    goal = np.zeros(size * devices + 1)
    goal[-1] = 1.0
    solved = linprog(goal, A_ub=load, b_ub=np.zeros(devices), A_eq=whole, b_eq=np.ones(size))
    # The solver is exact to about 1e-7; stay below the truth.
    return max(bound, float(solved.fun) * scale * (1 - 1e-6)) if solved.success else bound
