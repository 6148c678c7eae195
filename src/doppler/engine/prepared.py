"""Prepared tasks: all that a run of one assignment needs, built once, so that runs only look up."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from doppler.assignment import Assignment
from doppler.base.arrays import rows
from doppler.engine.backends.base import Action, Backend, Behind, Commands, Copy, Exec
from doppler.engine.joined_blocks import join_blocks
from doppler.engine.kernels import bind_kernel, output_like
from doppler.engine.layout import copies_in_run, make_layout
from doppler.engine.loaded import Loaded, naming
from doppler.engine.operands import Launch
from doppler.engine.pieces import Cell, Cells, bind_piece, is_piece
from doppler.errors import ConfigError
from doppler.graph.graph import Graph
from doppler.problem import Problem
from doppler.schedule import Schedule
from doppler.scheduler.list_scheduling import list_schedule
from doppler.scheduler.places import IN_PLACE, Places, TensorCopy
from doppler.scheduler.state import phases
from doppler.sharding.evaluate import join_results, kernel_of, output_of
from doppler.sharding.temporaries import aligned_bytes
from doppler.tasks import Tasks, TaskTable, enumerate_tasks, task_table, with_moves


@dataclass(frozen=True, slots=True)
class Prepared:
    """One assignment of one graph, ready to run again and again."""

    graph: Graph
    assignment: Assignment
    tasks: Tasks
    table: TaskTable  # with what the layout adds
    schedule: Schedule | None  # of a run in fixed order
    commands: Commands
    outputs: dict[int, torch.Tensor | Cell]  # results by tensor
    names: dict[int, str]  # of these
    cells: Cells  # what pieces and transfers of their outputs write
    in_place: list[tuple[int, torch.Tensor]]  # input tensors, and where they are before a run
    overwrites: bool  # whether a run takes the places of some of those
    used_bytes: list[int]  # of each device
    outside: frozenset[int] = frozenset()  # tasks that others start
    grants: dict[int, int] = field(default_factory=dict)  # by task: the transfer it lets begin

    def results(self, backend: Backend) -> dict[str, Any]:
        """The graph's results by name, whole: arrays, but those that pieces made are tensors."""
        return self.whole(self.blocks(backend))

    def blocks(self, backend: Backend) -> dict[int, Any]:
        """The results by tensor: arrays, but those that pieces made are tensors."""
        return {
            t: backend.get(value.value) if isinstance(value, Cell) else backend.get(value).numpy()
            for t, value in self.outputs.items()
        }

    def whole(self, blocks: dict[int, Any]) -> dict[str, Any]:
        """The results by name, put together."""
        if any(isinstance(block, torch.Tensor) for block in blocks.values()):
            return join_blocks(self.graph, self.names, blocks)
        return join_results(self.graph, blocks) if blocks else {}


