"""Loaded: a graph whose kernels are known to run, and its inputs in the host's memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch

from doppler.engine.backends.base import Backend
from doppler.engine.kernels import check_kernel, output_like, scratch_bytes, torch_dtype
from doppler.errors import EngineError, GraphError
from doppler.graph.graph import Graph
from doppler.programs.numpy_ops import Array
from doppler.sharding.evaluate import input_blocks, kernel_of, output_of, result_names


class Loaded:
    """A graph that a backend can run: its kernels are known, its inputs in place."""

    def __init__(self, graph: Graph, backend: Backend, inputs: Mapping[str, Any] | None) -> None:
        """Without `inputs` there are random ones."""
        if not graph.kernels:
            raise GraphError(
                f"graph `{graph.name}` has no kernels to run",
                hint="what `dop shard` makes of a program has kernels",
            )
        self.graph, self._backend = graph, backend
        self.results = result_names(graph)
        self._placed: dict[tuple[int, int], torch.Tensor] = {}  # (tensor, memory)
        self._on_host: dict[int, torch.Tensor] = {}  # by tensor
        self.set_inputs(inputs)
        self.bytes = [0] * graph.num_tensors  # of each tensor
        for t, v in enumerate(graph.tensor_producer.tolist()):
            kernel = kernel_of(graph, v)
            with naming(graph, v):
                shape, dtype = kernel.shapes[0], torch_dtype(kernel.dtypes[0])
            self.bytes[t] = prod(shape) * dtype.itemsize
        scratch = [0] * graph.num_vertices
        for v in graph.assigned.tolist():
            kernel = kernel_of(graph, v)
            makers = [kernel_of(graph, int(graph.tensor_producer[t])) for t in kernel.inputs]
            with naming(graph, v):
                check_kernel(kernel)
                scratch[v] = scratch_bytes(kernel, makers)
        # The graph with the bytes that it declares, or more where kernels need more.
        self.sized = replace(
            graph,
            tensor_bytes=np.maximum(graph.tensor_bytes, self.bytes),
            temporary_bytes=np.maximum(graph.temporary_bytes, scratch),
        )

    def set_inputs(self, inputs: Mapping[str, Any] | None) -> None:
        """Other inputs for the runs to come, in the same memory."""
        if inputs is None:
            self._blocks = random_blocks(self.graph)
        else:
            whole = {name: np.asarray(value) for name, value in inputs.items()}
            blocks = input_blocks(self.graph, whole)
            self._blocks = {t: _tensor(block) for t, block in blocks.items()}
        for (tensor, _), placed in self._placed.items():
            placed.copy_(self._blocks[tensor])
        for tensor, block in self._blocks.items():
            if tensor in self._on_host:
                self._on_host[tensor].copy_(block)

    def write(self, tensor: int, target: torch.Tensor) -> None:
        """Write a block of the inputs into memory of a device, when no run is under way."""
        target.copy_(self._blocks[tensor])

    def on_host(self, tensor: int) -> torch.Tensor:
        """A tensor in memory of the host that links copy from and to; inputs have their values."""
        if tensor not in self._on_host:
            maker = int(self.graph.tensor_producer[tensor])
            shape, dtype = output_like(kernel_of(self.graph, maker))
            room = self._backend.host_memory(self.bytes[tensor]).view(dtype).view(shape)
            if tensor in self._blocks:
                room.copy_(self._blocks[tensor])
            self._on_host[tensor] = room
        return self._on_host[tensor]

    def everywhere(self, tensor: int, device: int) -> torch.Tensor:
        """An input that costs no memory of any arena, for a device; kept for later runs."""
        key = (tensor, self._backend.memory(device))
        if key not in self._placed:
            self._placed[key] = self._backend.put(self._blocks[tensor], device)
        return self._placed[key]


@contextmanager
def naming(graph: Graph, v: int) -> Iterator[None]:
    """Errors of a kernel name its vertex."""
    try:
        yield
    except EngineError as error:
        name = f"vertex `{graph.vertex_names[v]}`"
        raise EngineError(f"{name}: {error.message}", hint=error.hint) from error


def _tensor(block: Array) -> torch.Tensor:
    """A copy of an array as a tensor: it is written to devices whenever they need it."""
    return torch.from_numpy(np.array(block, order="C"))


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
