"""One rank's part of the tasks of a run.

Which task comes next on a device depends only on what has arrived there. So every rank runs the
same scheduler over the tasks of its own devices and the transfers that enter or leave them, and
no rank waits for another but for tensors.

A transfer that crosses ranks is started by the rank that it leaves. Where it goes to memory that
was used before, its target tells the source when it may come: that is a grant, one short message.

With NCCL, which has no tags, both ranks start a transfer: each puts all of its sends and receives
in the order of the schedule, which is one for all ranks. This cannot deadlock, though every send
waits for its receive, and all that a rank sends to and receives from another goes through one
channel, in the order in which it was started:

- The schedule is a total order of all tasks in which each comes after what it needs, be it a tensor
  or memory. A rank starts its tasks in that order, and so does every slot, lane and channel.
- Let t be the first task of the order that never ends. All before it end. So do those that it
  needs, those ahead of it in its slot, lane or channel, and those that its ranks start earlier,
  however few these may have under way at a time.
- So each rank of t starts it, and it comes to the head of its slot or lane, or of its channel on
  both ranks: nothing is left to wait for, and it ends, against what was assumed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from doppler.errors import EngineError
from doppler.schedule import Schedule
from doppler.tasks import Tasks, TaskTable
from doppler.topology.topology import Link, Topology

OTHERS = Link("other ranks", bandwidth_bytes_per_s=np.inf, lanes=0)


@dataclass(frozen=True, slots=True)
class Part:
    """The tasks of one rank: those of the run, and behind them the grants."""

    table: TaskTable
    schedule: Schedule | None
    sends: dict[int, int]  # by task: the rank that it goes to
    receives: dict[int, int]  # and the rank that it comes from
    gives: dict[int, tuple[int, int]]  # by grant: the rank that gets it, and the transfer
    gets: dict[int, int]  # by grant that others give: its transfer
    is_mutual: bool = False  # whether both ranks start a transfer, in one order of all

    @property
    def outside(self) -> frozenset[int]:
        """What this rank does not start."""
        if self.is_mutual:
            return frozenset()
        return frozenset(self.receives) | frozenset(self.gets)


def with_others(topology: Topology) -> Topology:
    """The machine with one link more, without limits, for what other ranks start."""
    return replace(topology, links=(*topology.links, OTHERS))


def ends_of(tasks: Tasks, ranks: Sequence[int]) -> tuple[list[int], list[int]]:
    """The ranks that each transfer leaves and enters; the host's memory is that of the device."""
    num_devices = len(ranks)
    ends = []
    for a, b in ((tasks.source, tasks.target), (tasks.target, tasks.source)):
        found = np.where(a == num_devices, b, a)  # from or to the host: where the device is
        ends.append(np.array(ranks)[found].tolist() if len(found) else [])
    return ends[0], ends[1]


def part_of(
    tasks: Tasks,
    table: TaskTable,
    schedule: Schedule | None,
    topology: Topology,
    ranks: Sequence[int],
    rank: int,
    *,
    mutual: bool = False,
) -> Part:
    """What one of the ranks does of all tasks; `mutual` where both start what crosses."""
    size, (source, target) = tasks.num_vertices, ends_of(tasks, ranks)
    home = [ranks[d] if d >= 0 else -1 for d in tasks.devices.tolist()]  # of each exec
    _check_moves(tasks, table, source, len(ranks))
    sends, receives = dict[int, int](), dict[int, int]()
    here = [task for task in table.tasks if task < size and home[task] == rank]
    for task in table.tasks:
        k = task - size
        if k < 0 or rank not in (source[k], target[k]):
            continue
        here.append(task)
        if source[k] != target[k] and source[k] == rank:
            sends[task] = target[k]
        elif source[k] != target[k]:
            receives[task] = source[k]
    # Every rank counts the grants of all, so that a grant has the same number everywhere.
    needs: list[list[int]] = [[] for _ in table.needs]
    gives, gets = dict[int, tuple[int, int]](), dict[int, int]()
    for task, freeing in _freeing(table, size, home, source, target) if not mutual else ():
        k, grant = task - size, len(needs)
        needs.append(freeing if target[k] == rank else [])
        if target[k] == rank:
            gives[grant] = (source[k], task)
        elif source[k] == rank:
            gets[grant] = task
    mine = set(here)
    for task in here:
        if mutual or task not in receives:
            needs[task] = [need for need in table.needs[task] if need in mine]
    for grant, task in gets.items():
        needs[task].append(grant)
    here += [*gives, *gets]
    dependents: list[list[int]] = [[] for _ in needs]
    for task in here:
        for need in needs[task]:
            dependents[need].append(task)
    others = topology.num_devices + len(topology.links)
    resource = table.resource + [others] * (len(needs) - len(table.needs))
    for task in receives:
        resource[task] = others
    local = TaskTable(tasks=here, needs=needs, dependents=dependents, resource=resource)
    started = set(here) if mutual else mine - receives.keys()
    order = None if schedule is None else _order(schedule, started, gives)
    return Part(local, order, sends, receives, gives, gets, mutual)


def _freeing(
    table: TaskTable,
    size: int,
    home: Sequence[int],
    source: Sequence[int],
    target: Sequence[int],
) -> Iterator[tuple[int, list[int]]]:
    """Each transfer that crosses into memory used before, and what frees it on its target."""
    for task in table.tasks:
        k = task - size
        if k < 0 or source[k] == target[k]:
            continue
        found = [
            need
            for need in table.needs[task]
            if (home[need] if need < size else _own(need - size, source, target)) != source[k]
        ]
        if found:
            yield task, found


def _own(k: int, source: Sequence[int], target: Sequence[int]) -> int:
    """The rank within which a transfer is; -1 where it crosses."""
    return source[k] if source[k] == target[k] else -1


def _order(schedule: Schedule, started: set[int], gives: dict[int, tuple[int, int]]) -> Schedule:
    """The tasks that a rank starts in the order of all; a grant where its transfer is."""
    before = {task: grant for grant, (_, task) in gives.items()}
    tasks, rooms = [], []
    for task, room in zip(schedule.tasks.tolist(), schedule.rooms.tolist(), strict=True):
        if task in before:
            tasks.append(before[task])
            rooms.append(-1)
        elif task in started:
            tasks.append(task)
            rooms.append(room)
    return Schedule(np.array(tasks, np.int64), np.array(rooms, np.int64))


def _check_moves(tasks: Tasks, table: TaskTable, source: Sequence[int], num_devices: int) -> None:
    """A tensor that a memory plan moves to a host comes back on the same rank."""
    size, targets = tasks.num_vertices, tasks.target.tolist()
    for task in table.tasks:
        for need in table.needs[task] if task >= size else ():
            if need < size or targets[need - size] != num_devices:
                continue
            if source[task - size] != source[need - size]:
                raise EngineError(
                    "the memory plan evicts a tensor on one rank and loads it on another",
                    hint="use devices with more memory, or one process for both devices",
                )
