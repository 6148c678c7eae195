"""The null backend: no work, scripted durations. It tests the loop and measures its overhead."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace
from threading import TIMEOUT_MAX, Event
from time import perf_counter
from typing import Any

from doppler.engine.backends.base import Done
from doppler.graph.graph import Graph
from doppler.tasks import Tasks
from doppler.topology.topology import Topology


class NullBackend:
    """Tasks that only take time: none at all, or as many seconds as `durations` says."""

    name = "null"
    computes = False

    def __init__(
        self, topology: Topology, durations: Callable[[Graph, Tasks, int], float] | None = None
    ) -> None:
        """`durations` gives the seconds of a task of a graph."""
        self._topology, self._durations = topology, durations
        self._woken = Event()

    def begin(self, graph: Graph, tasks: Tasks) -> None:
        """Start the clock of a run."""
        self._graph, self._tasks = graph, tasks
        rooms = [device.slots for device in self._topology.devices]
        rooms += [link.lanes for link in self._topology.links]
        self._free_s = [[0.0] * room for room in rooms]  # heaps; empty where there is no limit
        self._running: list[tuple[float, int, float]] = []  # (end, task, begin), a heap
        self._began = perf_counter()

    def now_s(self) -> float:
        """Seconds since the run began."""
        return perf_counter() - self._began

    def run(self, task: int, device: int, kernel: Any, inputs: Sequence[Any], output: Any) -> None:
        """Start an exec."""
        self._start(task, self._free_s[device])

    def copy(self, task: int, link: int, ends: tuple[int, int], value: Any, output: Any) -> None:
        """Start a transfer."""
        self._start(task, self._free_s[self._topology.num_devices + link])

    def _start(self, task: int, free_s: list[float]) -> None:
        now = self.now_s()
        took = 0.0 if self._durations is None else self._durations(self._graph, self._tasks, task)
        begin = max(now, free_s[0]) if free_s else now
        if free_s:
            heapreplace(free_s, begin + took)
        heappush(self._running, (begin + took, task, begin))

    def wait(self, timeout_s: float) -> list[Done]:
        """The tasks whose time is over."""
        if not self._running:
            self._pause(timeout_s)
            return []
        left_s = self._running[0][0] - self.now_s()
        if left_s > 0:
            self._pause(min(left_s, timeout_s))
        now, done = self.now_s(), []
        while self._running and self._running[0][0] <= now:
            end, task, begin = heappop(self._running)
            done.append(Done(task, begin, end))
        return done

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

    def get(self, value: Any) -> Any:
        """Nothing to get."""
        return value

    def empty(self, device: int, shape: Sequence[int], dtype: Any) -> Any:
        """Nothing to allocate."""
        return None

    def recycle(self, device: int, value: Any) -> None:
        """Nothing to free."""

    def stop(self) -> None:
        """Forget what runs."""
        self._running = []

    def close(self) -> None:
        """Nothing to give back."""
