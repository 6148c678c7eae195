"""Placer: anything that maps a problem to an assignment."""

import os
from numbers import Real
from typing import ClassVar, Protocol

import numpy as np

from doppler.assignment import Assignment, assignment_for
from doppler.base.arrays import IntArray
from doppler.base.notebook import cut, html_line
from doppler.errors import ConfigError
from doppler.graph.builder import GraphBuilder
from doppler.problem import Problem
from doppler.topology.presets import preset

MAX_BUDGET_S = 1e6  # eleven days


class Placer(Protocol):
    """Makes assignments. The same problem and seed give the same assignment.

    Placers that search until their budget is spent are the exception. They have an attribute
    `searches` that is true; others may leave it out, and raise a `ConfigError` if given a budget.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> dp.make_placer("heft").place(dp.Problem(graph, dp.Topology.preset("p100x4"))).placer
    'heft'
    """

    name: str

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """A device for every vertex of the graph, found in about `budget_s` seconds."""
        ...


class Shown:
    """A placer that shows itself by its class and name: `<HeftPlacer heft>`."""

    name: str
    searches: ClassVar[bool] = False  # until its budget is spent

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {cut(self.name)}>"

    def _repr_html_(self) -> str:
        return html_line(repr(self))


def refuse_budget(placer: Placer, budget_s: float | None, reason: str) -> None:
    """Raise an error if there is a budget for a placer that cannot use one."""
    if budget_s is not None:
        raise ConfigError(
            f"placer `{placer.name}` takes no budget: {reason}",
            hint="leave out budget_s, or choose a placer that searches, such as auto",
        )


def checked_budget(budget_s: float) -> float:
    """The seconds, if they are a budget: positive, and at most a million."""
    if not isinstance(budget_s, Real) or not 0 < budget_s <= MAX_BUDGET_S:
        raise ConfigError(
            f"budget_s is {budget_s}, must be a number of seconds above 0 and at most "
            f"{MAX_BUDGET_S:,.0f}"
        )
    return float(budget_s)


def searches(placer: Placer) -> bool:
    """Whether a placer searches until its budget is spent."""
    return bool(getattr(placer, "searches", False))


def assign(
    placer: Placer, problem: Problem, devices: IntArray, *, order: IntArray | None = None
) -> Assignment:
    """An Assignment of (V,) `devices` that says who made it, and for what; inputs get none."""
    devices = np.where(problem.graph.is_input, -1, devices)
    return assignment_for(problem.graph, problem.topology, devices, order=order, placer=placer.name)


def pair() -> Problem:
    """Two vertices on two devices: to compile on, or to load what was compiled before."""
    builder = GraphBuilder("pair")
    for name in ("a", "b"):
        builder.op(name, "matmul", reads=[], output_bytes=1, exec_s=1.0, transfer_s=1.0)
    return Problem(builder.build(), preset("reference:2"))


def cores() -> list[int]:
    """The cores this process may use; empty where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
