"""Memory of the devices: which tensor occupies which device until when."""

from heapq import heappop, heappush
from math import inf

import numpy as np

from doppler.base.arrays import rows
from doppler.errors import OutOfMemoryError
from doppler.graph.graph import Graph
from doppler.tasks import Tasks
from doppler.topology.topology import Topology


class Memory:
    """Bytes in use on every device.

    An exec takes the bytes of its outputs and of its temporaries when it starts, and gives the
    temporaries back when it ends; a transfer takes those of the copy that it brings. A tensor
    leaves a device after the last task that uses it there: readers, and for the original also the
    transfers that leave. Results stay: what kernels name so, and what nobody reads.

    Inputs that are in place are there before the clock starts, once on each device that reads
    them. Inputs that stay are never released, those that are everywhere are not counted.
    """

    def __init__(self, graph: Graph, topology: Topology, tasks: Tasks) -> None:
        self.free_bytes = [d.memory_bytes for d in topology.devices]
        self._graph = graph
        self._tasks = tasks
        # Whole bytes, so that sums are exact: of each tensor, and of each vertex's temporaries.
        self._bytes = np.ceil(np.append(graph.tensor_bytes, graph.temporary_bytes)).tolist()
        outputs = rows(graph.output_ptr, graph.output_tensor)
        self._reads = rows(graph.read_ptr, graph.read_tensor)
        self._uses = count_uses(graph, tasks)
        made = [float(sum(self._bytes[t] for t in tensors)) for tensors in outputs]
        made = [size + self._bytes[graph.num_tensors + v] for v, size in enumerate(made)]
        moved = [float(self._bytes[t]) for t in tasks.tensor.tolist()]
        self.need = made + moved  # bytes that each task takes when it starts
        self.device: list[int] = tasks.devices.tolist() + tasks.target.tolist()  # and where
        self._in_place = in_place(graph, tasks)
        for tensor, device in self._in_place:
            self.free_bytes[device] -= self._bytes[tensor]

    def fits(self, task: int) -> bool:
        """Whether a task's output fits on its device now."""
        return self.lack_bytes(task) <= 0

    def lack_bytes(self, task: int) -> float:
        """By how much a task's output exceeds what is free on its device now."""
        return self.need[task] - self.free_bytes[self.device[task]]

    def take(self, task: int) -> None:
        """Occupy what a starting task needs."""
        self.free_bytes[self.device[task]] -= self.need[task]

    def give_back(self, task: int) -> int:
        """Free what an ended task was the last to use; the device where that was, or -1."""
        freed = -1
        if (temporaries := self._temporaries(task)) >= 0:
            freed = self.device[task]
            self.free_bytes[freed] += self._bytes[temporaries]
        for tensor, device in self._used_by(task):
            self._uses[tensor, device] -= 1
            if self._uses[tensor, device] == 0:
                self.free_bytes[device] += self._bytes[tensor]
                freed = device
        return freed

    def _temporaries(self, task: int) -> int:
        """The number, behind the tensors, of an exec's temporaries; -1 where there are none."""
        number = self._graph.num_tensors + task
        return number if task < self._tasks.num_vertices and self._bytes[number] else -1

    def _used_by(self, task: int) -> list[tuple[int, int]]:
        """Each (tensor, device) that a task uses, of those that are released some time."""
        size = self._tasks.num_vertices
        if task < size:
            device, tensors = int(self._tasks.devices[task]), self._reads[task]
        else:
            k = task - size
            device, tensors = int(self._tasks.source[k]), [int(self._tasks.tensor[k])]
        return [(tensor, device) for tensor in tensors if (tensor, device) in self._uses]

    def error(self, task: int, topology: Topology) -> OutOfMemoryError:
        """Why no task can start: which task lacks memory, where, and how much."""
        size, number = self._tasks.num_vertices, self.device[task]
        if task < size:
            what = f"vertex `{self._graph.vertex_names[task]}`"
        else:
            producer = self._graph.tensor_producer[self._tasks.tensor[task - size]]
            what = f"vertex `{self._graph.vertex_names[producer]}`"
            is_input = self._graph.is_input[producer]
            what = f"a copy of {'input' if is_input else 'the output of'} {what}"
        return OutOfMemoryError(
            f"device `{topology.devices[number].name}` is out of memory: {what} needs "
            f"{self.need[task]:.0f} bytes, {max(self.free_bytes[number], 0):.0f} are free, "
            f"and nothing that runs will free more{self._inputs_on(number, topology)}",
            hint="use more devices or larger ones, spread the vertices over them, leave inputs "
            "out of the account (`--inputs everywhere`), or make a memory plan",
        )

    def _inputs_on(self, device: int, topology: Topology) -> str:
        """What inputs take of a device, for an error: nothing where they take nothing."""
        brought = self._tasks.tensor[self._tasks.target == device]
        arrived = brought[self._graph.is_input[self._graph.tensor_producer[brought]]]
        kept = [t for t, d in self._in_place if d == device] + arrived.tolist()
        if not (total := sum(self._bytes[t] for t in kept)):
            return ""
        largest = sorted(kept, key=lambda t: (-self._bytes[t], t))[:3]
        names = [self._graph.vertex_names[self._graph.tensor_producer[t]] for t in largest]
        shown = ", ".join(
            f"`{name}` {self._bytes[t]:.0f}" for t, name in zip(largest, names, strict=True)
        )
        return (
            f"; inputs take {total:.0f} of its {topology.devices[device].memory_bytes:.0f} bytes, "
            f"the largest: {shown}"
        )


