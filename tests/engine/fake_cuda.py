"""A machine with two GPUs, made of threads, and devices on it.

Kernels, copies and events happen some time after they are launched, in the order that CUDA promises
and no other.
"""

import ctypes
import random
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch

from doppler.engine.backends import cuda, cuda_commands, driver, lanes
from doppler.engine.backends.driver import Address
from doppler.topology import Device, Host, Link, Topology


def machine(
    where: list[str],
    *,
    via: str = "",
    slots: int = 1,
    lanes: int = 1,
    ahead: int = 0,
    host_lanes: int | None = None,
) -> Topology:
    """Devices at these addresses, a link for each source, and one for each with the host."""
    size = len(where)
    speeds = {"float16": 1e9, "float32": 1e9, "float64": 1e9}
    devices = tuple(
        Device(f"d{i}", speeds, 1e9, slots=slots, address=a) for i, a in enumerate(where)
    )
    route = np.repeat(np.arange(size)[:, None], size, axis=1)
    np.fill_diagonal(route, -1)
    links = tuple(Link(f"from{i}", 1e9, lanes=lanes, via=via) for i in range(size))
    host_links: tuple[int, ...] = ()
    if host_lanes is not None:
        host_links = tuple(range(size, 2 * size))
        links += tuple(Link(f"host{i}", 1e9, lanes=host_lanes) for i in range(size))
    return Topology("test", devices, links, route, Host(ahead=ahead), host_links=host_links)


def parts(count: int, gpu: int = 0) -> list[str]:
    return [f"cuda:{gpu}/{i}of{count}" for i in range(count)]


class FakeStream:
    """A thread that does things in order."""

    def __init__(self, fake: "FakeCuda", gpu: int) -> None:
        self.fake, self.gpu = fake, gpu
        self.cuda_stream = len(fake.streams) + 1
        self._pushed = self._finished = 0
        self._queue = SimpleQueue[Callable[[], Any] | None]()
        fake.streams[self.cuda_stream] = self
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def push(self, action: Callable[[], Any] | None) -> None:
        self._pushed += 1
        self._queue.put(action)

    def _work(self) -> None:
        while (action := self._queue.get()) is not None:
            if random.random() < 0.2:
                sleep(random.random() * 2e-4)
            if not self.fake.error:
                action()
            self._finished += 1

    def query(self) -> bool:
        self.fake.check()
        sleep(0)  # lets other threads go on: who asks in a loop would keep them waiting for 5 ms
        return self._pushed == self._finished


class FakeEvent:
    """A point in a stream."""

    def __init__(self, fake: "FakeCuda") -> None:
        self.fake, self.gpu, self.at = fake, -1, 0.0
        self.passed = threading.Event()
        self.passed.set()  # who waits for an event that was never recorded goes on at once
        fake.num_events += 1

    def record(self, stream: FakeStream) -> None:
        assert self.gpu in (-1, stream.gpu), "an event of another GPU"
        self.gpu, self.passed = stream.gpu, threading.Event()
        passed = self.passed
        stream.push(lambda: self._pass(passed))

    def _pass(self, passed: threading.Event) -> None:
        self.at = perf_counter()
        passed.set()

    def wait(self, stream: FakeStream) -> None:
        stream.push(self.passed.wait)

    def query(self) -> bool:
        self.fake.check()
        sleep(0)
        return self.passed.is_set()

    def synchronize(self) -> None:
        self.passed.wait()

    def elapsed_time(self, other: "FakeEvent") -> float:
        assert self.gpu == other.gpu, "two clocks"
        return (other.at - self.at) * 1e3


