"""Auto: a portfolio under a time budget, never worse than any of its members."""

from dataclasses import dataclass
from math import inf
from time import monotonic

import numpy as np

from doppler.assignment import Assignment
from doppler.errors import ConfigError, DopplerError, Interrupted
from doppler.graph.graph import Graph
from doppler.placers.base import Placer, assign
from doppler.placers.bounds import lower_bounds
from doppler.placers.registry import make_placer
from doppler.placers.search import INSTANT, SearchConfig, search, warm_up
from doppler.progress import track
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology

SEARCH = "annealing"


@dataclass(frozen=True, slots=True)
class Member:
    """What one member of the portfolio came to."""

    name: str
    makespan_s: float  # infinity where it failed
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class AutoResult:
    """The winner's assignment, and how all members did."""

    assignment: Assignment
    won: str
    members: tuple[Member, ...]


class AutoPlacer:
    """The best of the instant heuristics, then search from there for the rest of the budget.

    Stops early where the makespan reaches the lower bound, so that nothing can be better.
    """

    name = "auto"

    def __init__(
        self,
        seconds: float = 10.0,
        *,
        evaluations: int | None = None,
        instant: tuple[str, ...] = INSTANT,
    ) -> None:
        """`evaluations` bounds the search instead of seconds, so that runs repeat."""
        if not seconds > 0:
            raise ConfigError(f"seconds is {seconds}, must be positive")
        self.seconds, self.evaluations, self.instant = seconds, evaluations, instant

    @classmethod
    def with_budget(cls, seconds: float) -> "AutoPlacer":
        """One that takes at most so many seconds."""
        return cls(seconds)

    def place(self, graph: Graph, topology: Topology, *, seed: int = 0) -> Assignment:
        """The best assignment any member finds."""
        return self.run(graph, topology, seed=seed).assignment

    def run(self, graph: Graph, topology: Topology, *, seed: int = 0) -> AutoResult:
        """The best assignment, and who found it."""
        warm_up()
        began = monotonic()
        simulator = Simulator(topology)
        found: list[tuple[Member, Assignment | None]] = []
        try:
            for name in track(self.instant, "heuristics"):
                if monotonic() - began > self.seconds and any(a for _, a in found):
                    break
                found.append(_try(make_placer(name), graph, topology, simulator, seed))
        except (KeyboardInterrupt, Interrupted):
            if not any(assignment for _, assignment in found):
                raise
        placed = [(m, a) for m, a in found if a is not None]
        if not placed:
            raise DopplerError("no placer found an assignment", hint=found[0][0].error)
        best = min(placed, key=lambda pair: pair[0].makespan_s)
        left = self.seconds - (monotonic() - began)
        bound = lower_bounds(graph, topology).best_s
        if (left > 0 or self.evaluations) and best[0].makespan_s > bound * (1 + 1e-9):
            ranked = sorted(placed, key=lambda pair: pair[0].makespan_s)
            starts = [np.array(a.devices) for _, a in ranked]
            start = monotonic()
            config = SearchConfig(seconds=max(left, 1e-3), evaluations=self.evaluations)
            result = search(graph, topology, starts, config, seed=seed)
            member = Member(SEARCH, result.cost_s, monotonic() - start)
            found.append((member, None))
            if result.cost_s < best[0].makespan_s:
                best = (member, assign(self, graph, topology, result.devices))
        winner = best[1]
        assignment = assign(self, graph, topology, winner.devices, order=winner.order)
        return AutoResult(assignment, best[0].name, tuple(member for member, _ in found))


def _try(
    placer: Placer, graph: Graph, topology: Topology, simulator: Simulator, seed: int
) -> tuple[Member, Assignment | None]:
    began = monotonic()
    try:
        assignment = placer.place(graph, topology, seed=seed)
        makespan = float(simulator.makespans(graph, [assignment], seed=seed)[0])
    except DopplerError as error:
        return Member(placer.name, inf, monotonic() - began, str(error)), None
    return Member(placer.name, makespan, monotonic() - began), assignment
