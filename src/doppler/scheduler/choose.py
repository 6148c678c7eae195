"""ChooseTask (Alg. 1): which of the tasks that can start does the scheduler start next?

A strategy gives every vertex a priority, lower first; a transfer takes the best priority among
the vertices that wait for it. `fifo` has no fixed priorities: the task that was ready first goes
first. Ties go to the lowest task number, in every strategy.
"""

from collections.abc import Callable

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray
from doppler.errors import AssignmentError, UnknownNameError
from doppler.graph.graph import Graph
from doppler.graph.levels import depths
from doppler.problem import Problem

FIFO = "fifo"
RANDOM = "random"
ORDER = "order"


def depth_first(problem: Problem) -> FloatArray:
    """Deepest level first: finish what was begun."""
    return -depths(problem.graph).astype(np.float64)


def breadth_first(problem: Problem) -> FloatArray:
    """Shallowest level first."""
    return depths(problem.graph).astype(np.float64)


def critical_path(problem: Problem) -> FloatArray:
    """Longest path to an exit first, by mean exec and transfer seconds."""
    return -problem.bottom_levels.length_s


STATIC: dict[str, Callable[[Problem], FloatArray]] = {
    "depth-first": depth_first,
    "breadth-first": breadth_first,
    "critical-path": critical_path,
}

STRATEGIES = {
    FIFO: "the task that was ready first",
    "depth-first": "the deepest level first",
    "breadth-first": "the shallowest level first",
    "critical-path": "the longest path to an exit first",
    RANDOM: "a random priority for every vertex, from the seed",
    ORDER: "the order that comes with the assignment",
}

DYNAMIC, FIXED = "dynamic", "fixed"
MODES = {
    DYNAMIC: "the host starts each task when it is ready, in the order of the strategy",
    FIXED: "the host starts all tasks ahead in the order of a schedule; devices wait by themselves",
}


def check_mode(name: str) -> str:
    """The name, if there is such a mode."""
    if name not in MODES:
        raise UnknownNameError("mode", name, MODES)
    return name


def check_strategy(name: str) -> str:
    """The name, if there is such a strategy."""
    if name not in STRATEGIES:
        raise UnknownNameError("strategy", name, STRATEGIES)
    return name


def priorities(
    strategy: str, problem: Problem, assignment: Assignment, seed: int
) -> FloatArray | None:
    """(V,) a strategy's priorities, lower first, or None for first in, first out."""
    if strategy == FIFO:
        return None
    if strategy == RANDOM:
        return random_priorities(problem.graph, seed)
    if strategy == ORDER:
        return order_priorities(problem.graph, assignment)
    return STATIC[strategy](problem)


def random_priorities(graph: Graph, seed: int) -> FloatArray:
    """(V,) independent and uniform, from the seed."""
    return np.random.default_rng([seed, 1]).random(graph.num_vertices)


def order_priorities(graph: Graph, assignment: Assignment) -> FloatArray:
    """(V,) the position of each vertex in the assignment's order."""
    if assignment.order is None:
        raise AssignmentError(
            "strategy `order` needs an assignment with an order, and this one has none",
            hint="use another strategy, or a placer that chooses an order",
        )
    priority = np.zeros(graph.num_vertices)
    priority[assignment.order] = np.arange(len(assignment.order))
    return priority
