"""Layout: where in its device's memory every task writes, decided before a run.

Every task writes one buffer, on the device it runs on or moves a tensor to. Where memory allows,
each has a place of its own. Where it does not, places are used again along a planned order: the
best fit among what was freed. Each such use adds a dependency, the new writer after the old
readers, so that whatever order a run takes, nothing is overwritten that is still needed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from doppler.errors import OutOfMemoryError
from doppler.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Buffers:
    """What the tasks of an assignment write, by task; tasks are numbered as in `Tasks`."""

    tasks: Sequence[int]  # those that there are
    device: Sequence[int]  # whose memory each writes to
    size: Sequence[int]  # bytes of each output, aligned
    scratch: Sequence[int]  # bytes of its intermediate tensors
    readers: Sequence[Sequence[int]]  # the tasks that read each output
    kept: frozenset[int]  # tasks whose outputs are results and stay


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets of the buffers in one arena per device."""

    offset: list[int]  # (N,) of each task's output
    scratch: list[int]  # (N,) of its intermediate tensors
    arena_bytes: list[int]  # (D,)
    after: list[tuple[int, int]] = field(default_factory=list)  # a task, and one to wait for


def make_layout(
    buffers: Buffers, topology: Topology, order: Callable[[], Sequence[int]], *, limit: bool = True
) -> Layout:
    """A layout that fits the devices' memory; without a `limit`, every buffer has its own place.

    `order` gives the planned order of the tasks, and is only called where places must be shared.
    """
    apart = _apart(buffers, topology)
    limits = [device.memory_bytes for device in topology.devices]
    full = [d for d, size in enumerate(apart.arena_bytes) if size > limits[d]]
    if not limit or not full:
        return apart
    shared = _shared(buffers, topology, order(), set(full), apart)
    for d in full:
        if shared.arena_bytes[d] > limits[d]:
            raise OutOfMemoryError(
                f"device `{topology.devices[d].name}` is out of memory: its tensors take "
                f"{shared.arena_bytes[d]} bytes, and it has {limits[d]:.0f}",
                hint="spread the vertices over more devices, or use one with more memory",
            )
    return shared


def live_bytes(buffers: Buffers, num_devices: int, order: Sequence[int]) -> list[int]:
    """(D,) the most bytes that are in use at a time along an order: no layout takes less."""
    now, most = [0] * num_devices, [0] * num_devices
    left = [len(readers) for readers in buffers.readers]
    sources = _sources(buffers)
    for task in order:
        d = buffers.device[task]
        now[d] += buffers.size[task]
        most[d] = max(most[d], now[d] + buffers.scratch[task])
        for source in sources[task]:
            left[source] -= 1
            if not left[source] and source not in buffers.kept:
                now[buffers.device[source]] -= buffers.size[source]
    return most


def _apart(buffers: Buffers, topology: Topology) -> Layout:
    """Every buffer in a place of its own; one scratch for the tasks of a device that has one slot.

    A transfer has no scratch, so tasks that use that of a device run one after the other.
    """
    count = len(buffers.size)
    offset, scratch, top = [0] * count, [0] * count, [0] * topology.num_devices
    for d, size in _common_scratch(buffers, topology):
        top[d] = size
    for task in buffers.tasks:
        d = buffers.device[task]
        offset[task] = top[d]
        top[d] += buffers.size[task]
        if topology.devices[d].slots > 1:
            scratch[task] = top[d]
            top[d] += buffers.scratch[task]
    return Layout(offset, scratch, top)


def _common_scratch(buffers: Buffers, topology: Topology) -> Iterator[tuple[int, int]]:
    """The devices with one slot, and the most scratch that a task needs there."""
    most = [0] * topology.num_devices
    for task in buffers.tasks:
        most[buffers.device[task]] = max(most[buffers.device[task]], buffers.scratch[task])
    for d, device in enumerate(topology.devices):
        if device.slots == 1:
            yield d, most[d]


def _shared(
    buffers: Buffers, topology: Topology, order: Sequence[int], full: set[int], apart: Layout
) -> Layout:
    """Places used again on the devices that are `full`, along an order."""
    offset, scratch = list(apart.offset), list(apart.scratch)
    common = dict(_common_scratch(buffers, topology))
    arenas = {d: _Arena(common.get(d, 0)) for d in sorted(full)}
    left, sources = [len(readers) for readers in buffers.readers], _sources(buffers)
    after: dict[tuple[int, int], None] = {}
    for task in order:
        d = buffers.device[task]
        if d in arenas:
            offset[task], blockers = arenas[d].take(buffers.size[task])
            if topology.devices[d].slots > 1 and buffers.scratch[task]:
                scratch[task], others = arenas[d].take(buffers.scratch[task])
                arenas[d].give(scratch[task], buffers.scratch[task], (task,))
                blockers = blockers | others
            after.update(((task, other), None) for other in sorted(blockers))
        for source in sources[task]:
            left[source] -= 1
            there = arenas.get(buffers.device[source])
            if not left[source] and source not in buffers.kept and there is not None:
                there.give(offset[source], buffers.size[source], buffers.readers[source])
    arena_bytes = list(apart.arena_bytes)
    for d, arena in arenas.items():
        arena_bytes[d] = arena.top
    return Layout(offset, scratch, arena_bytes, list(after))


def _sources(buffers: Buffers) -> list[list[int]]:
    """The tasks whose outputs each task reads."""
    sources: list[list[int]] = [[] for _ in buffers.size]
    for task in buffers.tasks:
        for reader in buffers.readers[task]:
            sources[reader].append(task)
    return sources


class _Arena:
    """The free segments of one device's memory, and who must be done before each is written."""

    def __init__(self, top: int) -> None:
        self.top = top
        self._free: list[tuple[int, int, frozenset[int]]] = []  # begin, end, tasks; by begin

    def take(self, size: int) -> tuple[int, frozenset[int]]:
        """An offset for `size` bytes, and the tasks that must be done before they are written."""
        if size == 0:
            return 0, frozenset()
        holes = [hole for hole in self._holes() if hole[1] - hole[0] >= size]
        if holes:
            begin = min(holes, key=lambda hole: (hole[1] - hole[0], hole[0]))[0]
        else:
            last = max(self._holes(), key=lambda hole: hole[1], default=(self.top, self.top))
            begin = last[0] if last[1] == self.top else self.top
        end, blockers = begin + size, frozenset[int]()
        rest: list[tuple[int, int, frozenset[int]]] = []
        for low, high, tasks in self._free:
            if high <= begin or low >= end:
                rest.append((low, high, tasks))
                continue
            blockers |= tasks
            if high > end:
                rest.append((end, high, tasks))
        self._free, self.top = rest, max(self.top, end)
        return begin, blockers

    def give(self, offset: int, size: int, tasks: Sequence[int]) -> None:
        """Free bytes that these tasks used."""
        if size:
            self._free.append((offset, offset + size, frozenset(tasks)))
            self._free.sort(key=lambda segment: segment[0])

    def _holes(self) -> list[tuple[int, int]]:
        """Runs of adjacent free segments."""
        holes: list[tuple[int, int]] = []
        for low, high, _ in self._free:
            if holes and holes[-1][1] == low:
                holes[-1] = (holes[-1][0], high)
            else:
                holes.append((low, high))
        return holes
