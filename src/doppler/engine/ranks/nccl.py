"""NCCL between ranks: tensors go from GPU to GPU, sends and receives in one order of all ranks."""

from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from doppler.engine.backends.driver import where
from doppler.engine.operands import Launch
from doppler.engine.pieces import Cell
from doppler.engine.ranks.group import NEVER, Group
from doppler.errors import EngineError

INSTEAD = "use `--transport gloo`, which goes through the memory of the hosts"


class Post(NamedTuple):
    """A tensor that is sent to a rank, or received from it, when it comes to that in the order."""

    peer: int
    launch: Launch


class Nccl:
    """Sends and receives of this rank's GPU; each is queued on the stream that is current."""

    def __init__(self, group: Group, gpu: int) -> None:
        """Meet all other ranks; each of them calls this alike."""
        if not dist.is_nccl_available():
            raise EngineError("this torch has no NCCL", hint=INSTEAD)
        self.gpu, self._group = gpu, group
        self._wires = dist.new_group(backend="nccl", timeout=NEVER)
        why = ""
        try:
            self._meet()
        except RuntimeError as error:
            why = str(error)
        troubles = [each for each in group.gather(why) if each]
        if troubles:
            raise refusal(troubles[0])

    def _meet(self) -> None:
        """Have a communicator of all ranks, then one of each pair, in one order of all pairs."""
        one, rank = torch.ones(1, device=where(self.gpu)), self._group.rank
        dist.all_reduce(one, group=self._wires)
        torch.cuda.synchronize(self.gpu)
        for a in range(self._group.size):
            for b in range(a + 1, self._group.size):
                if rank in (a, b):
                    self._post(one, b if rank == a else a, sends=rank == a)
                    torch.cuda.synchronize(self.gpu)

    def send(self, value: Any, peer: int) -> Post:
        """The value of a tensor, or of a cell, to another rank."""

        def launch() -> None:
            tensor = value.value if isinstance(value, Cell) else value
            self._post(_as_bytes(tensor.contiguous()), peer, sends=True)

        return Post(peer, launch)

    def receive(self, output: Any, peer: int, make_room: Any) -> Post:
        """Into a tensor, or into what `make_room` makes for a cell."""

        def launch() -> None:
            room = make_room() if isinstance(output, Cell) else output
            self._post(_as_bytes(room), peer, sends=False)
            if isinstance(output, Cell):
                output.value = room

        return Post(peer, launch)

    def _post(self, tensor: torch.Tensor, peer: int, *, sends: bool) -> None:
        """The stream waits for the end; the host does not."""
        if tensor.nbytes:
            post = self._wires.send if sends else self._wires.recv
            post([tensor], peer, 0).wait()

    def abort(self) -> None:
        """Let go of what waits for a rank that is gone."""
        with suppress(Exception):
            self._wires._get_backend(torch.device("cuda")).abort()


_found: "WeakKeyDictionary[Group, Nccl]" = WeakKeyDictionary()


def nccl_of(group: Group, gpus: list[int]) -> Nccl:
    """The NCCL of a group, for the GPUs of this rank's devices; there must be one."""
    several = [rank for rank, count in enumerate(group.gather(len(set(gpus)))) if count != 1]
    if several:
        raise EngineError(
            f"NCCL takes one GPU for each process, but rank {several[0]} has "
            f"{'several' if gpus else 'no devices'}",
            hint=f"start as many processes as there are GPUs, or {INSTEAD}",
        )
    if group not in _found or _found[group].gpu != gpus[0]:
        _found[group] = Nccl(group, gpus[0])
    return _found[group]


def refusal(text: str) -> EngineError:
    """Why NCCL cannot be used, from what it says."""
    if "Duplicate GPU" in text:
        return EngineError("NCCL needs a GPU for each process, and two share one", hint=INSTEAD)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines.index("Last error:") + 1 if "Last error:" in lines[:-1] else 0
    return EngineError(f"NCCL cannot be used: {lines[last]}", hint=INSTEAD)


def new_room(like: tuple[tuple[int, ...], torch.dtype], gpu: int, stream: Any) -> Any:
    """What makes a tensor of that shape, in memory of a stream on which nothing runs."""

    def make() -> torch.Tensor:
        with torch.cuda.stream(stream):
            return torch.empty(like[0], dtype=like[1], device=where(gpu))

    return make


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """NCCL does not know all dtypes."""
    return tensor.view(-1).view(torch.uint8)
