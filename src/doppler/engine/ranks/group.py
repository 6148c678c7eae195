"""The group of processes that run a graph together: messages between them, over gloo.

Every tensor that crosses has a tag of its own, and is received straight into the memory where it
is read: the receives are posted before the clock of a run starts. A short message behind each
tensor says that it comes, so that the thread which listens to that rank wakes up once for both; it
waits for the tensor where that is late, and notices at once when the rank ends.
"""

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from doppler.errors import EngineError

MESSAGE, TEXT, FIRST = 0, 1, 2  # tags: of short messages, of reasons, and of the first tensor
TEXT_BYTES = 512
NEVER = timedelta(days=1)  # a rank that is silent is found out by the time limit of a run
POSTED = 16  # short messages of each rank that are received without its asking first
PINGS = 8
RESTART = "start all processes again, as torchrun can do"
NOTICE_S = 2.0  # within which the end of a rank is noticed, or a rank that is there answers
SILENT = "does not answer: it hangs, or is cut off"

# Kinds of short messages.
COMES, MAY_COME, PING, PONG, FAILED, LEAVES = range(6)


class Clock(NamedTuple):
    """How a rank's clock is set against that of rank 0, in seconds."""

    offset_s: float  # what it shows more
    error_s: float  # by how much that may be off


class Trouble(NamedTuple):
    """Why the ranks cannot go on together."""

    rank: int
    reason: str


class Sending(NamedTuple):
    """A tensor under way to another rank."""

    group: "Group"
    tensors: tuple[torch.Tensor, ...]  # what must not be freed
    works: tuple[Any, ...]

    def wait(self) -> None:
        """Return when the memory of the tensor may be used again."""
        with self.group.engine_errors():
            for work in self.works:
                work.wait()