class FakeCuda:
    """What the backend uses of torch and of the driver."""

    def __init__(self) -> None:
        self.streams: dict[int, FakeStream] = {}
        self.idle: dict[tuple[Address, int], list[FakeStream]] = {}
        self.num_events, self.error, self.peers = 0, "", True
        self.current = self.default = FakeStream(self, 0)

    def check(self) -> None:
        if self.error:
            raise RuntimeError(f"CUDA error: {self.error}\nlong advice")

    def take(self, address: Address, priority: int = 0) -> FakeStream:
        idle = self.idle.setdefault((address, priority), [])
        return idle.pop() if idle else FakeStream(self, address.gpu)

    def give(self, address: Address, priority: int, stream: FakeStream) -> None:
        self.idle[address, priority].append(stream)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        assert self.current.gpu == self.streams[stream].gpu, "another GPU is current"
        self.streams[stream].push(lambda: ctypes.memmove(target, source, size))

    def capture(self, stream: int, calls: list[Callable[[], Any]]) -> Callable[[], None]:
        def replay() -> None:
            for call in calls:
                call()

        return replay

    def capture_kernel(self, launches: Any, stream: FakeStream, pool: Any) -> Any:
        """One launch that does all, or nothing for those that must be launched by the host."""
        if any(hasattr(each, "on_host") for each in launches):
            return None
        self.set_stream(stream)
        self.launch(lambda: [each() for each in launches])  # once, as on a GPU
        return partial(self.launch, lambda: [each() for each in launches])

    def set_stream(self, stream: FakeStream) -> None:
        self.current = stream

    def synchronize(self, gpu: int) -> None:
        while not all(stream.query() for stream in list(self.streams.values())):
            self.check()

    def launch(self, kernel: Callable[[], Any]) -> None:
        self.current.push(kernel)

    def launches(self, launches: list[Callable[[], Any]]) -> list[Callable[[], Any]]:
        found = [each for each in launches if not hasattr(each, "on_host")]
        return [partial(self.launch, each) for each in found] or list(launches)

    def block(self, seconds: float) -> None:
        self.current.push(lambda: sleep(seconds))

    def used_bytes(self) -> int:
        return self.num_events + len(self.streams)


class FakeWholeRun:
    """All calls of a run, made one by one each time it is launched."""

    def __init__(self, fake: FakeCuda, origin: Any, streams: Any, calls: Any, kept: Any) -> None:
        self._fake, self._origin, self._streams, self._calls = fake, origin, streams, calls
        self.end = FakeEvent(fake)

    def launch(self) -> None:
        for call in self._calls:
            call()
        for stream in self._streams:
            join = FakeEvent(self._fake)
            join.record(stream)
            join.wait(self._origin)
        self.end.record(self._origin)


def install(put: Callable[[Any, str, Any], Any]) -> FakeCuda:
    """Let the backend find threads where it looks for GPUs; `put` sets an attribute."""
    fake = FakeCuda()
    for name, value in {
        "start": lambda: 2,
        "take_stream": fake.take,
        "give_stream": fake.give,
        "copy": fake.copy,
        "Captured": fake.capture,
    }.items():
        put(driver, name, value)
    for name, value in {
        "set_stream": fake.set_stream,
        "current_stream": lambda gpu: fake.default,
        "current_device": lambda: 0,
        "set_device": lambda gpu: None,
        "synchronize": fake.synchronize,
        "stream": lambda stream: nullcontext(),
        "empty_cache": lambda: None,
        "can_device_access_peer": lambda a, b: fake.peers,
        "graph_pool_handle": lambda: None,
    }.items():
        put(torch.cuda, name, value)
    for module in (cuda, cuda_commands):
        put(module, "where", lambda gpu: torch.device("cpu"))
    for module in (cuda, lanes):
        put(module, "pinned_memory", lambda size: torch.empty(size, dtype=torch.uint8))
    for module in (cuda, cuda_commands, lanes):
        put(module, "new_event", lambda timed: FakeEvent(fake))
    warm_up = cuda.run_something
    put(cuda, "run_something", lambda output: warm_up(output[:4, :4]))
    put(cuda_commands, "_launches", fake.launches)
    put(cuda_commands, "_capture", fake.capture_kernel)
    put(cuda_commands, "WholeRun", partial(FakeWholeRun, fake))
    return fake
