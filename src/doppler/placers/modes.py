"""Mode `fixed`: an assignment found as if the host took no time, and an order of its tasks."""

from dataclasses import dataclass, replace

from doppler.base.arrays import unbox_fields
from doppler.cost import GivenCosts
from doppler.errors import ConfigError, OutOfMemoryError
from doppler.placers.base import Placer
from doppler.placers.bounds.lower import ROUNDING, bounds_of
from doppler.placers.search.orders import OrderConfig, improve_order
from doppler.placers.solution import Solution, solve
from doppler.problem import Problem
from doppler.scheduler.choose import DYNAMIC, FIXED, check_mode
from doppler.scheduler.list_scheduling import without_host


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedConfig:
    """How an assignment and an order for mode `fixed` are found."""

    share: float = 0.2  # of the budget of a placer that searches, for the order
    evaluations: int = 2000  # of the order, after a placer that does not search
    busy_host: float = 0.5  # of the lower bound: from there on, starting tasks is planned for too

    def __post_init__(self) -> None:
        unbox_fields(self)
        if not 0 < self.share < 1 or self.evaluations < 0:
            raise ConfigError("share must be between 0 and 1, evaluations not negative")


def solve_in_mode(
    placer: Placer,
    problem: Problem,
    mode: str = DYNAMIC,
    *,
    seed: int = 0,
    budget_s: float | None = None,
    config: FixedConfig | None = None,
) -> Solution:
    """The solution of a placer for a mode; in mode `fixed` its assignment has a schedule.

    There the host runs ahead of the devices, so the placer is given the problem without a host;
    where the host has much to start, also the one in which starting a task takes time, for an
    assignment with fewer transfers. A search over orders follows the better of both.
    """
    if check_mode(mode) == DYNAMIC:
        return solve(placer, problem, seed=seed, budget_s=budget_s)
    config, bounds = config or FixedConfig(), bounds_of(problem, FIXED)
    problems = [without_host(problem)]
    if bounds.host_s > config.busy_host * bounds.best_s:
        problems.append(_starting_only(problem))
    own_s = None if budget_s is None else (1 - config.share) * budget_s / len(problems)
    solutions = _solutions(placer, problems, seed, own_s)
    first = OrderConfig(evaluations=0)
    starts = [improve_order(problem, a.assignment, first, seed=seed) for a in solutions]
    best = min(range(len(starts)), key=lambda i: starts[i].makespan_s)
    solution, proof = solutions[best], solutions[0]  # what is proven without a host holds with one
    orders = replace(first, evaluations=config.evaluations)
    if budget_s is not None:
        orders = replace(first, seconds=config.share * budget_s, evaluations=None)
    if not solution.interrupted:
        enough_s = max(bounds.best_s, proof.bound_s) * (1 + ROUNDING)
        orders = replace(orders, enough_s=enough_s)
        starts[best] = improve_order(problem, solution.assignment, orders, seed=seed)
    assignment = replace(
        solution.assignment,
        schedule=starts[best].schedule,
        bound_s=proof.assignment.bound_s,
        problem=proof.assignment.problem,
    )
    return replace(solution, assignment=assignment, bound_s=proof.bound_s)


def _starting_only(problem: Problem) -> Problem:
    """The problem with the same costs, in which ends are seen at once but starting takes time."""
    topology = problem.topology
    topology = replace(topology, host=replace(topology.host, completion_s=0.0))
    return Problem(problem.graph, topology, GivenCosts(problem.costs))


def _solutions(
    placer: Placer, problems: list[Problem], seed: int, budget_s: float | None
) -> list[Solution]:
    """The solutions of the first problem and, unless the placer is interrupted, of the others."""
    solutions = [solve(placer, problems[0], seed=seed, budget_s=budget_s)]
    for problem in problems[1:]:
        if solutions[-1].interrupted:
            break
        try:
            solutions.append(solve(placer, problem, seed=seed, budget_s=budget_s))
        except OutOfMemoryError:
            continue
    return solutions
