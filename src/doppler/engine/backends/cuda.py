"""The CUDA backend: GPUs, or parts of one, are devices; streams run the tasks.

A slot of a device is a stream, and so is a lane of a link; two, where it goes through the host.
The engine starts a task only when it has seen all it needs end, so no stream waits for another
but inside a transfer. The end of a task is seen as follows: an event is recorded behind it, and
the driver is to post a semaphore after that. `wait` sleeps on the semaphore, then asks the oldest
event of every stream that has work. Nothing polls for long, or waits for a whole GPU.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from time import perf_counter, sleep

import torch

from doppler.engine.backends import driver
from doppler.engine.backends.addresses import addresses
from doppler.engine.backends.base import Done, KernelFunction
from doppler.engine.backends.driver import Address
from doppler.engine.backends.lanes import (
    IN,
    NOTIFY,
    OUT,
    RUN,
    Flight,
    Lane,
    chunks,
    least_loaded,
    new_event,
)
from doppler.errors import EngineError
from doppler.graph.graph import Graph
from doppler.tasks import Tasks
from doppler.topology.topology import Topology

_UNLIMITED_LANES = 4  # streams of a link on which any number of transfers may run
_SPIN_S = 1e-4  # that `wait` asks for events before it sleeps
_LOOK_S = 0.25  # between looks for errors: after one, the driver posts nothing any more
_GRACE_S = 5.0  # for what runs when a run is stopped


class CudaBackend:
    """Every device is a GPU, or a part of one; `slots` streams run its tasks.

    A device's address is `cuda:0`, or `cuda:0/1of4` for part 1 (from 0) of GPU 0 cut into 4;
    without one, device i is GPU i. A link is `lanes` copies at a time, directly, or `via` pinned
    memory of the host. Copies are the work of copy engines, but the driver may let a direct copy
    within a GPU take multiprocessors, of any part. After a failed kernel CUDA works no more in
    this process, and says of the first task it is asked about that it failed, which need not be
    the one that did.
    """

    name = "cuda"
    computes = True

    def __init__(self, topology: Topology) -> None:
        self.grace_s = _GRACE_S
        gpus = driver.start()
        self._addresses = addresses(topology, gpus)
        self._gpus = [address.gpu for address in self._addresses]
        self._whole = {gpu: Address(gpu) for gpu in sorted(set(self._gpus))}
        self._links = topology.links
        self._slots = [[Lane() for _ in range(d.slots)] for d in topology.devices]
        self._lanes = [[Lane() for _ in range(n.lanes or _UNLIMITED_LANES)] for n in self._links]
        self._own = Lane()  # for the clock, and to allocate on
        self._busy: dict[Lane, None] = {}  # lanes with tasks under way
        self._events: dict[int, list[torch.cuda.Event]] = {gpu: [] for gpu in self._whole}
        self._free: dict[tuple[int, int], list[torch.Tensor]] = {}  # (GPU, bytes): free buffers
        self._graph: Graph | None = None
        self._warm: set[tuple[int, int, int]] = set()  # link, GPU, GPU that were used
        self._semaphore, self._woken = driver.Semaphore(), False
        self._unsettled, self._broken = False, ""
        self._zero, self._clocks = perf_counter(), dict[int, tuple[torch.cuda.Event, float]]()
        with _told():
            self._remember()
            self._warm_up()

    # A run.

    def begin(self, graph: Graph, tasks: Tasks) -> None:
        """Start the clock of a run, with streams and pinned memory for all its transfers."""
        if self._unsettled or self._busy:
            self.stop()
        if self._broken:
            raise EngineError(
                f"CUDA has failed in this process: {self._broken}", hint="start a new process"
            )
        if self._unsettled:
            raise EngineError("work of an earlier run is still on the GPU", hint="try again later")
        if graph is not self._graph:
            self._free.clear()  # another graph has tensors of other sizes
            self._graph = graph
        with _told():
            self._remember()
            for gpu in self._whole:
                torch.cuda.synchronize(gpu)
            self._prepare(graph, tasks)
            self._start_clock()

    def now_s(self) -> float:
        """Seconds since the run began."""
        return perf_counter() - self._zero

    def run(
        self,
        task: int,
        device: int,
        kernel: KernelFunction | None,
        inputs: Sequence[torch.Tensor],
        output: torch.Tensor | None,
    ) -> None:
        """Start an exec.

        Not in `no_grad` or `inference_mode`, which cost more than they save: nothing here ever
        requires a gradient.
        """
        assert kernel is not None
        assert output is not None
        gpu, lane = self._gpus[device], least_loaded(self._slots[device])
        stream = lane.stream(self._addresses[device], RUN)
        begin, end = self._event(gpu), self._event(gpu)
        torch.cuda.set_stream(stream)  # of what the context manager does, the least
        try:
            begin.record(stream)
            kernel(inputs, output)
            end.record(stream)
            # Posted from another stream, so that the next exec on this one can begin at once.
            notify = lane.stream(self._whole[gpu], NOTIFY)
            end.wait(notify)
            driver.post_after(notify.cuda_stream, self._semaphore)
        finally:
            self._leave(gpu)
        self._add(lane, Flight(task, begin, end, gpu, gpu))

    def copy(
        self,
        task: int,
        link: int,
        ends: tuple[int, int],
        value: torch.Tensor | None,
        output: torch.Tensor | None,
    ) -> None:
        """Start a transfer."""
        assert value is not None
        assert output is not None
        source, target = self._gpus[ends[0]], self._gpus[ends[1]]
        lane = least_loaded(self._lanes[link])
        if self._through_host(link, source, target):
            flight = self._copy_through_host(task, lane, (source, target), value, output)
        else:
            flight = self._copy_directly(task, lane, (source, target), value, output)
        self._add(lane, flight)

    def wait(self, timeout_s: float) -> list[Done]:
        """The tasks that ended.

        Asks the events for a moment before it sleeps: the driver takes some 0.1 ms to post.
        """
        began = perf_counter()
        deadline = began + timeout_s
        while True:
            if done := self._ended():
                return done
            now = perf_counter()
            if self._woken or now >= deadline:
                self._woken = False
                return []
            if now - began > _SPIN_S:
                self._semaphore.wait(min(deadline - now, _LOOK_S))
                self._semaphore.drain()

    def wake(self) -> None:
        """Make `wait` return."""
        self._woken = True
        self._semaphore.post()

    def stop(self) -> None:
        """Wait a moment for what still runs. If it does not end, no run can begin until it has."""
        self._unsettled = True
        try:
            if self._drain(self.grace_s):
                self._forget()
        except RuntimeError as error:
            self._broken = _first_line(error)

    def close(self) -> None:
        """Give back streams and memory."""
        self.stop()
        if self._broken or self._unsettled:
            return  # nothing can be freed, or is free
        self._warm.clear()
        self._clocks.clear()
        for lane in self._all_lanes():
            lane.give_back()
        for events in self._events.values():
            events.clear()
        self._free.clear()
        torch.cuda.empty_cache()

    # Memory.

    def memory(self, device: int) -> int:
        """The GPU: its parts share its memory."""
        return self._gpus[device]

    def put(self, value: torch.Tensor, device: int) -> torch.Tensor:
        """A CPU tensor in a device's memory."""
        return value.contiguous().to(_where(self._gpus[device]), copy=True)

    def get(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor of any device as a CPU tensor."""
        return value.cpu()

    def empty(self, device: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised contiguous tensor in a device's memory."""
        shape, gpu = tuple(shape), self._gpus[device]
        if free := self._free.get((gpu, prod(shape) * dtype.itemsize)):
            value = free.pop()
            if value.dtype == dtype and value.shape == shape:
                return value
            return value.view(-1).view(torch.uint8).view(dtype).view(shape)
        # torch's allocator gives memory that was freed on a stream only to later work of that
        # stream, unless told what other streams use it. Here the host has seen all uses of a
        # buffer end before it lets go of it, so one stream that never runs anything serves all.
        with torch.cuda.stream(self._own.stream(self._whole[gpu], NOTIFY)):
            try:
                return torch.empty(shape, dtype=dtype, device=_where(gpu))
            except torch.OutOfMemoryError:
                self._free.clear()  # buffers of other sizes
                torch.cuda.empty_cache()
                return torch.empty(shape, dtype=dtype, device=_where(gpu))

    def recycle(self, device: int, value: torch.Tensor) -> None:
        """Take back a tensor from `empty`."""
        if value.nbytes:
            self._free.setdefault((self._gpus[device], value.nbytes), []).append(value)

    # Copies.

    def _through_host(self, link: int, source: int, target: int) -> bool:
        if self._links[link].via == "host":
            return True
        return source != target and not torch.cuda.can_device_access_peer(source, target)

    def _copy_directly(
        self,
        task: int,
        lane: Lane,
        gpus: tuple[int, int],
        value: torch.Tensor,
        output: torch.Tensor,
    ) -> Flight:
        gpu = gpus[0]  # torch too copies on a stream of the source
        stream = lane.stream(self._whole[gpu], OUT)
        begin, end = self._event(gpu), self._event(gpu)
        if lane.flights:
            lane.flights[-1].end.wait(stream)
        torch.cuda.set_stream(stream)
        try:
            begin.record(stream)
            if gpus[0] == gpus[1]:  # at a quarter of the host's time that `copy_` takes
                driver.copy(output.data_ptr(), value.data_ptr(), value.nbytes, stream.cuda_stream)
            else:
                output.copy_(value, non_blocking=True)
            end.record(stream)
            driver.post_after(stream.cuda_stream, self._semaphore)
        finally:
            self._leave(gpu)
        return Flight(task, begin, end, gpu, gpu)

    def _copy_through_host(
        self,
        task: int,
        lane: Lane,
        gpus: tuple[int, int],
        value: torch.Tensor,
        output: torch.Tensor,
    ) -> Flight:
        """Device to pinned memory on one stream, from there to the device on another.

        In chunks, so that both run at once. The next transfer of the lane comes after the end of
        this one, and so may use the same pinned memory.
        """
        source, target = gpus
        up, down = lane.stream(self._whole[source], OUT), lane.stream(self._whole[target], IN)
        pinned, marks, pieces = lane.room(value.nbytes), lane.marks_of(source), chunks(value.nbytes)
        begin, end = self._event(source), self._event(target)
        origin, middle, goal = value.data_ptr(), pinned.data_ptr(), output.data_ptr()
        if lane.flights:
            lane.flights[-1].end.wait(up)
        try:
            torch.cuda.set_stream(up)
            begin.record(up)
            for mark, (at, size) in zip(marks, pieces, strict=False):
                driver.copy(middle + at, origin + at, size, up.cuda_stream)
                mark.record(up)
        finally:
            self._leave(source)
        try:
            torch.cuda.set_stream(down)
            for mark, (at, size) in zip(marks, pieces, strict=False):
                mark.wait(down)
                driver.copy(goal + at, middle + at, size, down.cuda_stream)
            end.record(down)
            driver.post_after(down.cuda_stream, self._semaphore)
        finally:
            self._leave(target)
        return Flight(task, begin, end, source, target, pinned)

    # Completions.

    def _add(self, lane: Lane, flight: Flight) -> None:
        lane.flights.append(flight)
        self._busy[lane] = None

    def _ended(self) -> list[Done]:
        """The tasks whose end was reached since the last call, by the time of it."""
        done: list[Done] = []
        for lane in list(self._busy):
            while lane.flights:
                flight = lane.flights[0]
                try:
                    if not flight.end.query():  # type: ignore[no-untyped-call]
                        break
                    begin_s = self._seconds(flight.source, flight.begin)
                    end_s = self._seconds(flight.target, flight.end)
                except RuntimeError as error:
                    self._broken = _first_line(error)
                    return [*done, Done(flight.task, 0.0, 0.0, error)]
                self._put_away(lane.flights.popleft())
                done.append(Done(flight.task, begin_s, end_s))
            if not lane.flights:
                del self._busy[lane]
        return sorted(done, key=lambda each: each.end_s)

    def _put_away(self, flight: Flight) -> None:
        self._events[flight.source].append(flight.begin)
        self._events[flight.target].append(flight.end)

    def _drain(self, limit_s: float) -> bool:
        """Whether all streams have no work any more, after so long at most."""
        until = perf_counter() + limit_s
        streams = [stream for lane in self._all_lanes() for stream in lane.streams.values()]
        for stream in streams:
            while not stream.query():
                if perf_counter() > until:
                    return False
                sleep(1e-4)
        return True

    def _forget(self) -> None:
        """Forget the tasks under way, which have all ended."""
        for lane in self._all_lanes():
            while lane.flights:
                self._put_away(lane.flights.popleft())
        self._busy.clear()
        self._unsettled = False

    # What is made ready.

    def _all_lanes(self) -> list[Lane]:
        return [lane for lanes in (*self._slots, *self._lanes, [self._own]) for lane in lanes]

    def _event(self, gpu: int) -> torch.cuda.Event:
        events = self._events[gpu]
        return events.pop() if events else new_event(timed=True)

    def _remember(self) -> None:
        """Note the current device and streams of the thread, which every launch restores."""
        self._home = torch.cuda.current_device()
        self._outer = {gpu: torch.cuda.current_stream(gpu) for gpu in self._whole}

    def _leave(self, gpu: int) -> None:
        torch.cuda.set_stream(self._outer[gpu])
        if gpu != self._home:
            torch.cuda.set_device(self._home)

    def _warm_up(self) -> None:
        """Run something on every slot: the first launch in a part of a GPU takes some 0.2 s."""
        for device, lanes in enumerate(self._slots):
            output = self.empty(device, (256, 256), torch.float32)
            for _ in lanes:
                self.run(-1, device, _something, (), output)
            self.recycle(device, output)
        self._settle()

    def _prepare(self, graph: Graph, tasks: Tasks) -> None:
        """Have streams for the links that will be used, and pinned memory of the right size."""
        columns = tasks.link, tasks.source, tasks.target, graph.tensor_bytes[tasks.tensor]
        routes: dict[tuple[int, int, int], tuple[tuple[int, int], float]] = {}
        for link, source, target, size in zip(*(c.tolist() for c in columns), strict=True):
            route = (link, self._gpus[source], self._gpus[target])
            _, largest = routes.get(route, (None, 0.0))
            routes[route] = ((source, target), max(size, largest))
        for route, (ends, size) in routes.items():
            if self._through_host(*route):
                for lane in self._lanes[route[0]]:
                    lane.room(int(size))
            if route not in self._warm:
                self._use(route[0], ends)
                self._warm.add(route)

    def _use(self, link: int, ends: tuple[int, int]) -> None:
        """Copy something over every lane of a link."""
        value, output = (self.empty(device, (256,), torch.uint8) for device in ends)
        for _ in self._lanes[link]:
            self.copy(-1, link, ends, value, output)
        self._settle()
        self.recycle(ends[0], value)
        self.recycle(ends[1], output)

    def _settle(self) -> None:
        """Wait for what was run to get ready."""
        if not self._drain(60.0):
            raise EngineError("a GPU did not end its warm-up within 60 s")
        self._forget()

    # Clocks: every GPU has its own.

    def _start_clock(self) -> None:
        """Note an event of each GPU, and when the host saw it."""
        for gpu, (event, _) in self._clocks.items():
            self._events[gpu].append(event)
        for gpu, whole in self._whole.items():
            stream = self._own.stream(whole, NOTIFY)
            tries = [self._tick(gpu, stream) for _ in range(5)]
            tries.sort(key=lambda each: each[0])
            self._events[gpu] += [event for _, event, _ in tries[1:]]
            _, event, middle = tries[0]
            self._clocks[gpu] = (event, middle)
        self._zero = perf_counter()

    def _tick(self, gpu: int, stream: torch.cuda.Stream) -> tuple[float, torch.cuda.Event, float]:
        """An event, and when it was: how uncertain that is, and the middle of the interval."""
        event, before = self._event(gpu), perf_counter()
        event.record(stream)
        event.synchronize()
        after = perf_counter()
        return after - before, event, (before + after) / 2

    def _seconds(self, gpu: int, event: torch.cuda.Event) -> float:
        """When an event was on the clock of the run."""
        clock, at = self._clocks[gpu]
        elapsed_ms: float = clock.elapsed_time(event)
        return at - self._zero + elapsed_ms * 1e-3


@contextmanager
def _told() -> Iterator[None]:
    """Torch's errors become ours."""
    try:
        yield
    except EngineError:
        raise
    except RuntimeError as error:
        raise EngineError(
            f"the GPU cannot be used: {_first_line(error)}",
            hint="if CUDA failed before in this process, start a new one",
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def _where(gpu: int) -> torch.device:
    return torch.device("cuda", gpu)


def _something(_: Sequence[torch.Tensor], output: torch.Tensor) -> None:
    """Products and sums in two dtypes, to have cuBLAS and its workspace ready on a stream."""
    output.fill_(1.0)
    half = output.to(torch.float16)
    output.add_(output @ output)
    half.add_(half @ half)
