"""What device memory forces on every assignment of a graph.

An output occupies its device from the start of its exec, a copy from the start of its transfer,
each until its last use there has ended; what nobody reads stays. So the bytes of all tensors say
nothing about the memory a run needs: most are freed on the way. What has to be there at the same
time does, and three such sets are known without knowing the assignment: what one vertex reads,
makes and takes besides, on its device; what was made before a vertex and is needed after it,
somewhere; and the inputs that are in place when a run begins, or stay with the results when it
ends, somewhere.
"""

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, rows
from doppler.graph.graph import Graph
from doppler.problem import Problem

MAX_VERTICES = 2000  # up to which `split_s` looks at who comes before whom: a square table


def runs_nowhere(problem: Problem) -> int | None:
    """A vertex whose working bytes no device holds, the largest; None if there is none."""
    need = problem.working_bytes
    if not len(need) or need.max() <= problem.memory_bytes.max():
        return None
    return int(np.argmax(need))


def least_total_bytes(problem: Problem) -> float:
    """Bytes that are on all devices together at the begin or at the end of every run, at least.

    At the begin, inputs that are in place; at the end, those that stay and all results. Where
    that is more than all devices hold, no assignment can run. With links to the host, all of them
    may leave.
    """
    if problem.topology.has_host_links:
        return 0.0
    graph, whole = problem.graph, problem.counted_bytes
    read = np.diff(graph.reader_ptr) > 0
    at_begin = problem.is_in_place & read
    is_left = problem.is_produced & (graph.is_result | ~read)
    at_end = is_left | (graph.stays[graph.tensor_producer] & read)
    return float(max(whole[at_begin].sum(), whole[at_end].sum()))


def why_nothing_fits(problem: Problem) -> str:
    """Why no assignment can run, with the numbers; empty where none of the reasons is known."""
    graph, memory = problem.graph, problem.memory_bytes
    vertex, total = runs_nowhere(problem), least_total_bytes(problem)
    if vertex is not None:
        device = problem.topology.devices[int(np.argmax(memory))]
        temporary = problem.temporary_bytes[vertex]
        besides = f" and takes {temporary:.0f} besides" if temporary else ""
        return (
            f"vertex `{graph.vertex_names[vertex]}` reads and makes "
            f"{problem.working_bytes[vertex] - temporary:.0f} bytes{besides}, "
            f"device `{device.name}` holds {device.memory_bytes:.0f}"
        )
    if total > memory.sum():
        return (
            f"inputs and results that stay take {total:.0f} bytes, "
            f"all devices together hold {memory.sum():.0f}"
        )
    return ""


def streaming_s(problem: Problem) -> float:
    """Seconds that the links to the host need at least for inputs that are not all in place.

    The devices together hold no more than their memory when a run begins. Every further byte of
    the inputs that are read has to come over a link, over the fastest and all lanes at best.
    """
    graph, topology = problem.graph, problem.topology
    read = problem.is_in_place & (np.diff(graph.reader_ptr) > 0)
    missing = float(graph.tensor_bytes[read].sum() - problem.memory_bytes.sum())
    links = np.unique(topology.host_links)
    if missing <= 0 or not problem.lanes[links].all():
        return 0.0
    least_s = missing * problem.costs.s_per_byte[links].min()
    return float(least_s / problem.lanes[links].sum())


def allowed(problem: Problem) -> BoolArray:
    """(V, D) whether a vertex can run on a device: the device holds its working bytes.

    One that can run nowhere is allowed everywhere: then no assignment can run, and bounds on
    those that do may be anything.
    """
    fits: BoolArray = problem.working_bytes[:, None] <= problem.memory_bytes
    fits[~fits.any(axis=1)] = True
    return fits


def split_s(problem: Problem, begin: FloatArray, tail: FloatArray, fastest: FloatArray) -> float:
    """Seconds that every run takes that has to move a tensor for lack of memory; 0 if none has to.

    `begin` (V,) are seconds before which a vertex cannot begin, `tail` (V,) seconds from its begin
    to the end of everything after it, `fastest` (V,) its exec seconds, all at least.

    Take a vertex v on a device d. When it starts, these tensors are in memory: those it reads and
    makes, and its temporaries, on d; those made before it that nobody reads, where they were made;
    those made before it (by an ancestor p) that a descendant r reads, where p is or where r is, as
    the one is kept until the transfer has ended and the other from its start; inputs that stay and
    that some p reads, where p is; and inputs in place that some r reads, where r is. If they exceed
    the memory of the largest device, not all are on d, so some p or some r is not on d. The path
    from p to v, or from v to r, then leaves its device at some edge (a, b): the tensor that a makes
    and b reads is moved, and the makespan is at least

        begin[a] + fastest[a] + seen + transfer + seen + tail[b],    seen = completion + dispatch.

    Which edge that is depends on the assignment: the least of them all bounds every one.
    """
    graph, topology = problem.graph, problem.topology
    if topology.num_devices == 1 or graph.num_vertices > MAX_VERTICES:
        return 0.0
    before = _ancestors(graph)
    crowded = np.flatnonzero(_live_bytes(problem, before) > problem.memory_bytes.max())
    a, tensor, b = problem.edges.producer, problem.edges.tensor, problem.edges.reader
    seen_s = topology.host.completion_s + topology.host.dispatch_s
    move_s = 2 * seen_s + _least_transfer_s(problem)
    through_s = begin[a] + fastest[a] + move_s[tensor] + tail[b]
    best = 0.0
    np.fill_diagonal(before, True)
    for v in crowded.tolist():
        up, down = before[v], before[:, v]
        inside = (up[a] & up[b]) | (down[a] & down[b])
        if inside.any():
            best = max(best, float(through_s[inside].min()))
    return best


def _ancestors(graph: Graph) -> BoolArray:
    """(V, V) whether the vertex of the column has to run before that of the row."""
    before = np.zeros((graph.num_vertices, graph.num_vertices), np.bool_)
    reads, producer = rows(graph.read_ptr, graph.read_tensor), graph.tensor_producer.tolist()
    for v in graph.topological_order.tolist():
        for tensor in reads[v]:
            p = producer[tensor]
            if not graph.is_input[p]:
                before[v] |= before[p]
                before[v, p] = True
    return before


def _live_bytes(problem: Problem, before: BoolArray) -> FloatArray:
    """(V,) bytes that are in the memory of some device when a vertex starts."""
    graph, whole, live = problem.graph, problem.counted_bytes, problem.working_bytes.copy()
    readers, producer = rows(graph.reader_ptr, graph.reader), graph.tensor_producer.tolist()
    for tensor in np.flatnonzero(whole).tolist():
        after, p = readers[tensor], producer[tensor]
        needed = before[after].any(axis=0) if after else np.ones(len(before), np.bool_)
        if graph.is_input[p]:
            held = needed & problem.is_in_place[tensor] & bool(after)
            held |= before[:, after].any(axis=1) & graph.stays[p]
            held &= ~graph.is_input
        else:
            held = before[:, p] & needed
        held[after] = False  # in their working bytes already
        live[held] += whole[tensor]
    return live


def _least_transfer_s(problem: Problem) -> FloatArray:
    """(T,) seconds to move each tensor over the link that is best for it."""
    route = problem.topology.route
    same = problem.link_class[np.unique(route[route >= 0])]
    least: FloatArray = problem.transfer_table(problem.distinct_links[np.unique(same)]).min(axis=1)
    return least
