"""Schedule: the order in which the host starts the tasks of an assignment, and where each runs."""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from doppler.base.arrays import FloatArray, IntArray, csr, frozen, integers, rows
from doppler.base.files import check_keys
from doppler.base.notebook import html_line
from doppler.errors import AssignmentError, FormatError
from doppler.graph.graph import Graph
from doppler.memory_plan import MemoryPlan
from doppler.tasks import Tasks, dependencies
from doppler.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Every task of an assignment in the order in which the host starts them.

    Devices then wait for one another by themselves: a task begins when the host has started it,
    what it needs is there, and the task before it in its slot or lane has ended.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> simulator = dp.Simulator("p100x4", dp.SimConfig(mode="fixed"))
    >>> schedule = simulator.schedule(graph, dp.place(graph, "p100x4", "single"))
    >>> len(schedule.tasks) == len(graph.assigned)  # on one device, nothing is moved
    True
    """

    tasks: IntArray  # (N,) every task, numbered as in `Tasks`, in the order the host starts them
    rooms: IntArray  # (N,) slot of its device or lane of its link, -1 where a link has no limit

    def __post_init__(self) -> None:
        for column in ("tasks", "rooms"):
            values = whole_numbers(getattr(self, column), f"{column} of a schedule")
            object.__setattr__(self, column, values)
        if len(self.tasks) != len(self.rooms):
            raise AssignmentError(
                f"the schedule has {len(self.tasks)} tasks, but {len(self.rooms)} rooms"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        same_tasks = np.array_equal(self.tasks, other.tasks)
        return same_tasks and np.array_equal(self.rooms, other.rooms)

    def __hash__(self) -> int:
        return hash(self.tasks.tobytes())

    def __repr__(self) -> str:
        return f"<Schedule: {len(self.tasks)} tasks in order>"

    def _repr_html_(self) -> str:
        return html_line(repr(self))

    def check(
        self, graph: Graph, topology: Topology, tasks: Tasks, plan: MemoryPlan | None = None
    ) -> None:
        """Raise an `AssignmentError` unless this is an order of these tasks that can be kept.

        The moves of a `plan` are among the tasks.
        """
        everything = all_tasks(graph, tasks)
        if not np.array_equal(np.sort(self.tasks), everything):
            raise AssignmentError(
                f"the schedule does not name each of the {len(everything)} tasks once",
                hint="it was made for other devices, or another graph: make it again",
            )
        position = np.zeros(graph.num_vertices + tasks.num_transfers, np.int64)
        position[self.tasks] = np.arange(len(self.tasks))
        needed, needs = dependencies(graph, tasks, plan)
        late = np.flatnonzero(position[needed] > position[needs])
        if len(late):
            first, second = (_name(graph, tasks, int(t[late[0]])) for t in (needs, needed))
            raise AssignmentError(f"the schedule starts {first} before {second}, which it needs")
        limits = _room_counts(topology, tasks)[self.tasks]
        bad = np.flatnonzero(
            np.where(limits == 0, self.rooms != -1, (self.rooms < 0) | (self.rooms >= limits))
        )
        if len(bad):
            task, room, limit = (int(a[bad[0]]) for a in (self.tasks, self.rooms, limits))
            what = "slot" if task < graph.num_vertices else "lane"
            range_ = f"{what}s 0 to {limit - 1}" if limit else "a link without a limit of lanes"
            raise AssignmentError(
                f"the schedule gives {_name(graph, tasks, task)} {what} {room}, "
                f"but the topology has {range_} there",
                hint="it was made for another topology: make it again",
            )


def all_tasks(graph: Graph, tasks: Tasks) -> IntArray:
    """(N,) the numbers of all tasks, ascending."""
    return np.concatenate([graph.assigned, graph.num_vertices + np.arange(tasks.num_transfers)])


def schedule_from_times(
    graph: Graph, topology: Topology, tasks: Tasks, begin_s: FloatArray, end_s: FloatArray
) -> Schedule:
    """The schedule that does what was seen: begins and ends by task, simulated or measured.

    Tasks come in the order in which they began, and never before what they need, whatever a
    clock says. Of those that began at once, the first to end goes first: a task that takes no
    time may have made room for the other.
    """
    needed, needs = dependencies(graph, tasks)
    size = graph.num_vertices + tasks.num_transfers
    following = rows(*csr(needed, needs, size))
    missing = np.bincount(needs, minlength=size).tolist()
    begin, end = begin_s.tolist(), end_s.tolist()
    ready = [(begin[t], end[t], t) for t in all_tasks(graph, tasks).tolist() if not missing[t]]
    heapify(ready)
    order = []
    while ready:
        task = heappop(ready)[2]
        order.append(task)
        for other in following[task]:
            missing[other] -= 1
            if not missing[other]:
                heappush(ready, (begin[other], end[other], other))
    return schedule_in_order(topology, tasks, np.array(order, np.int64), end_s)


def schedule_in_order(
    topology: Topology, tasks: Tasks, order: IntArray, end_s: FloatArray
) -> Schedule:
    """The schedule of tasks in this order, each in the room that is free first.

    A room is free when the last task it was given has ended; ties go to the lowest.
    """
    free_s = [[0.0] * device.slots for device in topology.devices]
    free_s += [[0.0] * link.lanes for link in topology.links]
    resource = np.concatenate([tasks.devices, topology.num_devices + tasks.link]).tolist()
    rooms = []
    for task in order.tolist():
        rooms_s = free_s[resource[task]]
        room = rooms_s.index(min(rooms_s)) if rooms_s else -1
        rooms.append(room)
        if rooms_s:
            rooms_s[room] = float(end_s[task])
    return Schedule(order, np.array(rooms, np.int64))


def _room_counts(topology: Topology, tasks: Tasks) -> IntArray:
    """(V + K,) slots or lanes where each task runs; 0 where there is no limit, and for inputs."""
    slots = np.array([device.slots for device in topology.devices] + [0], np.int64)
    lanes = np.array([link.lanes for link in topology.links] + [0], np.int64)
    return np.concatenate([slots[tasks.devices], lanes[tasks.link]])


def _name(graph: Graph, tasks: Tasks, task: int) -> str:
    if task < graph.num_vertices:
        return f"vertex {task} `{graph.vertex_names[task]}`"
    k = task - graph.num_vertices
    producer = graph.tensor_producer[tasks.tensor[k]]
    return (
        f"the transfer of tensor {tasks.tensor[k]} of vertex `{graph.vertex_names[producer]}` "
        f"to device {tasks.target[k]}"
    )


def whole_numbers(values: Any, what: str) -> IntArray:
    """A read-only array of the values; an `AssignmentError` if they are no whole numbers."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise AssignmentError(f"{what} must be a list of whole numbers, not {values!r}")
    return frozen(array.astype(np.int64, copy=False))


