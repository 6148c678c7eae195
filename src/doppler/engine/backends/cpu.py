"""The CPU backend: cores are devices, threads run the tasks, transfers are real copies."""

import logging
import os
import re
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from queue import Empty
from threading import TIMEOUT_MAX, Thread
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from doppler.base.arrays import FloatArray
from doppler.engine.backends.base import (
    Actions,
    Arenas,
    Behind,
    Exec,
    Inline,
    TaskError,
    new_memory,
)
from doppler.engine.backends.workers import GRACE_S, Crew, Job, SharedRun, dismiss, hire, join
from doppler.engine.pieces import Cell
from doppler.errors import TopologyError
from doppler.graph.graph import Graph
from doppler.tasks import Tasks
from doppler.topology.topology import Device, Topology

_ADDRESS = re.compile(r"cpu:(\d{1,4}(?:-\d{1,4})?(?:,\d{1,4}(?:-\d{1,4})?)*)", re.ASCII)

log = logging.getLogger(__name__)


class _Commands(NamedTuple):
    jobs: list[tuple[int, Job] | None]  # by task: its crew, and what the crew does
    crews: list[int]  # that have something to do
    behind: bool


class CpuBackend:
    """Every device is `slots` threads on cores of its own, every link `lanes` threads that copy.

    A device's address names its cores, `cpu:0` or `cpu:0,2-3`, and its kernels use as many
    threads; devices without one share out the cores that are left, and compute on one each.
    Threads start when a run first needs them, and stay until `close`.
    """

    name = "cpu"
    computes = True

    def __init__(self, topology: Topology) -> None:
        self.grace_s, self.idle_s, self.spin_s = GRACE_S, 0.0, 0.0
        self._crews = _crews(topology)  # of the devices, then of the links
        self._num_devices = topology.num_devices
        self._run = SharedRun(0, behind=False)
        self._running: dict[int, int] = {}  # task: its crew
        self._failed: TaskError | None = None
        self._abandoned: list[Thread] = []
        self._arenas = Arenas()
        self._began = 0.0
        self._finalizer = weakref.finalize(self, dismiss, self._crews)
        self._finalizer.atexit = False  # then they are waited for as well

    def prepare(
        self,
        graph: Graph,
        tasks: Tasks,
        actions: Actions,
        behind: Behind | None = None,
    ) -> _Commands:
        """The jobs of the workers. The slots of a device, and the lanes of a link, are alike."""
        needs = behind.needs if behind else [()] * len(actions)
        jobs: list[tuple[int, Job] | None] = []
        for task, (action, needed) in enumerate(zip(actions, needs, strict=True)):
            if action is None:
                jobs.append(None)
            elif isinstance(action, Exec):
                jobs.append((action.device, Job(task, action.launches, needed)))
            else:
                to_cell = isinstance(action.output, Cell)
                copy = action.output.take if to_cell else action.output.copy_
                launches = (partial(copy, action.value),)
                jobs.append((self._num_devices + action.link, Job(task, launches, needed)))
        crews = sorted({each[0] for each in jobs if each is not None})
        return _Commands(jobs, crews, behind is not None)

    def get_ready(self, commands: _Commands, *, timed: bool = True) -> None:
        """Nothing: `prepare` made all."""

    def begin(self, commands: _Commands, *, timed: bool = True) -> None:
        """Start the clock of a run, and the threads it needs that there are not yet."""
        if self._running:  # a stop was interrupted
            self._abandon()
        hire([self._crews[i] for i in commands.crews])
        self._jobs, self._run = commands.jobs, SharedRun(len(commands.jobs), behind=commands.behind)
        self._failed, self.idle_s, self._began = None, 0.0, perf_counter()

    def now_s(self) -> float:
        """Seconds since the run began."""
        return perf_counter() - self._began

    def start(self, task: int) -> None:
        """Start a task: a worker takes it as soon as it can."""
        found = self._jobs[task]
        assert found is not None
        crew, job = found
        self._running[task] = crew
        self._crews[crew].jobs.put((job, self._run))

    def start_all(self, tasks: Sequence[int]) -> None:
        """Start tasks one after the other."""
        for task in tasks:
            self.start(task)

    def inline(self, commands: _Commands) -> Inline | None:
        """The launches of all tasks, where one device has them all."""
        if len(commands.crews) != 1 or commands.crews[0] >= self._num_devices:
            return None
        launches = [() if each is None else each[1].launches for each in commands.jobs]
        return Inline(self._crews[commands.crews[0]].here, launches)

    def wait(self, timeout_s: float) -> list[int]:
        """The tasks that ended since the last call, once there is one."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        done: list[int] = []
        ended = self._run.ended
        try:
            each = ended.get_nowait()
        except Empty:
            called = perf_counter()
            try:
                each = ended.get(timeout=min(timeout_s, TIMEOUT_MAX))
            except Empty:
                each = None
            self.idle_s += perf_counter() - called
        while each is not None:  # None: woken, or too late
            task, error = each
            self._running.pop(task, None)
            if error is not None:
                self._failed = TaskError(task, error)  # those that ended before are told first
                return done or self.wait(0.0)
            done.append(task)
            try:
                each = ended.get_nowait()
            except Empty:
                break
        return done

    def end(self) -> None:
        """Nothing was changed."""

    def times(self) -> tuple[FloatArray, FloatArray]:
        """When each task began and ended."""
        run = self._run
        return np.array(run.begin_s) - self._began, np.array(run.end_s) - self._began

    def wake(self) -> None:
        """Make `wait` return."""
        self._run.ended.put(None)

    def memory(self, device: int) -> int:
        """All cores share one."""
        return 0

    def put(self, value: torch.Tensor, device: int) -> torch.Tensor:
        """A copy, which every device can read where it is."""
        return value.clone(memory_format=torch.contiguous_format)

    def share(self, value: torch.Tensor, device: int) -> torch.Tensor:
        """The tensor itself, unless it is on a GPU."""
        return value.to("cpu")

    def get(self, value: torch.Tensor) -> torch.Tensor:
        """A copy: the tensor's memory is used again."""
        return value.clone()

    def host_memory(self, size: int) -> torch.Tensor:
        """As any other memory."""
        return new_memory(size, torch.device("cpu"))

    @property
    def generation(self) -> int:
        """Of the arenas."""
        return self._arenas.generation

    def arena(self, device: int, size: int) -> torch.Tensor:
        """At least `size` bytes.

        Kept, since memory that is touched for the first time is several times as slow.
        """
        return self._arenas.get(device, size, torch.device("cpu"))

    def free_arenas(self) -> None:
        """Give up all arenas."""
        self._arenas.clear()

    def stop(self) -> None:
        """Drop what has not begun, wait a moment for the rest, then put others in its place."""
        until = perf_counter() + self.grace_s
        self._run.stop()
        try:
            for crew in self._crews:
                for job in crew.drain():
                    self._running.pop(job.task, None)
            for task, begun_s in enumerate(self._run.begin_s):
                if not begun_s:  # it waited for another
                    self._running.pop(task, None)
            while self._running and (left_s := until - perf_counter()) > 0:
                with suppress(TaskError):
                    self.wait(left_s)
        finally:
            self._abandon()

    def _abandon(self) -> None:
        """Leave kernels that hang, and their threads, to themselves; others take their place.

        Such a thread ends when its kernel does: all it still finds in its queue is that it may go.
        Until then it may write to the memory that it was given, which nobody uses any more.
        """
        if self._running:
            self._arenas.clear()
        for i in sorted(set(self._running.values())):
            log.warning("%s hangs: new threads take its place", self._crews[i].name)
            self._abandoned = [w for w in self._abandoned if w.is_alive()]
            self._abandoned += self._crews[i].workers
            self._renew(i)
        self._running.clear()
        self._run = SharedRun(0, behind=False)  # what comes late goes to the old one

    def _renew(self, crew: int) -> None:
        self._crews[crew].dismiss()
        self._crews[crew] = self._crews[crew].successor()

    def close(self) -> None:
        """End all threads and free all memory; a thread that hangs is left after a moment."""
        workers = [w for crew in self._crews for w in crew.workers] + self._abandoned
        for i in range(len(self._crews)):
            self._renew(i)
        join(workers, self.grace_s)
        self._abandoned = []
        self._arenas.clear()


