"""The classical list schedulers, each a rule: which ready vertex goes next, and where.

All plan with the costs of the problem; averages are over devices and pairs of devices.
Ties go to the lowest number unless said otherwise. `lists.rules` says what a plan leaves out.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray, frozen
from doppler.errors import ConfigError
from doppler.graph.fast_levels import bottom_levels
from doppler.placers.base import Shown, assign, refuse_budget
from doppler.placers.lists.rules import (
    MAX_GAPS,
    GreedyRule,
    ListSchedule,
    RankRule,
    flatten,
    run,
)
from doppler.placers.lists.trivial import ONE_RULE
from doppler.problem import Problem

WINDOW = 64  # ready vertices that max-min looks at


class Listed(NamedTuple):
    """What a list scheduler makes of a problem, without the times that it plans with."""

    devices: IntArray  # (V,) -1 for inputs
    order: IntArray  # (n,) vertices in the order in which they were placed


class ListPlacer(Shown, ABC):
    """A placer that follows one rule."""

    name = ""

    @abstractmethod
    def rule(self, problem: Problem) -> RankRule | GreedyRule:
        """Which vertex goes next, and where."""

    def schedule(self, problem: Problem) -> ListSchedule:
        """When and where each vertex is planned."""
        return run(flatten(problem), self.rule(problem))

    def listed(self, problem: Problem) -> Listed:
        """Devices and order of the schedule, which a problem may keep."""

        def make() -> Listed:
            schedule = self.schedule(problem)
            return Listed(schedule.devices, schedule.order)

        return problem.kept((type(self), *sorted(vars(self).items())), make)

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The devices of the schedule, in the order in which vertices were placed."""
        refuse_budget(self, budget_s, ONE_RULE)
        devices, order = self.listed(problem)
        return assign(self, problem, devices, order=order)


class HeftPlacer(ListPlacer):
    """Heterogeneous earliest finish time: longest path to an exit first, where it ends first.

    Topcuoglu, Hariri & Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", IEEE TPDS 13(3), 2002. Vertices by falling upward rank, the longest
    path to an exit by mean exec and transfer seconds; each on the device where it ends first,
    idle gaps between earlier vertices included (the latest `MAX_GAPS` of each slot).
    """

    name = "heft"

    def rule(self, problem: Problem) -> RankRule:
        """Upward rank; earliest finish with insertion."""
        return by_rank(problem.bottom_levels.length_s, problem.costs.exec_s)


class CpopPlacer(ListPlacer):
    """Critical path on a processor: the longest path goes to one device, the rest ends early.

    Topcuoglu et al. (2002). Of the ready vertices the one on the longest path (top level plus
    bottom level) first. Vertices on the graph's critical path go to the device that executes
    all of them fastest, others to the one where they end first; both may fill idle gaps.
    """

    name = "cpop"

    def rule(self, problem: Problem) -> RankRule:
        """Length of the longest path through a vertex; earliest finish, but for critical ones."""
        graph, exec_s, bottom = problem.graph, problem.costs.exec_s, problem.bottom_levels
        through = problem.top_levels.length_s + bottom.length_s
        bias_s = np.array(exec_s)
        if len(graph.assigned):
            start = int(np.argmax(np.where(graph.is_input, -1.0, bottom.length_s)))
            path = bottom.path(start)
            fastest = int(np.argmin(exec_s[path].sum(axis=0)))
            bias_s[path] = np.inf
            bias_s[path, fastest] = exec_s[path, fastest]
        return by_rank(through, bias_s)


class PeftPlacer(ListPlacer):
    """Predict earliest finish time: ends early, and leaves a short way to the exit.

    Arabnejad & Barbosa, "List scheduling algorithm for heterogeneous systems by an optimistic
    cost table", IEEE TPDS 25(3), 2014. The table gives, for a vertex on a device, the longest of
    its readers' shortest ways to the exit if devices were always free. Of the ready vertices the
    one with the largest mean entry first; each on the device where the time it ends, with
    insertion, plus its entry is least.
    """

    name = "peft"

    def rule(self, problem: Problem) -> RankRule:
        """Mean optimistic cost; earliest finish plus optimistic cost, with insertion."""
        table = optimistic_s(problem)
        return by_rank(table.mean(axis=1), problem.costs.exec_s + table)


class MaxMinPlacer(ListPlacer):
    """Max-min: of the ready vertices the one that ends last at best, where it ends first.

    Ibarra & Kim, "Heuristic algorithms for scheduling independent tasks on nonidentical
    processors", J. ACM 24(2), 1977; here over the ready vertices of a graph. Each vertex's
    earliest finish moves with every placement, so of more than `WINDOW` ready vertices only
    those with the longest exec seconds, on their fastest device, are compared.
    """

    name = "max-min"

    def __init__(self, window: int = WINDOW) -> None:
        if window < 1:
            raise ConfigError(f"window is {window}, must be at least 1")
        self.window = window

    def rule(self, problem: Problem) -> RankRule:
        """Latest of the earliest finishes, without insertion."""
        exec_s = problem.costs.exec_s
        return by_rank(exec_s.min(axis=1), exec_s, window=self.window, max_gaps=0)


class MinMinPlacer(ListPlacer):
    """Min-min: of all ready vertices and devices the pair that ends first.

    Ibarra & Kim (1977), over the ready vertices of a graph. Of pairs that end together the one
    with the shorter exec.
    """

    name = "min-min"

    def rule(self, problem: Problem) -> GreedyRule:
        """Least finish, then least exec."""
        return greedy(problem.costs.exec_s, by_finish=True)