class PlannedTasks(NamedTuple):
    """What can be decided of an assignment without touching any memory."""

    tasks: Tasks
    table: TaskTable  # with what the layout adds
    places: Places  # in arenas
    used_bytes: list[int]  # of each device, arenas and what pieces return
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
        graph, topology, plan = self._problem.graph, self._problem.topology, assignment.memory
        if plan is not None and self._synchronous:
            raise ConfigError(
                "a memory plan cannot run with a barrier after every level: its tasks wait for "
                "others of any level",
                hint="leave out `synchronous`, or the plan",
            )
        if plan is not None and self._loaded is not None and self._loaded.in_cell.any():
            raise ConfigError(
                "a memory plan cannot run for a graph of pieces, whose tensors have no places",
                hint="use devices with more memory, or more of them",
            )
        plain = enumerate_tasks(graph, topology, assignment.devices)
        tasks = with_moves(topology, plain, plan)
        planned: list[Schedule] = []

        def schedule() -> Schedule:
            if not planned:
                limit = self._limit_memory
                planned.append(
                    assignment.schedule
                    or list_schedule(
                        self._problem, assignment, self._strategy, seed, limit_memory=limit
                    )
                )
            return planned[0]

        def order() -> list[int]:
            planned_order: list[int] = schedule().tasks.tolist()
            if self._synchronous:  # no task waits for one behind a later barrier
                planned_order.sort(key=phases(graph, tasks).__getitem__)
            return planned_order

        sized = graph if self._loaded is None else self._loaded.sized
        options = {"planned": plan is not None, "limit": self._limit_memory}

        def layout(sized: Graph) -> Places:
            copies = copies_in_run(sized, plain, plan)
            return make_layout(sized, topology, plain, copies, order, **options)

        account = places = layout(sized)
        if self._loaded is not None and self._loaded.in_arena is not sized:
            places = layout(self._loaded.in_arena)
        after = sorted({*account.after, *places.after})
        table = task_table(graph, topology, tasks, after, plan)
        fixed = schedule() if self._fixed else None
        return PlannedTasks(tasks, table, places, account.top, fixed)

    def prepare(self, assignment: Assignment, tables: PlannedTasks) -> Prepared:
        """An assignment bound to the memory and the streams or threads of the backend."""
        graph, (tasks, table, places, used_bytes, schedule) = self._problem.graph, tables
        behind = None
        if schedule is not None:
            rooms = [-1] * len(table.needs)
            for task, room in zip(schedule.tasks.tolist(), schedule.rooms.tolist(), strict=True):
                rooms[task] = room
            if self._loaded is not None:
                for k in _in_place_already(tasks, self._loaded, self._problem):
                    rooms[graph.num_vertices + k] = -1  # it is no copy, and takes no lane
            behind = Behind(table.needs, rooms)
        values = _Values(self._loaded, self._backend, places, tasks) if self._loaded else None
        actions = self._actions(tasks, values)
        commands = self._bind(tasks, actions, behind)
        in_place = [
            copy
            for copy in places.copies
            if copy.writer == IN_PLACE
            and self._is_here(copy.device)
            and not (values and values.in_cell[copy.tensor])
        ]
        return Prepared(
            graph=graph,
            assignment=assignment,
            tasks=tasks,
            table=table,
            schedule=schedule,
            commands=commands,
            outputs=values.results(tasks) if values else {},
            names=self._loaded.results if self._loaded else {},
            cells=values.cells if values else Cells(),
            in_place=[(c.tensor, values.of(c)) for c in in_place] if values else [],
            overwrites=bool(places.after) and not all(copy.is_kept for copy in in_place),
            used_bytes=used_bytes,
        )

    def _bind(self, tasks: Tasks, actions: list[Action | None], behind: Behind | None) -> Commands:
        return self._backend.prepare(self._problem.graph, tasks, actions, behind)

    def _is_here(self, device: int) -> bool:
        """Whether the backend has that device."""
        return True

    def _actions(self, tasks: Tasks, values: "_Values | None") -> list[Action | None]:
        """What every task does."""
        graph, size = self._problem.graph, self._problem.graph.num_vertices
        devices, host = tasks.devices.tolist(), self._problem.topology.num_devices
        actions: list[Action | None] = [None] * (size + tasks.num_transfers)
        columns = (tasks.tensor, tasks.link, tasks.source, tasks.target)
        moves = zip(*(column.tolist() for column in columns), strict=True)
        for k, (tensor, link, source, target) in enumerate(moves):
            copy = Copy(link, source, target)
            if values is not None and values.in_cell[tensor]:
                actions[size + k] = values.move(tensor, copy)
                continue
            if values is not None:
                task = size + k
                value = values.on_host(tensor) if source == host else values.read(task, tensor)
                output = values.on_host(tensor) if target == host else values.made(task, tensor)
                copy = Copy(link, source, target, value, output)
            actions[size + k] = copy
        for v in graph.assigned.tolist():
            if self._is_here(devices[v]):
                actions[v] = values.exec(v, devices[v]) if values else Exec(devices[v])
        return actions


