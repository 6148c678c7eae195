"""The work-conserving scheduler as a pure state machine (Algs. 1 and 2): no clock, no I/O.

Whoever drives it, the simulator in virtual time or the engine in real time, does this:

```text
state.begin(now)                       entry vertices and arrivals become ready
while state.unfinished:
    while (task := state.choose()) is not None:
        start the task                 it holds a slot or a lane from now on
    wait until some task ends
    state.release(task)                its slot or lane is free, its inputs' memory too
    state.complete(task, now)          its result is there: what waited for it may be ready
```
"""

from heapq import heappop, heappush
from math import inf

import numpy as np

from doppler.base.arrays import FloatArray
from doppler.errors import OutOfMemoryError
from doppler.graph.graph import Graph
from doppler.graph.levels import depths
from doppler.scheduler.memory import Memory
from doppler.tasks import Tasks, TaskTable, task_table
from doppler.topology.topology import Topology


class SchedulerState:
    """Which tasks are waiting, ready, running or done, and what each still needs.

    A resource is a device (its slots) or a link (its lanes), with room for as many tasks
    more as the host may start ahead. Every resource has a queue of ready tasks; it is `active`
    while it has both capacity and a queue. `choose` takes the first task of all active queues,
    so nothing idles that could run: the scheduler is work-conserving.
    """

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        tasks: Tasks,
        priority: FloatArray | None = None,
        *,
        synchronous: bool = False,
        limit_memory: bool = True,
        table: TaskTable | None = None,
    ) -> None:
        """`priority` (V,) is lower first; None means first in, first out.

        `synchronous` puts a barrier after every level: all its execs, then all their transfers.
        `table` is that of the tasks, where there is one already.
        """
        table = table or task_table(graph, topology, tasks)
        self._topology, self._tasks, self._size = topology, table.tasks, graph.num_vertices
        self._dependents, self._resource = table.dependents, table.resource
        self._missing = table.num_needs
        self._priority = None if priority is None else task_priorities(priority, table, self._size)
        lanes = [link.lanes or 1 << 60 for link in topology.links]
        capacity = [d.slots for d in topology.devices] + lanes
        self._free = [room + topology.host.ahead for room in capacity]
        self._queues: list[list[tuple[float, int]]] = [[] for _ in self._free]
        self._active: list[int] = []
        self._memory = Memory(graph, topology, tasks) if limit_memory else None
        self._lacking: list[list[tuple[float, int]]] = [[] for _ in topology.devices]
        self._barrier = _Barrier(graph, tasks) if synchronous else None
        self.ready_s = [0.0] * len(self._missing)
        self.unfinished = len(table.tasks)

    def begin(self, now: float) -> None:
        """Make what needs no other task ready: inputs that arrive, vertices that read no more."""
        for task in self._tasks:
            if self._missing[task] == 0:
                self._make_ready(task, now)

    def choose(self) -> int | None:
        """Take the first task that can start, and its slot or lane and memory; None if none can."""
        active, queues = self._active, self._queues
        if not active:
            return None
        if self._memory:
            self._set_aside_what_lacks_memory()
            if not active:
                return None
        first = active[0] if len(active) == 1 else min(active, key=lambda r: queues[r][0])
        queue = queues[first]
        task = heappop(queue)[1]
        self._free[first] -= 1
        if not queue or not self._free[first]:
            active.remove(first)
        if self._memory:
            self._memory.take(task)
        return task

    def release(self, task: int) -> None:
        """Give back the slot or lane of an ended task, and memory it was the last to use."""
        resource = self._resource[task]
        self._free[resource] += 1
        if self._free[resource] == 1 and self._queues[resource]:
            self._active.append(resource)
        if self._memory and (device := self._memory.give_back(task)) >= 0:
            self._queue_again(device)

    def complete(self, task: int, now: float) -> None:
        """Make the result of an ended task known: what waits for it may become ready."""
        self.unfinished -= 1
        missing = self._missing
        for each in self._dependents[task]:
            missing[each] -= 1
            if not missing[each]:
                self._make_ready(each, now)
        if self._barrier:
            for waiting in self._barrier.pass_one(task):
                self._enter_queue(waiting)

    def stuck(self) -> OutOfMemoryError:
        """The error to raise when tasks are left, none runs and none can start."""
        assert self._memory is not None
        entries = [entry for lacking in self._lacking for entry in lacking]
        return self._memory.error(min(entries)[1], self._topology)

    def lend(self) -> tuple[int, float]:
        """Lend a device memory, for good, where all that is left waits for some: which one, and
        how much. It is what the task that lacks least lacks; of equal ones the first task.
        """
        assert self._memory is not None
        waiting = [task for lacking in self._lacking for _, task in lacking]
        lack, task = min((self._memory.lack_bytes(task), task) for task in waiting)
        device = self._memory.device[task]
        self._memory.free_bytes[device] += lack
        self._queue_again(device)
        return device, lack

    def _make_ready(self, task: int, now: float) -> None:
        self.ready_s[task] = now
        if self._barrier is None or self._barrier.admits(task):
            self._enter_queue(task)

    def _enter_queue(self, task: int) -> None:
        self._enqueue(
            (self.ready_s[task] if self._priority is None else self._priority[task], task)
        )

    def _enqueue(self, entry: tuple[float, int]) -> None:
        resource = self._resource[entry[1]]
        queue = self._queues[resource]
        heappush(queue, entry)
        if len(queue) == 1 and self._free[resource]:
            self._active.append(resource)

    def _queue_again(self, device: int) -> None:
        """Queue what was set aside for lack of memory on a device."""
        lacking, self._lacking[device] = self._lacking[device], []
        for entry in lacking:
            self._enqueue(entry)

    def _set_aside_what_lacks_memory(self) -> None:
        """Move tasks whose output does not fit off the queues, until memory is freed there."""
        assert self._memory is not None
        for resource in list(self._active):
            queue = self._queues[resource]
            while queue and not self._memory.fits(queue[0][1]):
                entry = heappop(queue)
                self._lacking[self._memory.device[entry[1]]].append(entry)
            if not queue:
                self._active.remove(resource)


