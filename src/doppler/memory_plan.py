"""MemoryPlan: moves between devices and the host that make an assignment fit into memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray, frozen, integers
from doppler.base.files import check_keys
from doppler.base.notebook import html_line
from doppler.errors import AssignmentError, FormatError
from doppler.graph.graph import Graph
from doppler.tasks import Tasks, dependencies, task_levels, with_moves
from doppler.topology.topology import Topology

_COLUMNS = ("tensor", "device", "is_load", "ptr", "user", "needed", "needs")


@dataclass(frozen=True, slots=True, eq=False)
class MemoryPlan:
    """Moves between devices and the host that make an assignment fit, and who waits for whom.

    Move m is task V + K + m: it follows the execs and the K transfers of the assignment. An
    eviction copies a tensor to the host, where it stays from then on; inputs are there anyway. A
    load brings it back. What a device holds and the host has too is dropped for free. So an input
    that stays is in memory until its last use only, and a result that is evicted ends on the host.

    >>> MemoryPlan([3], [0], [False], [0, 0], [], [], [])
    <MemoryPlan: 1 eviction, 0 loads>
    """

    tensor: IntArray  # (M,) tensor that each move moves
    device: IntArray  # (M,) device that it leaves or goes to
    is_load: BoolArray  # (M,) from the host to the device; otherwise an eviction
    ptr: IntArray  # (M+1,) CSR: uses of what a load brings; none for an eviction
    user: IntArray  # tasks, execs and transfers, that read that copy instead of the earlier one
    needed: IntArray  # (P,) further dependencies, from sharing memory: task needs[i] ...
    needs: IntArray  # (P,) ... waits for task needed[i]

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            values = np.asarray(getattr(self, name))
            wanted = "b" if name == "is_load" else "iu"
            if values.ndim != 1 or (values.size and values.dtype.kind not in wanted):
                raise AssignmentError(f"`{name}` of a memory plan is not a column of {_of(name)}")
            kind = np.bool_ if name == "is_load" else np.int64
            object.__setattr__(self, name, frozen(values.astype(kind, copy=False)))
        self._check_lengths()

    def _check_lengths(self) -> None:
        moves = len(self.tensor)
        for name, length in (
            *(("device", moves), ("is_load", moves), ("ptr", moves + 1)),
            ("needs", len(self.needed)),
        ):
            if len(getattr(self, name)) != length:
                raise AssignmentError(
                    f"`{name}` of a memory plan has {len(getattr(self, name))} entries, "
                    f"expected {length}"
                )
        counts = np.diff(self.ptr)
        if self.ptr[0] != 0 or self.ptr[-1] != len(self.user) or (counts < 0).any():
            raise AssignmentError("`ptr` of a memory plan does not count its users")
        wrong = np.flatnonzero((counts > 0) != self.is_load)
        if len(wrong):
            what = "is a load without users" if self.is_load[wrong[0]] else "is an eviction to read"
            raise AssignmentError(f"move {wrong[0]} of the memory plan {what}")

    @property
    def num_moves(self) -> int:
        """Number of moves."""
        return len(self.tensor)

    def moved_bytes(self, graph: Graph) -> tuple[float, float]:
        """Bytes that the plan moves from the devices to the host, and from there to the devices."""
        size: FloatArray = graph.tensor_bytes[self.tensor]
        return float(size[~self.is_load].sum()), float(size[self.is_load].sum())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryPlan):
            return NotImplemented
        return all(np.array_equal(getattr(self, c), getattr(other, c)) for c in _COLUMNS)

    def __hash__(self) -> int:
        return hash(self.tensor.tobytes())

    def __repr__(self) -> str:
        loads = int(self.is_load.sum())
        evictions = self.num_moves - loads
        return f"<MemoryPlan: {_count(evictions, 'eviction')}, {_count(loads, 'load')}>"

    def _repr_html_(self) -> str:
        return html_line(repr(self))

    def check(self, graph: Graph, topology: Topology, tasks: Tasks) -> None:
        """Raise an `AssignmentError` unless this is a plan for these tasks, moves left out."""
        if not topology.has_host_links and self.num_moves:
            raise AssignmentError(
                f"the memory plan moves tensors over links to the host, and topology "
                f"`{topology.name}` has none",
                hint="it was made for another topology: place the graph again",
            )
        for column, limit in (("tensor", graph.num_tensors), ("device", topology.num_devices)):
            _check_range(getattr(self, column), limit, column)
        count = graph.num_vertices + tasks.num_transfers
        _check_range(self.user, count, "user")
        exists = np.ones(count + self.num_moves, np.bool_)
        exists[: graph.num_vertices] = ~graph.is_input
        for column in ("needed", "needs"):
            values = getattr(self, column)
            _check_range(values, len(exists), column)
            _check_range(values[~exists[values]], 0, column)
        self._check_evictions(graph, tasks)
        self._check_loads(graph, tasks)
        self._check_order(graph, topology, tasks)

    def _check_evictions(self, graph: Graph, tasks: Tasks) -> None:
        evictions = np.flatnonzero(~self.is_load)
        there = _originals(graph, tasks)
        seen: set[int] = set()
        for m in evictions.tolist():
            t, d = int(self.tensor[m]), int(self.device[m])
            if graph.is_input[graph.tensor_producer[t]]:
                raise _wrong(m, f"evicts tensor {t}, an input, which the host has")
            if t in seen:
                raise _wrong(m, f"evicts tensor {t}, which the host has from an earlier eviction")
            if (t, d) not in there:
                raise _wrong(m, f"evicts tensor {t} from device {d}, where it never is")
            seen.add(t)
        for m in np.flatnonzero(self.is_load).tolist():
            t = int(self.tensor[m])
            if t not in seen and not graph.is_input[graph.tensor_producer[t]]:
                raise _wrong(m, f"loads tensor {t}, which no move brings to the host")

    def _check_loads(self, graph: Graph, tasks: Tasks) -> None:
        reads = set(zip(graph.edge_reader.tolist(), graph.edge_tensor.tolist(), strict=True))
        size, seen = graph.num_vertices, set()
        for m in np.flatnonzero(self.is_load).tolist():
            t, d = int(self.tensor[m]), int(self.device[m])
            for user in self.user[self.ptr[m] : self.ptr[m + 1]].tolist():
                if user < size:
                    uses = (user, t) in reads and tasks.devices[user] == d
                else:
                    k = user - size
                    uses = tasks.tensor[k] == t and tasks.source[k] == d
                if not uses:
                    raise _wrong(m, f"loads tensor {t} for task {user}, which does not read it")
                if (user, t) in seen:
                    raise _wrong(m, f"loads tensor {t} for task {user}, which has it already")
                seen.add((user, t))

    def _check_order(self, graph: Graph, topology: Topology, tasks: Tasks) -> None:
        needed, needs = dependencies(graph, with_moves(topology, tasks, self), self)
        size = graph.num_vertices + tasks.num_transfers + self.num_moves
        if task_levels(needed, needs, size) is None:
            raise AssignmentError("the dependencies of the memory plan form a cycle")


def _originals(graph: Graph, tasks: Tasks) -> set[tuple[int, int]]:
    """Each tensor that an exec makes or a transfer brings, and the device where that is."""
    maker = tasks.devices[graph.tensor_producer]
    made = set(zip(range(graph.num_tensors), maker.tolist(), strict=True))
    return made | set(zip(tasks.tensor.tolist(), tasks.target.tolist(), strict=True))


def _check_range(values: IntArray, limit: int, column: str) -> None:
    bad = values[(values < 0) | (values >= limit)]
    if len(bad):
        raise AssignmentError(
            f"`{column}` of the memory plan holds {bad[0]}, which there is not",
            hint="it was made for other devices, or another graph: place the graph again",
        )


def _wrong(move: int, what: str) -> AssignmentError:
    return AssignmentError(f"move {move} of the memory plan {what}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _of(name: str) -> str:
    return "truth values" if name == "is_load" else "whole numbers"


def plan_document(plan: MemoryPlan) -> dict[str, list[Any]]:
    """The columns of a plan for JSON."""
    return {name: getattr(plan, name).tolist() for name in _COLUMNS}


def plan_from_document(document: Any, source: str) -> MemoryPlan:
    """The plan in columns; `source` is what errors call them."""
    check_keys(document, required=_COLUMNS, source=source)
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        values = document[name]
        if name == "is_load":
            is_column = isinstance(values, list) and all(type(v) is bool for v in values)
            columns[name] = np.array(values, np.bool_) if is_column else None
        else:
            columns[name] = integers(values) if isinstance(values, list) else None
        if columns[name] is None:
            raise FormatError(f"{source}: `{name}` must be a list of {_of(name)}")
    try:
        return MemoryPlan(**columns)
    except AssignmentError as error:
        raise FormatError(f"{source}: {error.message}", hint=error.hint) from None
