"""The placers by name."""

from importlib import import_module
from pathlib import Path
from typing import Any

from doppler.assignment import Assignment
from doppler.cost import CostModel
from doppler.errors import ConfigError, DopplerError, UnknownNameError
from doppler.graph.graph import Graph
from doppler.placers.base import Placer
from doppler.placers.modes import solve_in_mode
from doppler.placers.own import (
    installed_placers,
    is_reference,
    load_installed,
    load_placer,
    package_of,
)
from doppler.policies.arrays.checkpoint import has_shipped_policy
from doppler.resolve import as_problem
from doppler.scheduler.choose import DYNAMIC
from doppler.topology.topology import Topology

DEFAULT = "auto"

_PLACERS = {  # name: "module:class"
    "annealing": "doppler.placers.search.annealing:AnnealingPlacer",
    "auto": "doppler.placers.auto:AutoPlacer",
    "enumerative": "doppler.placers.lists.enumerative:EnumerativePlacer",
    "genetic": "doppler.placers.search.genetic:GeneticPlacer",
    "local-search": "doppler.placers.search.annealing:LocalSearchPlacer",
    "critical-path": "doppler.placers.lists.critical_path:CriticalPathPlacer",
    "cp-sat": "doppler.placers.exact.placer:ExactPlacer",
    "cpop": "doppler.placers.lists.schedulers:CpopPlacer",
    "etf": "doppler.placers.lists.schedulers:EtfPlacer",
    "hypergraph": "doppler.placers.partition.hypergraph:HypergraphPlacer",
    "heft": "doppler.placers.lists.schedulers:HeftPlacer",
    "m-etf": "doppler.placers.lists.schedulers:MemoryEtfPlacer",
    "m-sct": "doppler.placers.lists.schedulers:MemorySctPlacer",
    "max-min": "doppler.placers.lists.schedulers:MaxMinPlacer",
    "metis": "doppler.placers.partition.metis:MetisPlacer",
    "min-min": "doppler.placers.lists.schedulers:MinMinPlacer",
    "fewer-devices": "doppler.placers.lists.fewer_devices:FewerDevicesPlacer",
    "peft": "doppler.placers.lists.schedulers:PeftPlacer",
    "random": "doppler.placers.lists.trivial:RandomPlacer",
    "round-robin": "doppler.placers.lists.trivial:RoundRobinPlacer",
    "single": "doppler.placers.lists.trivial:SinglePlacer",
}
_FORMS = {  # of placers, as in `name:form`; they are not compared with the others by default
    "critical-path:blind": "doppler.placers.lists.critical_path:BlindCriticalPathPlacer",
}
_LEARNED = {  # those that take a policy: `name:run`, or `name:checkpoint`; or the shipped one
    "auto": "doppler.placers.auto:AutoPlacer",
    "doppler": "doppler.placers.learned.doppler:DopplerPlacer",
}
_RIVALS = {  # the same, but none is shipped for them
    "gdp": "doppler.placers.learned.rivals:GdpPlacer",
    "placeto": "doppler.placers.learned.rivals:PlacetoPlacer",
    "placeto-pretrain": "doppler.placers.learned.rivals:PlacetoPlacer",
    "seq2seq": "doppler.placers.learned.rivals:Seq2SeqPlacer",
}


def placer_names() -> list[str]:
    """Names of all placers that need nothing but a graph and a topology.

    `doppler` is one of them where a policy comes with the package.
    """
    return sorted({*_PLACERS, *_LEARNED} if has_shipped_policy() else _PLACERS)


def learned_names() -> dict[str, str]:
    """The names of those that place by a policy alone, and the first line of what they are."""
    found = {}
    for name, where in sorted((_LEARNED | _RIVALS).items()):
        if name not in _PLACERS:
            found[name] = str(_class(where).__doc__).splitlines()[0]
    return found


