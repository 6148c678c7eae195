"""Backend: what starts tasks on real devices and says when they are done."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from doppler.graph.graph import Graph
from doppler.tasks import Tasks

KernelFunction = Callable[[Sequence[torch.Tensor], torch.Tensor], None]  # inputs, output


class Done(NamedTuple):
    """A task that ended."""

    task: int
    begin_s: float  # since the run began, as measured where it ran
    end_s: float
    error: BaseException | None = None  # why it failed


class Backend(Protocol):
    """Devices that run tasks, driven by one thread: the engine's.

    `run` and `copy` return at once. Tasks started on a device, or on a link, while all its slots
    or lanes are taken begin in the order they were started. Tensors are the engine's to keep
    alive: it holds what a task reads and writes until `wait` has returned the task.
    """

    name: str
    computes: bool  # whether it needs kernels and tensors; if not, both are None

    def begin(self, graph: Graph, tasks: Tasks) -> None:
        """Start the clock of a run. Nothing runs."""
        ...

    def now_s(self) -> float:
        """Seconds since the run began, on the clock of `Done`."""
        ...

    def run(
        self,
        task: int,
        device: int,
        kernel: KernelFunction | None,
        inputs: Sequence[torch.Tensor],
        output: torch.Tensor | None,
    ) -> None:
        """Start an exec on a device."""
        ...

    def copy(
        self,
        task: int,
        link: int,
        ends: tuple[int, int],
        value: torch.Tensor | None,
        output: torch.Tensor | None,
    ) -> None:
        """Start a transfer over a link, from the first to the second of two devices."""
        ...

    def wait(self, timeout_s: float) -> list[Done]:
        """The tasks that ended since the last call; waits for one, but no longer than that.

        Also returns, with nothing, as soon as another thread calls `wake`.
        """
        ...

    def wake(self) -> None:
        """Make `wait` return; from any thread."""
        ...

    def memory(self, device: int) -> int:
        """Number of the memory that a device uses; devices of one GPU share one."""
        ...

    def put(self, value: torch.Tensor, device: int) -> torch.Tensor:
        """A CPU tensor in a device's memory, when no run is under way."""
        ...

    def get(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor of any device as a CPU tensor, when no run is under way."""
        ...

    def empty(self, device: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised contiguous tensor in a device's memory."""
        ...

    def recycle(self, device: int, value: torch.Tensor) -> None:
        """Take back a tensor from `empty`, which no task uses any more."""
        ...

    def stop(self) -> None:
        """Let go of what still runs after a failure: wait a moment for it, then abandon it.

        Afterwards nothing of the run is left, and another may begin.
        """
        ...

    def close(self) -> None:
        """Give back threads, streams and memory. Closing twice is harmless."""
        ...