class _Values:
    """The tensors that tasks read and write: in arenas of a backend, on the host, everywhere."""

    def __init__(self, loaded: Loaded, backend: Backend, places: Places, tasks: Tasks) -> None:
        self._loaded, self._graph, self._places = loaded, loaded.graph, places
        self.in_cell, self.cells = loaded.in_cell, Cells()
        self._cell_of = _make_cells(loaded, tasks, self.cells)
        self._arenas = {d: backend.arena(d, size) for d, size in enumerate(places.top) if size}
        self._number = {id(copy): i for i, copy in enumerate(places.copies)}
        self._made = {(c.writer, c.tensor): c for c in places.copies if c.writer != IN_PLACE}
        self._read = {(user, c.tensor): c for c in places.copies for user in c.users}

    def of(self, copy: TensorCopy) -> torch.Tensor:
        """The tensor of a copy."""
        maker = int(self._graph.tensor_producer[copy.tensor])
        like = output_like(kernel_of(self._graph, maker))
        return self._at(copy.device, self._places.offset[self._number[id(copy)]], *like)

    def made(self, task: int, tensor: int) -> torch.Tensor:
        """What a task writes."""
        return self.of(self._made[task, tensor])

    def read(self, task: int, tensor: int) -> torch.Tensor:
        """What a task reads on its device."""
        return self.of(self._read[task, tensor])

    def on_host(self, tensor: int) -> torch.Tensor:
        """A tensor in memory of the host."""
        return self._loaded.on_host(tensor)

    def move(self, tensor: int, copy: Copy) -> Action:
        """The transfer of what is in a cell; an input is there before the run begins."""
        if (tensor, copy.source) not in self._cell_of:
            return Exec(copy.target)
        value, output = self._cell_of[tensor, copy.source], self._cell_of[tensor, copy.target]
        return copy._replace(value=value, output=output)

    def exec(self, v: int, device: int) -> Exec:
        """The kernel of a vertex bound to its tensors, or a piece to its cells."""
        kernel = kernel_of(self._graph, v)
        if not is_piece(kernel):
            return Exec(device, self.launches(v, device))
        outputs = self._graph.output_tensor[self._graph.output_ptr[v] :][: len(kernel.shapes)]
        targets = [self._cell_of[t, device] for t in outputs.tolist()]
        inputs = [self._source(v, t, device) for t in kernel.inputs]
        with naming(self._graph, v):
            return Exec(device, (bind_piece(kernel, inputs, targets),), bound=False)

    def _source(self, v: int, tensor: int, device: int) -> Cell:
        if self._graph.is_input[self._graph.tensor_producer[tensor]]:
            return self._loaded.input_cell(tensor, device)
        return self._cell_of.get((tensor, device)) or Cell(self.read(v, tensor))

    def launches(self, v: int, device: int) -> Sequence[Launch]:
        """What runs the kernel of a vertex."""
        graph, kernel = self._graph, kernel_of(self._graph, v)
        inputs = [
            self.read(v, t)
            if (v, t) in self._read and not self.in_cell[t]
            else self._loaded.everywhere(t, device)
            for t in kernel.inputs
        ]
        with naming(graph, v):
            output = self.made(v, output_of(graph, v))
            return bind_kernel(kernel, inputs, output, self._scratch(v, device))

    def results(self, tasks: Tasks) -> dict[int, torch.Tensor | Cell]:
        """The results by tensor: where they are made, or on the host if they are not kept there."""
        makers, found = self._graph.tensor_producer.tolist(), dict[int, torch.Tensor | Cell]()
        for t in self._loaded.results:
            copy = self._made.get((makers[t], t))
            if cell := self._cell_of.get((t, int(tasks.devices[makers[t]]))):
                found[t] = cell
            else:
                is_there = copy is not None and copy.is_kept
                found[t] = self.of(copy) if copy and is_there else self.on_host(t)
        return found

    def _scratch(self, task: int, device: int) -> Any:
        """What makes room for the intermediate tensors of a task."""
        top = self._places.temporary[task]

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


def _in_place_already(tasks: Tasks, loaded: Loaded, problem: Problem) -> list[int]:
    """The transfers from the host of inputs that are in cells: these are there before a run."""
    arrives = (tasks.source == problem.topology.num_devices) & loaded.in_cell[tasks.tensor]
    return list(np.flatnonzero(arrives).tolist())


def _make_cells(loaded: Loaded, tasks: Tasks, cells: Cells) -> dict[tuple[int, int], Cell]:
    """A cell for all that pieces make, on their devices and where it is moved."""
    graph, devices = loaded.graph, tasks.devices.tolist()
    readers, size = rows(graph.reader_ptr, graph.reader), graph.num_vertices
    moved: dict[int, list[tuple[int, int]]] = {}  # transfers and their targets, by tensor
    for k, tensor in enumerate(tasks.tensor.tolist()):
        moved.setdefault(tensor, []).append((size + k, int(tasks.target[k])))
    made: dict[tuple[int, int], Cell] = {}
    for t, v in enumerate(graph.tensor_producer.tolist()):
        if not is_piece(kernel_of(graph, v)):
            continue
        here = [r for r in readers[t] if devices[r] == devices[v]]
        users = [*here, *(task for task, _ in moved.get(t, ()))]
        made[t, devices[v]] = cells.new(v, users, kept=t in loaded.results)
        for task, target in moved.get(t, ()):
            there = [r for r in readers[t] if devices[r] == target]
            made[t, target] = cells.new(task, there, kept=False)
    return made
