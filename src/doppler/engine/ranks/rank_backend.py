"""Backends of one rank: tasks of its own devices, and tensors from and to other ranks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch

from doppler.engine.backends.base import Action, Actions, Behind, Copy
from doppler.engine.backends.cpu import CpuBackend
from doppler.engine.pieces import Cell
from doppler.engine.ranks.dealing import local_topology
from doppler.engine.ranks.group import RESTART, Group, Sending, Trouble
from doppler.engine.ranks.own_part import Part, with_others
from doppler.errors import EngineError
from doppler.graph.graph import Graph
from doppler.tasks import Tasks
from doppler.topology.topology import Topology

SHORT_BYTES = 1 << 16  # are sent in less time than a thread takes to wake up


Like = tuple[tuple[int, ...], torch.dtype]  # shape and dtype of a tensor


class RankBackend(ABC):
    """What backends of one rank have in common, whatever their devices are."""

    group: Group
    ranks: Sequence[int]  # that run each device
    is_mutual: bool = False  # whether both ranks start a transfer
    _crossing: dict[int, tuple[int, str]]  # by transfer of the run: the other rank, what it moves

    def join(self, topology: Topology, group: Group, ranks: Sequence[int]) -> None:
        """Be the backend of a rank of this group."""
        self.group, self.ranks, self._crossing = group, ranks, {}
        self._others = len(topology.links)  # the link behind the last

    @property
    @abstractmethod
    def began_s(self) -> float:
        """When the run began, by the clock of this process."""

    @abstractmethod
    def prepare_part(
        self,
        graph: Graph,
        tasks: Tasks,
        actions: Actions,
        behind: Behind | None,
        part: Part,
        shapes: dict[int, Like],
    ) -> Any:
        """Commands for this rank's part; `shapes` are those of what crosses."""

    @abstractmethod
    def _has_ended(self, task: int) -> bool:
        """Whether a task of the run has ended."""

    def runs(self, device: int) -> bool:
        """Whether this rank has that device."""
        return self.ranks[device] == self.group.rank

    def check_trouble(self) -> None:
        """An error where a rank is gone, or has failed."""
        if self.group.trouble is not None:
            raise self.why(self.group.trouble)

    def why(self, trouble: Trouble) -> EngineError:
        """An error that names the rank, its host and a transfer that was waited for."""
        waiting = [
            what
            for task, (rank, what) in self._crossing.items()
            if rank == trouble.rank and not self._has_ended(task)
        ]
        more = f"; {waiting[0]}" if waiting else ""
        return EngineError(self.group.story(trouble) + more, hint=RESTART)


def crossing(graph: Graph, tasks: Tasks, part: Part) -> dict[int, tuple[int, str]]:
    """By transfer that crosses: the other rank, and what it moves, in words."""
    names, makers = graph.vertex_names, graph.tensor_producer[tasks.tensor].tolist()
    return {
        task: (rank, f"the output of vertex `{names[makers[task - graph.num_vertices]]}` {way}")
        for ranks, way in ((part.receives, "comes from there"), (part.sends, "goes there"))
        for task, rank in ranks.items()
    }


class Incoming(NamedTuple):
    """A tensor that another rank sends."""

    rank: int
    output: Any  # where it goes: a tensor, or a cell
    like: Like  # its shape, for a cell


class _Wire(NamedTuple):
    """Where a transfer to another rank goes; what copies to it sends."""

    group: Group
    rank: int
    task: int

    def copy_(self, value: Any) -> None:
        self.send(value).wait()

    def send(self, value: Any) -> Sending:
        tensor = value.value if isinstance(value, Cell) else value
        return self.group.send(tensor.contiguous(), self.rank, self.task)


class _RankCommands(NamedTuple):
    local: Any
    receives: dict[int, Incoming]
    grants: dict[int, int]  # by transfer: the task that ends when it may begin
    short: dict[int, Callable[[], Sending]]  # by transfer: begins to send it, and returns
    crossing: dict[int, tuple[int, str]]  # by transfer: the other rank, and what it moves
    outside: frozenset[int]  # tasks that other ranks start


