"""Prepared tasks: all that a run of one assignment needs, built once, so that runs only look up."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from doppler.assignment import Assignment
from doppler.engine.backends.base import Action, Backend, Behind, Copy, Exec, Plan
from doppler.engine.kernels import (
    aligned_bytes,
    bind_kernel,
    check_kernel,
    output_like,
    scratch_bytes,
    torch_dtype,
)
from doppler.engine.layout import Buffers, Layout, make_layout
from doppler.errors import EngineError, GraphError
from doppler.graph.graph import Graph
from doppler.problem import Problem
from doppler.programs.numpy_ops import Array
from doppler.schedule import Schedule
from doppler.scheduler.list_scheduling import list_schedule
from doppler.scheduler.state import phases
from doppler.sharding.evaluate import (
    input_blocks,
    join_results,
    kernel_of,
    output_of,
    result_names,
)
from doppler.tasks import Tasks, TaskTable, enumerate_tasks, task_table


class Loaded:
    """A graph that a backend can run: its kernels are known, its inputs in place."""

    def __init__(self, graph: Graph, backend: Backend, inputs: Mapping[str, Any] | None) -> None:
        """Without `inputs` there are random ones."""
        if not graph.kernels:
            raise GraphError(
                f"graph `{graph.name}` has no kernels to run",
                hint="what `dop shard` makes of a program has kernels",
            )
        self.graph, self._backend = graph, backend
        self.results = result_names(graph)
        self._placed: dict[tuple[int, int], torch.Tensor] = {}  # (tensor, memory)
        self.set_inputs(inputs)
        self.scratch = [0] * graph.num_vertices  # bytes of intermediate tensors
        for v in graph.assigned.tolist():
            kernel = kernel_of(graph, v)
            makers = [kernel_of(graph, int(graph.tensor_producer[t])) for t in kernel.inputs]
            with _naming(graph, v):
                check_kernel(kernel)
                self.scratch[v] = scratch_bytes(kernel, makers)

    def set_inputs(self, inputs: Mapping[str, Any] | None) -> None:
        """Other inputs for the runs to come, in the same memory."""
        if inputs is None:
            self._blocks = random_blocks(self.graph)
        else:
            whole = {name: np.asarray(value) for name, value in inputs.items()}
            blocks = input_blocks(self.graph, whole)
            self._blocks = {t: _tensor(block) for t, block in blocks.items()}
        for (tensor, _), placed in self._placed.items():
            placed.copy_(self._blocks[tensor])

    def input(self, tensor: int, device: int) -> torch.Tensor:
        """A block of the inputs in a device's memory; kept there for later runs."""
        key = (tensor, self._backend.memory(device))
        if key not in self._placed:
            self._placed[key] = self._backend.put(self._blocks[tensor], device)
        return self._placed[key]


@dataclass(frozen=True, slots=True)
class Prepared:
    """One assignment of one graph, ready to run again and again."""

    graph: Graph
    assignment: Assignment
    tasks: Tasks
    table: TaskTable  # with what the layout adds
    schedule: Schedule | None  # of a run in fixed order
    plan: Plan
    outputs: dict[int, torch.Tensor]  # results by tensor
    arena_bytes: list[int]  # of each device

    def results(self, backend: Backend) -> dict[str, Array]:
        """The graph's results by name, whole."""
        found = {t: backend.get(value).numpy() for t, value in self.outputs.items()}
        return join_results(self.graph, found) if found else {}


class PlannedTasks(NamedTuple):
    """What can be decided of an assignment without touching any memory."""

    tasks: Tasks
    table: TaskTable  # with what the layout adds
    layout: Layout
    schedule: Schedule | None  # of a run in fixed order


