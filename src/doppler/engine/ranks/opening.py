"""An engine for this process: of all devices, or of its part of a job that torchrun started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from doppler.base.torchrun import num_ranks
from doppler.engine.backends.base import Backend
from doppler.engine.config import NCCL, EngineConfig
from doppler.engine.engine import Engine
from doppler.engine.ranks.group import Group
from doppler.engine.ranks.rank_engine import RankEngine
from doppler.errors import ConfigError, DopplerError
from doppler.topology.topology import Topology


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
    config = config or EngineConfig()
    with (
        open_group(config.timeout_s) as group,
        make_engine(topology, backend, config, group) as engine,
    ):
        yield engine


@contextmanager
def open_group(timeout_s: float) -> Iterator[Group | None]:
    """The group of this process, left in the end; None where it is alone.

    `timeout_s` is how long ranks wait for one another.
    """
    is_ours = not dist.is_initialized() and num_ranks() > 1
    if is_ours:
        _join()
    if not dist.is_initialized() or dist.get_world_size() == 1:
        yield None
        return
    group = Group(timeout_s)
    try:
        yield group
    except BaseException as error:
        reason = error.message if isinstance(error, DopplerError) else type(error).__name__
        group.fail(f"failed: {reason}")
        raise
    group.close()
    if is_ours and group.trouble is None:
        dist.destroy_process_group()


def make_engine(
    topology: Topology | str | Path,
    backend: str | Backend,
    config: EngineConfig,
    group: Group | None,
) -> Engine:
    """An engine of all devices, or of those of this rank."""
    if group is None:
        if config.transport == NCCL:
            raise ConfigError(
                "NCCL moves tensors between processes, and this is the only one",
                hint="start several with torchrun, or leave out the transport",
            )
        return Engine(topology, backend, config)
    return RankEngine(topology, group, config, backend)


def _join() -> None:
    """Meet the other processes, by the names of this attempt: torchrun keeps those of the last."""
    store, rank, size = next(iter(rendezvous("env://")))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
