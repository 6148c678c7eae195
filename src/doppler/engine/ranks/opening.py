"""An engine for this process: of all devices, or of its part of a job that torchrun started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from doppler.engine.backends.base import Backend
from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine
from doppler.engine.ranks.group import Group
from doppler.engine.ranks.rank_engine import RankEngine
from doppler.errors import EngineError
from doppler.topology.topology import Topology

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def open_engine(
    topology: Topology | str | Path,
    backend: str | Backend = "cpu",
    config: EngineConfig | None = None,
) -> Iterator[Engine]:
    """An engine, closed in the end.

    Where `torch.distributed` is initialised, or torchrun started this process among others, it
    runs this rank's part, and all other ranks must do the same.
    """
    is_ours = not dist.is_initialized() and num_ranks() > 1
    if is_ours:
        dist.init_process_group("gloo")
    if not dist.is_initialized() or dist.get_world_size() == 1:
        with Engine(topology, backend, config) as engine:
            yield engine
        return
    if backend != "cpu":
        raise EngineError(
            "several processes run on CPU devices only", hint="leave out the backend, or use cpu"
        )
    config = config or EngineConfig()
    group = Group(config.timeout_s)
    with RankEngine(topology, group, config) as engine:
        yield engine
    if is_ours and group.trouble is None:
        dist.destroy_process_group()


def num_ranks() -> int:
    """The processes that torchrun started, or 1."""
    if not all(name in os.environ for name in _TORCHRUN):
        return 1
    return int(os.environ["WORLD_SIZE"])


def is_first_rank() -> bool:
    """Whether this process is the one of a job that prints and writes files."""
    return num_ranks() == 1 or os.environ["RANK"] == "0"
