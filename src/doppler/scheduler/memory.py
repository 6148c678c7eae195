"""Memory of the devices: which tensor occupies which device until when."""

from heapq import heappop, heappush
from math import inf

import numpy as np

from doppler.base.arrays import IntArray, rows
from doppler.errors import OutOfMemoryError
from doppler.graph.graph import Graph
from doppler.tasks import Tasks
from doppler.topology.topology import Topology


class Memory:
    """Bytes in use on every device.

    An output occupies the device from the start of its exec, a received copy from the start of
    its transfer, each until the last task that uses it there is done: readers, and for the
    original also the transfers that leave. Results stay: what kernels name so, and what nobody
    reads. Inputs are not counted.
    """

    def __init__(self, graph: Graph, topology: Topology, tasks: Tasks) -> None:
        self.free_bytes = [d.memory_bytes for d in topology.devices]
        self._graph = graph
        self._tasks = tasks
        self._bytes = np.ceil(graph.tensor_bytes).tolist()  # whole bytes, so sums are exact
        outputs = rows(graph.output_ptr, graph.output_tensor)
        self._reads = rows(graph.read_ptr, graph.read_tensor)
        self._uses = count_uses(graph, tasks)
        made = [float(sum(self._bytes[t] for t in tensors)) for tensors in outputs]
        moved = [float(self._bytes[t]) for t in tasks.tensor.tolist()]
        self.need = made + moved  # bytes that each task takes when it starts
        self.device: list[int] = tasks.devices.tolist() + tasks.target.tolist()  # and where

    def fits(self, task: int) -> bool:
        """Whether a task's output fits on its device now."""
        return self.need[task] <= self.free_bytes[self.device[task]]

    def take(self, task: int) -> None:
        """Occupy what a starting task needs."""
        self.free_bytes[self.device[task]] -= self.need[task]

    def give_back(self, task: int) -> int:
        """Free what an ended task was the last to use; the device where that was, or -1."""
        freed = -1
        for tensor, device in self._used_by(task):
            self._uses[tensor, device] -= 1
            if self._uses[tensor, device] == 0:
                self.free_bytes[device] += self._bytes[tensor]
                freed = device
        return freed

    def _used_by(self, task: int) -> list[tuple[int, int]]:
        """Each (tensor, device) that a task uses, those of inputs left out."""
        size = self._tasks.num_vertices
        if task < size:
            device, tensors = int(self._tasks.devices[task]), self._reads[task]
        else:
            k = task - size
            device, tensors = int(self._tasks.source[k]), [int(self._tasks.tensor[k])]
        return [(tensor, device) for tensor in tensors if (tensor, device) in self._uses]

    def error(self, task: int, topology: Topology) -> OutOfMemoryError:
        """Why no task can start: which task lacks memory, where, and how much."""
        size, device = self._tasks.num_vertices, self.device[task]
        if task < size:
            what = f"vertex `{self._graph.vertex_names[task]}`"
        else:
            producer = self._graph.tensor_producer[self._tasks.tensor[task - size]]
            what = f"a copy of the output of vertex `{self._graph.vertex_names[producer]}`"
        return OutOfMemoryError(
            f"device `{topology.devices[device].name}` is out of memory: {what} needs "
            f"{self.need[task]:.0f} bytes, {self.free_bytes[device]:.0f} are free, "
            "and nothing that runs will free more",
            hint="spread the vertices over more devices, or use one with more memory",
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
        if need == 0:
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


def count_uses(graph: Graph, tasks: Tasks) -> dict[tuple[int, int], int]:
    """Uses of each (tensor, device): one per reader there, one per transfer that leaves.

    A result has one more where it is made, which never ends.
    """
    uses: dict[tuple[int, int], int] = {}
    readers: IntArray = tasks.devices[graph.edge_reader]
    produced = ~graph.is_input[graph.tensor_producer[graph.edge_tensor]]
    for tensor, device in zip(
        graph.edge_tensor[produced].tolist(), readers[produced].tolist(), strict=True
    ):
        uses[tensor, device] = uses.get((tensor, device), 0) + 1
    for tensor, device in zip(tasks.tensor.tolist(), tasks.source.tolist(), strict=True):
        uses[tensor, device] = uses.get((tensor, device), 0) + 1
    kept = np.flatnonzero(graph.is_result & ~graph.is_input[graph.tensor_producer])
    for tensor, device in zip(
        kept.tolist(), tasks.devices[graph.tensor_producer[kept]].tolist(), strict=True
    ):
        uses[tensor, device] = uses.get((tensor, device), 0) + 1  # of whoever asks for it later
    return uses
