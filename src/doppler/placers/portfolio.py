"""Portfolio: what the members of `auto` have found so far, and what is proven."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import inf, isfinite
from time import monotonic

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.base.progress import report
from doppler.errors import DopplerError, Interrupted, OutOfMemoryError
from doppler.placers.auto_config import AutoConfig
from doppler.placers.base import Placer
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
from doppler.placers.search.annealing import LEAST_S, SearchConfig, SearchResult, search
from doppler.placers.solution import Member, solution_of
from doppler.placers.turns import PolicyTurns, SearchTurns, TurnTaker, whose_turn
from doppler.problem import Problem
from doppler.sim.simulator import Simulator

SEARCH = "annealing"
PLANNED_SEARCH = "memory-plans"  # local search over assignments with memory plans
EXACT = "cp-sat"
SEEDS = 7919  # between the seeds of searches


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

    def __init__(
        self, problem: Problem, seed: int, config: AutoConfig, seconds: float = inf
    ) -> None:
        """A portfolio without members, with a budget in seconds that starts now."""
        self._config, self._seconds = config, seconds
        self.began, self.problem, self.seed = monotonic(), problem, seed
        quick = not config.has_time_for_bounds(problem, seconds)
        self.bound_s, self.interrupted = bounds_of(problem, quick=quick).best_s, False
        self.members: list[Member] = []
        self._policy: PolicyTurns | None = None
        self._searching = SearchTurns(SEARCH, problem, seed, config.search_s(problem))
        self.found: list[Found] = []
        self._simulator = Simulator(problem)
        self._waiting: list[int] = []  # members whose assignments do not fit as they are

    def best(self) -> Found:
        """The first of the fastest."""
        return min(self.found, key=lambda found: found.member.makespan_s)

    def found_one(self) -> bool:
        """Whether an assignment that runs was found."""
        return bool(self.found) and isfinite(self.best().member.makespan_s)

    def check_found(self) -> None:
        """Raise an error where no member made an assignment."""
        if not self.found:
            hint = self.members[0].error if self.members else None
            raise DopplerError("no placer found an assignment", hint=hint or None)

    def is_done(self) -> bool:
        """Whether nothing better can be found, or Ctrl-C was pressed."""
        proven = bool(self.found) and is_optimal(self._best_s(), self.bound_s)
        return self.interrupted or proven

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self.began + self._seconds - monotonic()

    @property
    def _turn_s(self) -> float:
        return self._config.turn_share * self._seconds

    def has_exact_solver(self, seconds: float) -> bool:
        """Whether an exact solver is installed, the graph is small enough for it, and it begins to
        solve within these seconds.
        """
        size = len(self.problem.graph.assigned)
        if size > self._config.exact_vertices or find_spec("ortools") is None:
            return False
        return self._config.exact_s(self.problem) <= seconds

    def run(self, placer: Placer, budget_s: float | None = None) -> None:
        """Add the assignment a placer makes; raises `Interrupted` if Ctrl-C ended it."""
        with self._member(placer.name) as began:
            solution = solution_of(placer, self.problem, seed=self.seed, budget_s=budget_s)
            self._add(placer.name, solution.assignment, began)
            if solution.interrupted:
                raise Interrupted

    @contextmanager
    def taking_turns(self, learned: DopplerPlacer | None, sample_s: float) -> Iterator[None]:
        """Let a policy and search have turns; in the end they are closed.

        `sample_s` is what the policy takes for its first assignment, as an estimate.
        """
        if learned is not None:
            self._policy = PolicyTurns(learned, self.problem, self.seed, sample_s)
        try:
            yield
        finally:
            if self._policy is not None:
                self._keep(self._policy)
                self._policy.close()
            self._keep(self._searching)

    def start_policy(self) -> None:
        """Let the policy, if there is one, search for its share of the time, by itself.

        It does not take what others found: its populations would all end where these are.
        """
        until_s = self.left_s - self._config.learned_share * self._seconds
        while self._policy is not None and self.left_s > until_s and not self.is_done():
            if whose_turn([self._policy], self.left_s) is None:
                break
            self._play(self._policy, by_itself=True)

    def take_turns(self) -> None:
        """Let policy and search continue in turns, until the budget is spent."""
        search = self._searching
        search.begin(self._starts(), self._enough_s())
        while self.left_s > 0 and not self.is_done():
            last = self.left_s < self._config.search_share * self._seconds and search.gain > 0
            members = [search] if last or self._policy is None else [search, self._policy]
            one = whose_turn(members, self.left_s, self._config.least_gain / self._turn_s)
            if one is None:
                break
            self._play(one)

    def _play(self, one: TurnTaker, *, by_itself: bool = False) -> None:
        """Let a member have a turn; one that fails has no other."""
        before_s, share, began = inf, 1 - self.left_s / self._seconds, monotonic()
        report("searching", int(1000 * share), 1000)
        if self.found:
            before_s = self._best_s()
            if not by_itself:
                one.take(self.best().assignment.devices, before_s)
        one.has_failed = True
        with self._member(one.name):
            one.turn(self._turn_s, self.left_s)
            one.has_failed = False
        self._keep(one)
        one.reward(before_s, self._best_s() if self.found else inf, monotonic() - began)

    def _keep(self, one: TurnTaker) -> None:
        """Add what a member with turns has found, or put it in the place of what it had."""
        devices, order = one.devices, one.order
        if devices is None:
            return
        if one.number is None:
            one.number = len(self.found)
            self._add(one.name, Assignment(devices, order=order), monotonic())
        found = self.found[one.number]
        assignment, makespan_s = found.assignment, found.member.makespan_s
        if one.cost_s < makespan_s:
            assignment = Assignment(devices, order=order)
            makespan_s = self._seconds_of(assignment)
        member = Member(one.name, makespan_s, one.seconds)
        self.members[self.members.index(found.member)] = member
        self.found[one.number] = Found(member, assignment)

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
            found_s, key = self._seconds_of(found), found.devices.tobytes()
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
        makespan_s = self._seconds_of(assignment)
        if not isfinite(makespan_s) and can_plan(self.problem):
            self._waiting.append(len(self.found))
        member = Member(name, makespan_s, monotonic() - began)
        self.members.append(member)
        self.found.append(Found(member, assignment))

    def _seconds_of(self, assignment: Assignment) -> float:
        found_s = self._simulator.makespans(self.problem.graph, [assignment], seed=self.seed)
        return float(found_s[0])
