"""Bench: times kernels and copies on a backend, started and awaited as the engine does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from doppler.engine.backends.base import Backend, Done, KernelFunction
from doppler.engine.kernels import torch_dtype
from doppler.errors import EngineError
from doppler.graph.builder import GraphBuilder
from doppler.graph.ops import OpKind
from doppler.sharding.flops import item_bytes
from doppler.tasks import Tasks, enumerate_tasks
from doppler.topology.topology import Topology

TIMEOUT_S = 60.0  # without any task ending, before a measurement is given up
Pair = tuple[int, int]  # source and target device


class Sample(NamedTuple):
    """One measurement, as it was taken."""

    kind: str  # copy, copies, kernel, host, exec or transfer
    what: str  # which kernel, pattern or signature
    device: str  # where: a device, or `a→b`
    size_bytes: float  # moved, or touched
    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel to time: a product of square matrices, or a function of every element."""

    kind: OpKind  # MATMUL or INPUT_ELEMWISE
    size: int  # rows and columns, or elements
    dtype: str

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        return f"{self.kind} {self.size} {self.dtype}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its inputs and its output."""
        return (self.size, self.size) if self.kind == OpKind.MATMUL else (self.size,)

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
        elements = float(np.prod(self.shape, dtype=np.float64))
        return (self.num_inputs + 1) * elements * item_bytes(self.dtype)

    @property
    def function(self) -> KernelFunction:
        """The torch code."""
        return _multiply if self.kind == OpKind.MATMUL else _scale


def _multiply(inputs: Sequence[torch.Tensor], output: torch.Tensor) -> None:
    torch.mm(inputs[0], inputs[1], out=output)


def _scale(inputs: Sequence[torch.Tensor], output: torch.Tensor) -> None:
    torch.mul(inputs[0], 1.5, out=output)


class Bench:
    """Runs single kernels and patterns of copies on a backend.

    What they take is as measured where they ran, as in the traces of the engine.
    """

    def __init__(self, backend: Backend, topology: Topology) -> None:
        self.backend, self.topology = backend, topology
        self._random = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
        self._kept: dict[tuple[int, int], Any] = {}  # by device and number
        self._kept_shape: tuple[tuple[int, ...], str] | None = None

    def kernel(self, work: Work, device: int, repeats: int) -> list[float]:
        """Seconds of each of `repeats` runs of a kernel, one after the other.

        As in the engine the next one is queued while one runs, so that none waits for the host.
        """
        backend, count = self.backend, repeats + 2  # the first two are warm-up
        builder = GraphBuilder("kernels")
        for k in range(count):
            builder.op(
                *(f"k{k}", work.kind),
                reads=[],
                output_bytes=work.touched_bytes / (work.num_inputs + 1),
                flops=work.flops,
                touched_bytes=work.touched_bytes,
                dtype=work.dtype,
            )
        graph = builder.build()
        tasks = enumerate_tasks(graph, self.topology, np.full(count, device))
        inputs = [self._values(work.shape, work.dtype, device, k) for k in range(work.num_inputs)]
        outputs = [self._room(work.shape, work.dtype, device) for _ in range(2)]
        function = work.function if backend.computes else None

        def start(task: int) -> None:
            backend.run(task, device, function, inputs, outputs[task % 2])

        backend.begin(graph, tasks)
        done = self._drive(0, count, len(outputs), start)
        self._give_back([(device, output) for output in outputs])
        took = {each.task: each.end_s - each.begin_s for each in done}
        return [took[task] for task in range(2, count)]

    def copies(self, pairs: Sequence[Pair], size_bytes: int, rounds: int) -> list[list[Done]]:
        """For each of some pairs of devices, its copies one after the other; all pairs at once.

        A pair that is named twice has two copies under way at a time.
        """
        backend, width = self.backend, len(pairs)
        graph, tasks = self._transfers([*pairs] * (rounds + 1), size_bytes)
        elements = (max(size_bytes // 4, 1),)
        values = [self._values(elements, "float32", a, lane) for lane, (a, _) in enumerate(pairs)]
        rooms = [self._room(elements, "float32", b) for _, b in pairs]
        first = graph.num_vertices

        def start(task: int) -> None:
            k, lane = task - first, (task - first) % width
            backend.copy(task, int(tasks.link[k]), pairs[lane], values[lane], rooms[lane])

        backend.begin(graph, tasks)
        done = self._drive(first, tasks.num_transfers, width, start)
        self._give_back([(b, room) for (_, b), room in zip(pairs, rooms, strict=True)])
        measured = sorted(each for each in done if each.task >= first + width)  # 1 round: warm-up
        return [
            [each for each in measured if (each.task - first) % width == lane]
            for lane in range(width)
        ]

    def _transfers(self, pairs: Sequence[Pair], size_bytes: int) -> tuple[Any, Tasks]:
        """A graph of tensors that each go from one device to another, and its tasks."""
        builder = GraphBuilder("copies")
        devices = []
        for k, (source, target) in enumerate(pairs):
            tensor = builder.op(f"from{k}", OpKind.FILL, reads=[], output_bytes=size_bytes)
            reader = builder.vertex(f"to{k}", OpKind.SELECT)
            builder.edge(tensor, reader)
            devices += [source, target]
        graph = builder.build()
        return graph, enumerate_tasks(graph, self.topology, np.array(devices))

    def _drive(
        self, first: int, count: int, in_flight: int, start: Callable[[int], None]
    ) -> list[Done]:
        """Run the first tasks; each that ends starts the one `in_flight` later."""
        done: list[Done] = []
        for task in range(first, first + min(in_flight, count)):
            start(task)
        while len(done) < count:
            for each in self._wait():
                done.append(each)
                if each.task + in_flight < first + count:
                    start(each.task + in_flight)
        return done

    def _wait(self) -> list[Done]:
        done = self.backend.wait(TIMEOUT_S)
        if not done:
            raise EngineError(f"a measurement did not end within {TIMEOUT_S:g} s")
        for each in done:
            if each.error is not None:
                raise EngineError(f"a measurement failed: {each.error}") from each.error
        return done

    def _values(self, shape: tuple[int, ...], dtype: str, device: int, number: int) -> Any:
        """Normal values in a device's memory, kept until others of another shape are asked for.

        Constants would spare some hardware its power.
        """
        if not self.backend.computes:
            return None
        if self._kept_shape != (shape, dtype):
            self._kept.clear()
            self._kept_shape = shape, dtype
        if (device, number) not in self._kept:
            count = int(np.prod(shape))
            values = self._random.to(torch_dtype(dtype)).repeat(-(-count // len(self._random)))
            self._kept[device, number] = self.backend.put(values[:count].view(shape), device)
        return self._kept[device, number]

    def _room(self, shape: tuple[int, ...], dtype: str, device: int) -> Any:
        if not self.backend.computes:
            return None
        return self.backend.empty(device, shape, torch_dtype(dtype))

    def _give_back(self, rooms: Sequence[tuple[int, Any]]) -> None:
        if self.backend.computes:
            for device, room in rooms:
                self.backend.recycle(device, room)
