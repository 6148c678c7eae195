"""The machine that this process runs on: measured once, then read from a cache."""

import os
import platform
from dataclasses import replace
from pathlib import Path

from doppler.engine.backends.registry import default_backend
from doppler.errors import ConfigError, DopplerError
from doppler.topology.presets import read_topology
from doppler.topology.topology import Topology

HERE = "here"  # the name of this machine
PROBE_S = 10.0  # to measure it for


def this_machine() -> Topology:
    """The topology of this machine, measured now unless it has been before."""
    return read_cached() if cache_path().is_file() else measure()


def measure(seconds: float = PROBE_S) -> Topology:
    """The topology of this machine, measured now and kept in the cache."""
    from doppler.machine.probe import probe
    from doppler.topology.io import write_topology

    topology = replace(probe(default_backend(), seconds=seconds).topology, name=HERE)
    path = cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_topology(topology, path, force=True)
    return topology


def read_cached() -> Topology:
    """The topology in the cache."""
    try:
        return read_topology(cache_path())
    except DopplerError as error:
        raise ConfigError(error.message, hint="measure this machine again with --probe") from None


def cache_path() -> Path:
    """The file that this machine's topology is kept in; several may share a home."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    host = "".join(c if c.isalnum() else "-" for c in platform.node())
    return Path(base) / "doppler" / f"{HERE}-{host}.json"
