"""Values by name: what public functions take where a value is also a file, or a preset."""

from pathlib import Path

from doppler.assignment import Assignment, read_assignment
from doppler.cost import CostModel, DefaultCostModel
from doppler.errors import WrongTypeError
from doppler.formats.registry import read_graph
from doppler.graph.graph import Graph
from doppler.problem import Problem
from doppler.topology.presets import read_topology
from doppler.topology.topology import Topology


def as_graph(value: Graph | str | Path) -> Graph:
    """The graph itself, or the one in a file of any known format."""
    if isinstance(value, (str, Path)):
        return read_graph(value)
    if not isinstance(value, Graph):
        raise WrongTypeError("graph", value, "a Graph, or the path of a graph file")
    return value


def as_topology(value: Topology | str | Path) -> Topology:
    """The topology itself, the preset of that name, or the one in a TOML or JSON file."""
    if isinstance(value, (str, Path)):
        return read_topology(str(value))
    if not isinstance(value, Topology):
        wanted = "a Topology, the name of a preset, or the path of a topology file"
        raise WrongTypeError("topology", value, wanted)
    return value


def as_assignment(value: Assignment | str | Path) -> Assignment:
    """The assignment itself, or the one in a file."""
    if isinstance(value, (str, Path)):
        return read_assignment(value)
    if not isinstance(value, Assignment):
        wanted = "an Assignment, or the path of an assignment file"
        raise WrongTypeError("assignment", value, wanted)
    return value


def as_problem(
    graph: Graph | str | Path, topology: Topology | str | Path, cost_model: CostModel | None = None
) -> Problem:
    """The problem of placing a graph on a topology, each a value or a name; priced by default."""
    return Problem(as_graph(graph), as_topology(topology), cost_model or DefaultCostModel())