def schedule_document(schedule: Schedule) -> dict[str, list[int | None]]:
    """The columns of a schedule for JSON: null for the room of a link without a limit."""
    rooms = [None if room < 0 else room for room in schedule.rooms.tolist()]
    return {"task": schedule.tasks.tolist(), "room": rooms}


def schedule_from_document(document: Any, source: str) -> Schedule:
    """The schedule in columns; `source` is what errors call them."""
    check_keys(document, required=("task", "room"), source=source)
    tasks = numbers_or_null(document["task"], f"{source}: `task`", hint="a task number ≥ 0")
    rooms = numbers_or_null(
        document["room"],
        f"{source}: `room`",
        hint="a slot or lane ≥ 0, or null for a link without a limit of lanes",
    )
    if (tasks < 0).any():
        raise FormatError(f"{source}: `task` holds None", hint="a task number ≥ 0")
    if len(tasks) != len(rooms):
        raise FormatError(f"{source} has {len(tasks)} tasks, but {len(rooms)} rooms")
    return Schedule(tasks, rooms)


def numbers_or_null(values: Any, source: str, *, hint: str) -> IntArray:
    """A list of JSON numbers ≥ 0 as an array, with -1 for null."""
    if not isinstance(values, list):
        raise FormatError(f"{source} must be a list")
    found = integers([-1 if value is None else value for value in values])
    bad = [v for v in values if v is not None and (type(v) is not int or not 0 <= v < 2**63)]
    if found is None or bad:
        raise FormatError(f"{source} holds {bad[0]!r}", hint=hint)
    return found
