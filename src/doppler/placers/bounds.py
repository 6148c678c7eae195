"""Lower bounds: seconds that no assignment of a graph on a topology can go below."""

from dataclasses import dataclass

import numpy as np

from doppler.arrays import rows
from doppler.cost import Costs, DefaultCostModel
from doppler.graph.graph import Graph
from doppler.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Seconds every deterministic run of the graph takes at least, for different reasons."""

    path_s: float  # the longest path, every vertex on its fastest device, nothing moved
    work_s: float  # all work spread perfectly over all slots
    host_s: float  # the host starts one exec after the other

    @property
    def best_s(self) -> float:
        """The largest of them."""
        return max(self.path_s, self.work_s, self.host_s)


def lower_bounds(graph: Graph, topology: Topology) -> LowerBounds:
    """Lower bounds on the makespan of `graph` on `topology` under any assignment."""
    costs = DefaultCostModel().costs(graph, topology)
    count = len(graph.assigned)
    fastest = costs.exec_s[graph.assigned].min(axis=1) if count else np.zeros(0)
    return LowerBounds(
        path_s=_longest_path_s(graph, topology, costs),
        work_s=_work_s(graph, topology, costs),
        # The last exec to be started has waited for all the others to be dispatched.
        host_s=float(count * topology.host.dispatch_s + fastest.min(initial=np.inf))
        if count
        else 0.0,
    )


def gap(makespan_s: float, bound_s: float) -> float:
    """`makespan / bound - 1`: 0 is proven optimal."""
    return makespan_s / bound_s - 1.0 if bound_s > 0 else 0.0


def _longest_path_s(graph: Graph, topology: Topology, costs: Costs) -> float:
    """Each hop costs an exec on the best device, a dispatch, and a completion to be seen."""
    fastest = costs.exec_s.min(axis=1).tolist()
    host, producer = topology.host, graph.tensor_producer.tolist()
    reads, inputs = rows(graph.read_ptr, graph.read_tensor), graph.is_input.tolist()
    end = [0.0] * graph.num_vertices
    for v in graph.topological_order.tolist():
        if not inputs[v]:
            seen = [
                end[producer[t]] + host.completion_s for t in reads[v] if not inputs[producer[t]]
            ]
            end[v] = max(seen, default=0.0) + host.dispatch_s + fastest[v]
    return max(end, default=0.0)


def _work_s(graph: Graph, topology: Topology, costs: Costs) -> float:
    """The linear program of spreading work over unequal devices, bounded from its dual.

    For any weights y ≥ 0 of the devices, Σ_v min_d(y_d · exec_s[v, d]) / Σ_d(y_d · slots_d) is a
    lower bound. Equal weights, and weights by speed (exact where devices differ by a factor).
    """
    table = costs.exec_s[graph.assigned]
    total = table.sum(axis=0)
    if not len(table) or not total.max():
        return 0.0
    slots = np.array([d.slots for d in topology.devices], np.float64)
    weights = [np.ones(len(slots))]
    if total.min() > 0:
        weights.append(total.min() / total)
    return max(float((table * y).min(axis=1).sum() / (y * slots).sum()) for y in weights)
