"""Solution: an assignment, the placer that found it, and the best lower bound it proved."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from doppler.assignment import Assignment
from doppler.base.notebook import brief, html_table, number
from doppler.errors import AssignmentError, DopplerError, OutOfMemoryError, PlacerError
from doppler.placers.base import Placer, assign, checked_budget
from doppler.placers.bounds.memory import runs_nowhere, why_nothing_fits
from doppler.placers.own import EXPECTED, check_placer, describe
from doppler.placers.planned_search import can_plan, planned
from doppler.problem import Problem
from doppler.sim.simulator import Simulator

SEARCHES = ("annealing", "auto", "genetic", "local-search")  # for assignments that fit
PLANNERS = ("m-etf", "m-sct")  # with room for all tensors
MORE_MEMORY = (
    "cut the graph finer, use more devices or ones with more memory, or leave inputs out of the "
    "account with `--inputs everywhere`"
)


@dataclass(frozen=True, slots=True)
class Member:
    """The result of one member of a portfolio."""

    name: str
    makespan_s: float  # infinity where it failed, or its assignment runs out of memory
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Solution:
    """An assignment, the placer that found it and the best lower bound it proved."""

    assignment: Assignment
    won: str  # the placer that found it
    bound_s: float = 0.0  # the best lower bound the placer knows; 0 where it knows none
    interrupted: bool = False  # by Ctrl-C: the best so far
    members: tuple[Member, ...] = ()  # of a portfolio

    def __repr__(self) -> str:
        bound = f", no makespan is below {number(self.bound_s)} s" if self.bound_s else ""
        placed = int((self.assignment.devices >= 0).sum())
        plan = "" if self.assignment.memory is None else " with a memory plan"
        return f"<Solution of {brief(self.won)}: {placed} vertices placed{plan}{bound}>"

    def _repr_html_(self) -> str:
        columns = ("placer", "makespan s", "planned s", "error")
        rows = ((m.name, number(m.makespan_s), number(m.seconds), m.error) for m in self.members)
        return html_table(repr(self), columns, rows, count=len(self.members))


@runtime_checkable
class Solver(Protocol):
    """A placer that returns a whole `Solution`."""

    def solve(self, problem: Problem, *, seed: int = 0, budget_s: float | None = None) -> Solution:
        """The assignment, the placer that found it and the best lower bound."""
        ...


def solve(
    placer: Placer, problem: Problem, *, seed: int = 0, budget_s: float | None = None
) -> Solution:
    """The placer's solution of a problem, checked; errors name the placer.

    An assignment that does not fit gets a memory plan where the topology has links to the host,
    and is an error where it has none or no plan is found; its devices are not changed, so that a
    placer is credited with its own work only. Missing names of the placer, the graph and the
    topology are filled in.
    """
    check_placer(placer)
    if budget_s is not None:
        budget_s = checked_budget(budget_s)
    try:
        solution = solution_of(placer, problem, seed=seed, budget_s=budget_s)
    except (DopplerError, MemoryError):
        raise
    except Exception as error:
        raise PlacerError(
            f"placer `{placer.name}` failed: {describe(error)}", hint="`dop --debug …` shows where"
        ) from error
    solution = _checked(placer, solution, problem)
    if problem.may_run_out:
        try:
            solution = _fitting(solution, problem, seed)
        except OutOfMemoryError as error:
            hint = _memory_hint(placer.name, problem)
            raise OutOfMemoryError(error.message, hint=hint) from None
    return _with_proof(solution, problem)


def _fitting(solution: Solution, problem: Problem, seed: int) -> Solution:
    """The solution, with a memory plan where its assignment does not fit without one."""
    assignment = solution.assignment
    try:
        Simulator(problem).run(problem.graph, assignment, seed)
    except OutOfMemoryError:
        if not can_plan(problem):
            raise
        return replace(solution, assignment=planned(problem, assignment, seed=seed)[0])
    return solution


def solution_of(
    placer: Placer, problem: Problem, *, seed: int = 0, budget_s: float | None = None
) -> Solution:
    """What a placer finds, unchecked."""
    if isinstance(placer, Solver):
        return placer.solve(problem, seed=seed, budget_s=budget_s)
    return Solution(placer.place(problem, seed=seed, budget_s=budget_s), placer.name)


def _with_proof(solution: Solution, problem: Problem) -> Solution:
    """The solution with its lower bound, and the problem it holds for, in the assignment."""
    if not solution.bound_s:
        return solution
    assignment = replace(solution.assignment, bound_s=solution.bound_s, problem=problem.digest())
    return replace(solution, assignment=assignment)


def _checked(placer: Placer, solution: Solution, problem: Problem) -> Solution:
    """The solution, if its assignment is one of this graph to this topology."""
    if not isinstance(solution, Solution):
        raise _returned(placer, solution, "a Solution from `solve`")
    assignment = solution.assignment
    if not isinstance(assignment, Assignment):
        raise _returned(placer, assignment, "an Assignment")
    try:
        assignment.check(problem.graph, problem.topology)
    except AssignmentError as error:
        raise AssignmentError(
            f"placer `{placer.name}` returned an assignment that does not fit: {error.message}",
            hint=error.hint,
        ) from None
    if not (assignment.placer and assignment.topology and assignment.graph):
        signed = assign(placer, problem, assignment.devices, order=assignment.order)
        signed = replace(signed, schedule=assignment.schedule, memory=assignment.memory)
        solution = replace(solution, assignment=signed)
    return solution


def _returned(placer: Placer, value: object, wanted: str) -> AssignmentError:
    kind = type(value).__name__
    return AssignmentError(
        f"placer `{placer.name}` returned a value of type `{kind}`, not {wanted}", hint=EXPECTED
    )


def _memory_hint(name: str, problem: Problem) -> str:
    hint = _reason_and_cure(name, problem)
    if problem.topology.has_host_links or runs_nowhere(problem) is not None:
        return hint
    return f"{hint}; over links to the host, of which the topology names none, tensors could move"


def _reason_and_cure(name: str, problem: Problem) -> str:
    if reason := why_nothing_fits(problem):
        return f"no assignment can run: {reason}; {MORE_MEMORY}"
    if name in SEARCHES:
        return f"`{name}` found no assignment that fits: give it more time, {MORE_MEMORY}"
    planner = "" if name in PLANNERS else "m-etf, which plans for memory, or "
    return f"`{name}` made an assignment that does not fit: try {planner}auto, which searches"
