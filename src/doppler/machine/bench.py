"""Bench: times kernels and copies on a backend, started and awaited as the engine does."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from doppler.engine.backends.base import Action, Backend, Commands, Copy, Exec, TaskError
from doppler.engine.kernels import torch_dtype
from doppler.engine.operands import Launch
from doppler.errors import EngineError
from doppler.graph.builder import GraphBuilder
from doppler.graph.ops import OpKind
from doppler.sharding.flops import item_bytes
from doppler.sharding.temporaries import aligned_bytes
from doppler.tasks import Tasks, enumerate_tasks
from doppler.topology.topology import Topology

TIMEOUT_S = 60.0  # without any task ending, before a measurement is given up
ROW = 1024  # elements that a reduction sums into one
WARM_UP = 2  # runs of a kernel that do not count
Pair = tuple[int, int]  # source and target: devices, or the host, behind the last device


class Sample(NamedTuple):
    """One measurement, as it was taken."""

    kind: str  # copy, copies, kernel, kernels, host, exec or transfer
    what: str  # which kernel, pattern or signature
    device: str  # where: a device, or `a→b`
    size_bytes: float  # moved, or touched
    seconds: float


class Span(NamedTuple):
    """When a task ran, in seconds since the measurement began."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel to time: a product of square matrices, a function of every element, or row sums."""

    kind: OpKind  # MATMUL, INPUT_ELEMWISE or SUM_REDUCTION
    size: int  # rows and columns, or elements, in whole rows where they are summed
    dtype: str

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        return f"{self.kind} {self.size} {self.dtype}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its inputs."""
        if self.kind == OpKind.SUM_REDUCTION:
            return self.size // ROW, ROW
        return (self.size, self.size) if self.kind == OpKind.MATMUL else (self.size,)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Of its output."""
        return self.shape[:1] if self.kind == OpKind.SUM_REDUCTION else self.shape

    @property
    def num_inputs(self) -> int:
        """Tensors it reads."""
        return 2 if self.kind == OpKind.MATMUL else 1

    @property
    def flops(self) -> float:
        """Floating-point operations."""
        return 2.0 * self.size**3 if self.kind == OpKind.MATMUL else float(self.size)

    @property
    def touched_bytes(self) -> float:
        """Bytes read and written."""
        read = self.num_inputs * np.prod(self.shape, dtype=np.float64)
        return float(read) * item_bytes(self.dtype) + self.output_bytes

    @property
    def output_bytes(self) -> float:
        """Bytes written."""
        return float(np.prod(self.output_shape, dtype=np.float64)) * item_bytes(self.dtype)

    def launch(self, inputs: Sequence[torch.Tensor], output: torch.Tensor) -> Launch:
        """The torch code."""
        if self.kind == OpKind.MATMUL:
            return partial(torch.mm, inputs[0], inputs[1], out=output)
        if self.kind == OpKind.SUM_REDUCTION:
            return partial(torch.sum, inputs[0], dim=1, out=output)
        return partial(torch.mul, inputs[0], 1.5, out=output)


class Bench:
    """Runs single kernels and patterns of copies on a backend.

    What they take is as measured where they ran, as in the traces of the engine.
    """

    def __init__(self, backend: Backend, topology: Topology) -> None:
        self.backend, self.topology = backend, topology
        self._random = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
        self._kept: dict[tuple[int, int, tuple[int, ...]], Any] = {}  # by device, number and shape
        self._kept_for: Any = None
        self._host_room: Any = None

    def kernel(self, work: Work, device: int, repeats: int) -> list[float]:
        """Seconds of each of `repeats` runs of a kernel, one after the other, alone."""
        return self.kernels([work], [device], repeats)[0][0]

    def kernels(
        self, works: Sequence[Work], devices: Sequence[int], repeats: int
    ) -> list[list[list[float]]]:
        """By device and kernel, seconds of runs that began while all devices were busy.

        Every device runs the kernels in turn, up to `repeats` times each, all of one dtype; the
        second device begins with the second kernel, and so on. As in the engine the next one is
        queued while one runs, so that none waits for the host.
        """
        width, kinds = len(devices), len(works)
        count = (repeats + WARM_UP) * kinds * width
        where = [devices[k % width] for k in range(count)]
        which = [(k // width + k % width) % kinds for k in range(count)]
        builder = GraphBuilder("kernels")
        for k in range(count):
            work = works[which[k]]
            builder.op(
                *(f"k{k}", work.kind),
                reads=[],
                output_bytes=work.output_bytes,
                flops=work.flops,
                touched_bytes=work.touched_bytes,
                dtype=work.dtype,
            )
        graph = builder.build()
        tasks = enumerate_tasks(graph, self.topology, np.array(where))
        cycle = 2 * kinds * width  # then the same kernels follow, on the same devices
        launches: list[tuple[Launch, ...]] = [()] * cycle
        if self.backend.computes:
            self._keep_for(tuple(works))
            like = [works[which[k]] for k in range(cycle)]
            places = [(where[k], work.output_shape) for k, work in enumerate(like)]
            launches = [
                (work.launch(self._inputs(work, where[k]), output),)
                for k, (work, output) in enumerate(
                    zip(like, self._rooms(places, works[0].dtype), strict=True)
                )
            ]
        actions = [Exec(device, launches[k % cycle]) for k, device in enumerate(where)]
        commands = self.backend.prepare(graph, tasks, actions)
        skipped = WARM_UP * kinds * width
        spans = self._drive(commands, range(count), in_flight=2 * width)[skipped:]
        begin_s = max(span.begin_s for span in spans[:width])
        end_s = min(span.end_s for span in spans[-width:])
        found: list[list[list[float]]] = [[[] for _ in works] for _ in devices]
        for k, span in enumerate(spans, skipped):
            if begin_s <= span.begin_s <= end_s:
                found[k % width][which[k]].append(span.end_s - span.begin_s)
        return found

    def _inputs(self, work: Work, device: int) -> list[Any]:
        return [self._values(work.shape, work.dtype, device, k) for k in range(work.num_inputs)]

    def copies(self, pairs: Sequence[Pair], size_bytes: int, rounds: int) -> list[list[Span]]:
        """For each of some pairs of places, its copies one after the other; all pairs at once.

        A pair that is named twice has two copies under way at a time.
        """
        width, elements = len(pairs), (max(size_bytes // 4, 1),)
        graph, tasks = self._transfers([*pairs] * (rounds + 1), size_bytes)
        self._keep_for((elements, "float32"))
        values = [self._values(elements, "float32", a, lane) for lane, (a, _) in enumerate(pairs)]
        rooms = self._rooms([(b, elements) for _, b in pairs], "float32")
        actions: list[Action | None] = [None] * graph.num_vertices
        for k, link in enumerate(tasks.link.tolist()):
            lane = k % width
            actions.append(Copy(link, *pairs[lane], values[lane], rooms[lane]))
        commands = self.backend.prepare(graph, tasks, actions)
        spans = self._drive(commands, range(graph.num_vertices, len(actions)), in_flight=width)
        return [spans[width + lane :: width] for lane in range(width)]  # the first are warm-up

    def _transfers(self, pairs: Sequence[Pair], size_bytes: int) -> tuple[Any, Tasks]:
        """A graph of tensors that each go from one place to another, and its tasks."""
        builder = GraphBuilder("copies")
        for k in range(len(pairs)):
            builder.op(f"from{k}", OpKind.FILL, reads=[], output_bytes=size_bytes)
        source, target = np.array(pairs, np.int64).T
        between, host = np.minimum(source, target), self.topology.num_devices
        is_host = np.maximum(source, target) == host
        links = self.topology.route[source % host, target % host]
        if is_host.any():
            links = np.where(is_host, np.array(self.topology.host_links)[between], links)
        tasks = Tasks(between, np.arange(len(pairs)), source, target, links)
        return builder.build(), tasks

    def _drive(self, commands: Commands, tasks: range, *, in_flight: int) -> list[Span]:
        """When each task ran; each that ends starts the one `in_flight` later."""
        backend, left = self.backend, len(tasks)
        backend.begin(commands)
        try:
            for task in tasks[:in_flight]:
                backend.start(task)
            while left:
                for task in self._wait():
                    left -= 1
                    if task + in_flight in tasks:
                        backend.start(task + in_flight)
        except BaseException:
            backend.stop()
            raise
        backend.end()
        begin_s, end_s = backend.times()
        return [Span(float(begin_s[task]), float(end_s[task])) for task in tasks]

    def _wait(self) -> list[int]:
        try:
            done = self.backend.wait(TIMEOUT_S)
        except TaskError as failed:
            raise EngineError(f"a measurement failed: {failed.error}") from failed.error
        if not done:
            raise EngineError(f"a measurement did not end within {TIMEOUT_S:g} s")
        return done

    def _values(self, shape: tuple[int, ...], dtype: str, device: int, number: int) -> Any:
        """Normal values in the memory of a device or the host.

        Constants would spare some hardware its power.
        """
        if not self.backend.computes:
            return None
        key = device, number, shape
        if key not in self._kept:
            count = int(np.prod(shape))
            values = self._random.to(torch_dtype(dtype)).repeat(-(-count // len(self._random)))
            values = values[:count].view(shape)
            if device == self.topology.num_devices:
                room = self.backend.host_memory(values.nbytes).view(values.dtype).view(shape)
                self._kept[key] = room.copy_(values)
            else:
                self._kept[key] = self.backend.put(values, device)
        return self._kept[key]

    def _keep_for(self, what: Any) -> None:
        """Keep values until something else is measured; a dtype is part of what."""
        if self._kept_for != what:
            self._kept.clear()
            self._kept_for = what

    def _rooms(self, where: Sequence[tuple[int, tuple[int, ...]]], dtype: str) -> list[Any]:
        """Tensors of these shapes in the memory of these devices, until others are asked for."""
        if not self.backend.computes:
            return [None] * len(where)
        kind, top = torch_dtype(dtype), dict.fromkeys((device for device, _ in where), 0)
        places = []
        for device, shape in where:
            size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
            places.append((device, top[device], size, shape))
            top[device] += aligned_bytes(size)
        arenas = {device: self._memory(device, size) for device, size in top.items()}
        return [
            arenas[device][at : at + size].view(kind).view(shape)
            for device, at, size, shape in places
        ]

    def _memory(self, device: int, size: int) -> Any:
        """At least `size` bytes of a device's memory, or of the host's."""
        if device < self.topology.num_devices:
            return self.backend.arena(device, size)
        if self._host_room is None or len(self._host_room) < size:
            self._host_room = self.backend.host_memory(size)
        return self._host_room