def task_priorities(priority: FloatArray, table: TaskTable, size: int) -> list[float]:
    """Priorities of all tasks: a transfer's is the best among the tasks that wait for it."""
    values: list[float] = priority.tolist() + [inf] * (len(table.needs) - size)
    missing = [len(waiting) for waiting in table.dependents]
    ready = [task for task, count in enumerate(missing) if not count]
    while ready:
        task = ready.pop()
        for other in table.needs[task]:
            if other >= size:
                values[other] = min(values[other], values[task])
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    return values


class _Barrier:
    """Lets one phase through at a time: phase 2n the execs of level n, 2n + 1 their transfers."""

    def __init__(self, graph: Graph, tasks: Tasks) -> None:
        self._phase = phases(graph, tasks)
        self._left = [0] * (2 * (int(depths(graph).max(initial=0)) + 1))
        for task, phase in enumerate(self._phase):
            if task >= graph.num_vertices or not graph.is_input[task]:
                self._left[phase] += 1
        self._parked: list[list[int]] = [[] for _ in self._left]
        self._now = 0

    def admits(self, task: int) -> bool:
        """Whether a ready task may start now; if not, it is kept until its phase."""
        if self._phase[task] <= self._now:
            return True
        self._parked[self._phase[task]].append(task)
        return False

    def pass_one(self, task: int) -> list[int]:
        """Count a completed task; the tasks that may start if that ended a phase."""
        self._left[self._phase[task]] -= 1
        admitted: list[int] = []
        while self._now < len(self._left) - 1 and self._left[self._now] == 0:
            self._now += 1
            admitted += self._parked[self._now]
        return admitted


def phases(graph: Graph, tasks: Tasks) -> list[int]:
    """The phase of each task where levels are kept apart by barriers; 0 for what arrives."""
    level = depths(graph)
    execs: list[int] = (2 * level).tolist()
    after = 2 * level[graph.tensor_producer[tasks.tensor]] + 1
    transfers: list[int] = np.maximum(after, 0).tolist()
    return execs + transfers