def _crews(topology: Topology) -> list[Crew]:
    """The crews of all devices, then of all links."""
    crews = [
        Crew(device.name, device.slots, cores, threads)
        for device, (cores, threads) in zip(
            topology.devices, share_cores(topology.devices), strict=True
        )
    ]
    crews += [Crew(link.name, link.lanes or topology.num_devices, (), 1) for link in topology.links]
    return crews


def share_cores(devices: Sequence[Device]) -> list[tuple[list[int], int]]:
    """The cores of each device, and the threads that its kernels use.

    Cores that no address names go round the devices without one; if there are too few, several
    devices share a core.
    """
    named = {d.name: _parse_address(d) for d in devices if d.address}
    usable = _usable_cores()
    taken = {core for cores in named.values() for core in cores}
    left = [core for core in usable if core not in taken] or usable
    others = [d.name for d in devices if not d.address]
    shares = {
        name: left[i :: len(others)] or [left[i % len(left)]] for i, name in enumerate(others)
    }
    threads = {d.name: max(1, len(named.get(d.name, ())) // d.slots) for d in devices}
    return [((named | shares)[d.name], threads[d.name]) for d in devices]


def _usable_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _parse_address(device: Device) -> list[int]:
    """The cores that an address such as `cpu:0,2-3` names."""
    match = _ADDRESS.fullmatch(device.address)
    pairs = [part.split("-") for part in match[1].split(",")] if match else []
    cores = sorted({core for pair in pairs for core in range(int(pair[0]), int(pair[-1]) + 1)})
    if not cores:
        raise TopologyError(
            f"device `{device.name}`: address `{device.address}` names no cores",
            hint="the CPU backend takes addresses such as cpu:0 or cpu:0,2-3, or none at all",
        )
    return cores
