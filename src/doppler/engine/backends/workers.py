"""Workers: the threads of the CPU backend."""

import atexit
import logging
import os
import traceback
import weakref
from _thread import allocate_lock
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Event, Thread, current_thread
from time import perf_counter
from typing import NamedTuple

import torch

from doppler.engine.operands import Launch
from doppler.errors import EngineError

GRACE_S = 2.0  # for running kernels to end, before they are abandoned

log = logging.getLogger(__name__)
_crews: "weakref.WeakSet[Crew]" = weakref.WeakSet()  # all there are


class SharedRun:
    """One run: what its workers tell one another and the host."""

    def __init__(self, count: int, *, behind: bool) -> None:
        """`count` tasks; `behind` where workers wait for one another."""
        self.ended: SimpleQueue[tuple[int, BaseException | None] | None] = SimpleQueue()
        self.begin_s, self.end_s = [0.0] * count, [0.0] * count  # of the process's clock
        self.stopped = False
        self._held = [allocate_lock() for _ in range(count if behind else 0)]
        for lock in self._held:
            lock.acquire()

    def await_all(self, needs: Sequence[int]) -> None:
        """Wait until these tasks are done, or the run is stopped."""
        for need in needs:
            with self._held[need]:
                pass

    def finish(self, task: int, error: BaseException | None) -> None:
        """Say that a task is done, to the workers that wait for it and to the host."""
        if self._held and error is None and not self.stopped:
            self._held[task].release()
        self.ended.put((task, error))

    def stop(self) -> None:
        """Let go of all workers that wait; none of them begins its task."""
        self.stopped = True
        for lock in self._held:
            with suppress(RuntimeError):  # it was released
                lock.release()


class Job(NamedTuple):
    """A task for a worker."""

    task: int
    launches: Sequence[Launch]
    needs: Sequence[int] = ()  # tasks of the run that it waits for

    def attempt(self, run: SharedRun) -> BaseException | None:
        """Run it; what went wrong."""
        why = None
        try:
            for launch in self.launches:
                launch()
        except BaseException as error:
            why = error
        run.end_s[self.task] = perf_counter()
        return why


class Crew:
    """The workers of one device or link, and the queue from which they take their jobs.

    It knows nothing of its backend, so that a backend nobody uses any more can go.
    """

    def __init__(self, name: str, size: int, cores: Sequence[int], threads: int) -> None:
        """`cores` are those to run on, any if none are named; each kernel uses `threads`."""
        self.name, self._size, self._cores, self._threads = name, size, cores, threads
        self.jobs: SimpleQueue[tuple[Job, SharedRun] | None] = (
            SimpleQueue()
        )  # None: a worker may go
        self.workers: list[Thread] = []
        _crews.add(self)

    def fill(self) -> list[Event]:
        """Start the workers that are missing; each sets its event when it is ready."""
        events = []
        self.workers = [worker for worker in self.workers if worker.is_alive()]
        for number in range(len(self.workers), self._size):
            ready = Event()
            name = f"doppler-{self.name}-{number}"
            worker = Thread(target=self._work, args=(ready,), name=name, daemon=True)
            self.workers.append(worker)
            worker.start()
            events.append(ready)
        return events

    def drain(self) -> list[Job]:
        """Take back the jobs that no worker has begun."""
        jobs = []
        try:
            while True:
                jobs.append(self.jobs.get_nowait())
        except Empty:
            return [each[0] for each in jobs if each is not None]

    def dismiss(self) -> None:
        """Let every worker go when it is done with what it does."""
        for _ in self.workers:
            self.jobs.put(None)
        self.workers = []

    def successor(self) -> "Crew":
        """Another crew like this, of workers yet to be started."""
        return Crew(self.name, self._size, self._cores, self._threads)

    @contextmanager
    def here(self) -> Iterator[None]:
        """Let the calling thread compute as the workers do, for a while."""
        threads, cores = torch.get_num_threads(), _affinity()
        moves = bool(self._cores) and cores is not None and cores != set(self._cores)
        try:
            if moves:
                self._go(self._cores)
            if threads != self._threads:
                torch.set_num_threads(self._threads)
            with torch.inference_mode():
                yield
        finally:
            if moves:
                self._go(cores or ())
            if threads != self._threads:
                torch.set_num_threads(threads)

    def _work(self, ready: Event) -> None:
        try:
            self._settle()
        finally:
            ready.set()
        with torch.inference_mode():
            while (given := self.jobs.get()) is not None:
                job, run = given
                run.await_all(job.needs)
                run.begin_s[job.task] = perf_counter()  # before it looks whether it may
                if run.stopped:
                    run.finish(job.task, None)
                    continue
                error = job.attempt(run)
                may_go_on = error is None or isinstance(error, Exception)
                if error is not None:
                    traceback.clear_frames(error.__traceback__)  # they hold the tensors
                if not may_go_on:  # it was told to exit; it must be missed before this is known
                    self.workers = [w for w in self.workers if w is not current_thread()]
                run.finish(job.task, error)
                del given, job, run, error  # not to hold the tensors while there is nothing to do
                if not may_go_on:
                    return

    def _settle(self) -> None:
        """Go to the cores, and set how many threads torch computes with in this one."""
        if self._cores:
            self._go(self._cores)
        torch.get_num_threads()  # the first call in a thread takes over the process's number
        torch.set_num_threads(self._threads)

    def _go(self, cores: Iterable[int]) -> None:
        try:
            os.sched_setaffinity(0, cores)  # of this thread alone
        except (AttributeError, OSError) as error:
            log.debug("%s runs on any core: %s", self.name, error)


def _affinity() -> set[int] | None:
    """The cores of the calling thread; None where nobody can say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def hire(crews: Iterable[Crew]) -> None:
    """Start the workers that are missing, without a trace in how many threads others use."""
    before = torch.get_num_threads()
    try:
        events = [event for crew in crews for event in crew.fill()]
    except RuntimeError as error:
        raise EngineError(f"the threads of the CPU backend cannot be started: {error}") from error
    for event in events:
        event.wait()
    if events:
        torch.set_num_threads(before)


def dismiss(crews: Iterable[Crew]) -> None:
    """Let all workers go."""
    for crew in crews:
        crew.dismiss()


@atexit.register
def _at_exit() -> None:
    """End the threads of backends that were not closed.

    One that came back from a kernel into an interpreter that is gone would bring the process down.
    """
    crews = list(_crews)
    workers = [worker for crew in crews for worker in crew.workers]
    dismiss(crews)
    join(workers, GRACE_S)


def join(workers: Iterable[Thread], within_s: float) -> None:
    """Wait until workers have gone, but no longer than that."""
    until = perf_counter() + within_s
    for worker in workers:
        worker.join(max(0.0, until - perf_counter()))
