"""Auto: a portfolio under a time budget, never worse than any of its members."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import inf, isfinite
from pathlib import Path
from time import monotonic

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.base.progress import track
from doppler.errors import ConfigError, DopplerError, Interrupted, OutOfMemoryError
from doppler.placers.base import Placer, Shown, assign
from doppler.placers.bounds.lower import ROUNDING, bounds_of, is_optimal
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.own import describe
from doppler.placers.planned_search import (
    ORDERS,
    PlannedSearchConfig,
    can_plan,
    planned,
    search_planned,
    without_limits,
)
from doppler.placers.registry import make_placer
from doppler.placers.search.annealing import (
    BUDGETED,
    INSTANT,
    LEAST_S,
    InstantClock,
    SearchConfig,
    SearchResult,
    search,
)
from doppler.placers.solution import Member, Solution, solution_of
from doppler.placers.warm_up import warm_up, warm_up_plans, warm_up_search
from doppler.policies.arrays.checkpoint import has_shipped_policy
from doppler.problem import Problem
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology

SEARCH = "annealing"
PLANS_SHARE = 0.5  # of the time left for plans of heuristics' assignments that do not fit
PLANNED_SEARCH = "memory-plans"  # local search over assignments with memory plans
RELAXED = (inf, 2.0, 1.25) * 2  # times the memory that searches may assume where it is short ...
RELAXED_SHARE = 0.5  # ... in this share of the time left, for all of them
SEEDS = 7919  # between the seeds of searches
FITTING_SHARE = 0.5  # of the time left then, for what needs no memory plan, where that is the best
PLANS = 200  # at most, where evaluations bound the search instead of seconds
MEMORY_AWARE = ("m-etf",)  # where memory has no limit it is `etf`
EXACT = "cp-sat"
LEARNED_S = 3e-6  # of a policy's first assignment, by vertex and device
SLACK_S = 0.1  # that a member may exceed its share by
LEARNED_SHARE = 0.25  # of the budget, in which the policy is sampled
INSTANT_SHARE = 0.5  # of the budget, for heuristics and policy; search has the rest
EXACT_VERTICES = 30  # up to which an exact solver often ends in seconds
EXACT_SHARE = 0.5  # of the time left; the rest is for search
EXACT_MAX_S = 3600.0  # however long the budget is


class AutoPlacer(Shown):
    """The best of the instant heuristics, of an exact solver if small, and of search from there.

    With a policy, its samples follow the heuristics, and search begins at the best of them where
    that is better. Without one it takes the policy that comes with the package, if one does.

    Stops early where the makespan reaches a lower bound, so that nothing can be better.
    """

    name = "auto"
    searches = True

    def __init__(
        self,
        seconds: float = 10.0,
        *,
        evaluations: int | None = None,
        instant: tuple[str, ...] | None = None,
        learned: DopplerPlacer | None = None,
    ) -> None:
        """`instant` names the heuristics to begin with; the default is all instant ones. No further
        one runs once their share of the time is spent and an assignment that runs was found.

        `evaluations` bounds the search instead of seconds, so that runs repeat.

        The exact solver then gets its share of `seconds` by a clock that counts its steps.
        A budget given to `place` takes the place of both.
        """
        if not seconds > 0:
            raise ConfigError(f"seconds is {seconds}, must be positive")
        self.seconds, self.evaluations, self.instant = float(seconds), evaluations, instant
        if learned is None and has_shipped_policy():
            learned = DopplerPlacer()
        self.learned = learned

    @classmethod
    def from_path(cls, path: str | Path) -> "AutoPlacer":
        """One with the policy of a training run, or of a checkpoint, in its portfolio."""
        return cls(learned=DopplerPlacer.from_path(path))

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The best assignment any member finds."""
        return self.solve(problem, seed=seed, budget_s=budget_s).assignment

    def solve(self, problem: Problem, *, seed: int = 0, budget_s: float | None = None) -> Solution:
        """The best assignment, the member that found it, and the best lower bound."""
        if self.learned is None:
            warm_up_search()
        else:
            warm_up()
        if can_plan(problem):
            warm_up_plans()
        portfolio = _Portfolio(problem, seed)
        try:
            if budget_s is None:
                self._run(portfolio, self.seconds, self.evaluations)
            else:
                self._run(portfolio, budget_s, None)
        except (KeyboardInterrupt, Interrupted):
            if not portfolio.found:
                raise
            portfolio.plan_waiting(0.0)
            portfolio.interrupted = True
        best = portfolio.best()
        winner = best.assignment
        return Solution(
            replace(
                assign(self, problem, winner.devices, order=winner.order),
                schedule=winner.schedule,
                memory=winner.memory,
            ),
            won=best.member.name,
            bound_s=portfolio.bound_s,
            interrupted=portfolio.interrupted,
            members=tuple(portfolio.members),
        )

    def _run(self, portfolio: "_Portfolio", seconds: float, evaluations: int | None) -> None:
        """Let the members find what they can in that time, or until nothing can be better."""
        end, repeatable = portfolio.began + seconds, evaluations is not None
        has_policy = self.learned is not None and (
            repeatable or portfolio.has_time_for_policy(seconds)
        )
        share = INSTANT_SHARE - LEARNED_SHARE if has_policy else INSTANT_SHARE
        self._run_instant(portfolio, inf if repeatable else share * seconds)
        if self.learned is not None and has_policy:
            has_limit = repeatable or self.learned.seconds is not None
            portfolio.run(self.learned, None if has_limit else LEARNED_SHARE * seconds)
        left = end - monotonic()
        portfolio.plan_waiting(inf if repeatable else end - (1 - PLANS_SHARE) * left)
        if not portfolio.found:
            raise DopplerError(
                "no placer found an assignment", hint=portfolio.members[0].error or None
            )
        left = seconds if repeatable else end - monotonic()
        if left > 0 and portfolio.is_small() and not portfolio.is_done():
            portfolio.solve_exactly(min(EXACT_SHARE * left, EXACT_MAX_S), repeatable=repeatable)
        left = end - monotonic()
        if (left > 0 or repeatable) and not portfolio.is_done():
            if can_plan(portfolio.problem):
                portfolio.search_in_little_memory(end, evaluations)
            else:
                portfolio.search(left, evaluations)

    def _run_instant(self, portfolio: "_Portfolio", seconds: float) -> None:
        """Let heuristics run, the quickest first, as many as end in time; one that runs at least.

        They come before the policy: nothing that takes a moment only is left out for want of time.
        """
        topology = portfolio.problem.topology
        instant = _instant(topology) if self.instant is None else self.instant
        clock = InstantClock(seconds)
        for name in track(instant, "heuristics"):
            if not clock.has_time(name) and portfolio.found_one():
                break
            budget_s = clock.left_s if name in BUDGETED and isfinite(seconds) else None
            with clock.timing():
                portfolio.run(make_placer(name), budget_s)