class Group:
    """A process among those that were started together.

    `torch.distributed` must be initialised, as `torchrun` prepares it.
    """

    def __init__(self, timeout_s: float = 60.0) -> None:
        if not dist.is_initialized():
            raise EngineError(
                "there is no group of processes",
                hint="call torch.distributed.init_process_group() in a program that torchrun runs",
            )
        self._timeout_s = timeout_s
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._wires = dist.new_group(backend="gloo", timeout=NEVER)
        self._calls = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self.trouble: Trouble | None = None
        self.on_trouble: Callable[[], None] = lambda: None
        self._is_closed = self._has_failed = False
        self._incoming: dict[int, Any] = {}  # by task: the receive under way
        self._arrived: Callable[[int], None] = lambda task: None
        self._granted: Callable[[int], None] = lambda task: None
        self._pongs: list[SimpleQueue[int]] = [SimpleQueue() for _ in range(self.size)]
        self._unanswered: list[Any] = []  # questions, kept since gloo may still read them
        self._lock = Lock()
        self.hosts: list[str] = self.gather(socket.gethostname())
        self._listeners = [
            Thread(target=self._listen, args=(peer,), name=f"doppler-rank-{peer}", daemon=True)
            for peer in range(self.size)
            if peer != self.rank
        ]
        for thread in self._listeners:
            thread.start()

    # All ranks at once.

    def gather(self, value: Any) -> list[Any]:
        """What every rank gives, by rank."""
        found: list[Any] = [None] * self.size
        with self.engine_errors():
            dist.all_gather_object(found, value, group=self._calls)
        return found

    def gather_tensor(self, value: torch.Tensor) -> list[torch.Tensor]:
        """The tensors that all ranks give, by rank: of one shape, and without pickling them."""
        found = [torch.empty_like(value) for _ in range(self.size)]
        with self.engine_errors():
            dist.all_gather(found, value, group=self._calls)
        return found

    def wait_for_all(self) -> None:
        """Return when every rank has come here."""
        with self.engine_errors():
            dist.barrier(group=self._calls)

    def clocks(self) -> list[Clock]:
        """How the clocks of all ranks are set, by messages to and fro (Cristian's algorithm)."""
        found = [Clock(0.0, 0.0)]
        if self.rank == 0:
            found += [self._clock_of(peer) for peer in range(1, self.size)]
        return list(self.gather(found)[0])

    def _clock_of(self, peer: int) -> Clock:
        """The quickest of some questions tells most."""
        best = Clock(0.0, float("inf"))
        for _ in range(PINGS):
            began = time.perf_counter()
            self._say(peer, PING)
            there = self._answer(peer) * 1e-9
            took = time.perf_counter() - began
            if took / 2 < best.error_s:
                best = Clock(there - began - took / 2, took / 2)
        return best

    def _answer(self, peer: int) -> int:
        """The next answer to a question; an error where the rank that was asked is gone."""
        until = time.perf_counter() + self._timeout_s
        while time.perf_counter() < until:
            try:
                return self._pongs[peer].get(timeout=NOTICE_S)
            except Empty:
                self.check()
        self._note(Trouble(peer, SILENT))
        self.fail("cannot go on")
        self.check()
        raise AssertionError("unreachable")

    def look_for_silent(self) -> None:
        """Note the first rank that does not answer: it hangs, or is cut off."""
        others = [peer for peer in range(self.size) if peer != self.rank]
        for peer in others:
            while not self._pongs[peer].empty():
                self._pongs[peer].get()
        question = torch.tensor([PING, 0])
        asked = [self._wires.send([question], peer, MESSAGE) for peer in others]
        until = time.perf_counter() + NOTICE_S
        for peer in others:
            try:
                self._pongs[peer].get(timeout=max(until - time.perf_counter(), 0.001))
            except Empty:
                self._note(Trouble(peer, SILENT))
                break
        self._unanswered += asked  # a handle that is dropped would wait

    # A run.

    def post(
        self,
        receives: dict[int, tuple[torch.Tensor, int]],
        arrived: Callable[[int], None],
        granted: Callable[[int], None],
    ) -> None:
        """Make ready for the tensors of a run: by task, the memory and the rank it comes from."""
        self._arrived, self._granted = arrived, granted
        with self.engine_errors():
            self._incoming = {
                task: self._wires.recv([output], rank, FIRST + task)
                for task, (output, rank) in receives.items()
            }

    def send(self, value: torch.Tensor, rank: int, task: int) -> "Sending":
        """Begin to send a tensor; its memory may be used again when that is awaited."""
        message = torch.tensor([COMES, task])
        with self.engine_errors():
            works = (
                self._wires.send([value], rank, FIRST + task),
                self._wires.send([message], rank, MESSAGE),
            )
        return Sending(self, (message, value), works)

    def grant(self, rank: int, task: int) -> None:
        """Say that the memory is free into which a rank wants to send."""
        self._say(rank, MAY_COME, task)

    def fail(self, reason: str) -> None:
        """Say that this rank cannot go on, and why, so that none waits for it."""
        with self._lock:
            if self._is_closed or self._has_failed:
                return
            self._has_failed = True
            trouble = self.trouble = self.trouble or Trouble(self.rank, reason)
        for peer in range(self.size):
            if peer not in (self.rank, trouble.rank):
                self._tell(peer, trouble)

    def check(self) -> None:
        """An error if a rank is gone, or has failed."""
        if self.trouble is not None:
            raise EngineError(self.story(self.trouble), hint=RESTART)

    def story(self, trouble: Trouble) -> str:
        """What is wrong with which rank, and where that is."""
        return f"rank {trouble.rank} on host `{self.hosts[trouble.rank]}` {trouble.reason}"

    def close(self) -> None:
        """Take leave of the others. A group that had trouble is left as it is."""
        if self._is_closed:
            return
        with suppress(EngineError):
            for peer in range(self.size):
                if peer != self.rank and self.trouble is None:
                    self._say(peer, LEAVES)
        self._is_closed = True
        if self.trouble is None:
            for thread in self._listeners:
                thread.join()

    # Threads.

    def _listen(self, peer: int) -> None:
        messages = [torch.empty(2, dtype=torch.int64) for _ in range(POSTED)]
        try:
            posted = deque((m, self._wires.recv([m], peer, MESSAGE)) for m in messages)
            may_go_on = True
            while may_go_on:
                message, work = posted.popleft()
                work.wait()
                kind, value = message.tolist()
                may_go_on = self._hear(peer, kind, value)
                if may_go_on:
                    posted.append((message, self._wires.recv([message], peer, MESSAGE)))
        except RuntimeError:
            self._note(Trouble(peer, "is gone"))

    def _hear(self, peer: int, kind: int, value: int) -> bool:
        """Do what a message asks for; whether another may come."""
        if kind == COMES:
            self._incoming[value].wait()
            self._arrived(value)
        elif kind == MAY_COME:
            self._granted(value)
        elif kind == PING:
            self._say(peer, PONG, time.perf_counter_ns())
        elif kind == PONG:
            self._pongs[peer].put(value)
        elif kind == FAILED:
            self._note(Trouble(value, self._reason(peer)))
        return kind not in (FAILED, LEAVES)

    def _reason(self, peer: int) -> str:
        text = torch.zeros(TEXT_BYTES, dtype=torch.uint8)
        try:
            dist.recv(text, src=peer, group=self._wires, tag=TEXT)
        except RuntimeError:
            return "is gone"
        return bytes(text.tolist()).rstrip(b"\0").decode(errors="replace")

    def _note(self, trouble: Trouble) -> None:
        with self._lock:
            if self._is_closed or self.trouble is not None:
                return
            self.trouble = trouble
        self.on_trouble()

    def _say(self, peer: int, kind: int, value: int = 0) -> None:
        with self.engine_errors():
            message = torch.tensor([kind, value])
            dist.send(message, dst=peer, group=self._wires, tag=MESSAGE)

    def _tell(self, peer: int, trouble: Trouble) -> None:
        """Without waiting for the peer, which may be gone too."""
        message, text = torch.tensor([FAILED, trouble.rank]), torch.zeros(TEXT_BYTES).byte()
        raw = trouble.reason.encode()[:TEXT_BYTES]
        text[: len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)

        def tell() -> None:
            try:
                dist.send(message, dst=peer, group=self._wires, tag=MESSAGE)
                dist.send(text, dst=peer, group=self._wires, tag=TEXT)
            except RuntimeError:
                pass

        teller = Thread(target=tell, daemon=True)
        teller.start()
        teller.join(1.0)

    @contextmanager
    def engine_errors(self) -> Iterator[None]:
        """Torch's errors become ours, and name the rank that is gone."""
        try:
            yield
        except RuntimeError as error:
            until = time.perf_counter() + NOTICE_S
            with suppress(RuntimeError):
                self.look_for_silent()
            while self.trouble is None and time.perf_counter() < until:
                time.sleep(0.001)  # who listens to a rank that is gone will say so
            reason = str(error).strip().split("\n")[0]
            self._note(Trouble(self.rank, f"cannot reach the others: {reason}"))
            self.fail("cannot go on")
            self.check()
            raise
