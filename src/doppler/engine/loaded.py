"""Loaded: a graph whose kernels are known to run, and its inputs in the host's memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch

from doppler.base.arrays import rows
from doppler.engine.backends.base import Backend
from doppler.engine.kernels import check_kernel, output_like, scratch_bytes, torch_dtype
from doppler.engine.pieces import Cell, check_piece, is_piece
from doppler.errors import EngineError, GraphError
from doppler.graph.graph import Graph, Kernel
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
        self._cells: dict[tuple[int, int], tuple[Cell, int]] = {}  # and the device of its memory
        self._given: dict[int, tuple[Any, Any]] = {}  # inputs, and which version of each
        self._blocks: dict[int, torch.Tensor] = {}
        in_cells = np.array([is_piece(kernel_of(graph, v)) for v in range(graph.num_vertices)])
        self.in_cell = in_cells[graph.tensor_producer]  # (T,) whether no arena has a place for it
        self.in_cell[graph.edge_tensor[in_cells[graph.edge_reader]]] = True
        self._inputs = [(v, output_of(graph, v)) for v in np.flatnonzero(graph.is_input).tolist()]
        self.set_inputs(inputs)
        self.bytes = [0] * graph.num_tensors  # of each tensor
        scratch = [0] * graph.num_vertices
        for v, made in enumerate(rows(graph.output_ptr, graph.output_tensor)):
            with naming(graph, v):
                for t, size in zip(made, _output_bytes(kernel_of(graph, v)), strict=True):
                    self.bytes[t] = size
                if not graph.is_input[v]:
                    scratch[v] = self._checked(kernel_of(graph, v))
        # The graph with the bytes that it declares, or more where kernels need more. What is in a
        # cell takes memory of a device, but none of an arena.
        self.sized = replace(
            graph,
            tensor_bytes=np.maximum(graph.tensor_bytes, self.bytes),
            temporary_bytes=np.maximum(graph.temporary_bytes, scratch),
        )
        self.in_arena = self.sized
        if in_cells.any():
            self.in_arena = replace(
                self.sized,
                tensor_bytes=np.where(self.in_cell, 0.0, self.sized.tensor_bytes),
                temporary_bytes=np.where(in_cells, 0.0, self.sized.temporary_bytes),
            )

    def _checked(self, kernel: Kernel) -> int:
        """Bytes of a kernel's intermediate tensors, if it can run."""
        if is_piece(kernel):
            check_piece(kernel)
            return 0
        check_kernel(kernel)
        makers = [kernel_of(self.graph, int(self.graph.tensor_producer[t])) for t in kernel.inputs]
        if any(is_piece(maker) for maker in makers):
            raise EngineError(f"kernel `{kernel.op}` reads what a piece makes")
        return scratch_bytes(kernel, makers)

    def set_inputs(self, inputs: Mapping[str, Any] | None) -> None:
        """Other inputs for the runs to come; a tensor that has not changed stays where it is."""
        given: Mapping[int, Any]
        if inputs is None:
            given = random_blocks(self.graph)
        else:
            given = input_blocks(self.graph, inputs, skipped=self._unchanged(inputs))
        self._given |= {t: (x, version_of(x)) for t, x in given.items()}
        self._blocks |= {t: _tensor(x, shared=bool(self.in_cell[t])) for t, x in given.items()}
        for (tensor, _), placed in self._placed.items():
            placed.copy_(self._blocks[tensor])
        for tensor in given:
            if tensor in self._on_host:
                self._on_host[tensor].copy_(self._blocks[tensor])
        for (tensor, _), (cell, device) in self._cells.items():
            if tensor in given:
                cell.value = self._backend.share(self._blocks[tensor], device)

    def _unchanged(self, inputs: Mapping[str, Any]) -> frozenset[int]:
        """The input vertices that hold all of a tensor which was given before, as it is now."""
        if not self._given:
            return frozenset()
        names, found = self.graph.meta_ops, []
        for v, tensor in self._inputs:
            x = inputs.get(names[v])
            before, version = self._given[tensor]
            if x is before and version is not None and version == version_of(x):
                found.append(v)
        return frozenset(found)

    def input_cell(self, tensor: int, device: int) -> Cell:
        """A cell with a block of the inputs in a device's memory, which may be shared."""
        key = (tensor, self._backend.memory(device))
        if key not in self._cells:
            self._cells[key] = Cell(self._backend.share(self._blocks[tensor], device)), device
        return self._cells[key][0]

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


def _output_bytes(kernel: Kernel) -> list[int]:
    pairs = zip(kernel.shapes, kernel.dtypes, strict=True)
    return [prod(shape) * torch_dtype(dtype).itemsize for shape, dtype in pairs]


def version_of(value: Any) -> tuple[int, int] | None:
    """What changes with the values of a tensor; None where nobody counts.

    Its address counts too: `tensor.data = other` gives a tensor other memory, and is not counted.
    """
    is_counted = isinstance(value, torch.Tensor) and not value.is_inference()
    return (value._version, value.data_ptr()) if is_counted else None


def _tensor(block: Array | torch.Tensor, *, shared: bool) -> torch.Tensor:
    """A copy of an array as a tensor: it is written to devices whenever they need it.

    A tensor that is `shared` stays itself.
    """
    if isinstance(block, torch.Tensor):
        return block.detach() if shared else block.detach().clone()
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
        elif not dtype.is_floating_point and dtype != torch.bool:
            x = torch.zeros(shape)  # an index that is always there
        blocks[tensor] = x.to(dtype)
    return blocks
