"""The CUDA backend of one rank: tensors cross through pinned memory and gloo, or by NCCL.

Over gloo, a tensor is copied to pinned memory on a stream of its link. When that has ended it is
sent; the other rank receives into pinned memory of its own, and copies to the device on another
stream: only then has it arrived. The listening threads of the group only note what came. The thread
that drives the run queues all work of the GPU, whenever it asks what has ended.

In a fixed order the host is ahead of the streams, but an event can only be waited for once it is
recorded. So a task that needs what another rank has not sent yet is held back, with all behind it
in its slot or lane, and queued when that has come.
"""

from collections.abc import Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import perf_counter, sleep
from typing import NamedTuple

import torch

from doppler.engine.backends.addresses import addresses
from doppler.engine.backends.base import Action, Actions, Behind, Copy, Exec, TaskError
from doppler.engine.backends.cuda import CudaBackend
from doppler.engine.backends.cuda_commands import CudaCommands, Events, Start, Wiring
from doppler.engine.backends.driver import Address
from doppler.engine.backends.lanes import IN, OUT, Lane
from doppler.engine.backends.workers import GRACE_S, Crew, Job, SharedRun, hire, join
from doppler.engine.config import NCCL
from doppler.engine.pieces import Cell
from doppler.engine.ranks.dealing import local_topology, split_address
from doppler.engine.ranks.group import Group
from doppler.engine.ranks.nccl import Nccl, Post, nccl_of, new_room
from doppler.engine.ranks.own_part import Part, with_others
from doppler.engine.ranks.rank_backend import SHORT_BYTES, Like, RankBackend, crossing
from doppler.graph.graph import Graph
from doppler.sharding.temporaries import aligned_bytes
from doppler.tasks import Tasks, TaskTable
from doppler.topology.topology import Topology

SENDERS = 4  # threads that send what is long, and wait for its end
_LaneKey = tuple[int, int, int]  # of devices or links, which, and the slot or lane
_NO_PART = Part(TaskTable([], [], [], []), None, {}, {}, {}, {})


class _Crossing(NamedTuple):
    """What crosses in a run, and what it waits for."""

    part: Part
    words: dict[int, tuple[int, str]]  # by transfer: the other rank, and what it moves
    pinned: dict[int, torch.Tensor]  # by transfer: its bytes on the host; none with NCCL
    behind: Behind | None

    @property
    def grants(self) -> dict[int, int]:
        """By transfer: the task that ends when it may begin."""
        return {task: grant for grant, task in self.part.gets.items()}


class _RankCommands(CudaCommands):
    """The tasks of a rank as calls; those that NCCL moves go on streams for the other rank."""

    def __init__(
        self,
        wiring: Wiring,
        actions: Actions,
        behind: Behind | None,
        lanes: dict[int, Lane],
        crossing: _Crossing,
    ) -> None:
        """`lanes` are those of NCCL, by rank."""
        super().__init__(wiring, actions, behind)
        self._peers, self.crossing = lanes, crossing

    def _start(self, task: int, action: Action, events: Events) -> Start:
        post = action.output if isinstance(action, Copy) else None
        if not isinstance(post, Post):
            return super()._start(task, action, events)
        lane = self._peers[post.peer]
        stream = lane.stream(next(iter(self._wiring.whole.values())), OUT)
        return Start([self._on_stream(task, stream, (post.launch,), events)], [lane])


class _Run:
    """What is known of a run under way. Other threads put into its queues."""

    def __init__(self, crossing: _Crossing, count: int) -> None:
        self.crossing, self.grants = crossing, crossing.grants
        self.came: SimpleQueue[int] = SimpleQueue()  # tensors on the host, and grants
        self.sending = SharedRun(count, behind=False)
        self.queued: set[int] = set()  # tasks on a stream, and grants that came
        self.over: set[int] = set()
        self.held: list[int] = []  # tasks that were started, but need what has not come
        self.held_lanes: set[_LaneKey] = set()
        self.seen = 0  # tasks queued and over when those that are held were looked at


