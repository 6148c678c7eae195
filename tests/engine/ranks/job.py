"""Jobs of several processes: each runs its part of some cases, and writes down what it saw.

One process starts all of them: what takes longest, to import torch, is done once.
"""

import os
import pickle
import signal
import sys
from contextlib import redirect_stdout, suppress
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from doppler.cli.main import main as command_line
from doppler.engine.config import EngineConfig
from doppler.engine.ranks.group import Group
from doppler.engine.ranks.rank_engine import RankEngine
from doppler.errors import DopplerError


def main(folders: list[Path]) -> None:
    """Run the jobs one after another."""
    for folder in folders:
        job = pickle.loads((folder / "job.pickle").read_bytes())
        ranks = []
        for rank in range(job["size"]):
            if (pid := os.fork()) == 0:
                run(folder, job, rank)
            ranks.append(pid)
        stopped = [pid for pid in ranks if os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])]
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def run(folder: Path, job: dict[str, Any], rank: int) -> None:
    """Run all cases of a job, and end; the outcome of each goes to a file of this rank."""
    size = job["size"]
    if "command" in job:
        os.environ |= job["environment"] | {"RANK": str(rank), "WORLD_SIZE": str(size)}
        os.chdir(folder)
        with Path(f"{rank}.pickle").open("wb") as file, redirect_stdout(StringIO()) as printed:
            sys.argv = ["dop", *job["command"]]
            with suppress(SystemExit):
                command_line()
            pickle.dump(printed.getvalue(), file)
        os._exit(0)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    group, outcomes = Group(job["timeout_s"]), []
    if job.get("fake"):
        fake_gpus(group)
    for case in job["cases"]:
        if case.get("dies") == rank:
            signal.signal(signal.SIGALRM, partial(_end, case["signal"]))
            signal.setitimer(signal.ITIMER_REAL, case["after_s"])
        more = case.get("config", {})
        config = EngineConfig(mode=case["mode"], timeout_s=job["timeout_s"], **more)
        try:
            engine = RankEngine(case["topology"], group, config, job.get("backend", "cpu"))
        except DopplerError as error:
            outcomes.append((type(error).__name__, error.message, error.hint))
            continue
        try:
            found = engine.execute(
                case["graph"], case["assignment"], case["inputs"], repeats=case["repeats"]
            )
            outcomes.append((found.outputs, found.trace.makespan_s, engine.clock_error_s))
        except DopplerError as error:
            outcomes.append((type(error).__name__, error.message))
        engine.close()
        if group.trouble is not None:
            break
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(outcomes))
    if group.trouble is None:
        group.close()
        dist.destroy_process_group()
    os._exit(0)  # without waiting for threads: those that wait for a rank that is gone never end


def fake_gpus(group: Group) -> None:
    """Let GPUs be threads, and NCCL messages of gloo that have no tags."""
    from engine.fake_cuda import install

    from doppler.engine.ranks import nccl, rank_cuda

    install(setattr)
    wires = dist.new_group(backend="gloo")

    class Wires:
        def send(self, tensors: Any, peer: int, tag: int) -> Any:
            return wires.send(tensors, peer, tag)

        def recv(self, tensors: Any, peer: int, tag: int) -> Any:
            return wires.recv(tensors, peer, tag)

    class FakeNccl(nccl.Nccl):
        def __init__(self) -> None:
            self.gpu, self._group, self._wires = 0, group, Wires()

    rank_cuda.nccl_of = lambda group, gpus: FakeNccl()  # type: ignore[assignment]
    nccl.where = lambda gpu: torch.device("cpu")  # type: ignore[assignment]


def _end(how: signal.Signals, *_: Any) -> None:
    os.kill(os.getpid(), how)


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
