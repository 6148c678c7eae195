"""Which machine a command is about: a topology by name, by file, assumed, or this one."""

from time import time
from typing import TYPE_CHECKING

from doppler.cli.output import note, showing_progress

if TYPE_CHECKING:
    from doppler.assignment import Assignment
    from doppler.graph import Graph
    from doppler.topology import Topology

HERE = "here"  # the name of this machine
DEFAULT = "p100x4"  # assumed for a graph without costs of its own


def find_topology(
    name: str | None,
    graph: "Graph | None" = None,
    assignment: "Assignment | None" = None,
    *,
    probe_again: bool = False,
) -> "Topology":
    """The topology of that name; without one, that of the assignment, or an assumed one.

    A remark says which machine is assumed, or that an assignment was made for another one.
    """
    from doppler.topology import read_topology

    if name == HERE:
        topology = this_machine(probe_again=probe_again)
    elif name is not None:
        topology = read_topology(name)
    elif assignment is not None and assignment.topology:
        topology = _made_for(assignment)
    else:
        topology = assumed_topology(graph)
    made_for = "" if assignment is None else assignment.topology
    if made_for and made_for != topology.name:
        note(f"the assignment was made for {made_for}, not for {topology.name}")
    return topology


def assumed_topology(graph: "Graph | None") -> "Topology":
    """The default machine for a graph, with a remark that it is assumed."""
    from doppler.topology import read_topology

    name = DEFAULT
    if graph is not None and graph.exec_s is not None:
        width = graph.exec_s.shape[1]
        if width > 1 or graph.transfer_s is not None or not graph.num_tensors:
            name = f"reference:{width if width > 1 else 4}"
    topology = read_topology(name)
    note(
        f"assuming the machine {name} ({topology.num_devices} devices); name yours with "
        "--topology: a name from `dop list topologies`, a file, or `here` for this machine"
    )
    return topology


def _made_for(assignment: "Assignment") -> "Topology":
    """The topology that an assignment names."""
    from doppler.errors import ConfigError, DopplerError
    from doppler.topology import preset

    if assignment.topology == HERE:
        return this_machine()
    try:
        return preset(assignment.topology)  # a name in a file must not make us open another
    except DopplerError as error:
        raise ConfigError(
            f"the assignment was made for the machine `{assignment.topology}`, "
            f"which is not known here: {error.message}",
            hint="name its file with --topology",
        ) from None


def this_machine(*, probe_again: bool = False) -> "Topology":
    """The topology of this machine: measured once, then read from a cache."""
    from doppler.machine.here import PROBE_S, cache_path, measure, read_cached

    path = cache_path()
    if path.is_file() and not probe_again:
        topology = read_cached()
        age = _age(time() - path.stat().st_mtime)
        note(f"this machine as measured {age} ago ({path}); measure again with --probe")
        return topology
    note(f"measuring this machine for about {PROBE_S:.0f} s, the first time only …")
    with showing_progress():
        return measure()


def _age(seconds: float) -> str:
    """How long ago, for people."""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"