class RankCudaBackend(RankBackend, CudaBackend):
    """Streams for the devices and links of this rank; other devices have no memory here.

    Processes may share a GPU, each with parts of its own: `cuda:0/0of4` and `cuda:0/1of4` in one,
    `cuda:0/2of4` and `cuda:0/3of4` in another. Without NVIDIA's MPS the GPU runs one process at a
    time, in turns.
    """

    def __init__(
        self, topology: Topology, group: Group, ranks: Sequence[int], transport: str
    ) -> None:
        self.join(topology, group, ranks)
        self._all = topology
        self._senders = Crew("to other ranks", SENDERS, (), 1)
        self._pinned = torch.empty(0, dtype=torch.uint8)
        self._peers = {rank: Lane() for rank in range(group.size)}  # for NCCL
        self._nccl: Nccl | None = None
        self._now = _Run(_Crossing(_NO_PART, {}, {}, None), 0)
        super().__init__(with_others(local_topology(topology, ranks, group.rank)))
        if transport == NCCL:
            mine = [gpu for device, gpu in enumerate(self._gpus) if self.runs(device)]
            self._nccl, self.is_mutual = nccl_of(group, mine), True
        group.on_trouble = self.wake

    @property
    def began_s(self) -> float:
        """When the run began, by the clock of this process."""
        return self._zero

    def _where(self, topology: Topology, gpus: int) -> list[Address]:
        """Those of this rank's devices; for others, which are never used, that of the first."""
        split = [split_address(device.address) for device in self._all.devices]
        mine = [d for d in range(topology.num_devices) if self.runs(d)]
        alike = [d for d, (host, _) in enumerate(split) if host == split[mine[0]][0]]
        pairs = zip(self._all.devices, split, strict=True)
        plain = tuple(replace(device, address=local) for device, (_, local) in pairs)
        named = addresses(replace(self._all, devices=plain), gpus, alike)
        found = dict(zip(alike, named, strict=True))
        return [found[d] if d in mine else Address(found[mine[0]].gpu) for d in range(len(split))]

    def _is_here(self, device: int) -> bool:
        return self.runs(device)

    # What is prepared.

    def prepare_part(
        self,
        graph: Graph,
        tasks: Tasks,
        actions: Actions,
        behind: Behind | None,
        part: Part,
        shapes: dict[int, Like],
    ) -> _RankCommands:
        """The calls of this rank's part; tensors that cross go through memory of the host."""
        found: list[Action | None] = [*actions, *[None] * (len(part.table.needs) - len(actions))]
        pinned = {} if self._nccl else self._rooms(part, shapes)
        for task in [*part.sends, *part.receives]:
            copy = found[task]
            assert isinstance(copy, Copy)
            found[task] = (
                self._posted(copy, task, part, shapes[task])
                if self._nccl
                else self._half(copy, task, part, _shaped(copy, pinned[task], shapes[task]))
            )
        self._next = _Crossing(part, crossing(graph, tasks, part), pinned, behind)
        commands = super().prepare(graph, tasks, found, behind)
        assert isinstance(commands, _RankCommands)
        return commands

    def _commands_for(self, actions: Actions, behind: Behind | None) -> CudaCommands:
        return _RankCommands(self._wiring, actions, behind, self._peers, self._next)

    def _rooms(self, part: Part, shapes: dict[int, Like]) -> dict[int, torch.Tensor]:
        """Pinned memory for each tensor that crosses, of its own: receives are posted before."""
        tasks = [*part.sends, *part.receives]
        sizes = [torch.Size(shapes[task][0]).numel() * shapes[task][1].itemsize for task in tasks]
        total = sum(aligned_bytes(size) for size in sizes)
        if self._pinned.numel() < total:  # who uses the old one keeps it
            self._pinned = self.host_memory(total)
        rooms, at = dict[int, torch.Tensor](), 0
        for task, size in zip(tasks, sizes, strict=True):
            rooms[task] = self._pinned[at : at + size]
            at += aligned_bytes(size)
        return rooms

    def _half(self, copy: Copy, task: int, part: Part, room: torch.Tensor) -> Copy:
        """The copy to memory of the host, or from there."""
        if task in part.sends:
            return copy._replace(target=self._wiring.host, output=room)
        return copy._replace(link=self._others, source=self._wiring.host, value=room)

    def _posted(self, copy: Copy, task: int, part: Part, like: Like) -> Copy:
        """What NCCL sends or receives, as the output of a copy from or to the host."""
        assert self._nccl is not None
        gpu, host = self._nccl.gpu, self._wiring.host
        if task in part.sends:
            post = self._nccl.send(copy.value, part.sends[task])
            return copy._replace(target=host, output=post)
        rank = part.receives[task]
        rooms = self._peers[rank].stream(self._wiring.whole[gpu], IN)
        post = self._nccl.receive(copy.output, rank, new_room(like, gpu, rooms))
        return copy._replace(source=host, value=None, output=post)

    def _get_links_ready(self, copies: Sequence[Copy]) -> None:
        super()._get_links_ready([copy for copy in copies if not isinstance(copy.output, Post)])

    # A run.

    def begin(self, commands: CudaCommands, *, timed: bool = True) -> None:
        """Start the clock of a run, on all ranks at about the same time."""
        assert isinstance(commands, _RankCommands)
        self.group.check()
        super().begin(commands, timed=timed)
        hire([self._senders])
        now = self._now = _Run(commands.crossing, len(commands.actions))
        part, pinned = now.crossing.part, now.crossing.pinned
        self._crossing = now.crossing.words
        self.group.post(
            {task: (pinned[task], rank) for task, rank in part.receives.items() if task in pinned},
            now.came.put,
            lambda task: now.came.put(now.grants[task]),
        )
        self.group.wait_for_all()
        self._zero = perf_counter()

    def start(self, task: int) -> None:
        """Start a task; nothing where another rank does."""
        now = self._now
        if task in now.crossing.part.outside:
            return
        lane = self._lane_of(task)
        if self._may_go(task) and lane not in now.held_lanes:
            self._go(task)
        else:
            now.held.append(task)
            now.held_lanes.add(lane)

    def start_all(self, tasks: Sequence[int]) -> None:
        """Start all tasks one after the other: other ranks take part."""
        for task in tasks:
            self.start(task)

    def wait(self, timeout_s: float) -> list[int]:
        """The tasks that ended; an error where a rank is gone."""
        done = super().wait(timeout_s)
        if not done:
            self.check_trouble()
        return done

    def _may_go(self, task: int) -> bool:
        """Whether all that a task needs is queued before it, or over where the host acts."""
        now = self._now
        if now.crossing.behind is None:
            return True
        needs = now.crossing.part.table.needs[task]
        return (now.over if task in now.crossing.part.gives else now.queued).issuperset(needs)

    def _lane_of(self, task: int) -> _LaneKey:
        """The slot or the lane of a task in a fixed order."""
        behind = self._now.crossing.behind
        room = -1 if behind is None else behind.rooms[task]
        if room < 0:
            return (-1, task, -1)
        assert self._commands is not None
        action = self._commands.actions[task]
        if isinstance(action, Exec):
            return (0, action.device, room)
        assert isinstance(action, Copy)
        return (1, action.link, room)

    def _go(self, task: int) -> None:
        """Queue a task, or tell another rank that it may send."""
        now, gives = self._now, self._now.crossing.part.gives
        if task in gives:
            self.group.grant(*gives[task])
            now.sending.finish(task, None)
        else:
            super().start(task)
            now.queued.add(task)

    def _ended(self) -> list[int]:
        """The tasks that ended since the last call; what came is queued, what left is sent."""
        now = self._now
        done = self._take_what_came()
        for task in super()._ended():
            if task in now.crossing.pinned and task in now.crossing.part.sends:
                self._send(task)
            else:
                done.append(task)
        done += self._sent()
        now.over.update(done)
        if now.held and now.seen != len(now.queued) + len(now.over):
            self._go_on()
        if not done:
            sleep(0)  # or threads that note what came would wait for this one
        return done

    def _take_what_came(self) -> list[int]:
        """Queue the copies of tensors that came; the grants among what came."""
        now, grants = self._now, list[int]()
        while not now.came.empty():
            task = now.came.get()
            if task in now.crossing.part.receives:
                self._queue(task)
            else:
                now.queued.add(task)
                grants.append(task)
        return grants

    def _queue(self, task: int) -> None:
        try:
            self._go(task)
        except Exception as error:
            raise TaskError(task, error) from error

    def _go_on(self) -> None:
        """Queue what was held back, and can go now; in order within a slot or lane."""
        now, held, lanes = self._now, list[int](), set[_LaneKey]()
        for task in now.held:
            lane = self._lane_of(task)
            if lane not in lanes and self._may_go(task):
                self._queue(task)
            else:
                lanes.add(lane)
                held.append(task)
        now.held, now.held_lanes, now.seen = held, lanes, len(now.queued) + len(now.over)

    def _send(self, task: int) -> None:
        """Send what is on the host; what is short at once, and a thread waits for its end."""
        now, rank = self._now, self._now.crossing.part.sends[task]
        value, group = now.crossing.pinned[task], self.group
        if value.nbytes <= SHORT_BYTES:
            wait = group.send(value, rank, task).wait
        else:

            def wait() -> None:
                group.send(value, rank, task).wait()

        self._senders.jobs.put((Job(task, (wait,)), now.sending))

    def _sent(self) -> list[int]:
        """The tasks whose tensors were sent."""
        done: list[int] = []
        ended = self._now.sending.ended
        try:
            while (each := ended.get_nowait()) is not None:
                task, error = each
                if error is not None:
                    raise TaskError(task, error) from error
                done.append(task)
        except Empty:
            pass
        return done

    def _has_ended(self, task: int) -> bool:
        return task in self._now.over

    # The end.

    def stop(self, grace_s: float | None = None) -> None:
        """Wait a moment for what still runs."""
        self._senders.drain()
        self._now = _Run(_Crossing(_NO_PART, {}, {}, None), 0)
        if self._nccl is not None and self.group.trouble is not None:
            self._nccl.abort()
        super().stop(grace_s)

    def close(self) -> None:
        """Give back threads, streams and memory."""
        workers = self._senders.workers
        self._senders.dismiss()
        self._senders = self._senders.successor()
        join(workers, GRACE_S)
        super().close()
        self._pinned = torch.empty(0, dtype=torch.uint8)

    def _all_lanes(self) -> list[Lane]:
        return [*super()._all_lanes(), *self._peers.values()]

    def arena(self, device: int, size: int) -> torch.Tensor:
        """Memory of a device of this rank; for others, a tensor without any."""
        if not self.runs(device):
            return torch.empty(size, dtype=torch.uint8, device="meta")
        return super().arena(device, size)


def _shaped(copy: Copy, room: torch.Tensor, like: Like) -> torch.Tensor:
    """Memory of the host as what a cell holds; as it is where bytes are copied."""
    if isinstance(copy.value, Cell) or isinstance(copy.output, Cell):
        return room.view(like[1]).view(like[0])
    return room
