"""Eviction: what leaves a device's memory, and when it comes back, along an order of the tasks.

Execs run in the given order. A transfer is made where it comes if its copy fits then, and otherwise
when its first reader wants it, as are inputs that arrive and tensors that have to come back from
the host. Where a task does not fit, the tensor whose next use is furthest away leaves (Belady). It
is copied to the host unless the host has it: inputs and what was evicted before are dropped.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from doppler.base.arrays import IntArray, rows
from doppler.errors import ConfigError, OutOfMemoryError
from doppler.problem import Problem
from doppler.scheduler.memory import in_place
from doppler.scheduler.places import IN_PLACE, UNDONE, TensorCopy, kept_tensors, memory_sizes
from doppler.tasks import Tasks

Key = tuple[int, int]  # a tensor and a device


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionConfig:
    """How the tensor that leaves is chosen."""

    # A tensor that can be dropped without a transfer is preferred if its next use is at most this
    # share nearer than the furthest one.
    near: float = 0.1
    candidates: int = 8  # tensors compared, furthest next use first

    def __post_init__(self) -> None:
        if not 0 <= self.near <= 1 or self.candidates < 1:
            raise ConfigError("near must be between 0 and 1, candidates at least 1")


@dataclass(frozen=True, slots=True)
class Walk:
    """The tasks, moves among them, in an order in which all fits; move m is task V + K + m."""

    order: list[int]
    copies: list[TensorCopy]
    moves: list[TensorCopy]  # what each move loads, or evicts
    is_load: list[bool]


def walk(
    problem: Problem, tasks: Tasks, order: IntArray, limits: Sequence[float], config: EvictionConfig
) -> Walk:
    """What moves where, for devices of these `limits` in bytes.

    `order` are the tasks, without moves. An `OutOfMemoryError` where what one task reads and makes
    does not fit.
    """
    return _Walker(problem, tasks, order, limits, config).run()


def walk_in_place(
    problem: Problem, tasks: Tasks, order: IntArray, limits: Sequence[float], config: EvictionConfig
) -> Walk | None:
    """The walk if nothing has to move, as `walk` gives it; else None."""
    try:
        return _Walker(problem, tasks, order, limits, config, may_move=False).run()
    except _MoveNeeded:
        return None


class _MoveNeeded(Exception):  # noqa: N818
    """Something has to move where nothing may."""


class _Walker:
    def __init__(
        self,
        problem: Problem,
        tasks: Tasks,
        order: IntArray,
        limits: Sequence[float],
        config: EvictionConfig,
        *,
        may_move: bool = True,
    ) -> None:
        self._may_move = may_move
        graph, self._topology = problem.graph, problem.topology
        self._graph, self._config, self._size = graph, config, graph.num_vertices
        self._bytes, self._temporaries = memory_sizes(graph)
        self._device: list[int] = tasks.devices.tolist()
        columns = (tasks.tensor, tasks.source, tasks.target)
        self._transfers = list(zip(*(column.tolist() for column in columns), strict=True))
        self._outputs = rows(graph.output_ptr, graph.output_tensor)
        self._host = self._topology.num_devices
        is_input = graph.is_input[graph.tensor_producer]
        takes_memory = graph.arrives | graph.stays | ~graph.is_input
        counted = takes_memory[graph.tensor_producer].tolist()
        reads = rows(graph.read_ptr, graph.read_tensor)
        self._reads = [[t for t in tensors if counted[t]] for tensors in reads]
        self._on_host: list[bool] = is_input.tolist()
        self._is_kept = kept_tensors(graph)

        self._order: list[int] = order.tolist()
        self._free = list(limits)
        self._now = 0
        self._bringer = {(t, d): self._size + k for k, (t, _, d) in enumerate(self._transfers)}
        self._is_done = bytearray(self._size + len(self._transfers))
        self._present: dict[Key, TensorCopy] = {}
        self._heaps: list[list[tuple[int, Key]]] = [[] for _ in range(self._host)]  # (-use, key)
        self._found = Walk([], [], [], [])
        self._list_uses()
        for tensor, device in in_place(graph, tasks):
            self._put(TensorCopy(tensor, device, IN_PLACE))

    def _list_uses(self) -> None:
        """The positions at which each (tensor, device) is used; a transfer uses its source."""
        self._position = [0] * len(self._is_done)
        for position, task in enumerate(self._order):
            self._position[task] = position
        self._uses: dict[Key, list[tuple[int, int]]] = {}  # heaps of (position, task)
        self._left: dict[Key, int] = {}
        self._first: dict[Key, int] = {}  # position of the first exec that reads it there
        for position, task in enumerate(self._order):
            for key in self._used_by(task):
                self._uses.setdefault(key, []).append((position, task))
                self._left[key] = self._left.get(key, 0) + 1
                if task < self._size:
                    self._first.setdefault(key, position)

    def _used_by(self, task: int) -> list[Key]:
        if task < self._size:
            return [(tensor, self._device[task]) for tensor in self._reads[task]]
        tensor, source, _ = self._transfers[task - self._size]
        return [] if source == self._host else [(tensor, source)]

    def run(self) -> Walk:
        """Go through the order."""
        for device in range(self._host):
            self._make_room(device, 0, ())
        for position, task in enumerate(self._order):
            self._now = position
            if task < self._size:
                self._exec(task)
            else:
                self._offer(task)
        found = self._found
        return Walk(
            [task for task in found.order if task >= 0],
            [c for c in found.copies if c.writer >= 0 or (c.writer == IN_PLACE and c.users)],
            found.moves,
            found.is_load,
        )

    def _exec(self, task: int) -> None:
        device, keys = self._device[task], self._used_by(task)
        missing = [key for key in keys if key not in self._present]
        made = sum(self._bytes[t] for t in self._outputs[task])
        room = made + self._temporaries[task] + sum(self._bytes[t] for t, _ in missing)
        self._make_room(device, room, keys, task)
        for key in missing:
            self._bring(key)
        self._found.order.append(task)
        for tensor in self._outputs[task]:
            self._put(TensorCopy(tensor, device, task, is_kept=self._is_kept[tensor]))
        self._use(task, keys)

    def _offer(self, task: int) -> None:
        """Make a transfer if its copy fits; otherwise its first reader will ask for it."""
        tensor, source, target = self._transfers[task - self._size]
        if self._is_done[task] or source == self._host:
            return
        if self._bytes[tensor] <= self._free[target] and (tensor, source) in self._present:
            self._transfer(task)
        else:
            self._defer(task)

    def _defer(self, task: int) -> None:
        tensor, source, target = self._transfers[task - self._size]
        self._position[task] = self._first[tensor, target]
        heappush(self._uses[tensor, source], (self._position[task], task))
        self._rank((tensor, source))

    def _bring(self, key: Key) -> None:
        """Put a tensor on a device that has room for it: by its transfer, or by a load."""
        task = self._bringer.get(key)
        if task is None or self._is_done[task]:
            self._load(key)
            return
        tensor, source, _ = self._transfers[task - self._size]
        if source != self._host and (tensor, source) not in self._present:
            self._make_room(source, self._bytes[tensor], (), task)
            self._load((tensor, source))
        self._transfer(task)

    def _transfer(self, task: int) -> None:
        tensor, _, target = self._transfers[task - self._size]
        self._found.order.append(task)
        self._put(TensorCopy(tensor, target, task))
        self._use(task, self._used_by(task))

    def _load(self, key: Key) -> None:
        self._put(self._move(TensorCopy(*key, writer=0), is_load=True))

    def _move(self, copy: TensorCopy, *, is_load: bool) -> TensorCopy:
        """Add a move of a copy to the order; of a load, it is the writer, else a user."""
        if not self._may_move:
            raise _MoveNeeded
        task = self._size + len(self._transfers) + len(self._found.moves)
        if is_load:
            copy.writer = task
        else:
            copy.users.append(task)
        self._found.moves.append(copy)
        self._found.is_load.append(is_load)
        self._found.order.append(task)
        return copy

    def _put(self, copy: TensorCopy) -> None:
        key, copy.at = (copy.tensor, copy.device), len(self._found.order) - 1
        self._found.copies.append(copy)
        self._present[key] = copy
        self._free[copy.device] -= self._bytes[copy.tensor]
        self._rank(key)

    def _use(self, task: int, keys: Iterable[Key]) -> None:
        """A task reads copies: those that nobody else will read leave."""
        self._is_done[task] = True
        for key in keys:
            copy = self._present[key]
            copy.users.append(task)
            self._left[key] -= 1
            if self._left[key] or copy.is_kept:
                self._rank(key)
            else:
                self._take_away(key)

    def _take_away(self, key: Key) -> TensorCopy:
        self._free[key[1]] += self._bytes[key[0]]
        return self._present.pop(key)

    def _next_use(self, key: Key) -> int:
        """The position of the next use of a copy; the end, for a result that nobody reads more."""
        if not self._left.get(key):
            return len(self._order)
        uses = self._uses[key]
        while self._is_done[uses[0][1]] or self._position[uses[0][1]] != uses[0][0]:
            heappop(uses)
        return uses[0][0]

    def _rank(self, key: Key) -> None:
        """Make a copy a candidate to leave, by its next use; empty ones never are."""
        if key in self._present and self._bytes[key[0]]:
            heappush(self._heaps[key[1]], (-self._next_use(key), key))

    def _make_room(self, device: int, need: int, pinned: Sequence[Key], task: int = -1) -> None:
        while self._free[device] < need:
            key = self._victim(device, pinned)
            if key is None:
                raise self._error(device, need, task)
            self._send_away(key)

    def _victim(self, device: int, pinned: Sequence[Key]) -> Key | None:
        """The copy to leave next: that with the furthest next use, or one nearly so for free."""
        heap, aside = self._heaps[device], []
        found: list[tuple[int, Key]] = []
        while heap and len(found) < self._config.candidates:
            entry = heappop(heap)
            use, key = -entry[0], entry[1]
            if key not in self._present or self._next_use(key) != use:
                continue
            aside.append(entry)
            if key not in pinned and all(key != other for _, other in found):
                found.append((use, key))
        for entry in aside:
            heappush(heap, entry)
        if not found:
            return None
        far = found[0][0] - (found[0][0] - self._now) * self._config.near
        free = (key for use, key in found if use >= far and self._is_free(key))
        return next(free, found[0][1])

    def _is_free(self, key: Key) -> bool:
        return self._on_host[key[0]] or self._source_of(key) is not None

    def _source_of(self, key: Key) -> Key | None:
        """Where a copy that was transferred too early can be transferred from again."""
        copy = self._present[key]
        if copy.users or not self._size <= copy.writer < len(self._is_done):
            return None
        tensor, source, _ = self._transfers[copy.writer - self._size]
        origin = self._present.get((tensor, source))
        return (tensor, source) if origin is not None and copy.writer in origin.users else None

    def _send_away(self, key: Key) -> None:
        """Let a copy leave: undo its transfer, drop it, or evict it."""
        source = self._source_of(key)
        if source is None and not self._on_host[key[0]] and self._transfer_all(key):
            return
        copy = self._take_away(key)
        if source is not None:
            task, copy.writer = copy.writer, UNDONE
            self._found.order[copy.at] = UNDONE
            self._present[source].users.remove(task)
            self._left[source] += 1
            self._is_done[task] = False
            self._defer(task)
        elif not self._on_host[key[0]]:
            self._move(copy, is_load=False)
            self._on_host[key[0]] = True
            copy.is_kept = False

    def _transfer_all(self, key: Key) -> bool:
        """Make the transfers of a copy that fit now; whether nobody else needs it then."""
        uses = self._uses.get(key, [])
        waiting = sorted({task for _, task in uses if not self._is_done[task]})
        for task in waiting:
            if task < self._size:
                return False
        for task in waiting:
            if self._bytes[key[0]] <= self._free[self._transfers[task - self._size][2]]:
                self._transfer(task)
        return key not in self._present

    def _error(self, device: int, need: int, task: int) -> OutOfMemoryError:
        where = self._topology.devices[device]
        what = "what is there"
        if 0 <= task < self._size:
            what = f"what vertex `{self._graph.vertex_names[task]}` reads and makes"
        elif task >= 0:
            producer = self._graph.tensor_producer[self._transfers[task - self._size][0]]
            what = f"the output of vertex `{self._graph.vertex_names[producer]}`"
        return OutOfMemoryError(
            f"device `{where.name}` is out of memory: {what} does not fit into its "
            f"{where.memory_bytes:.0f} bytes, even if all else goes to the host",
            hint="cut the graph finer, or use devices with more memory",
        )
