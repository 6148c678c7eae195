"""The CPU backend: cores are devices, threads run the tasks, transfers are real copies."""

import logging
import os
import re
import weakref
from collections.abc import Sequence
from math import prod
from queue import Empty, SimpleQueue
from threading import TIMEOUT_MAX, Thread
from time import perf_counter

import numpy as np
import torch

from doppler.engine.backends.base import Done, KernelFunction
from doppler.engine.backends.workers import GRACE_S, Crew, Job, dismiss, hire, join
from doppler.errors import TopologyError
from doppler.graph.graph import Graph
from doppler.tasks import Tasks
from doppler.topology.topology import Device, Topology

_ADDRESS = re.compile(r"cpu:(\d{1,4}(?:-\d{1,4})?(?:,\d{1,4}(?:-\d{1,4})?)*)", re.ASCII)

_Free = dict[tuple[tuple[int, ...], torch.dtype], list[torch.Tensor]]  # by shape and dtype

log = logging.getLogger(__name__)


class CpuBackend:
    """Every device is `slots` threads on cores of its own, every link `lanes` threads that copy.

    A device's address names its cores, `cpu:0` or `cpu:0,2-3`, and its kernels use as many
    threads; devices without one share out the cores that are left, and compute on one each.
    Threads start when a run first needs them, and stay until `close`.
    """

    name = "cpu"
    computes = True

    def __init__(self, topology: Topology) -> None:
        self.grace_s = GRACE_S
        self._crews = _crews(topology)  # of the devices, then of the links
        self._num_devices = topology.num_devices
        self._done: SimpleQueue[Done | None] = SimpleQueue()  # None: woken
        self._running: dict[int, tuple[int, torch.Tensor]] = {}  # task: its crew and output
        self._abandoned: list[Thread] = []
        self._pool: dict[tuple[int, int], _Free] = {}  # (device, bytes): what was used before
        self._lost: set[int] = set()  # addresses of buffers that an abandoned kernel may write to
        self._graph: Graph | None = None
        self._began = 0.0
        self._finalizer = weakref.finalize(self, dismiss, self._crews)
        self._finalizer.atexit = False  # then they are waited for as well

    def begin(self, graph: Graph, tasks: Tasks) -> None:
        """Start the clock of a run, and the threads it needs that there are not yet."""
        if self._running:  # a stop was interrupted
            self._abandon()
        if graph is not self._graph:
            self._pool.clear()  # another graph has tensors of other sizes
            self._graph = graph
        devices = np.unique(tasks.devices[tasks.devices >= 0])
        needed = [*devices.tolist(), *(self._num_devices + np.unique(tasks.link)).tolist()]
        hire([self._crews[i] for i in needed])
        self._lost.clear()
        self._began = perf_counter()

    def now_s(self) -> float:
        """Seconds since the run began."""
        return perf_counter() - self._began

    def run(
        self,
        task: int,
        device: int,
        kernel: KernelFunction | None,
        inputs: Sequence[torch.Tensor],
        output: torch.Tensor | None,
    ) -> None:
        """Start an exec."""
        assert kernel is not None
        assert output is not None
        self._start(device, Job(self._done, task, kernel, inputs, output))

    def copy(
        self,
        task: int,
        link: int,
        ends: tuple[int, int],
        value: torch.Tensor | None,
        output: torch.Tensor | None,
    ) -> None:
        """Start a transfer: a copy into a buffer of the other device."""
        assert value is not None
        assert output is not None
        job = Job(self._done, task, _copy, (value,), output)
        self._start(self._num_devices + link, job)

    def _start(self, crew: int, job: Job) -> None:
        self._running[job.task] = crew, job.output
        self._crews[crew].jobs.put(job)

    def wait(self, timeout_s: float) -> list[Done]:
        """The tasks that ended since the last call, once there is one."""
        arrived: list[Done | None] = []
        try:
            arrived.append(self._done.get(timeout=min(timeout_s, TIMEOUT_MAX)))
            while True:
                arrived.append(self._done.get_nowait())
        except Empty:
            pass
        began, done = self._began, [each for each in arrived if each is not None]
        for task, _, _, _ in done:
            del self._running[task]
        return [Done(task, begin - began, end - began, why) for task, begin, end, why in done]

    def wake(self) -> None:
        """Make `wait` return."""
        self._done.put(None)

    def memory(self, device: int) -> int:
        """All cores share one."""
        return 0

    def put(self, value: torch.Tensor, device: int) -> torch.Tensor:
        """The tensor itself: every device can read it where it is."""
        return value.contiguous()

    def get(self, value: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return value

    def empty(self, device: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor, in memory used before where there is some of that size.

        Memory that is touched for the first time is several times as slow.
        """
        like, size = (tuple(shape), dtype), prod(shape) * dtype.itemsize
        free = self._pool.get((device, size), {})
        if found := free.get(like) or next(filter(None, free.values()), None):
            value = found.pop()
            # A view costs as much as all the rest, since torch lets other threads run meanwhile.
            if (value.shape, value.dtype) == like:
                return value
            return value.view(-1).view(dtype).view(like[0])
        return torch.empty(like[0], dtype=dtype)

    def recycle(self, device: int, value: torch.Tensor) -> None:
        """Keep a tensor's memory for the next of its size."""
        if self._lost and value.data_ptr() in self._lost:
            return
        like, size = (tuple(value.shape), value.dtype), value.nbytes
        self._pool.setdefault((device, size), {}).setdefault(like, []).append(value)

    def stop(self) -> None:
        """Drop what has not begun, wait a moment for the rest, then put others in its place."""
        until = perf_counter() + self.grace_s
        try:
            for crew in self._crews:
                for job in crew.drain():
                    self._running.pop(job.task, None)
            while self._running and (left_s := until - perf_counter()) > 0:
                self.wait(left_s)
        finally:
            self._abandon()

    def _abandon(self) -> None:
        """Leave kernels that hang, and their threads, to themselves; others take their place.

        Such a thread ends when its kernel does: all it still finds in its queue is that it may go.
        """
        self._lost = {output.data_ptr() for _, output in self._running.values()}
        for i in sorted({crew for crew, _ in self._running.values()}):
            log.warning("%s hangs: new threads take its place", self._crews[i].name)
            self._abandoned = [w for w in self._abandoned if w.is_alive()]
            self._abandoned += self._crews[i].workers
            self._renew(i)
        self._running.clear()
        self._done = SimpleQueue()  # what comes late goes to the old one

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
        self._pool.clear()
        self._graph = None


def _copy(inputs: Sequence[torch.Tensor], output: torch.Tensor) -> None:
    output.copy_(inputs[0])


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