class Preparation:
    """Makes `Prepared` tables for one graph on one backend."""

    def __init__(
        self,
        problem: Problem,
        backend: Backend,
        loaded: Loaded | None,
        *,
        fixed: bool,
        synchronous: bool,
        limit_memory: bool,
        strategy: str,
    ) -> None:
        """`loaded` is None where nothing is computed."""
        self._problem, self._backend, self._loaded = problem, backend, loaded
        self._synchronous = synchronous
        self._fixed, self._limit_memory, self._strategy = fixed, limit_memory, strategy

    def tables(self, assignment: Assignment, seed: int) -> PlannedTasks:
        """What can be decided of an assignment without touching any memory."""
        graph, topology = self._problem.graph, self._problem.topology
        tasks = enumerate_tasks(graph, topology, assignment.devices)
        table = task_table(graph, topology, tasks)
        planned: list[Schedule] = []

        def schedule() -> Schedule:
            if not planned:
                planned.append(
                    assignment.schedule
                    or list_schedule(
                        self._problem,
                        assignment,
                        self._strategy,
                        seed,
                        limit_memory=self._limit_memory,
                    )
                )
            return planned[0]

        buffers = self._buffers(tasks, table)

        def order() -> list[int]:
            planned_order: list[int] = schedule().tasks.tolist()
            if self._synchronous:  # no task waits for one behind a later barrier
                planned_order.sort(key=phases(graph, tasks).__getitem__)
            return planned_order

        layout = make_layout(buffers, topology, order, limit=self._limit_memory)
        if layout.after:
            table = task_table(graph, topology, tasks, layout.after)
        return PlannedTasks(tasks, table, layout, schedule() if self._fixed else None)

    def prepare(self, assignment: Assignment, tables: PlannedTasks) -> Prepared:
        """An assignment bound to the memory and the streams or threads of the backend."""
        graph, (tasks, table, layout, schedule) = self._problem.graph, tables
        actions, outputs = self._actions(tasks, table, layout)
        behind = None
        if schedule is not None:
            rooms = [-1] * len(table.needs)
            for task, room in zip(schedule.tasks.tolist(), schedule.rooms.tolist(), strict=True):
                rooms[task] = room
            behind = Behind(table.needs, rooms)
        plan = self._backend.prepare(graph, tasks, actions, behind)
        return Prepared(
            graph, assignment, tasks, table, schedule, plan, outputs, layout.arena_bytes
        )

    def _buffers(self, tasks: Tasks, table: TaskTable) -> Buffers:
        """What every task writes, in bytes."""
        graph, loaded = self._problem.graph, self._loaded
        tensor_bytes = np.ceil(graph.tensor_bytes).astype(np.int64)
        size = [0] * graph.num_vertices
        for v in graph.assigned.tolist():
            if loaded is not None:
                shape, dtype = output_like(kernel_of(graph, v))
                size[v] = aligned_bytes(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
            else:
                outputs = graph.output_tensor[graph.output_ptr[v] : graph.output_ptr[v + 1]]
                size[v] = int(tensor_bytes[outputs].sum())
        if loaded is not None:
            moved = [size[int(graph.tensor_producer[t])] for t in tasks.tensor.tolist()]
            scratch, results = loaded.scratch, set(loaded.results)
        else:
            moved = tensor_bytes[tasks.tensor].tolist()
            scratch, results = [0] * graph.num_vertices, set()
        return Buffers(
            tasks=table.tasks,
            device=[*tasks.devices.tolist(), *tasks.target.tolist()],
            size=[*size, *moved],
            scratch=[*scratch, *([0] * tasks.num_transfers)],
            readers=table.dependents,
            kept=frozenset(int(graph.tensor_producer[t]) for t in results),
        )

    def _actions(
        self, tasks: Tasks, table: TaskTable, layout: Layout
    ) -> tuple[list[Action | None], dict[int, torch.Tensor]]:
        graph, size = self._problem.graph, self._problem.graph.num_vertices
        devices = tasks.devices.tolist()
        actions: list[Action | None] = [None] * len(table.needs)
        columns = (tasks.tensor, tasks.link, tasks.source, tasks.target)
        moves = list(zip(*(column.tolist() for column in columns), strict=True))
        if self._loaded is None:
            for v in graph.assigned.tolist():
                actions[v] = Exec(devices[v])
            for k, (_, link, source, target) in enumerate(moves):
                actions[size + k] = Copy(link, source, target)
            return actions, {}
        rooms = _Rooms(self._backend, layout)
        values: dict[tuple[int, int], torch.Tensor] = {}  # (tensor, device)
        for v in graph.assigned.tolist():
            like = output_like(kernel_of(graph, v))
            values[output_of(graph, v), devices[v]] = rooms.output(v, devices[v], *like)
        for k, (tensor, link, source, target) in enumerate(moves):
            value = values[tensor, source]
            room = rooms.output(size + k, target, value.shape, value.dtype)
            values[tensor, target] = room
            actions[size + k] = Copy(link, source, target, value, room)
        for v in graph.assigned.tolist():
            kernel, d = kernel_of(graph, v), devices[v]
            for t in kernel.inputs:
                if graph.is_input[graph.tensor_producer[t]]:
                    values[t, d] = self._loaded.input(t, d)
            inputs = [values[t, d] for t in kernel.inputs]
            with _naming(graph, v):
                output = values[output_of(graph, v), d]
                actions[v] = Exec(d, bind_kernel(kernel, inputs, output, rooms.scratch(v, d)))
        where = tasks.devices[graph.tensor_producer].tolist()
        return actions, {
            t: self._loaded.input(t, 0) if where[t] < 0 else values[t, where[t]]
            for t in self._loaded.results
        }


class _Rooms:
    """Tensors at the offsets of a layout, in the arenas of a backend."""

    def __init__(self, backend: Backend, layout: Layout) -> None:
        self._layout = layout
        self._arenas = {
            d: backend.arena(d, size) for d, size in enumerate(layout.arena_bytes) if size
        }

    def output(
        self, task: int, device: int, shape: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """The tensor that a task writes."""
        return self._at(device, self._layout.offset[task], shape, dtype)

    def scratch(self, task: int, device: int) -> Any:
        """What makes room for the intermediate tensors of a task."""
        top = self._layout.scratch[task]

        def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            nonlocal top
            room = self._at(device, top, shape, dtype)
            top += aligned_bytes(room.nbytes)
            return room

        return empty

    def _at(
        self, device: int, offset: int, shape: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if device not in self._arenas:  # nothing there has any bytes
            return torch.empty(tuple(shape), dtype=dtype)
        return self._arenas[device][offset : offset + count].view(dtype).view(tuple(shape))


@contextmanager
def _naming(graph: Graph, v: int) -> Iterator[None]:
    """Errors of a kernel name its vertex."""
    try:
        yield
    except EngineError as error:
        name = f"vertex `{graph.vertex_names[v]}`"
        raise EngineError(f"{name}: {error.message}", hint=error.hint) from error


def _tensor(block: Array) -> torch.Tensor:
    """An array as a tensor; a copy only where torch cannot share its memory."""
    block = np.ascontiguousarray(block)
    return torch.from_numpy(block if block.flags.writeable else block.copy())


def random_blocks(graph: Graph, seed: int = 0) -> dict[int, torch.Tensor]:
    """Standard normal values for every input tensor, scaled so that long sums stay small."""
    generator = torch.Generator().manual_seed(seed)
    blocks = {}
    for v in np.flatnonzero(graph.is_input).tolist():
        kernel, tensor = kernel_of(graph, v), output_of(graph, v)
        shape, dtype = kernel.shapes[0], torch_dtype(kernel.dtypes[0])
        try:
            x = torch.randn(shape, generator=generator) / max(shape, default=1) ** 0.5
        except RuntimeError as error:  # as torch says that there is no memory
            where = f"input `{graph.vertex_names[v]}`, of shape {shape}"
            raise EngineError(f"{where}: {str(error).splitlines()[0]}") from None
        if dtype.is_complex:
            x = torch.exp(1j * x)
        blocks[tensor] = x.to(dtype)
    return blocks
