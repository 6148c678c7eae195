"""Every result of a placer is checked, and the error names the placer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import doppler as dp
from doppler.errors import (
    AssignmentError,
    ConfigError,
    Interrupted,
    OutOfMemoryError,
    PlacerError,
)
from doppler.placers import Solution, placer_names, searches, solve
from doppler.placers.auto import AutoPlacer
from doppler.placers.lists.schedulers import HeftPlacer
from doppler.problem import Problem

PARTITIONERS = ("hypergraph", "metis")
Make = Callable[[dp.Graph, dp.Topology], Any]


class Mine:
    """Returns, or raises, what it is told."""

    name = "mine"

    def __init__(self, make: Make) -> None:
        self.make = make

    def place(self, problem: Problem, *, seed: int = 0, budget_s: float | None = None) -> Any:
        made = self.make(problem.graph, problem.topology)
        if isinstance(made, BaseException):
            raise made
        return made


def chain() -> dp.Graph:
    """x → a → b; x is an input."""
    builder = dp.GraphBuilder("chain")
    x = builder.input("x", output_bytes=1)
    a = builder.op("a", "matmul", reads=[x], output_bytes=100, exec_s=1.0, transfer_s=1.0)
    builder.op("b", "matmul", reads=[a], output_bytes=100, exec_s=1.0, transfer_s=1.0)
    return builder.build()


GRAPH, TOPOLOGY = chain(), dp.Topology.preset("reference:2")


def place(make: Make) -> dp.Assignment:
    return dp.place(GRAPH, TOPOLOGY, Mine(make))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ([-1, 0, 0], "a value of type `list`, not an Assignment"),
        (None, "a value of type `NoneType`, not an Assignment"),
        (dp.Assignment(np.array([-1, 0])), "has 2 devices, .* has 3 vertices"),
        (dp.Assignment(np.array([-1, 0, 2])), "vertex 2 `b` has device 2"),
        (dp.Assignment(np.array([-1, 0, -1])), "vertex 2 `b` has device none"),
        (dp.Assignment(np.array([0, 0, 0])), "vertex 0 `x` is an input"),
        (dp.Assignment(np.array([-1, 0, 0]), order=np.array([1, 1])), "order"),
        (dp.Assignment(np.array([-1, 0, 0]), graph="sha256:other"), "made for another graph"),
    ],
)
def test_a_wrong_result_is_refused_by_name(made: Any, words: str) -> None:
    with pytest.raises(AssignmentError, match=f"placer `mine` returned .*{words}"):
        place(lambda graph, topology: made)
    [row] = dp.compare(GRAPH, TOPOLOGY, [Mine(lambda graph, topology: made)], seeds=1)
    assert row.error.startswith("placer `mine` returned")


def test_an_assignment_that_does_not_fit_into_memory_is_refused_by_name() -> None:
    builder = dp.GraphBuilder("two results, which stay")
    for name in "ab":
        builder.op(name, "matmul", reads=[], output_bytes=100, exec_s=1.0, transfer_s=1.0)
    small = tuple(replace(device, memory_bytes=150.0) for device in TOPOLOGY.devices)
    mine = Mine(lambda graph, topology: dp.Assignment(np.array([0, 0])))
    with pytest.raises(OutOfMemoryError, match="hint: `mine` made an assignment"):
        dp.place(builder.build(), replace(TOPOLOGY, devices=small), mine)


def test_an_error_in_a_placer_is_wrapped_and_kept() -> None:
    with pytest.raises(PlacerError, match="placer `mine` failed: KeyError: 'x'") as caught:
        place(lambda graph, topology: KeyError("x"))
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ConfigError, match=r"^ours$"):
        place(lambda graph, topology: ConfigError("ours"))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Interrupted, MemoryError])
def test_interrupts_pass(kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        place(lambda graph, topology: kind())


def test_a_solution_is_checked_too() -> None:
    class Solves(Mine):
        def solve(self, problem: Problem, *, seed: int = 0, budget_s: float | None = None) -> Any:
            return self.place(problem, seed=seed, budget_s=budget_s)

    good = dp.Assignment(np.array([-1, 0, 1]))
    with pytest.raises(
        AssignmentError, match=r"placer `mine` returned .*`Assignment`, not a Solution"
    ):
        solve(Solves(lambda graph, topology: good), Problem(GRAPH, TOPOLOGY))
    bound_s = solve(
        Solves(lambda graph, topology: Solution(good, "me", 1.5)), Problem(GRAPH, TOPOLOGY)
    ).bound_s
    assert bound_s == 1.5


def test_a_bare_assignment_is_signed() -> None:
    placed = place(lambda graph, topology: dp.Assignment(np.array([-1, 0, 1]), np.array([1, 2])))
    assert placed == dp.Assignment(np.array([-1, 0, 1]), np.array([1, 2]))
    assert (placed.placer, placed.topology) == ("mine", "reference:2")
    assert placed.graph == GRAPH.digest()


def test_what_is_no_placer_is_refused() -> None:
    with pytest.raises(PlacerError, match="the class `HeftPlacer` is not a placer"):
        dp.place(GRAPH, TOPOLOGY, HeftPlacer)  # type: ignore[arg-type]
    with pytest.raises(PlacerError, match="an object of type `int` is not a placer"):
        dp.place(GRAPH, TOPOLOGY, 4)  # type: ignore[arg-type]


def test_a_budget_is_for_placers_that_search() -> None:
    assert dp.place(GRAPH, TOPOLOGY, "annealing", budget_s=0.05).placer == "annealing"
    with pytest.raises(ConfigError, match="budget_s is inf"):
        dp.place(GRAPH, TOPOLOGY, budget_s=float("inf"))
    for name in placer_names():
        placer = dp.make_placer(name)
        if not searches(placer) and name not in PARTITIONERS:  # which try fewer cuts within one
            with pytest.raises(ConfigError, match=f"placer `{name}` takes no budget: it makes "):
                dp.place(GRAPH, TOPOLOGY, placer, budget_s=1.0)


def test_own_placers_are_given_their_budget() -> None:
    class Searching(Mine):
        searches = True

        def place(self, problem: Problem, *, seed: int = 0, budget_s: float | None = None) -> Any:
            budgets.append(budget_s)
            return super().place(problem, seed=seed, budget_s=budget_s)

    budgets: list[float | None] = []
    one = Searching(lambda graph, topology: dp.Assignment(np.array([-1, 0, 1])))
    dp.place(GRAPH, TOPOLOGY, one, budget_s=np.float32(0.5))
    dp.compare(GRAPH, TOPOLOGY, [one, "heft"], budget_s=2.0, seeds=1)
    dp.place(GRAPH, TOPOLOGY, one)
    assert budgets == [0.5, 2.0, None]


def test_a_member_that_fails_does_not_end_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise ValueError("a bug")

    monkeypatch.setattr(HeftPlacer, "place", fail)
    monkeypatch.setattr("doppler.placers.exact.placer.ExactPlacer.solve", fail)
    solution = AutoPlacer(1.0, evaluations=50, instant=("heft", "single")).solve(
        Problem(GRAPH, TOPOLOGY)
    )
    errors = {member.name: member.error for member in solution.members}
    assert errors["heft"] == "ValueError: a bug"
    assert errors["single"] == ""
    solution.assignment.check(GRAPH, TOPOLOGY)
