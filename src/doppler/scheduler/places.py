"""Places: where in the memory of its device every tensor is, in a run with a memory plan.

Along the order of the schedule each copy of a tensor is in memory from the task that writes it to
the last that uses it. With a plan that goes for inputs that stay too: they are in place again when
the next run begins. Places are a function of the plan and the schedule alone, so whoever asks gets
those that the plan's dependencies were made for.
"""

from dataclasses import dataclass, field

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray, rows
from doppler.graph.graph import Graph
from doppler.memory_plan import MemoryPlan
from doppler.scheduler.memory import in_place
from doppler.scheduler.packing import PackingConfig, Spans, live_bound, pack_apart, places_after
from doppler.sharding.temporaries import ALIGNMENT
from doppler.tasks import Tasks, enumerate_tasks
from doppler.topology.topology import Topology

IN_PLACE, UNDONE = -1, -2  # writers: of what is there before the clock starts; of no copy any more


@dataclass(slots=True)
class TensorCopy:
    """One stay of a tensor in a device's memory."""

    tensor: int
    device: int
    writer: int  # the task that puts it there
    users: list[int] = field(default_factory=list)  # tasks that read it, its eviction too
    is_kept: bool = False  # to the end: a result, or what nobody reads
    at: int = 0  # where its writer is in the order


@dataclass(frozen=True, slots=True)
class Places:
    """Offsets in the memories of the devices."""

    copies: list[TensorCopy]
    offset: list[int]  # of each copy, on its device
    temporary: list[int]  # (V,) of what an exec needs while it runs
    top: list[int]  # (D,) bytes from 0 to the end of the last place
    live: list[int]  # (D,) the most bytes in use at once along the order: `top` is at least that
    after: list[tuple[int, int]]  # a task, and one to be done before it writes; if all fits


def memory_places(
    graph: Graph, topology: Topology, assignment: Assignment, config: PackingConfig | None = None
) -> Places:
    """The places of the copies of an assignment, which has a memory plan and its schedule."""
    assert assignment.memory is not None
    assert assignment.schedule is not None
    tasks = enumerate_tasks(graph, topology, assignment.devices)
    copies = copies_of(graph, tasks, assignment.memory)
    return find_places(graph, topology, tasks, copies, assignment.schedule.tasks, config)


def memory_sizes(graph: Graph) -> tuple[list[int], list[int]]:
    """Bytes that each tensor, and the temporaries of each vertex, take: aligned for kernels."""
    step = ALIGNMENT if graph.kernels else 1
    columns = (graph.tensor_bytes, graph.temporary_bytes)
    tensors, temporaries = ((np.ceil(c / step).astype(np.int64) * step).tolist() for c in columns)
    return tensors, temporaries


def copies_of(graph: Graph, tasks: Tasks, plan: MemoryPlan) -> list[TensorCopy]:
    """All copies; `tasks` are those without moves."""
    size, first = graph.num_vertices, graph.num_vertices + tasks.num_transfers
    outputs = rows(graph.output_ptr, graph.output_tensor)
    is_kept, evicted = kept_tensors(graph), set(plan.tensor[~plan.is_load].tolist())
    devices = tasks.devices.tolist()
    copies = [
        TensorCopy(tensor, devices[v], v, is_kept=is_kept[tensor] and tensor not in evicted)
        for v in graph.assigned.tolist()
        for tensor in outputs[v]
    ]
    moved = list(zip(tasks.tensor.tolist(), tasks.source.tolist(), strict=True))
    for k, (tensor, target) in enumerate(
        zip(tasks.tensor.tolist(), tasks.target.tolist(), strict=True)
    ):
        copies.append(TensorCopy(tensor, target, size + k))
    copies += [TensorCopy(tensor, device, IN_PLACE) for tensor, device in in_place(graph, tasks)]
    original = {(copy.tensor, copy.device): copy for copy in copies}
    loaded: dict[tuple[int, int], TensorCopy] = {}  # by user and tensor
    users = rows(plan.ptr, plan.user)
    moves = zip(plan.tensor.tolist(), plan.device.tolist(), plan.is_load.tolist(), strict=True)
    for m, (tensor, device, is_load) in enumerate(moves):
        if is_load:
            copies.append(TensorCopy(tensor, device, first + m))
            loaded |= {(user, tensor): copies[-1] for user in users[m]}
        else:
            original[tensor, device].users.append(first + m)
    reads = [
        *zip(graph.edge_reader.tolist(), graph.edge_tensor.tolist(), strict=True),
        *((size + k, tensor) for k, (tensor, _) in enumerate(moved)),
    ]
    sources = devices + [source for _, source in moved]
    for task, tensor in reads:
        copy = loaded.get((task, tensor), original.get((tensor, sources[task])))
        if copy is not None:  # of what is everywhere, or comes from the host, there is none
            copy.users.append(task)
    return [copy for copy in copies if copy.writer != IN_PLACE or copy.users]


def kept_tensors(graph: Graph) -> list[bool]:
    """(T,) whether a tensor stays where it is made to the end of a run, unless it is evicted."""
    unread = np.diff(graph.reader_ptr) == 0
    kept: list[bool] = (
        (graph.is_result | unread) & ~graph.is_input[graph.tensor_producer]
    ).tolist()
    return kept


def find_places(
    graph: Graph,
    topology: Topology,
    tasks: Tasks,
    copies: list[TensorCopy],
    order: IntArray,
    config: PackingConfig | None = None,
) -> Places:
    """Places along an order of all tasks, moves too; they may not fit."""
    position = np.zeros(int(order.max(initial=0)) + 1, np.int64)
    position[order] = np.arange(len(order))
    at: list[int] = [*position.tolist(), 0]  # the last for what is in place
    sizes, temporaries = memory_sizes(graph)
    offset, temporary = [0] * len(copies), [0] * graph.num_vertices
    top, live, waits = [], [], []
    devices = tasks.devices.tolist()
    for d, device in enumerate(topology.devices):
        here = [i for i, c in enumerate(copies) if c.device == d and sizes[c.tensor]]
        execs = [v for v, own in enumerate(devices) if own == d and temporaries[v]]
        columns = [(*span(copies[i], at, len(order)), sizes[copies[i].tensor]) for i in here]
        columns += [(at[v], at[v], temporaries[v]) for v in execs]
        spans = Spans(*np.array(columns, np.int64).reshape(-1, 3).T.copy())
        packing = pack_apart(spans, device.memory_bytes, config)
        top.append(packing.top)
        live.append(live_bound(spans))
        offsets = packing.offset.tolist()
        for i, place in zip(here, offsets[: len(here)], strict=True):
            offset[i] = place
        for v, place in zip(execs, offsets[len(here) :], strict=True):
            temporary[v] = place
        writers = [copies[i].writer for i in here] + execs
        users = [copies[i].users or [copies[i].writer] for i in here] + [[v] for v in execs]
        waits.append((spans, packing, writers, users))
    fits = all(t <= d.memory_bytes for t, d in zip(top, topology.devices, strict=True))
    after = {
        (writers[buffer], other)
        for spans, packing, writers, users in (waits if fits else ())
        for buffer, other in places_after(spans, packing, users)
        if writers[buffer] not in (other, IN_PLACE)
    }
    return Places(copies, offset, temporary, top, live, sorted(after))


def span(copy: TensorCopy, position: list[int] | dict[int, int], length: int) -> tuple[int, int]:
    """The first and the last position of an order of that length where a copy is in memory."""
    begin = position[copy.writer]
    last = max((position[user] for user in copy.users), default=begin)
    return begin, length - 1 if copy.is_kept else last
