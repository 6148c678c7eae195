"""The backends by name."""

from importlib import import_module
from typing import TYPE_CHECKING

from doppler.errors import MissingExtraError, UnknownNameError
from doppler.topology.topology import Topology

if TYPE_CHECKING:
    from doppler.engine.backends.base import Backend

BACKENDS = {
    "null": "doppler.engine.backends.null:NullBackend",
    "cpu": "doppler.engine.backends.cpu:CpuBackend",
    "cuda": "doppler.engine.backends.cuda:CudaBackend",
}


def make_backend(name: str, topology: Topology) -> "Backend":
    """The backend of that name for the devices of a topology."""
    if name not in BACKENDS:
        raise UnknownNameError("backend", name, BACKENDS)
    module, _, kind = BACKENDS[name].partition(":")
    backend: Backend = getattr(import_module(module), kind)(topology)
    return backend


def default_backend() -> str:
    """`cuda` where there is a GPU, else `cpu`; a `MissingExtraError` without torch."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "measuring this machine", extra="torch") from None
    return "cuda" if torch.cuda.is_available() else "cpu"