class MemoryInOrder(Memory):
    """Memory that tasks take in the order of a schedule, whenever each of them will run.

    A tensor is released at the latest end of the tasks that use it on a device, which is known
    once the last of them in the order has its times. A task takes what is free and then what is
    released first, so it begins no earlier than the last of that.
    """

    def __init__(self, graph: Graph, topology: Topology, tasks: Tasks) -> None:
        super().__init__(graph, topology, tasks)
        self._free_since_s = [0.0] * topology.num_devices  # release that what is free came from
        self._released: list[list[tuple[float, int]]] = [[] for _ in topology.devices]
        self._until_s: dict[tuple[int, int], float] = {}

    def take_in_order(self, task: int) -> float:
        """Occupy what a task needs; when it may begin, infinity if never."""
        device, need = self.device[task], self.need[task]
        if need == 0 and self.free_bytes[device] >= 0:
            return 0.0
        earliest_s = self._free_since_s[device]
        while not self.fits(task):
            if not self._released[device]:
                return inf
            released_s, tensor = heappop(self._released[device])
            self.free_bytes[device] += self._bytes[tensor]
            self._free_since_s[device] = released_s
            earliest_s = max(earliest_s, released_s)
        self.take(task)
        return earliest_s

    def use_until(self, task: int, end_s: float) -> None:
        """Release what a task that ends then is the last in the order to use."""
        for key in self._used_by(task):
            self._until_s[key] = max(self._until_s.get(key, 0.0), end_s)
            self._uses[key] -= 1
            tensor, device = key
            if self._uses[key] == 0 and self._bytes[tensor] > 0:
                heappush(self._released[device], (self._until_s[key], tensor))
        if (temporaries := self._temporaries(task)) >= 0:
            heappush(self._released[self.device[task]], (end_s, temporaries))


def count_uses(graph: Graph, tasks: Tasks) -> dict[tuple[int, int], int]:
    """Uses of each (tensor, device): one per reader there, one per transfer that leaves.

    A result has one more where it is made, which never ends. Inputs that stay or are everywhere
    have none.
    """
    uses: dict[tuple[int, int], int] = {}
    is_released = (~graph.is_input | graph.is_streamed)[graph.tensor_producer]
    read = is_released[graph.edge_tensor]
    leaves = ~graph.is_input[graph.tensor_producer[tasks.tensor]]
    kept = np.flatnonzero(graph.is_result & ~graph.is_input[graph.tensor_producer])
    for tensors, devices in (
        (graph.edge_tensor[read], tasks.devices[graph.edge_reader[read]]),
        (tasks.tensor[leaves], tasks.source[leaves]),
        (kept, tasks.devices[graph.tensor_producer[kept]]),  # for whoever asks for it later
    ):
        for key in zip(tensors.tolist(), devices.tolist(), strict=True):
            uses[key] = uses.get(key, 0) + 1
    return uses


def in_place(graph: Graph, tasks: Tasks) -> list[tuple[int, int]]:
    """Each (tensor, device) of an input that is in memory before the clock starts, ascending.

    These are the inputs that a device reads and that take memory, but no transfer brings.
    """
    counted = (graph.arrives | graph.stays)[graph.tensor_producer[graph.edge_tensor]]
    reader = tasks.devices[graph.edge_reader[counted]]
    read = set(zip(graph.edge_tensor[counted].tolist(), reader.tolist(), strict=True))
    return sorted(read.difference(zip(tasks.tensor.tolist(), tasks.target.tolist(), strict=True)))