def _instant(topology: Topology) -> tuple[str, ...]:
    """The heuristics to begin with."""
    limited = any(isfinite(device.memory_bytes) for device in topology.devices)
    return (*MEMORY_AWARE, *INSTANT) if limited else INSTANT


@dataclass(frozen=True, slots=True)
class _Found:
    """An assignment and the result of the member that found it."""

    member: Member
    assignment: Assignment

    @property
    def fits(self) -> bool:
        """Whether it runs without a memory plan."""
        return isfinite(self.member.makespan_s) and self.assignment.memory is None


class _Portfolio:
    """What the members have found so far, and what is proven."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.began, self.problem, self.seed = monotonic(), problem, seed
        self.bound_s, self.interrupted = bounds_of(problem).best_s, False
        self.members: list[Member] = []
        self.found: list[_Found] = []
        self._simulator = Simulator(problem)
        self._waiting: list[int] = []  # members whose assignments do not fit as they are

    def best(self) -> _Found:
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
        return size * LEARNED_S <= LEARNED_SHARE * seconds + SLACK_S

    def is_small(self) -> bool:
        """Whether an exact solver is installed and the graph is small enough for it."""
        size = len(self.problem.graph.assigned)
        return size <= EXACT_VERTICES and find_spec("ortools") is not None

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
                self.found[number] = _Found(member, assignment)

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
        binds = self._search_relaxed(RELAXED_SHARE * (end - monotonic()), evaluations)
        if self.best().fits and not self.is_done():
            share = FITTING_SHARE if binds else 1.0
            self.search(share * (end - monotonic()), evaluations)
        if binds and not self.is_done():
            plans = None if evaluations is None else min(evaluations, PLANS)
            self.search_plans(end - monotonic(), plans)

    def _search_relaxed(self, seconds: float, evaluations: int | None) -> bool:
        """Add the fastest that searches find with more memory; whether memory is a concern.

        Assignments that are equally fast without limits differ much with their memory plans: many
        short searches, some with a limit, are better than a long one.
        """
        began, best, best_s = monotonic(), self.best().assignment, self._best_s()
        part = None if evaluations is None else max(evaluations // len(RELAXED), 1)
        planned_before = (found.assignment for found in self.found if found.assignment.memory)
        seen = {assignment.devices.tobytes() for assignment in planned_before}
        for number, times in enumerate(RELAXED):
            relaxed = without_limits(self.problem, times)
            result = self._search(seconds / len(RELAXED), part, relaxed, number)
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
        self.found.append(_Found(member, assignment))

    def _seconds(self, assignment: Assignment) -> float:
        found_s = self._simulator.makespans(self.problem.graph, [assignment], seed=self.seed)
        return float(found_s[0])