class EtfPlacer(ListPlacer):
    """Earliest task first: of all ready vertices and devices the pair that can begin first.

    Hwang, Chow, Anger & Lee, "Scheduling precedence graphs in systems with interprocessor
    communication times", SIAM J. Comput. 18(2), 1989. Of pairs that can begin together the one
    with the longest path to an exit, by mean exec seconds alone (the static level).
    """

    name = "etf"

    def rule(self, problem: Problem) -> GreedyRule:
        """Least begin, then largest static level."""
        return greedy(static_levels(problem))


class MemoryEtfPlacer(ListPlacer):
    """Earliest task first on devices that have room: m-ETF.

    Jeon et al., "Baechi: fast device placement of machine learning graphs", SoCC 2020. As ETF,
    but a device only takes a vertex if its memory holds the outputs of all vertices placed there
    and all copies they receive, as if nothing were ever freed. When no ready vertex fits
    anywhere, the one with the largest static level goes where most room is left.
    """

    name = "m-etf"

    def rule(self, problem: Problem) -> GreedyRule:
        """Least begin among those with room, then largest static level."""
        memory_bytes = np.array(problem.memory_bytes)
        return greedy(static_levels(problem), memory_bytes=memory_bytes)


class MemorySctPlacer(ListPlacer):
    """Small communication times on devices that have room: m-SCT.

    Jeon et al. (2020), after Hanen & Munier, "An approximation algorithm for scheduling dependent
    tasks on m processors with small communication delays", 1995. As m-ETF, but every vertex has
    at most one favourite reader, and is the favourite of at most one vertex: a device stays awake
    for the favourite of its last vertex for as long as moving that tensor takes, and begins
    another by then only if the inputs of that one are on all devices. Favourites come from a
    linear program there; here they are chosen greedily, longest path through the edge first.
    """

    name = "m-sct"

    def rule(self, problem: Problem) -> GreedyRule:
        """Least begin among those with room, favourites first."""
        favourite, awake_s = favourites(problem)
        return greedy(
            static_levels(problem),
            memory_bytes=np.array(problem.memory_bytes),
            favourite=favourite,
            awake_s=awake_s,
        )


def by_rank(
    rank: FloatArray, bias_s: FloatArray, *, window: int = 1, max_gaps: int = MAX_GAPS
) -> RankRule:
    """Largest rank first, on the device with the least begin plus bias."""
    sequence = np.argsort(-rank, kind="stable")
    return RankRule(sequence, np.array(bias_s), np.zeros(len(rank)), window, max_gaps)


def greedy(
    tie: FloatArray,
    *,
    by_finish: bool = False,
    memory_bytes: FloatArray | None = None,
    favourite: IntArray | None = None,
    awake_s: FloatArray | None = None,
) -> GreedyRule:
    """A greedy rule; unlimited memory and no favourites unless given."""
    size = len(tie)
    return GreedyRule(
        np.array(tie),
        by_finish,
        np.full(tie.shape[1], np.inf) if memory_bytes is None else memory_bytes,
        np.full(size, -1) if favourite is None else favourite,
        np.zeros(size) if awake_s is None else awake_s,
    )


def static_levels(problem: Problem) -> FloatArray:
    """(V, D) minus the longest path to an exit by mean exec seconds, transfers left out."""
    no_transfer_s = np.zeros(problem.graph.num_tensors)
    levels = bottom_levels(problem.graph, problem.mean_exec_s, no_transfer_s)
    return np.repeat(-levels.length_s[:, None], problem.topology.num_devices, axis=1)


def optimistic_s(problem: Problem) -> FloatArray:
    """(V, D) PEFT's optimistic cost table; 0 at exits.

    `table[v, d] = max over readers r of min over devices e of
    table[r, e] + exec_s[r, e] + (mean transfer seconds if e is not d)`.
    """
    from doppler.placers.lists.kernel import fill_optimistic

    table = np.zeros_like(problem.costs.exec_s)
    move_s = np.array(problem.mean_transfer_s)
    fill_optimistic(flatten(problem), problem.graph.topological_order, move_s, table)
    return frozen(table)


def favourites(problem: Problem) -> tuple[IntArray, FloatArray]:
    """(V,) the favourite reader of each vertex or -1, and (V,) seconds to move what it reads.

    Edges by falling length of the longest path that begins with them; an edge is taken if its
    producer has no favourite yet and its reader is none.
    """
    from doppler.placers.lists.kernel import choose_favourites

    graph, move_s = problem.graph, problem.mean_transfer_s
    edges = np.flatnonzero(problem.is_produced[graph.edge_tensor])
    tensor, reader = graph.edge_tensor[edges], graph.edge_reader[edges]
    producer, edge_s = graph.tensor_producer[tensor], move_s[tensor]
    path_s = problem.mean_exec_s[producer] + edge_s + problem.bottom_levels.length_s[reader]
    longest = np.argsort(-path_s, kind="stable")
    size = graph.num_vertices
    favourite, awake_s, taken = np.full(size, -1), np.zeros(size), np.zeros(size, np.bool_)
    choose_favourites(
        producer[longest], reader[longest], edge_s[longest], favourite, awake_s, taken
    )
    return favourite, awake_s
