"""Placer: anything that maps a graph and a topology to an assignment."""

import os
from typing import Protocol

import numpy as np

from doppler.assignment import Assignment, assignment_for
from doppler.base.arrays import IntArray
from doppler.base.notebook import cut, html_line
from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Graph
from doppler.topology.presets import preset
from doppler.topology.topology import Topology


class Placer(Protocol):
    """Makes assignments. The same graph, topology and seed give the same assignment.

    But for placers that search for so many seconds: those have a class method `with_budget`.
    """

    name: str

    def place(self, graph: Graph, topology: Topology, *, seed: int = 0) -> Assignment:
        """A device for every vertex of the graph."""
        ...


class Shown:
    """A placer that shows itself by its class and name: `<HeftPlacer heft>`."""

    name: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {cut(self.name)}>"

    def _repr_html_(self) -> str:
        return html_line(repr(self))


def assign(
    placer: Placer,
    graph: Graph,
    topology: Topology,
    devices: IntArray,
    *,
    order: IntArray | None = None,
) -> Assignment:
    """An Assignment of (V,) `devices` that says who made it, and for what; inputs get none."""
    devices = np.where(graph.is_input, -1, devices)
    return assignment_for(graph, topology, devices, order=order, placer=placer.name)


def pair() -> tuple[Graph, Topology]:
    """Two vertices on two devices: to compile on, or to load what was compiled before."""
    builder = GraphBuilder("pair")
    for name in ("a", "b"):
        builder.op(name, "matmul", reads=[], output_bytes=1, exec_s=1.0, transfer_s=1.0)
    return builder.build(), preset("reference:2")


def cores() -> list[int]:
    """The cores this process may use; empty where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
