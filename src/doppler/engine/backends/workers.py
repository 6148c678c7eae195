"""Workers: the threads of the CPU backend."""

import atexit
import logging
import os
import traceback
import weakref
from collections.abc import Iterable, Sequence
from queue import Empty, SimpleQueue
from threading import Event, Thread, current_thread
from time import perf_counter
from typing import NamedTuple

import torch

from doppler.engine.backends.base import Done, KernelFunction
from doppler.errors import EngineError

GRACE_S = 2.0  # for running kernels to end, before they are abandoned

log = logging.getLogger(__name__)
_crews: "weakref.WeakSet[Crew]" = weakref.WeakSet()  # all there are


class Job(NamedTuple):
    """A task for a worker."""

    done: SimpleQueue[Done | None]  # where to say that it ended
    task: int
    kernel: KernelFunction
    inputs: Sequence[torch.Tensor]
    output: torch.Tensor

    def attempt(self) -> Done:
        """Run it; times are those of the process's clock."""
        begin, why = perf_counter(), None
        try:
            self.kernel(self.inputs, self.output)
        except BaseException as error:
            why = error
        return Done(self.task, begin, perf_counter(), why)


class Crew:
    """The workers of one device or link, and the queue from which they take their jobs.

    It knows nothing of its backend, so that a backend nobody uses any more can go.
    """

    def __init__(self, name: str, size: int, cores: Sequence[int], threads: int) -> None:
        """`cores` are those to run on, any if none are named; each kernel uses `threads`."""
        self.name, self._size, self._cores, self._threads = name, size, cores, threads
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()  # None: a worker may go
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
            return [job for job in jobs if job is not None]

    def dismiss(self) -> None:
        """Let every worker go when it is done with what it does."""
        for _ in self.workers:
            self.jobs.put(None)
        self.workers = []

    def successor(self) -> "Crew":
        """Another crew like this, of workers yet to be started."""
        return Crew(self.name, self._size, self._cores, self._threads)

    def _work(self, ready: Event) -> None:
        try:
            self._settle()
        finally:
            ready.set()
        with torch.inference_mode():
            while (job := self.jobs.get()) is not None:
                done = job.attempt()
                if done.error is not None:
                    traceback.clear_frames(done.error.__traceback__)  # they hold the tensors
                may_go_on = done.error is None or isinstance(done.error, Exception)
                if not may_go_on:  # it was told to exit; it must be missed before this is known
                    self.workers = [w for w in self.workers if w is not current_thread()]
                job.done.put(done)
                del job, done  # not to hold the tensors while there is nothing to do
                if not may_go_on:
                    return

    def _settle(self) -> None:
        """Go to the cores, and set how many threads torch computes with in this one."""
        if self._cores:
            try:
                os.sched_setaffinity(0, self._cores)  # of this thread alone
            except (AttributeError, OSError) as error:
                log.debug("%s runs on any core: %s", self.name, error)
        torch.get_num_threads()  # the first call in a thread takes over the process's number
        torch.set_num_threads(self._threads)


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
