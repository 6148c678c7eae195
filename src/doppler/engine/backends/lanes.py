"""Lanes of the CUDA backend: a slot of a device, or a lane of a link, and its streams."""

from collections import deque
from typing import Any

import torch

from doppler.engine.backends import driver
from doppler.engine.backends.base import new_memory
from doppler.engine.backends.driver import Address

RUN, OUT, IN = range(3)  # what a stream is for
# Streams of one priority share hardware queues, where one that waits holds up those behind it. So
# streams of copies, which wait for one another, are kept off the queues of kernels.
PRIORITIES = (0, -1, -1)
# Chunks of a transfer through the host: at most, and their bytes at least. Each costs the host
# some 5 µs, which does not pay below a few megabytes.
CHUNKS, CHUNK_BYTES = 4, 8 << 20


class Lane:
    """A slot of a device, or a lane of a link: its tasks run one after another."""

    __slots__ = ("flights", "marks", "pinned", "streams", "tails")

    def __init__(self) -> None:
        self.flights: deque[int] = deque()  # tasks, in the order they were started
        self.streams: dict[tuple[Address, int], torch.cuda.Stream] = {}  # by what they are for
        self.marks: dict[int, list[Any]] = {}  # events of a GPU: a chunk has left it
        self.tails: dict[int, Any] = {}  # events of a GPU: the last copy to it has ended
        self.pinned: torch.Tensor | None = None

    def stream(self, address: Address, use: int) -> torch.cuda.Stream:
        """The stream of this lane on a GPU, or a part of one."""
        if (stream := self.streams.get((address, use))) is None:
            stream = driver.take_stream(address, PRIORITIES[use])
            self.streams[address, use] = stream
        return stream

    def marks_of(self, gpu: int) -> list[Any]:
        """An event for each chunk."""
        if gpu not in self.marks:
            self.marks[gpu] = [new_event(timed=False) for _ in range(CHUNKS)]
        return self.marks[gpu]

    def tail_of(self, gpu: int) -> Any:
        """The event behind the last copy of this lane to a GPU."""
        if gpu not in self.tails:
            self.tails[gpu] = new_event(timed=False)
        return self.tails[gpu]

    def room(self, size: int) -> torch.Tensor:
        """Pinned memory of at least `size` bytes."""
        have = 0 if self.pinned is None else self.pinned.numel()
        if self.pinned is None or have < size:
            self.pinned = pinned_memory(max(size, 2 * have))
        return self.pinned

    def give_back(self) -> None:
        """Give back streams and memory."""
        for (address, use), stream in self.streams.items():
            driver.give_stream(address, PRIORITIES[use], stream)
        self.streams.clear()
        self.marks.clear()
        self.tails.clear()
        self.pinned = None


def chunks(size: int) -> list[tuple[int, int]]:
    """Offset and bytes of each chunk of a transfer through the host."""
    count = min(CHUNKS, max(1, size // CHUNK_BYTES))
    step = -(-size // count // 256) * 256 or 256
    return [(at, min(step, size - at)) for at in range(0, size, step)]


def least_loaded(lanes: list[Lane]) -> int:
    """The number of the lane with the fewest tasks under way; the first of those."""
    loads = [len(lane.flights) for lane in lanes]
    return loads.index(min(loads))


def new_event(*, timed: bool) -> Any:
    """An event of the current GPU."""
    return torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]


def pinned_memory(size: int) -> torch.Tensor:
    """Memory of the host that GPUs copy from and to by themselves."""
    return new_memory(size, torch.device("cpu"), pinned=True)