class RankCpuBackend(RankBackend, CpuBackend):
    """Threads for the devices and links of this rank; other devices have no memory here."""

    def __init__(self, topology: Topology, group: Group, ranks: Sequence[int]) -> None:
        super().__init__(with_others(local_topology(topology, ranks, group.rank)))
        self.join(topology, group, ranks)
        self._outside: frozenset[int] = frozenset()
        self._short: dict[int, Callable[[], Sending]] = {}
        group.on_trouble = self.wake

    @property
    def began_s(self) -> float:
        """When the run began, by the clock of this process."""
        return self._began

    def prepare_part(
        self,
        graph: Graph,
        tasks: Tasks,
        actions: Actions,
        behind: Behind | None,
        part: Part,
        shapes: dict[int, Like],
    ) -> _RankCommands:
        """The jobs of this rank's part; `shapes` are those of what it receives."""
        found: list[Action | None] = [*actions, *[None] * (len(part.table.needs) - len(actions))]
        receives: dict[int, Incoming] = {}
        short: dict[int, Callable[[], Sending]] = {}
        moved = graph.tensor_bytes[tasks.tensor].tolist()
        for task, rank in part.sends.items():
            copy, wire = found[task], _Wire(self.group, rank, task)
            assert isinstance(copy, Copy)
            found[task] = copy._replace(output=wire)
            if behind is None and moved[task - graph.num_vertices] <= SHORT_BYTES:
                short[task] = partial(wire.send, copy.value)
        for task, rank in part.receives.items():
            copy = found[task]
            assert isinstance(copy, Copy)
            receives[task] = Incoming(rank, copy.output, shapes[task])
            found[task] = None
        for grant, (rank, task) in part.gives.items():
            give = partial(self.group.grant, rank, task)
            found[grant] = Copy(self._others, 0, 0, None, _Call(give))
        local = super().prepare(graph, tasks, found, behind)
        grants = {task: grant for grant, task in part.gets.items()}
        moves = crossing(graph, tasks, part)
        return _RankCommands(local, receives, grants, short, moves, part.outside)

    def begin(self, commands: Any, *, timed: bool = True) -> None:
        """Start the clock of a run, on all ranks at about the same time."""
        self.group.check()
        super().begin(commands.local, timed=timed)
        self._outside, self._crossing, run = commands.outside, commands.crossing, self._run
        self._short = commands.short
        rooms: dict[int, tuple[torch.Tensor, int]] = {}
        for task, (rank, output, like) in commands.receives.items():
            room = torch.empty(*like[:1], dtype=like[1]) if isinstance(output, Cell) else output
            rooms[task] = room, rank

        def arrived(task: int) -> None:
            output = commands.receives[task].output
            if isinstance(output, Cell):
                output.value = rooms[task][0]
            run.begin_s[task] = run.end_s[task] = perf_counter()
            run.finish(task, None)

        def granted(task: int) -> None:
            run.finish(commands.grants[task], None)

        self.group.post(rooms, arrived, granted)
        self.group.wait_for_all()
        self._began = perf_counter()

    def start(self, task: int) -> None:
        """Start a task; nothing where another rank does.

        A short tensor is sent at once, and a worker waits for the end of that.
        """
        if task in self._outside:
            return
        if task not in self._short:
            super().start(task)
            return
        began, sending = perf_counter(), self._short[task]()
        found = self._jobs[task]
        assert found is not None
        crew, job = found
        run = self._run

        def wait() -> None:
            run.begin_s[task] = began
            sending.wait()

        self._running[task] = crew
        self._crews[crew].jobs.put((job._replace(launches=(wait,)), run))

    def inline(self, commands: Any) -> None:
        """Not at all: other ranks take part."""

    def wait(self, timeout_s: float) -> list[int]:
        """The tasks that ended; an error where a rank is gone."""
        done = super().wait(timeout_s)
        if not done:
            self.check_trouble()
        return done

    def _has_ended(self, task: int) -> bool:
        return bool(self._run.end_s[task])

    def arena(self, device: int, size: int) -> torch.Tensor:
        """Memory of a device of this rank; for others, a tensor without any."""
        if not self.runs(device):
            return torch.empty(size, dtype=torch.uint8, device="meta")
        return super().arena(device, size)


class _Call(NamedTuple):
    """What to do where a copy would be made."""

    call: Any

    def copy_(self, value: Any) -> None:
        self.call()
