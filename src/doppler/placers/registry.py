"""The placers by name."""

from importlib import import_module

from doppler.assignment import Assignment
from doppler.errors import ConfigError, UnknownNameError
from doppler.graph.graph import Graph
from doppler.inference.checkpoint import has_shipped_policy
from doppler.placers.answer import ask
from doppler.placers.base import Placer
from doppler.topology.topology import Topology

DEFAULT = "auto"

_PLACERS = {  # name: "module:class"
    "annealing": "doppler.placers.search:AnnealingPlacer",
    "auto": "doppler.placers.auto:AutoPlacer",
    "enumerative": "doppler.placers.enumerative:EnumerativePlacer",
    "genetic": "doppler.placers.genetic:GeneticPlacer",
    "local-search": "doppler.placers.search:LocalSearchPlacer",
    "critical-path": "doppler.placers.critical_path:CriticalPathPlacer",
    "cp-sat": "doppler.placers.exact:ExactPlacer",
    "cpop": "doppler.placers.list_schedulers:CpopPlacer",
    "etf": "doppler.placers.list_schedulers:EtfPlacer",
    "hypergraph": "doppler.placers.hypergraph:HypergraphPlacer",
    "heft": "doppler.placers.list_schedulers:HeftPlacer",
    "m-etf": "doppler.placers.list_schedulers:MemoryEtfPlacer",
    "m-sct": "doppler.placers.list_schedulers:MemorySctPlacer",
    "max-min": "doppler.placers.list_schedulers:MaxMinPlacer",
    "metis": "doppler.placers.metis:MetisPlacer",
    "min-min": "doppler.placers.list_schedulers:MinMinPlacer",
    "peft": "doppler.placers.list_schedulers:PeftPlacer",
    "random": "doppler.placers.baselines:RandomPlacer",
    "round-robin": "doppler.placers.baselines:RoundRobinPlacer",
    "single": "doppler.placers.baselines:SinglePlacer",
}
_LEARNED = {  # those that take a policy: `name:run`, or `name:checkpoint`; or the shipped one
    "auto": "doppler.placers.auto:AutoPlacer",
    "doppler": "doppler.placers.doppler:DopplerPlacer",
}
_BASELINES = {  # the same, but none is shipped for them
    "gdp": "doppler.placers.learned:GdpPlacer",
    "placeto": "doppler.placers.learned:PlacetoPlacer",
    "placeto-pretrain": "doppler.placers.learned:PlacetoPlacer",
    "seq2seq": "doppler.placers.learned:Seq2SeqPlacer",
}


def placer_names() -> list[str]:
    """Names of all placers that need nothing but a graph and a topology.

    `doppler` is one of them where a policy comes with the package.
    """
    return sorted({*_PLACERS, *_LEARNED} if has_shipped_policy() else _PLACERS)


def learned_names() -> dict[str, str]:
    """The names of those that place by a policy alone, and the first line of what they are."""
    found = {}
    for name, where in sorted((_LEARNED | _BASELINES).items()):
        if name not in _PLACERS:
            module, _, cls = where.partition(":")
            found[name] = str(getattr(import_module(module), cls).__doc__).splitlines()[0]
    return found


def make_placer(name: str, *, budget_s: float | None = None) -> Placer:
    """The placer of that name; `budget_s` is for those that search as long as they may.

    `doppler:runs/x` places by the policy of a training run, or of a checkpoint; `auto:runs/x` has
    it in its portfolio. Without a run they take the policy that comes with the package; where none
    does, `auto` goes without, and `doppler` is a `CheckpointError`.
    """
    name, with_policy, path = name.partition(":")
    known = _LEARNED | _BASELINES if with_policy else _PLACERS | _LEARNED
    if name in _BASELINES and not with_policy:
        raise ConfigError(f"placer `{name}` needs a policy", hint=f"as in `{name}:runs/x`")
    if name not in known:
        raise UnknownNameError("placer", name, _PLACERS | _LEARNED | _BASELINES)
    module, _, cls = known[name].partition(":")
    kind = getattr(import_module(module), cls)
    placer: Placer
    if with_policy:
        placer = kind.from_path(path, seconds=budget_s)
    elif budget_s is not None and hasattr(kind, "with_budget"):
        placer = kind.with_budget(budget_s)
    else:
        placer = kind()
    return placer


def place(
    graph: Graph, topology: Topology, placer: str | Placer = DEFAULT, *, seed: int = 0
) -> Assignment:
    """The assignment a placer, or the placer of that name, makes.

    An `OutOfMemoryError` where the devices' memory is too small for it to run.
    """
    chosen = make_placer(placer) if isinstance(placer, str) else placer
    return ask(chosen, graph, topology, seed=seed).assignment
