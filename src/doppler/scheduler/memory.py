"""Memory of the devices: which tensor occupies which device until when."""

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
    original also the transfers that leave. What nobody reads is a result and stays. Inputs are
    not counted.
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
        size = self._tasks.num_vertices
        if task < size:
            device, tensors = int(self._tasks.devices[task]), self._reads[task]
        else:
            k = task - size
            device, tensors = int(self._tasks.source[k]), [int(self._tasks.tensor[k])]
        freed = -1
        for tensor in tensors:
            if (tensor, device) not in self._uses:  # an input: not counted
                continue
            self._uses[tensor, device] -= 1
            if self._uses[tensor, device] == 0:
                self.free_bytes[device] += self._bytes[tensor]
                freed = device
        return freed

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


def count_uses(graph: Graph, tasks: Tasks) -> dict[tuple[int, int], int]:
    """Uses of each (tensor, device): one per reader there, one per transfer that leaves."""
    uses: dict[tuple[int, int], int] = {}
    readers: IntArray = tasks.devices[graph.edge_reader]
    produced = ~graph.is_input[graph.tensor_producer[graph.edge_tensor]]
    for tensor, device in zip(
        graph.edge_tensor[produced].tolist(), readers[produced].tolist(), strict=True
    ):
        uses[tensor, device] = uses.get((tensor, device), 0) + 1
    for tensor, device in zip(tasks.tensor.tolist(), tasks.source.tolist(), strict=True):
        uses[tensor, device] = uses.get((tensor, device), 0) + 1
    return uses
