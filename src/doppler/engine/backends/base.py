"""Backend: what starts tasks on real devices and says when they are done."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch

from doppler.base.arrays import FloatArray
from doppler.engine.operands import Launch
from doppler.errors import OutOfMemoryError
from doppler.graph.graph import Graph
from doppler.tasks import Tasks


class Exec(NamedTuple):
    """A kernel to run on a device."""

    device: int
    launches: Sequence[Launch] = ()  # what runs it; nothing on a backend that does not compute
    bound: bool = True  # whether it uses the same tensors in every run


class Copy(NamedTuple):
    """A tensor to move over a link.

    The host is the location behind the last device: its number is the number of devices.
    """

    link: int
    source: int  # device, or the host
    target: int
    value: Any = None  # the tensor on the source, or its cell; None where nothing is computed
    output: Any = None  # and where it goes: a tensor, or a cell


class Behind(NamedTuple):
    """What makes a run one of a fixed order, in which devices wait for one another themselves."""

    needs: Sequence[Sequence[int]]  # by task: those it waits for, all started before it
    rooms: Sequence[int]  # by task: slot of its device or lane of its link; -1: any


class Inline(NamedTuple):
    """A run of one device as a thread can do it by itself."""

    here: Callable[[], AbstractContextManager[None]]  # in which the thread computes as the device
    launches: Sequence[Sequence[Launch]]  # by task


Action = Exec | Copy
Actions = Sequence[Action | None]  # by task; None for inputs
Commands = Any  # what a backend prepares to start tasks with, for itself


class TaskError(Exception):
    """A task that failed; the reason is the cause."""

    def __init__(self, task: int, error: BaseException) -> None:
        super().__init__(f"task {task} failed")
        self.task, self.error = task, error


class Backend(Protocol):
    """Devices that run tasks, driven by one thread: the engine's.

    All that a run needs is made ready by `prepare`; `start` looks it up and returns at once. Tasks
    started on a device, or on a link, while all its slots or lanes are taken begin in the order
    they were started. Tensors are the engine's to keep.
    """

    name: str
    computes: bool  # whether it needs launches and tensors
    idle_s: float  # of the run, in which the host waited and nothing had ended
    spin_s: float  # for which `wait` may keep a core busy before it sleeps

    @property
    def generation(self) -> int:
        """Goes up when an arena is given up: commands made with it must not be used again."""
        ...

    def prepare(
        self,
        graph: Graph,
        tasks: Tasks,
        actions: Actions,
        behind: Behind | None = None,
    ) -> Commands:
        """What to do for each task, when it is started; for any number of runs.

        Without `behind`, a task is started when all it needs has ended.
        """
        ...

    def get_ready(self, commands: Commands, *, timed: bool = True) -> None:
        """Make what the next run needs beyond what is prepared; this may write to any arena."""
        ...

    def begin(self, commands: Commands, *, timed: bool = True) -> None:
        """Start the clock of a run. Nothing runs, if the backend was made ready."""
        ...

    def now_s(self) -> float:
        """Seconds since the run began."""
        ...

    def start(self, task: int) -> None:
        """Start a task."""
        ...

    def start_all(self, tasks: Sequence[int]) -> None:
        """Start all tasks of an untimed run in a fixed order, at once where that can be."""
        ...

    def inline(self, commands: Commands) -> Inline | None:
        """How the calling thread can run all tasks itself; None where it cannot."""
        ...

    def wait(self, timeout_s: float) -> list[int]:
        """The tasks that ended since the last call; waits for one, but no longer than that.

        Raises `TaskError` where one failed. Also returns, with nothing, as soon as another thread
        calls `wake`.
        """
        ...

    def end(self) -> None:
        """Make what a run changed of the calling thread what it was."""
        ...

    def times(self) -> tuple[FloatArray, FloatArray]:
        """When each task of a timed run began and ended, in seconds since the run began."""
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

    def share(self, value: torch.Tensor, device: int) -> torch.Tensor:
        """A tensor in a device's memory: itself, where it is there already."""
        ...

    def get(self, value: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of any device as a CPU tensor, when no run is under way."""
        ...

    def host_memory(self, size: int) -> torch.Tensor:
        """New memory of the host, `size` bytes, from and to which links can copy."""
        ...

    def arena(self, device: int, size: int) -> torch.Tensor:
        """At least `size` bytes of a device's memory, the same in every call unless it has to grow.

        Whoever uses it for another run uses the same bytes. An `OutOfMemoryError` where there are
        too few.
        """
        ...

    def free_arenas(self) -> None:
        """Give up all arenas."""
        ...

    def stop(self) -> None:
        """Let go of what still runs after a failure: wait a moment for it, then abandon it.

        Afterwards nothing of the run is left, and another may begin. Arenas that abandoned work
        may still write to are given up.
        """
        ...

    def close(self) -> None:
        """Give back threads, streams and memory. Closing twice is harmless."""
        ...


class NeverInline:
    """A backend whose tasks no thread of the caller can run."""

    def inline(self, commands: Commands) -> Inline | None:
        """Not at all."""
        return None


class Arenas:
    """One piece of memory for each device, made anew where it is too small."""

    def __init__(self) -> None:
        self._found: dict[int, torch.Tensor] = {}  # by device
        self.generation = 0  # how often one was given up

    def must_grow(self, device: int, size: int) -> bool:
        """Whether the device's piece is too small, or there is none."""
        found = self._found.get(device)
        return found is None or found.numel() < size

    def get(self, device: int, size: int, where: torch.device) -> torch.Tensor:
        """At least `size` bytes."""
        if self.must_grow(device, size):
            self.generation += self._found.pop(device, None) is not None
            self._found[device] = new_memory(size, where)
        return self._found[device]

    def clear(self) -> None:
        """Give all up."""
        self._found.clear()
        self.generation += 1


def new_memory(size: int, where: torch.device, *, pinned: bool = False) -> torch.Tensor:
    """`size` bytes; an `OutOfMemoryError` where there are too few."""
    try:
        return torch.empty(size, dtype=torch.uint8, device=where, pin_memory=pinned)
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0].split(". ")[0]
        what = "pinned memory" if pinned else "memory"
        raise OutOfMemoryError(f"no {size} bytes of {what} on {where}: {reason}") from None
