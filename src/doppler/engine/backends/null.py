"""The null backend: no work, scripted durations. It tests the loop and measures its overhead."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace
from threading import TIMEOUT_MAX, Event
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from doppler.base.arrays import FloatArray
from doppler.engine.backends.base import Action, Actions, Behind, Exec, NeverInline
from doppler.graph.graph import Graph
from doppler.tasks import Tasks
from doppler.topology.topology import Topology

Durations = Callable[[Graph, Tasks, int], float]  # seconds of a task of a graph


class _Commands(NamedTuple):
    graph: Graph
    tasks: Tasks
    resource: list[int]  # by task: device, or number of devices + link
    behind: Behind | None


class NullBackend(NeverInline):
    """Tasks that only take time: none at all, or as many seconds as `durations` says."""

    name = "null"
    computes = False
    generation = 0

    def __init__(self, topology: Topology, durations: Durations | None = None) -> None:
        self._durations, self._num_devices = durations, topology.num_devices
        self._rooms = [device.slots for device in topology.devices]
        self._rooms += [link.lanes for link in topology.links]
        self._woken, self.idle_s, self.spin_s = Event(), 0.0, 0.0

    def prepare(
        self,
        graph: Graph,
        tasks: Tasks,
        actions: Actions,
        behind: Behind | None = None,
    ) -> _Commands:
        """Where each task runs."""
        resource = [-1 if action is None else self._resource(action) for action in actions]
        return _Commands(graph, tasks, resource, behind)

    def _resource(self, action: Action) -> int:
        if isinstance(action, Exec):
            return action.device
        return self._num_devices + action.link

    def get_ready(self, commands: _Commands, *, timed: bool = True) -> None:
        """Nothing: `prepare` made all."""

    def begin(self, commands: _Commands, *, timed: bool = True) -> None:
        """Start the clock of a run."""
        self._commands, self.idle_s = commands, 0.0
        self._free_s = [[0.0] * room for room in self._rooms]  # empty where there is no limit
        self._begin_s = [0.0] * len(commands.resource)
        self._end_s = [0.0] * len(commands.resource)
        self._running: list[tuple[float, int]] = []  # (end, task), a heap
        self._began = perf_counter()

    def now_s(self) -> float:
        """Seconds since the run began."""
        return perf_counter() - self._began

    def start(self, task: int) -> None:
        """Start a task."""
        commands, begin, took = self._commands, self.now_s(), 0.0
        if self._durations is not None:
            took = self._durations(commands.graph, commands.tasks, task)
        free_s, behind = self._free_s[commands.resource[task]], commands.behind
        room = 0
        if behind is not None:
            room = max(behind.rooms[task], 0)
            begin = max([begin, *(self._end_s[need] for need in behind.needs[task])])
        if free_s and free_s[room] > begin:
            begin = free_s[room]
        end = begin + took
        if free_s and behind is None:
            heapreplace(free_s, end)  # the room that is free first comes first
        elif free_s:
            free_s[room] = end
        self._begin_s[task], self._end_s[task] = begin, end
        heappush(self._running, (end, task))

    def start_all(self, tasks: Sequence[int]) -> None:
        """Start tasks one after the other."""
        for task in tasks:
            self.start(task)

    def wait(self, timeout_s: float) -> list[int]:
        """The tasks whose time is over."""
        running = self._running
        if not running:
            self._pause(timeout_s)
            return []
        now = self.now_s()
        if running[0][0] > now:
            self._pause(min(running[0][0] - now, timeout_s))
            self.idle_s -= now
            now = self.now_s()
            self.idle_s += now
        done = []
        while running and running[0][0] <= now:
            done.append(heappop(running)[1])
        return done

    def end(self) -> None:
        """Nothing was changed."""

    def times(self) -> tuple[FloatArray, FloatArray]:
        """When each task began and ended."""
        return np.array(self._begin_s), np.array(self._end_s)

    def _pause(self, seconds: float) -> None:
        if self._woken.wait(min(seconds, TIMEOUT_MAX)):
            self._woken.clear()

    def wake(self) -> None:
        """Make `wait` return."""
        self._woken.set()

    def memory(self, device: int) -> int:
        """Every device has its own."""
        return device

    def put(self, value: Any, device: int) -> Any:
        """Nothing to put."""
        return value

    def share(self, value: Any, device: int) -> Any:
        """Nothing to put."""
        return value

    def get(self, value: Any) -> Any:
        """Nothing to get."""
        return value

    def host_memory(self, size: int) -> Any:
        """Nothing to allocate."""
        return None

    def arena(self, device: int, size: int) -> Any:
        """Nothing to allocate."""
        return None

    def free_arenas(self) -> None:
        """Nothing to free."""

    def stop(self) -> None:
        """Forget what runs."""
        self._running = []

    def close(self) -> None:
        """Nothing to give back."""
