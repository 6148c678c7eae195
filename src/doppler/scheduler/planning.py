"""Planning: a memory plan for an assignment that does not fit otherwise.

A walk along an order of the tasks decides what leaves and what comes back. Then whatever comes to a
device comes as early as memory allows, and evictions follow what they evict at once. At last every
copy gets a place in its device's memory; whoever takes over a place waits for those that used it.
So nothing is overwritten that is still needed, whatever order a run takes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.base.collection import no_collection
from doppler.errors import ConfigError, OutOfMemoryError
from doppler.memory_plan import MemoryPlan
from doppler.problem import Problem
from doppler.schedule import Schedule
from doppler.scheduler.eviction import EvictionConfig, Walk, walk, walk_in_place
from doppler.scheduler.list_scheduling import list_schedule, task_seconds
from doppler.scheduler.packing import PackingConfig
from doppler.scheduler.places import (
    IN_PLACE,
    Places,
    TensorCopy,
    copies_of,
    find_places,
    memory_sizes,
    span,
)
from doppler.tasks import Tasks, dependencies, enumerate_tasks, with_moves


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """How memory plans are made."""

    eviction: EvictionConfig = field(default_factory=EvictionConfig)
    packing: PackingConfig = field(default_factory=PackingConfig)
    rounds: int = 6  # of planning with less memory, where places leave gaps ...
    margin: float = 0.02  # ... of so much less than the gaps
    large: int = 5000  # tasks from which places are not tried without gaps where tensors move ...
    headroom: float = 0.06  # ... but with so much for them

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 <= self.margin < 1 or not 0 <= self.headroom < 1:
            raise ConfigError("rounds must be at least 1, margin and headroom between 0 and 1")


def plan_memory(
    problem: Problem,
    assignment: Assignment,
    config: PlanConfig | None = None,
    *,
    order: IntArray | None = None,
) -> Assignment:
    """The assignment with a memory plan, and a schedule in the order for which it was made.

    That order is the assignment's schedule, or list scheduling without a limit of memory, unless
    one of the tasks without moves is given. An `OutOfMemoryError` where no plan is found.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> small = dp.Topology.uniform(
    ...     2, flops_per_s=1e12, bandwidth_bytes_per_s=1e9, memory_bytes=16384,
    ...     host_bandwidth_bytes_per_s=1e9,
    ... )
    >>> single = dp.place(graph, dp.Topology.preset("p100x4"), "single").devices
    >>> plan_memory(dp.Problem(graph, small), dp.Assignment(single)).memory is not None
    True
    """
    config, topology = config or PlanConfig(), problem.topology
    if not topology.has_host_links:
        raise OutOfMemoryError(
            f"topology `{topology.name}` has no links to the host to move tensors over",
            hint="give it some: `host_bandwidth_bytes_per_s`, or `[[links]]` with the host",
        )
    if order is None:
        plain = replace(assignment, schedule=None, memory=None)
        kept = assignment.schedule if assignment.memory is None else None
        order = (kept or list_schedule(problem, plain, limit_memory=False)).tasks
    with no_collection():
        return _plan_along(problem, assignment, order, config)


def _plan_along(
    problem: Problem, assignment: Assignment, order: IntArray, config: PlanConfig
) -> Assignment:
    """Walk, prefetch and find places, with less and less memory until the places fit."""
    topology = problem.topology
    tasks = enumerate_tasks(problem.graph, topology, assignment.devices)
    limits = [device.memory_bytes for device in topology.devices]
    least = _working_bytes(problem, tasks)
    for prefetches in (True, False):  # what comes late leaves fewer gaps
        rooms, walked = list(limits), None
        if len(order) > config.large:
            walked = walk_in_place(problem, tasks, order, rooms, config.eviction)
            if walked is None:
                share = 1 - config.headroom
                rooms = [max(share * r, n) for r, n in zip(rooms, least, strict=True)]
        for _ in range(config.rounds):
            found = walked or walk(problem, tasks, order, rooms, config.eviction)
            walked = None
            if prefetches:
                found = replace(found, order=_prefetching(problem, tasks, found, rooms))
            plan, in_order = _plan_of(found), np.array(found.order, np.int64)
            copies = copies_of(problem.graph, tasks, plan)
            places = find_places(problem.graph, topology, tasks, copies, in_order, config.packing)
            if all(top <= limit for top, limit in zip(places.top, limits, strict=True)):
                return _planned(problem, assignment, tasks, plan, places.after, found.order)
            before, rooms = rooms, _smaller(rooms, limits, least, places, config.margin)
            if rooms == before:
                break
    raise OutOfMemoryError(
        "no places were found for the tensors of a memory plan, though their bytes fit",
        hint="cut the graph finer, or use devices with more memory",
    )


def _smaller(
    rooms: Sequence[float],
    limits: Sequence[float],
    least: Sequence[float],
    places: Places,
    margin: float,
) -> list[float]:
    """(D,) what to plan for where places did not fit: less by the gaps and a margin."""
    smaller = list(rooms)
    for d, top in enumerate(places.top):
        if top > limits[d]:
            filled = min(rooms[d], places.live[d]) * limits[d] / top
            smaller[d] = max((1 - margin) * filled, least[d])
    return smaller


def _working_bytes(problem: Problem, tasks: Tasks) -> list[int]:
    """(D,) the most that one vertex reads, makes and takes besides on each device."""
    graph, (sizes, temporaries) = problem.graph, memory_sizes(problem.graph)
    takes_memory = (~graph.is_input | graph.arrives | graph.stays)[graph.tensor_producer]
    counted = np.where(takes_memory, sizes, 0)
    need = np.bincount(graph.edge_reader, counted[graph.edge_tensor], graph.num_vertices)
    need = need + np.bincount(graph.tensor_producer, counted, graph.num_vertices) + temporaries
    most = np.zeros(problem.topology.num_devices)
    np.maximum.at(most, tasks.devices[graph.assigned], need[graph.assigned])
    return most.astype(np.int64).tolist()


def _prefetching(problem: Problem, tasks: Tasks, walked: Walk, rooms: Sequence[float]) -> list[int]:
    """The order with evictions right behind what they evict, all that comes as early as can be.

    What is needed first comes first to the memory that is left.
    """
    size, count = tasks.num_vertices, tasks.num_vertices + tasks.num_transfers
    order = walked.order
    position = {task: i for i, task in enumerate(order)}
    position[IN_PLACE] = 0
    used = _used_bytes(problem, tasks, walked, position)
    copy_of = {copy.writer: copy for copy in walked.copies if copy.writer >= size}
    source_of = {user: copy for copy in walked.copies for user in copy.users if user >= size}
    before = _ends_before(walked, position)
    evicted: dict[int, int] = {}  # tensor: where its eviction is
    key: dict[int, tuple[int, int, int]] = {}
    sizes, _ = memory_sizes(problem.graph)
    for i, task in enumerate(order):
        if task >= count and not walked.is_load[task - count]:
            copy = walked.moves[task - count]
            behind = key[copy.writer][0]
            evicted[copy.tensor], key[task] = behind, (behind, 2, i)
            continue
        if task < size:
            key[task] = (i, 1, i)
            continue
        copy = copy_of[task]
        earliest = before[task] + 1
        if task >= count:
            earliest = max(earliest, evicted.get(copy.tensor, -1) + 1)
        elif task in source_of:  # the source may be a load
            writer = source_of[task].writer
            first = key[writer] if writer != IN_PLACE else (-1, 0, 0)
            earliest = max(earliest, first[0] + (first[1] > 0))
        there, need = used[copy.device], sizes[copy.tensor]
        full = np.flatnonzero(there[earliest:i] > rooms[copy.device] - need)
        new = earliest + int(full[-1]) + 1 if len(full) else min(earliest, i)
        there[new:i] += need
        key[task] = (new, 0, i)
    return sorted(order, key=key.__getitem__)


def _ends_before(walked: Walk, position: dict[int, int]) -> dict[int, int]:
    """By the task that brings a copy, where the stay before it on that device ended, or -1."""
    ends: dict[tuple[int, int], int] = {}
    before: dict[int, int] = {}
    for copy in walked.copies:
        key = copy.tensor, copy.device
        before[copy.writer] = ends.get(key, -1)
        ends[key] = max((position[user] for user in copy.users), default=position[copy.writer])
    return before


def _used_bytes(
    problem: Problem, tasks: Tasks, walked: Walk, position: dict[int, int]
) -> list[IntArray]:
    """(D,) (N,) bytes in use at each position of the order, by device."""
    length = len(walked.order)
    change = np.zeros((problem.topology.num_devices, length + 1), np.int64)
    sizes, temporaries = memory_sizes(problem.graph)
    for copy in walked.copies:
        begin, end = span(copy, position, length)
        change[copy.device, begin] += sizes[copy.tensor]
        change[copy.device, end + 1] -= sizes[copy.tensor]
    used = np.cumsum(change[:, :length], axis=1)
    for v in problem.graph.assigned.tolist():
        used[tasks.devices[v], position[v]] += temporaries[v]
    return list(used)


def _plan_of(walked: Walk) -> MemoryPlan:
    """The moves of a walk, without what sharing places adds."""
    counts = [len(copy.users) if is_load else 0 for copy, is_load in _moves(walked)]
    user = [task for copy, is_load in _moves(walked) if is_load for task in copy.users]
    return MemoryPlan(
        tensor=np.array([copy.tensor for copy in walked.moves], np.int64),
        device=np.array([copy.device for copy in walked.moves], np.int64),
        is_load=np.array(walked.is_load, np.bool_),
        ptr=np.cumsum([0, *counts]),
        user=np.array(user, np.int64),
        needed=np.zeros(0, np.int64),
        needs=np.zeros(0, np.int64),
    )


def _planned(
    problem: Problem,
    assignment: Assignment,
    tasks: Tasks,
    plan: MemoryPlan,
    after: Sequence[tuple[int, int]],
    order: Sequence[int],
) -> Assignment:
    """The assignment with a plan in which tasks wait for their places, and its schedule."""
    all_tasks = with_moves(problem.topology, tasks, plan)
    needed, needs = (column.tolist() for column in dependencies(problem.graph, all_tasks, plan))
    known = set(zip(needs, needed, strict=True))
    added = [pair for pair in after if pair not in known]
    pairs = np.array(added, np.int64).reshape(-1, 2)
    plan = replace(plan, needed=pairs[:, 1], needs=pairs[:, 0])
    schedule = schedule_of(problem, all_tasks, plan, order)
    return replace(assignment, schedule=schedule, memory=plan)


def _moves(walked: Walk) -> Iterator[tuple[TensorCopy, bool]]:
    return zip(walked.moves, walked.is_load, strict=True)


def schedule_of(problem: Problem, tasks: Tasks, plan: MemoryPlan, order: Sequence[int]) -> Schedule:
    """The schedule of tasks in this order, each in the slot or lane that is free first."""
    topology = problem.topology
    needed, needs = dependencies(problem.graph, tasks, plan)
    seconds, end_s = (
        task_seconds(problem, tasks).tolist(),
        [0.0] * (tasks.num_vertices + tasks.num_transfers),
    )
    needed_by: list[list[int]] = [[] for _ in end_s]
    for one, other in zip(needed.tolist(), needs.tolist(), strict=True):
        needed_by[other].append(one)
    free_s = [[0.0] * device.slots for device in topology.devices]
    free_s += [[0.0] * link.lanes for link in topology.links]
    resource = np.concatenate([tasks.devices, topology.num_devices + tasks.link]).tolist()
    rooms = []
    for task in order:
        ready_s = max((end_s[other] for other in needed_by[task]), default=0.0)
        rooms_s = free_s[resource[task]]
        room = rooms_s.index(min(rooms_s)) if rooms_s else -1
        rooms.append(room)
        begin_s = max(ready_s, rooms_s[room]) if rooms_s else ready_s
        end_s[task] = begin_s + seconds[task]
        if rooms_s:
            rooms_s[room] = end_s[task]
    return Schedule(np.array(order, np.int64), np.array(rooms, np.int64))
