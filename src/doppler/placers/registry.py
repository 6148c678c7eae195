"""The placers by name."""

from importlib import import_module

from doppler.assignment import Assignment
from doppler.errors import UnknownNameError
from doppler.graph.graph import Graph
from doppler.placers.base import Placer
from doppler.topology.topology import Topology

DEFAULT = "critical-path"

_PLACERS = {  # name: "module:class"
    "critical-path": "doppler.placers.critical_path:CriticalPathPlacer",
    "random": "doppler.placers.baselines:RandomPlacer",
    "round-robin": "doppler.placers.baselines:RoundRobinPlacer",
    "single": "doppler.placers.baselines:SinglePlacer",
}


def placer_names() -> list[str]:
    """Names of all placers."""
    return sorted(_PLACERS)


def make_placer(name: str) -> Placer:
    """The placer of that name, with its default options."""
    if name not in _PLACERS:
        raise UnknownNameError("placer", name, _PLACERS)
    module, _, cls = _PLACERS[name].partition(":")
    placer: Placer = getattr(import_module(module), cls)()
    return placer


def place(
    graph: Graph, topology: Topology, placer: str | Placer = DEFAULT, *, seed: int = 0
) -> Assignment:
    """The assignment a placer, or the placer of that name, makes."""
    chosen = make_placer(placer) if isinstance(placer, str) else placer
    return chosen.place(graph, topology, seed=seed)
