"""List scheduling as data: a rule says which vertex goes next and where; `run` follows it.

Two kinds of rule cover the classical list schedulers. A `RankRule` takes ready vertices in a
fixed order of priority; a `GreedyRule` takes the best of all pairs of a ready vertex and a
device, which changes as devices fill up. Both work on the same `PlanArrays` and make a
`ListSchedule`.

The schedule is a plan, not a simulation: every slot of a device is a timeline, a tensor arrives
`transfer_s` after its producer ends, or from the host after the start, whatever else is moved, and
the host costs nothing.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.problem import Problem

MAX_GAPS = 64  # idle gaps kept per slot, the latest; so placing a vertex never scans them all


class PlanArrays(NamedTuple):
    """A problem, flattened for list schedulers. F edges: those of `Problem.edges`."""

    num_reads: IntArray  # (V,) tensors read, those of inputs left out; -1 for inputs
    edge_ptr: IntArray  # (V+1,) edges that leave a vertex
    edge_tensor: IntArray  # (F,)
    edge_reader: IntArray  # (F,)
    read_ptr: IntArray  # (V+1,) tensors read by a vertex
    read_tensor: IntArray  # (E,)
    whole_bytes: FloatArray  # (T,) for the memory; 0 for inputs that are everywhere
    max_bytes: FloatArray  # (V,) a vertex adds to a device that has nothing yet it reads
    temporary_bytes: FloatArray  # (V,) that it takes besides while it runs
    exec_s: FloatArray  # (V, D)
    arrival_s: FloatArray  # (V, D) when the inputs of a vertex that come from the host are there
    fixed_s: FloatArray  # (T,) a transfer takes fixed_s + latency_s + tensor_bytes * s_per_byte
    tensor_bytes: FloatArray  # (T,)
    latency_s: FloatArray  # (D, D)
    s_per_byte: FloatArray  # (D, D)
    slot_ptr: IntArray  # (D+1,) slots of a device


@dataclass(frozen=True, slots=True)
class RankRule:
    """Of the `window` most urgent ready vertices the one whose best score is largest.

    It goes to the device of its best, that is least, score: `begin_s + bias_s`.
    """

    sequence: IntArray  # (V,) vertices, the most urgent first
    bias_s: FloatArray  # (V, D)
    draws: FloatArray  # (V,) in [0, 1): which of its devices with the best score; 0 = the first
    window: int = 1
    max_gaps: int = 0  # idle gaps per slot that vertices may be inserted into; 0 = append only


@dataclass(frozen=True, slots=True)
class GreedyRule:
    """The ready vertex and device with room that have the least (value, tie, vertex, device).

    The value is when the vertex begins there, plus `tie` where `by_finish`. A device has room if
    its memory holds all that was ever put there, this vertex's outputs, the inputs and copies it
    needs, and the most temporaries of any vertex there. If no ready vertex has room anywhere, the
    first by (tie, vertex) goes to the device that then has most room left.

    A device is kept awake for the favourite of its last vertex, if that is not yet placed: others
    begin `awake_s` after that vertex or later, unless their inputs are by then on all devices;
    and the favourite, when ready, goes first if it can begin no later than they.
    """

    tie: FloatArray  # (V, D) seconds
    by_finish: bool
    memory_bytes: FloatArray  # (D,)
    favourite: IntArray  # (V,) a reader of the vertex, or -1
    awake_s: FloatArray  # (V,)


@dataclass(frozen=True, slots=True)
class ListSchedule:
    """When and where a list scheduler plans each vertex."""

    devices: IntArray  # (V,) -1 for inputs
    order: IntArray  # vertices in the order they were placed
    begin_s: FloatArray  # (V,)
    end_s: FloatArray  # (V,)

    @property
    def makespan_s(self) -> float:
        """When the last vertex ends."""
        return float(self.end_s.max(initial=0.0))


def flatten(problem: Problem) -> PlanArrays:
    """Those arrays of a problem, as they are."""
    graph, costs, edges = problem.graph, problem.costs, problem.edges
    return PlanArrays(
        num_reads=np.where(graph.is_input, -1, problem.num_reads),
        edge_ptr=edges.ptr,
        edge_tensor=edges.tensor,
        edge_reader=edges.reader,
        read_ptr=graph.read_ptr,
        read_tensor=graph.read_tensor,
        whole_bytes=problem.counted_bytes,
        max_bytes=problem.working_bytes - problem.temporary_bytes,
        temporary_bytes=problem.temporary_bytes,
        exec_s=costs.exec_s,
        arrival_s=_arrival_s(problem),
        fixed_s=costs.fixed_s,
        tensor_bytes=graph.tensor_bytes,
        latency_s=problem.latency_s,
        s_per_byte=problem.s_per_byte,
        slot_ptr=problem.slot_ptr,
    )


def _arrival_s(problem: Problem) -> FloatArray:
    """(V, D) seconds until all that a vertex reads from the host can be on a device."""
    graph = problem.graph
    arrival_s = np.zeros((graph.num_vertices, problem.topology.num_devices))
    edges = np.flatnonzero(problem.is_arriving[graph.edge_tensor])
    if len(edges):
        seconds = problem.transfer_table(problem.topology.host_links)
        np.maximum.at(arrival_s, graph.edge_reader[edges], seconds[graph.edge_tensor[edges]])
    return arrival_s


def run(arrays: PlanArrays, rule: RankRule | GreedyRule) -> ListSchedule:
    """The schedule that follows from a rule, by the compiled loops."""
    from doppler.placers.lists.greedy_kernel import GreedyArrays, make_heaps, place_greedily
    from doppler.placers.lists.kernel import make_queue, make_state, place_by_rank

    state = make_state(arrays)
    if isinstance(rule, RankRule):
        queue = make_queue(arrays, rule.window, rule.max_gaps)
        count = place_by_rank(arrays, rule.sequence, rule.bias_s, rule.draws, state, queue)
    else:
        choice = GreedyArrays(rule.tie, rule.memory_bytes, rule.favourite, rule.awake_s)
        count = place_greedily(arrays, choice, rule.by_finish, state, make_heaps(arrays))
    return ListSchedule(state.devices, state.order[:count], state.begin_s, state.end_s)
