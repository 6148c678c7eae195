"""Auto: a portfolio under a time budget, never worse than any of its members."""

from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from time import monotonic

from doppler.assignment import Assignment
from doppler.base.progress import track
from doppler.errors import ConfigError, DopplerError, Interrupted
from doppler.placers.base import Shown, assign
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.planned_search import can_plan
from doppler.placers.portfolio import AutoConfig, Portfolio
from doppler.placers.search.annealing import BUDGETED, INSTANT, InstantClock, make_instant
from doppler.placers.solution import Solution
from doppler.placers.warm_up import warm_up, warm_up_plans, warm_up_search
from doppler.policies.arrays.checkpoint import has_shipped_policy
from doppler.problem import Problem
from doppler.topology.topology import Topology

MEMORY_AWARE = ("m-etf",)  # where memory has no limit it is `etf`


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
        portfolio = Portfolio(problem, seed, self.config)
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

    def _run(self, portfolio: Portfolio, seconds: float, evaluations: int | None) -> None:
        """Let the members find what they can in that time, or until nothing can be better."""
        config, end = self.config, portfolio.began + seconds
        repeatable = evaluations is not None
        has_policy = self.learned is not None and (
            repeatable or portfolio.has_time_for_policy(seconds)
        )
        share = config.instant_share - config.learned_share if has_policy else config.instant_share
        self._run_instant(portfolio, inf if repeatable else share * seconds)
        if self.learned is not None and has_policy:
            has_limit = repeatable or self.learned.seconds is not None
            portfolio.run(self.learned, None if has_limit else config.learned_share * seconds)
        left = end - monotonic()
        portfolio.plan_waiting(inf if repeatable else end - (1 - config.plans_share) * left)
        if not portfolio.found:
            raise DopplerError(
                "no placer found an assignment", hint=portfolio.members[0].error or None
            )
        left = seconds if repeatable else end - monotonic()
        if left > 0 and portfolio.is_small() and not portfolio.is_done():
            portfolio.solve_exactly(
                min(config.exact_share * left, config.exact_max_s), repeatable=repeatable
            )
        left = end - monotonic()
        if (left > 0 or repeatable) and not portfolio.is_done():
            if can_plan(portfolio.problem):
                portfolio.search_in_little_memory(end, evaluations)
            else:
                portfolio.search(left, evaluations)

    def _run_instant(self, portfolio: Portfolio, seconds: float) -> None:
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
                portfolio.run(make_instant(name), budget_s)


def _instant(topology: Topology) -> tuple[str, ...]:
    """The heuristics to begin with."""
    limited = any(isfinite(device.memory_bytes) for device in topology.devices)
    return (*MEMORY_AWARE, *INSTANT) if limited else INSTANT
