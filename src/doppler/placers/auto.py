"""Auto: a portfolio under a time budget, never worse than any of its members."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path

from doppler.assignment import Assignment
from doppler.base.progress import track
from doppler.errors import ConfigError, Interrupted
from doppler.placers.auto_config import AutoConfig
from doppler.placers.base import Shown, assign
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.lists.fewer_devices import FewerDevicesPlacer
from doppler.placers.planned_search import can_plan
from doppler.placers.portfolio import Portfolio
from doppler.placers.search.annealing import (
    BUDGETED,
    INSTANT,
    LEAST_S,
    SELDOM_BEST,
    InstantClock,
    make_instant,
)
from doppler.placers.solution import Solution
from doppler.placers.warm_up import warm_up, warm_up_plans, warm_up_search
from doppler.policies.arrays.checkpoint import has_shipped_policy
from doppler.problem import Problem
from doppler.topology.topology import Topology

MEMORY_AWARE = "m-etf"  # where memory has no limit it is `etf`


class AutoPlacer(Shown):
    """The best of the instant heuristics, of an exact solver if small, and of search from there.

    A policy follows the list schedulers: the one given, or the one that comes with the package, if
    one does. Then policy and search take turns: the next goes to the one that has lately brought
    more in a second.

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
        config: AutoConfig | None = None,
    ) -> None:
        """`instant` names the heuristics to begin with; the default is all instant ones. No further
        one runs once their share of the time is spent and an assignment that runs was found.

        `evaluations` bounds the search instead of seconds, so that runs repeat.

        The exact solver then gets its share of `seconds` by a clock that counts its steps.
        A budget given to `place` takes the place of both. `config` has the shares of the members.
        """
        if not seconds > 0:
            raise ConfigError(f"seconds is {seconds}, must be positive")
        self.seconds, self.evaluations, self.instant = float(seconds), evaluations, instant
        if learned is None and has_shipped_policy():
            learned = DopplerPlacer()
        self.learned, self.config = learned, config or AutoConfig()

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
        seconds = self.seconds if budget_s is None else budget_s
        repeatable = self.evaluations is not None and budget_s is None
        portfolio = Portfolio(problem.keeping(), seed, self.config, inf if repeatable else seconds)
        try:
            if self.evaluations is not None and budget_s is None:
                self._run_repeatably(portfolio, self.evaluations)
            else:
                self._run(portfolio, seconds)
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

    def _run(self, portfolio: Portfolio, seconds: float) -> None:
        """Let the members find what they can in that time, or until nothing can be better."""
        config, policy = self.config, self.learned
        is_slow = config.sample_s(portfolio.problem) > config.list_share * seconds
        share = config.instant_share if policy is None or is_slow else config.list_share
        lists, partitioners = self._instant(portfolio.problem.topology)
        slow_s = config.slow_share * seconds
        guide_s = self._run_instant(portfolio, lists, share * seconds, slow_s)
        sample_s = guide_s + config.sample_s(portfolio.problem)
        if sample_s > portfolio.left_s:
            policy = None
        if can_plan(portfolio.problem):
            self._run_in_little_memory(portfolio, policy, seconds)
            return
        with portfolio.taking_turns(policy, sample_s):
            if config.begins_with_policy(portfolio.problem, seconds):
                portfolio.start_policy()
            for name in partitioners:
                budget_s = min(config.partition_share * seconds, portfolio.left_s)
                if budget_s > 0 and not portfolio.is_done():
                    portfolio.run(make_instant(name, config.partition_tries), budget_s)
            portfolio.check_found()
            self._solve_exactly(portfolio, portfolio.left_s)
            portfolio.take_turns()

    def _run_in_little_memory(
        self, portfolio: Portfolio, policy: DopplerPlacer | None, seconds: float
    ) -> None:
        """The same where assignments may need memory plans, without turns."""
        config, end = self.config, portfolio.began + seconds
        if policy is not None:
            has_limit = policy.seconds is not None
            share_s = None if has_limit else config.learned_share * seconds
            portfolio.run(policy.without_polishing(), share_s)
        for name in self._instant(portfolio.problem.topology)[1]:
            budget_s = max(min(config.partition_share * seconds, portfolio.left_s), LEAST_S)
            portfolio.run(make_instant(name, config.partition_tries), budget_s)
        portfolio.plan_waiting(end - (1 - config.plans_share) * portfolio.left_s)
        portfolio.check_found()
        self._solve_exactly(portfolio, portfolio.left_s)
        if portfolio.left_s > 0 and not portfolio.is_done():
            portfolio.search_in_little_memory(end, None)

    def _run_repeatably(self, portfolio: Portfolio, evaluations: int) -> None:
        """Let all members run, and search for a number of evaluations: the clock has no say."""
        for name in track(self._names(portfolio.problem.topology), "heuristics"):
            portfolio.run(make_instant(name))
        if self.learned is not None:
            portfolio.run(self.learned)
        portfolio.plan_waiting(inf)
        portfolio.check_found()
        self._solve_exactly(portfolio, self.seconds, repeatable=True)
        if not portfolio.is_done():
            if can_plan(portfolio.problem):
                portfolio.search_in_little_memory(portfolio.began + self.seconds, evaluations)
            else:
                portfolio.search(self.seconds, evaluations)

    def _solve_exactly(
        self, portfolio: Portfolio, left_s: float, *, repeatable: bool = False
    ) -> None:
        """Let an exact solver have its share of the time, if the graph is small."""
        seconds = min(self.config.exact_share * left_s, self.config.exact_max_s)
        if portfolio.has_exact_solver(seconds) and not portfolio.is_done():
            portfolio.solve_exactly(seconds, repeatable=repeatable)

    def _run_instant(
        self, portfolio: Portfolio, names: Sequence[str], seconds: float, slow_s: float
    ) -> float:
        """Let heuristics run, the quickest first, as many as end in time; one that runs at least.

        They come before the policy: nothing that takes a moment only is left out for want of time.
        Returns the estimated seconds of the list schedules on parts of the machine, which guide a
        policy, if there was no time for them; 0 if they were made.
        """
        clock, guide_s = InstantClock(seconds), 0.0
        for name in track(names, "heuristics"):
            expected_s = clock.expected_s(name)
            if portfolio.found_one() and (
                not clock.has_time(name) or (name in SELDOM_BEST and expected_s > slow_s)
            ):
                guide_s += expected_s if name == FewerDevicesPlacer.name else 0.0
                continue
            with clock.timing(name):
                portfolio.run(make_instant(name))
        return guide_s

    def _instant(self, topology: Topology) -> tuple[list[str], list[str]]:
        """The heuristics to begin with, and those of them that take a budget."""
        names = self._names(topology)
        return [n for n in names if n not in BUDGETED], [n for n in names if n in BUDGETED]

    def _names(self, topology: Topology) -> tuple[str, ...]:
        return _instant(topology) if self.instant is None else self.instant


def _instant(topology: Topology) -> tuple[str, ...]:
    """The heuristics to begin with."""
    limited = any(isfinite(device.memory_bytes) for device in topology.devices)
    if not limited:
        return INSTANT
    first = INSTANT.index("etf")  # it takes as long
    return (*INSTANT[:first], MEMORY_AWARE, *INSTANT[first:])
