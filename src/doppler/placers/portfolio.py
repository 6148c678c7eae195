"""Portfolio: what the members of `auto` have found so far, and what is proven."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import inf, isfinite
from time import monotonic

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray, unbox_fields
from doppler.errors import ConfigError, DopplerError, Interrupted, OutOfMemoryError
from doppler.placers.base import Placer
from doppler.placers.bounds.lower import ROUNDING, bounds_of, is_optimal
from doppler.placers.own import describe
from doppler.placers.planned_search import (
    ORDERS,
    PlannedSearchConfig,
    can_plan,
    planned,
    search_planned,
    without_limits,
)
from doppler.placers.search.annealing import LEAST_S, SearchConfig, SearchResult, search
from doppler.placers.solution import Member, solution_of
from doppler.problem import Problem
from doppler.sim.simulator import Simulator

SEARCH = "annealing"
PLANNED_SEARCH = "memory-plans"  # local search over assignments with memory plans
EXACT = "cp-sat"
SEEDS = 7919  # between the seeds of searches


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoConfig:
    """How `auto` shares its budget among its members.

    The paper has no portfolio, so no number is from it. Those for short memory were chosen after
    looks at the workloads of docs/results/memory.md.
    """

    instant_share: float = 0.5  # of the budget, for heuristics and policy; search has the rest
    learned_share: float = 0.25  # of the budget, in which the policy is sampled
    learned_s: float = 3e-6  # of a policy's first assignment, by vertex and device
    slack_s: float = 0.1  # that a member may exceed its share by
    exact_vertices: int = 30  # up to which an exact solver often ends in seconds
    exact_share: float = 0.5  # of the time left; the rest is for search
    exact_max_s: float = 3600.0  # however long the budget is

    # Where memory is short.
    plans_share: float = 0.5  # of the time left, for plans of assignments that do not fit
    relaxed: tuple[float, ...] = (inf, 2.0, 1.25) * 2  # times the memory that searches may assume
    relaxed_share: float = 0.5  # of the time left, for all of these searches
    fitting_share: float = 0.5  # of the time left, for what needs no plan, where that is the best
    plans: int = 200  # at most, where evaluations bound the search instead of seconds

    def __post_init__(self) -> None:
        unbox_fields(self)
        for name in ("instant_share", "learned_share", "exact_share", "plans_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be between 0 and 1")
        if self.learned_share > self.instant_share or not self.relaxed:
            raise ConfigError("learned_share must be at most instant_share, relaxed not empty")


@dataclass(frozen=True, slots=True)
class Found:
    """An assignment and the result of the member that found it."""

    member: Member
    assignment: Assignment

    @property
    def fits(self) -> bool:
        """Whether it runs without a memory plan."""
        return isfinite(self.member.makespan_s) and self.assignment.memory is None


class Portfolio:
    """What the members have found so far, and what is proven."""

    def __init__(self, problem: Problem, seed: int, config: AutoConfig) -> None:
        self._config = config
        self.began, self.problem, self.seed = monotonic(), problem, seed
        self.bound_s, self.interrupted = bounds_of(problem).best_s, False
        self.members: list[Member] = []
        self.found: list[Found] = []
        self._simulator = Simulator(problem)
        self._waiting: list[int] = []  # members whose assignments do not fit as they are

    def best(self) -> Found:
        """The first of the fastest."""
        return min(self.found, key=lambda found: found.member.makespan_s)

    def found_one(self) -> bool:
        """Whether an assignment that runs was found."""
        return bool(self.found) and isfinite(self.best().member.makespan_s)

    def is_done(self) -> bool:
        """Whether nothing better can be found, or Ctrl-C was pressed."""
        return self.interrupted or is_optimal(self.best().member.makespan_s, self.bound_s)

    def has_time_for_policy(self, seconds: float) -> bool:
        """Whether a policy gives its first assignment in about its share of the time."""
        size = len(self.problem.graph.assigned) * self.problem.topology.num_devices
        return (
            size * self._config.learned_s
            <= self._config.learned_share * seconds + self._config.slack_s
        )

    def is_small(self) -> bool:
        """Whether an exact solver is installed and the graph is small enough for it."""
        size = len(self.problem.graph.assigned)
        return size <= self._config.exact_vertices and find_spec("ortools") is not None

    def run(self, placer: Placer, budget_s: float | None = None) -> None:
        """Add the assignment a placer makes; raises `Interrupted` if Ctrl-C ended it."""
        with self._member(placer.name) as began:
            solution = solution_of(placer, self.problem, seed=self.seed, budget_s=budget_s)
            self._add(placer.name, solution.assignment, began)
            if solution.interrupted:
                raise Interrupted

    def plan_waiting(self, until: float) -> None:
        """Make memory plans for assignments that do not fit, the best without limits first.

        Along one order for all of them, then along the others, as long as there is time; one plan
        at least where no assignment runs yet.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        rows = np.array([self.found[i].assignment.devices for i in waiting])
        relaxed = Simulator(without_limits(self.problem))
        cost_s = relaxed.makespans(self.problem.graph, rows, seed=self.seed)
        ranked = np.argsort(cost_s, kind="stable").tolist()
        for orders in (ORDERS[:1], ORDERS[1:]):
            for k in ranked:
                if self.found_one() and (monotonic() > until or cost_s[k] >= self._best_s()):
                    break
                self._plan(waiting[k], orders)

    def _plan(self, number: int, orders: Sequence[str]) -> None:
        """Give an assignment that was found a memory plan, if that is faster than what it has."""
        found, began = self.found[number], monotonic()
        with suppress(OutOfMemoryError):
            assignment, makespan_s = planned(
                self.problem, found.assignment, seed=self.seed, orders=orders
            )
            if makespan_s < found.member.makespan_s:
                seconds = found.member.seconds + monotonic() - began
                member = Member(found.member.name, makespan_s, seconds)
                self.members[self.members.index(found.member)] = member
                self.found[number] = Found(member, assignment)

    def _best_s(self) -> float:
        return self.best().member.makespan_s

    def solve_exactly(self, seconds: float, *, repeatable: bool) -> None:
        """Add what the exact solver finds, and take over its bound."""
        from doppler.placers.exact.placer import ExactPlacer

        with self._member(EXACT) as began:
            solver, first = ExactPlacer(seconds, repeatable=repeatable), self.best().assignment
            first = replace(first, schedule=None, memory=None)
            solution = solver.solve(self.problem, seed=self.seed, first=first)
            self.bound_s = max(self.bound_s, solution.bound_s)
            self.interrupted = solution.interrupted
            self._add(EXACT, solution.assignment, began)

    def search(self, seconds: float, evaluations: int | None) -> None:
        """Add what search finds from the best so far."""
        began = monotonic()
        self._add(SEARCH, Assignment(self._search(seconds, evaluations).devices), began)
        self.plan_waiting(inf)

    def search_in_little_memory(self, end: float, evaluations: int | None) -> None:
        """Add what search finds with more memory, with memory plans, and what is found from there.

        Where what it finds without a limit runs as fast with it, nothing needs a plan.
        """
        binds = self._search_relaxed(self._config.relaxed_share * (end - monotonic()), evaluations)
        if self.best().fits and not self.is_done():
            share = self._config.fitting_share if binds else 1.0
            self.search(share * (end - monotonic()), evaluations)
        if binds and not self.is_done():
            plans = None if evaluations is None else min(evaluations, self._config.plans)
            self.search_plans(end - monotonic(), plans)

    def _search_relaxed(self, seconds: float, evaluations: int | None) -> bool:
        """Add the fastest that searches find with more memory; whether memory is a concern.

        Assignments that are equally fast without limits differ much with their memory plans: many
        short searches, some with a limit, are better than a long one.
        """
        began, best, best_s = monotonic(), self.best().assignment, self._best_s()
        part = None if evaluations is None else max(evaluations // len(self._config.relaxed), 1)
        planned_before = (found.assignment for found in self.found if found.assignment.memory)
        seen = {assignment.devices.tobytes() for assignment in planned_before}
        for number, times in enumerate(self._config.relaxed):
            relaxed = without_limits(self.problem, times)
            result = self._search(seconds / len(self._config.relaxed), part, relaxed, number)
            found = Assignment(result.devices)
            found_s, key = self._seconds(found), found.devices.tobytes()
            waits = found_s > result.cost_s * (1 + ROUNDING)  # for memory, or forever
            if found_s < best_s:
                best, best_s = found, found_s
            if waits and result.cost_s < best_s and key not in seen:
                with suppress(OutOfMemoryError):
                    found, found_s = planned(self.problem, found, seed=self.seed)
                if found_s < best_s:
                    best, best_s = found, found_s
            seen.add(key)
            is_late = evaluations is None and monotonic() > began + seconds
            if self.interrupted or is_late or not (waits or times < inf):
                break
        self._add(SEARCH, best, began)
        return waits or times < inf

    def _search(
        self,
        seconds: float,
        evaluations: int | None,
        problem: Problem | None = None,
        number: int = 0,
    ) -> SearchResult:
        """What search finds from the best so far; of another `problem` than the own."""
        config = SearchConfig(
            seconds=max(seconds, LEAST_S), evaluations=evaluations, enough_s=self._enough_s()
        )
        seed = self.seed + SEEDS * number
        result = search(problem or self.problem, self._starts(), config, seed=seed)
        self.interrupted = result.interrupted
        return result

    def search_plans(self, seconds: float, evaluations: int | None) -> None:
        """Add what search over assignments and their memory plans finds from the best so far."""
        with self._member(PLANNED_SEARCH) as began:
            config = PlannedSearchConfig(
                seconds=max(seconds, LEAST_S), evaluations=evaluations, enough_s=self._enough_s()
            )
            with_plan = [found for found in self.found if found.assignment.memory is not None]
            first = min(with_plan, key=lambda found: found.member.makespan_s, default=None)
            result = search_planned(
                *(self.problem, self._starts() if first is None else [], config),
                seed=self.seed,
                first=None if first is None else first.assignment,
            )
            self.interrupted = self.interrupted or result.interrupted
            self._add(PLANNED_SEARCH, result.assignment, began)

    def _starts(self) -> list[IntArray]:
        ranked = sorted(self.found, key=lambda found: found.member.makespan_s)
        return [np.array(found.assignment.devices) for found in ranked]

    def _enough_s(self) -> float:
        return self.bound_s * (1 + ROUNDING)

    @contextmanager
    def _member(self, name: str) -> Iterator[float]:
        """The time at which a member began; its failure is recorded, and the others continue."""
        began = monotonic()
        try:
            yield began
        except MemoryError:
            raise
        except Exception as error:
            what = str(error) if isinstance(error, DopplerError) else describe(error)
            self.members.append(Member(name, inf, monotonic() - began, what))

    def _add(self, name: str, assignment: Assignment, began: float) -> None:
        makespan_s = self._seconds(assignment)
        if not isfinite(makespan_s) and can_plan(self.problem):
            self._waiting.append(len(self.found))
        member = Member(name, makespan_s, monotonic() - began)
        self.members.append(member)
        self.found.append(Found(member, assignment))

    def _seconds(self, assignment: Assignment) -> float:
        found_s = self._simulator.makespans(self.problem.graph, [assignment], seed=self.seed)
        return float(found_s[0])
