"""The loops that drive a run: the paper's work-conserving one, and one in a fixed order."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from doppler.base.arrays import FloatArray
from doppler.engine.backends.base import Backend, Inline, TaskError
from doppler.engine.prepared import Prepared
from doppler.errors import DeadlineError, EngineError
from doppler.scheduler.state import SchedulerState
from doppler.topology.topology import Topology

Times = tuple[FloatArray, FloatArray, FloatArray]  # ready, begin and end of each task


class Loop(ABC):
    """One run of prepared tasks: what is started when, and what is known of it."""

    def __init__(
        self,
        prepared: Prepared,
        topology: Topology,
        backend: Backend,
        *,
        timeout_s: float,
        deadline_s: float | None,
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._deadline_s = inf if deadline_s is None else deadline_s
        self._prepared, self._topology, self._backend = prepared, topology, backend
        self._timeout_s, self._is_cancelled = timeout_s, is_cancelled
        self._started: dict[int, float] = {}  # tasks under way: since when
        self._total = len(prepared.table.tasks)
        self._ended, self._progress_s = 0, 0.0  # tasks, and when the last of them ended

    @abstractmethod
    def run(self, *, timed: bool = True) -> None:
        """Run all tasks; an error where one fails, or none ends for too long."""

    @abstractmethod
    def times(self) -> Times:
        """When each task of a timed run was ready, began and ended."""

    def _start(self, task: int) -> None:
        self._started[task] = self._backend.now_s()
        try:
            self._backend.start(task)
        except Exception as error:  # out of memory, or a kernel that fails when launched
            raise self._failure(task, error) from error

    def _wait(self) -> list[int]:
        """The tasks that ended; perhaps none, but not for longer than the timeout."""
        try:
            left_s = max(self._deadline_s - self._backend.now_s(), 0.0)
            done = self._backend.wait(min(self._timeout_s, left_s))
        except TaskError as failed:
            raise self._failure(failed.task, failed.error) from failed.error
        if self._is_cancelled():
            raise EngineError("the run was cancelled")
        if self._backend.now_s() >= self._deadline_s and self._ended + len(done) < self._total:
            raise DeadlineError(
                f"the run did not end within {self._deadline_s:g} s, "
                f"but only {self._ended + len(done)} of {self._total} tasks"
            )
        if not done:
            self._check_time()
            return done
        for task in done:
            del self._started[task]
        self._prepared.cells.release(done)
        self._ended, self._progress_s = self._ended + len(done), self._backend.now_s()
        return done

    @abstractmethod
    def _check_time(self) -> None:
        """Raise an error if nothing has ended for too long."""

    def _late(self, task: int) -> EngineError:
        return EngineError(
            f"{self._story(task)} did not end within {self._timeout_s:g} s",
            hint="raise timeout_s if the work is that long",
        )

    def _failure(self, task: int, error: BaseException) -> EngineError:
        reason = str(error).strip().split("\n")[0] or "no reason given"
        return EngineError(f"{self._story(task)} failed: {type(error).__name__}: {reason}")

    def _story(self, task: int) -> str:
        """What a task is, where, since when, and how far the run was."""
        graph, tasks, size = (
            self._prepared.graph,
            self._prepared.tasks,
            self._prepared.graph.num_vertices,
        )
        names, devices = graph.vertex_names, self._topology.devices
        if task < size:
            what = f"vertex `{names[task]}` ({graph.kinds[task]})"
            where = f"on device `{devices[tasks.devices[task]].name}`"
        else:
            k = self._prepared.grants.get(task, task) - size
            what = (
                "the transfer of the output of vertex "
                f"`{names[graph.tensor_producer[tasks.tensor[k]]]}`"
            )
            places = [*(f"`{device.name}`" for device in devices), "the host"]
            source, target = places[tasks.source[k]], places[tasks.target[k]]
            where = f"from {source} to {target}".replace("from `", "from device `")
        since = self._since(task)
        return f"{what} {where}, {since} after {self._ended} of {self._total} tasks,"

    def _since(self, task: int) -> str:
        return f"started at {self._started[task] * 1e3:.3f} ms"


class DynamicLoop(Loop):
    """Starts whatever can start as soon as it can: Alg. 1, in real time.

    One event loop drives the scheduler's state machine with real completions, and never waits
    while something can start.
    """

    def __init__(
        self,
        prepared: Prepared,
        topology: Topology,
        backend: Backend,
        priority: FloatArray | None,
        *,
        synchronous: bool,
        **options: Any,
    ) -> None:
        super().__init__(prepared, topology, backend, **options)
        # Memory is no matter of the scheduler here: the layout has made dependencies of it.
        self._state = SchedulerState(
            prepared.graph,
            topology,
            prepared.tasks,
            priority,
            synchronous=synchronous,
            limit_memory=False,
            table=prepared.table,
        )
        self._seen_s = [0.0] * len(prepared.table.needs)

    def run(self, *, timed: bool = True) -> None:
        """Run all tasks."""
        state, backend, seen_s = self._state, self._backend, self._seen_s
        self._prepared.cells.begin()
        backend.begin(self._prepared.commands, timed=timed)
        state.begin(0.0)
        while state.unfinished:
            while (task := state.choose()) is not None:
                self._start(task)
            assert self._started, "dependencies have a cycle"
            done = self._wait()
            now = backend.now_s()
            for task in done:
                seen_s[task] = now
                state.release(task)
                state.complete(task, now)

    def times(self) -> Times:
        """When each task was ready, began and ended, by the clock of the host.

        Devices have clocks of their own, a few microseconds off the host's.
        """
        begin, end = self._backend.times()
        ready, seen = np.array(self._state.ready_s), np.array(self._seen_s)
        end = np.clip(end, ready, seen)
        return ready, np.clip(begin, ready, end), end

    def _check_time(self) -> None:
        now_s, outside = self._backend.now_s(), self._prepared.outside
        for task, since_s in self._started.items():
            # What others start may have to wait for them, but not while nothing ends here.
            began_s = max(since_s, self._progress_s) if task in outside else since_s
            if now_s - began_s >= self._timeout_s:
                raise self._late(task)

    def _since(self, task: int) -> str:
        return f"ready at {self._state.ready_s[task] * 1e3:.3f} ms and {super()._since(task)}"


class InlineLoop(Loop):
    """Runs all tasks of one device in the calling thread, in the order of a schedule.

    Nothing is timed, and nothing ends a task that takes too long.
    """

    def __init__(
        self,
        prepared: Prepared,
        topology: Topology,
        backend: Backend,
        inline: Inline,
        **options: Any,
    ) -> None:
        super().__init__(prepared, topology, backend, **options)
        self._inline = inline

    def run(self, *, timed: bool = True) -> None:
        """Run all tasks."""
        schedule, cells = self._prepared.schedule, self._prepared.cells
        assert schedule is not None
        assert not timed
        cells.begin()
        with self._inline.here():
            for task in schedule.tasks.tolist():
                try:
                    for launch in self._inline.launches[task]:
                        launch()
                except Exception as error:
                    self._started[task] = 0.0
                    raise self._failure(task, error) from error
                cells.release((task,))
                self._ended += 1
                if self._is_cancelled():
                    raise EngineError("the run was cancelled")

    def times(self) -> Times:
        """An error: such a run is not timed."""
        raise EngineError("a run in the calling thread is not timed")

    def _check_time(self) -> None:
        """Nobody asks."""


class FixedLoop(Loop):
    """Starts tasks in the order of a schedule, ahead of the devices, which wait for one another."""

    def __init__(
        self,
        prepared: Prepared,
        topology: Topology,
        backend: Backend,
        *,
        depth: int,
        capture: bool = False,
        **options: Any,
    ) -> None:
        """`depth` is the number of tasks that may be under way at a time.

        With `capture`, an untimed run is started all at once.
        """
        super().__init__(prepared, topology, backend, **options)
        self._depth, self._capture = depth, capture

    def run(self, *, timed: bool = True) -> None:
        """Run all tasks."""
        schedule = self._prepared.schedule
        assert schedule is not None
        self._prepared.cells.begin()
        self._backend.begin(self._prepared.commands, timed=timed)
        order = schedule.tasks.tolist()
        if self._capture and not timed:
            self._started = dict.fromkeys(order, 0.0)
            self._backend.start_all(order)
            order = []
        outside = self._prepared.outside
        self._started |= dict.fromkeys(outside, 0.0)
        for task in order:
            while len(self._started) - len(self._started.keys() & outside) >= self._depth:
                self._wait()
            self._start(task)
        while self._started:
            self._wait()

    def times(self) -> Times:
        """When each task could have begun, began and ended."""
        begin, end = self._backend.times()
        ready = np.zeros_like(begin)
        schedule = self._prepared.schedule
        assert schedule is not None
        for task in schedule.tasks.tolist():
            needs = self._prepared.table.needs[task]
            ready[task] = end[needs].max() if needs else 0.0
            begin[task] = max(begin[task], ready[task])
            end[task] = max(begin[task], end[task])
        return ready, begin, end

    def _check_time(self) -> None:
        # A task that was started long ago may only have waited for others: the oldest has not.
        if self._backend.now_s() - self._progress_s >= self._timeout_s:
            raise self._late(next(iter(self._started)))
