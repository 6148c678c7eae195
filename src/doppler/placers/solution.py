"""Answer: the assignment a placer came to, checked to run, and what it proved on the way."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from doppler.assignment import Assignment
from doppler.base.notebook import brief, html_table, number
from doppler.errors import AssignmentError, DopplerError, OutOfMemoryError, PlacerError
from doppler.graph.graph import Graph
from doppler.placers.base import Placer, assign
from doppler.placers.bounds.lower import problem_digest
from doppler.placers.bounds.memory import may_run_out, runs_nowhere, working_bytes
from doppler.placers.own import EXPECTED, check_placer, describe
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology

SEARCHES = ("annealing", "auto", "genetic", "local-search")  # for assignments that fit
PLANNERS = ("m-etf", "m-sct")  # with room for all tensors


@dataclass(frozen=True, slots=True)
class Member:
    """What one member of a portfolio came to."""

    name: str
    makespan_s: float  # infinity where it failed, or its assignment runs out of memory
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An assignment, and what is known about it."""

    assignment: Assignment
    won: str  # the placer that found it
    bound_s: float = 0.0  # the best lower bound the placer knows; 0 where it knows none
    interrupted: bool = False  # by Ctrl-C: the best so far
    members: tuple[Member, ...] = ()  # of a portfolio

    def __repr__(self) -> str:
        bound = f", no makespan is below {number(self.bound_s)} s" if self.bound_s else ""
        placed = int((self.assignment.devices >= 0).sum())
        return f"<Answer of {brief(self.won)}: {placed} vertices placed{bound}>"

    def _repr_html_(self) -> str:
        columns = ("placer", "makespan s", "planned s", "error")
        rows = ((m.name, number(m.makespan_s), number(m.seconds), m.error) for m in self.members)
        return html_table(repr(self), columns, rows, count=len(self.members))


@runtime_checkable
class Answering(Protocol):
    """A placer that knows more than its assignment."""

    def answer(self, graph: Graph, topology: Topology, *, seed: int = 0) -> Answer:
        """The assignment, who found it and what is proven."""
        ...


def ask(placer: Placer, graph: Graph, topology: Topology, *, seed: int = 0) -> Answer:
    """What a placer answers, checked: an error that names the placer where it is not right.

    Assignments that do not fit are refused rather than mended: what a placer is credited with
    is its own. To search for one that fits is what `auto` does. Only an assignment that does not
    say who made it, and for what, is made to say so.
    """
    check_placer(placer)
    try:
        if isinstance(placer, Answering):
            answer = placer.answer(graph, topology, seed=seed)
        else:
            answer = Answer(placer.place(graph, topology, seed=seed), placer.name)
    except (DopplerError, MemoryError):
        raise
    except Exception as error:
        raise PlacerError(
            f"placer `{placer.name}` failed: {describe(error)}", hint="`dop --debug …` shows where"
        ) from error
    answer = _checked(placer, answer, graph, topology)
    if may_run_out(graph, topology):
        try:
            Simulator(topology).run(graph, answer.assignment, seed)
        except OutOfMemoryError as error:
            hint = _memory_hint(placer.name, graph, topology)
            raise OutOfMemoryError(error.message, hint=hint) from None
    return _with_proof(answer, graph, topology)


def _with_proof(answer: Answer, graph: Graph, topology: Topology) -> Answer:
    """The answer, whose assignment carries the bound that was proven, and for what."""
    if not answer.bound_s:
        return answer
    problem = problem_digest(graph, topology)
    assignment = replace(answer.assignment, bound_s=answer.bound_s, problem=problem)
    return replace(answer, assignment=assignment)


def _checked(placer: Placer, answer: Answer, graph: Graph, topology: Topology) -> Answer:
    """The answer, if it holds an assignment of this graph to this topology."""
    if not isinstance(answer, Answer):
        raise _returned(placer, answer, "an Answer from `answer`")
    assignment = answer.assignment
    if not isinstance(assignment, Assignment):
        raise _returned(placer, assignment, "an Assignment")
    try:
        assignment.check(graph, topology)
    except AssignmentError as error:
        raise AssignmentError(
            f"placer `{placer.name}` returned an assignment that does not fit: {error.message}",
            hint=error.hint,
        ) from None
    if not (assignment.placer and assignment.topology and assignment.graph):
        signed = assign(placer, graph, topology, assignment.devices, order=assignment.order)
        answer = replace(answer, assignment=signed)
    return answer


def _returned(placer: Placer, value: object, wanted: str) -> AssignmentError:
    kind = type(value).__name__
    return AssignmentError(
        f"placer `{placer.name}` returned a value of type `{kind}`, not {wanted}", hint=EXPECTED
    )


def _memory_hint(name: str, graph: Graph, topology: Topology) -> str:
    vertex = runs_nowhere(graph, topology)
    if vertex is not None:
        largest = max(topology.devices, key=lambda device: device.memory_bytes)
        return (
            f"no assignment can run: vertex `{graph.vertex_names[vertex]}` reads and makes "
            f"{working_bytes(graph)[vertex]:.0f} bytes, device `{largest.name}` holds "
            f"{largest.memory_bytes:.0f}; cut the graph finer, or use devices with more memory"
        )
    if name in SEARCHES:
        return (
            f"`{name}` found no assignment that fits: give it more time, cut the graph finer, "
            "or use devices with more memory"
        )
    planner = "" if name in PLANNERS else "m-etf, which plans for memory, or "
    return f"`{name}` made an assignment that does not fit: try {planner}auto, which searches"