def described_placers() -> list[tuple[str, str]]:
    """The names of all placers and the first line of what they are, also of installed ones."""
    rows = [(name, _first_line(make_placer(name))) for name in (*placer_names(), *_FORMS)]
    rows += [(f"{name}:RUN", text) for name, text in learned_names().items()]
    for name, point in installed_placers(_names()).items():
        try:
            text = _first_line(load_installed(point))
        except DopplerError as error:
            text = f"Cannot be used: {error.message}"
        rows.append((name, f"{text} (from {package_of(point)})".strip()))
    return sorted(rows)


def make_placer(name: str) -> Placer:
    """The placer of that name.

    `doppler:runs/x` places by the policy of a training run, or of a checkpoint; `auto:runs/x` has
    it in its portfolio. Without a run they take the policy that comes with the package; where none
    does, `auto` goes without, and `doppler` is a `CheckpointError`.

    `package.module:MyPlacer` is a placer of one's own: a class, a placer, or a function that makes
    one, in a module in the current folder or in Python's path. A name may also be that of an entry
    point of the group `doppler.placers`, which an installed package brings.

    >>> make_placer("critical-path").name
    'critical-path'
    """
    head, colon, path = name.partition(":")
    if head in _names():
        return _built_in(head, path if colon else None)
    installed = installed_placers(_names())
    if name in installed:
        return load_installed(installed[name])
    if head in installed:
        raise _takes_no_run(head, path)
    known = [*_names(), *installed]
    if is_reference(name):
        return load_placer(name, known=known)
    raise UnknownNameError("placer", head, known)


def place(
    graph: Graph | str | Path,
    topology: Topology | str | Path,
    placer: str | Placer = DEFAULT,
    *,
    budget_s: float | None = None,
    seed: int = 0,
    cost_model: CostModel | None = None,
    mode: str = DYNAMIC,
) -> Assignment:
    """The assignment a placer, or the placer of that name, makes.

    Graph and topology may be given as the paths of their files, and the topology as the name of a
    preset. `budget_s` is the time that a placer which searches may take; a `ConfigError` for
    placers that do not. `cost_model` prices the graph, instead of the default one. What the placer
    returns is checked; an `OutOfMemoryError` where the devices' memory is too small for it. In mode
    `fixed` the assignment has a schedule: the order of all its tasks, which is searched for too.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> assignment = dp.place(graph, "p100x4", "auto", budget_s=0.1)
    >>> len(assignment.by_name()) == len(graph.assigned)
    True
    >>> dp.place(graph, "p100x4", "heft", mode="fixed").schedule is not None
    True
    """
    if isinstance(placer, str):
        placer = make_placer(placer)
    problem = as_problem(graph, topology, cost_model)
    return solve_in_mode(placer, problem, mode, seed=seed, budget_s=budget_s).assignment


def _names() -> list[str]:
    return sorted(_PLACERS | _LEARNED | _RIVALS)


def _built_in(name: str, path: str | None) -> Placer:
    """The placer of that name, with the policy at `path` if there is one."""
    takes_policy = _LEARNED | _RIVALS
    if f"{name}:{path}" in _FORMS:
        form: Placer = _class(_FORMS[f"{name}:{path}"])()
        return form
    if path is not None and name not in takes_policy:
        raise _takes_no_run(name, path)
    if (path is None and name in _RIVALS) or path == "":
        raise ConfigError(f"placer `{name}` needs a policy", hint=f"as in `{name}:runs/x`")
    kind = _class((takes_policy | _PLACERS)[name])
    placer: Placer = kind() if path is None else kind.from_path(path)
    return placer


def _class(where: str) -> Any:
    """The class at `module:class`."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def _takes_no_run(name: str, path: str) -> ConfigError:
    takers = ", ".join(sorted(_LEARNED | _RIVALS))
    return ConfigError(
        f"placer `{name}` takes no run, but is given `{path}`",
        hint=f"write `{name}`; placers that take a run: {takers}",
    )


def _first_line(placer: Placer) -> str:
    return (type(placer).__doc__ or "").strip().partition("\n")[0]
