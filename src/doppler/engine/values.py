"""Values: the tensors of a run, on every device where they are, until their last use."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from doppler.engine.backends.base import Backend, KernelFunction
from doppler.engine.kernels import compile_kernel, torch_dtype
from doppler.errors import EngineError, GraphError
from doppler.graph.graph import Graph
from doppler.programs.numpy_ops import Array
from doppler.scheduler.memory import count_uses
from doppler.sharding.evaluate import (
    input_blocks,
    join_results,
    kernel_of,
    output_of,
    result_names,
)
from doppler.tasks import Tasks


class Loaded:
    """A graph ready to run on a backend: its kernels compiled, its inputs in place."""

    def __init__(self, graph: Graph, backend: Backend, inputs: Mapping[str, Any] | None) -> None:
        """Without `inputs` there are random ones."""
        if not graph.kernels:
            raise GraphError(
                f"graph `{graph.name}` has no kernels to run",
                hint="what `dop shard` makes of a program has kernels",
            )
        self.graph, self._backend = graph, backend
        self._kernels: list[KernelFunction | None] = [None] * graph.num_vertices
        for v in graph.assigned.tolist():
            try:
                self._kernels[v] = compile_kernel(kernel_of(graph, v))
            except EngineError as error:
                where = f"vertex `{graph.vertex_names[v]}`"
                raise EngineError(f"{where}: {error.message}", hint=error.hint) from error
        self._placed: dict[tuple[int, int], torch.Tensor] = {}  # (tensor, memory)
        self.set_inputs(inputs)

    def set_inputs(self, inputs: Mapping[str, Any] | None) -> None:
        """Other inputs for the runs to come."""
        self._placed.clear()
        if inputs is None:
            self._blocks = random_blocks(self.graph)
        else:
            whole = {name: np.asarray(value) for name, value in inputs.items()}
            blocks = input_blocks(self.graph, whole)
            self._blocks = {t: _tensor(block) for t, block in blocks.items()}

    def kernel(self, v: int) -> KernelFunction | None:
        """The compiled kernel of a vertex."""
        return self._kernels[v]

    def input(self, tensor: int, device: int) -> torch.Tensor:
        """A block of the inputs in a device's memory; kept there for later runs."""
        key = (tensor, self._backend.memory(device))
        if key not in self._placed:
            self._placed[key] = self._backend.put(self._blocks[tensor], device)
        return self._placed[key]


class Values:
    """The tensors of one run: where each is, and how many tasks still use it there."""

    def __init__(self, loaded: Loaded, tasks: Tasks, backend: Backend) -> None:
        graph = loaded.graph
        self._loaded, self._graph, self._tasks, self._backend = loaded, graph, tasks, backend
        self._uses = count_uses(graph, tasks)
        self._values: dict[tuple[int, int], torch.Tensor] = {}
        devices = tasks.devices.tolist()
        for v in graph.assigned.tolist():  # inputs are ready everywhere before the clock starts
            for tensor in kernel_of(graph, v).inputs:
                if graph.is_input[graph.tensor_producer[tensor]]:
                    self._values[tensor, devices[v]] = loaded.input(tensor, devices[v])
        self._outputs = graph.output_tensor[graph.output_ptr[:-1]].tolist()
        self._results = result_names(graph)

    def start(self, task: int) -> None:
        """Start a task on the backend, with room for its output."""
        tasks, size = self._tasks, self._tasks.num_vertices
        if task < size:
            kernel = kernel_of(self._graph, task)
            device, tensor = int(tasks.devices[task]), self._outputs[task]
            inputs = [self._values[t, device] for t in kernel.inputs]
            output = self._room(tensor, device, kernel.shapes[0], torch_dtype(kernel.dtypes[0]))
            self._backend.run(task, device, self._loaded.kernel(task), inputs, output)
            return
        k = task - size
        tensor, ends = int(tasks.tensor[k]), (int(tasks.source[k]), int(tasks.target[k]))
        value = self._values[tensor, ends[0]]
        output = self._room(tensor, ends[1], value.shape, value.dtype)
        self._backend.copy(task, int(tasks.link[k]), ends, value, output)

    def finish(self, task: int) -> None:
        """Give back the tensors that an ended task was the last to use."""
        tasks, size = self._tasks, self._tasks.num_vertices
        if task < size:
            graph, device = self._graph, int(tasks.devices[task])
            used = graph.read_tensor[graph.read_ptr[task] : graph.read_ptr[task + 1]].tolist()
        else:
            device, used = int(tasks.source[task - size]), [int(tasks.tensor[task - size])]
        for tensor in used:
            if (tensor, device) not in self._uses:  # an input
                continue
            self._uses[tensor, device] -= 1
            if self._uses[tensor, device] == 0 and not self._is_result(tensor, device):
                self._backend.recycle(device, self._values.pop((tensor, device)))

    def results(self) -> dict[str, Array]:
        """The graph's results by name, whole."""
        devices = self._tasks.devices[self._graph.tensor_producer]
        found = {t: self._values[t, int(devices[t])] for t in self._results}
        return join_results(
            self._graph, {t: self._backend.get(value).numpy() for t, value in found.items()}
        )

    def clear(self) -> None:
        """Give back all that is left but the inputs."""
        for (tensor, device), value in self._values.items():
            if not self._graph.is_input[self._graph.tensor_producer[tensor]]:
                self._backend.recycle(device, value)
        self._values.clear()

    def _room(
        self, tensor: int, device: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        room = self._backend.empty(device, shape, dtype)
        self._values[tensor, device] = room
        return room

    def _is_result(self, tensor: int, device: int) -> bool:
        if tensor not in self._results:
            return False
        return device == int(self._tasks.devices[self._graph.tensor_producer[tensor]])


def _tensor(block: Array) -> torch.Tensor:
    """An array as a tensor; a copy only where torch cannot share its memory."""
    block = np.ascontiguousarray(block)
    return torch.from_numpy(block if block.flags.writeable else block.copy())


def random_blocks(graph: Graph, seed: int = 0) -> dict[int, torch.Tensor]:
    """Standard normal values for every input tensor, scaled so that long sums stay small."""
    generator = torch.Generator().manual_seed(seed)
    blocks = {}
    for v in np.flatnonzero(graph.is_input).tolist():
        kernel, tensor = kernel_of(graph, v), output_of(graph, v)
        shape, dtype = kernel.shapes[0], torch_dtype(kernel.dtypes[0])
        try:
            x = torch.randn(shape, generator=generator) / max(shape, default=1) ** 0.5
        except RuntimeError as error:  # as torch says that there is no memory
            where = f"input `{graph.vertex_names[v]}`, of shape {shape}"
            raise EngineError(f"{where}: {str(error).splitlines()[0]}") from None
        if dtype.is_complex:
            x = torch.exp(1j * x)
        blocks[tensor] = x.to(dtype)
    return blocks
