"""Executor: what runs an assignment, in virtual or in real time."""

from typing import Protocol

from doppler.assignment import Assignment
from doppler.graph.graph import Graph
from doppler.trace import Trace


class Executor(Protocol):
    """Runs a graph under an assignment (ExecTime of Alg. 1) and returns a trace of what happened.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> executor = dp.Simulator("p100x4")  # or an Engine
    >>> executor.run(graph, dp.place(graph, "p100x4", "heft")).makespan_s > 0
    True
    """

    def run(self, graph: Graph, assignment: Assignment, seed: int = 0) -> Trace:
        """Every begin and end of every exec and transfer."""
        ...
