"""WhatIf: an assignment and a machine that can be changed, with what follows from each change."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from doppler.assignment import Assignment, assignment_for
from doppler.base.arrays import IntArray, frozen
from doppler.cost import CostModel, Costs
from doppler.errors import AssignmentError, ConfigError, OutOfMemoryError
from doppler.graph.graph import Graph
from doppler.placers import bounds_of, proven_bound_s
from doppler.placers.planned_search import can_plan, planned
from doppler.problem import Problem
from doppler.report.data import machine_data, trace_view
from doppler.report.task_columns import listed, packed_columns, same_rows
from doppler.scheduler.choose import DYNAMIC
from doppler.sim import Simulator
from doppler.topology.topology import Topology
from doppler.trace import Trace
from doppler.view.config import ViewConfig

PLACER = "what-if"
ORDERS = ("fifo",)  # along which memory is planned: one, as an answer is waited for


@dataclass(frozen=True, slots=True)
class ChangedSpeeds:
    """A cost model by which a device takes its seconds divided by its factor."""

    given: CostModel
    speed: tuple[float, ...]  # (D,)

    def costs(self, graph: Graph, topology: Topology) -> Costs:
        """Seconds of every task."""
        costs = self.given.costs(graph, topology)
        return replace(costs, exec_s=frozen(costs.exec_s / np.array(self.speed)))


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """What is assumed: where vertices run, and how fast the machine is."""

    devices: IntArray  # (V,)
    speed: tuple[float, ...]  # (D,) times as fast as given
    bandwidth: tuple[float, ...]  # (L,) bytes per second

    def has_machine_of(self, other: "Setting") -> bool:
        """Whether the machine is as fast as that of another setting."""
        return (self.speed, self.bandwidth) == (other.speed, other.bandwidth)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a setting."""

    assignment: Assignment
    trace: Trace


class WhatIf:
    """A problem and an assignment, changes to both, and their outcome.

    >>> import doppler as dp
    >>> from doppler.view.what_if import WhatIf
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> problem = dp.Problem(graph, dp.Topology.preset("p100x4"))
    >>> what_if = WhatIf(problem, dp.place(graph, "p100x4", "heft"))
    >>> before_s = what_if.outcome.trace.makespan_s
    >>> what_if.set_speed(0, 0.5)
    >>> what_if.outcome.trace.makespan_s >= before_s
    True
    >>> what_if.undo()
    >>> what_if.outcome.trace.makespan_s == before_s
    True
    """

    def __init__(
        self, problem: Problem, assignment: Assignment, config: ViewConfig | None = None
    ) -> None:
        """An `OutOfMemoryError` where the assignment cannot run."""
        assignment.check(problem.graph, problem.topology)
        self._given, self._assignment, self._config = problem, assignment, config or ViewConfig()
        bandwidth = tuple(link.bandwidth_bytes_per_s for link in problem.topology.links)
        speed = (1.0,) * problem.topology.num_devices
        self._start = Setting(assignment.devices, speed, bandwidth)
        self._history, self._at = [self._start], 0
        self._saved = self._start.devices
        self.revision = 0
        self._machine = _Machine(problem, self._config)
        self._machine.prove(assignment)
        self.outcome = self._follow(self._start, self._machine)
        self.start_s = self.outcome.trace.makespan_s
        self.view = trace_view(self.outcome.trace, self.graph, self._config.report)
        self.tick_s = self.start_s / self._config.report.details[0].ticks
        self._rows = packed_columns(self.view.columns, self.tick_s)
        self._rows_before: Any = None  # of the revision before this one

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._given.graph

    @property
    def topology(self) -> Topology:
        """The machine as it is now; speeds of devices aside."""
        return self._machine.problem.topology

    @property
    def bound_s(self) -> float:
        """A lower bound of all assignments to this machine; 0 where there is none."""
        return self._machine.bound_s

    def prover(self) -> Callable[[], None] | None:
        """What looks for a better bound, which takes a while; None where it was done."""
        machine, assignment = self._machine, self._assignment
        return None if machine.is_proven else lambda: machine.prove(assignment)

    @property
    def setting(self) -> Setting:
        """What is assumed now."""
        return self._history[self._at]

    @property
    def is_saved(self) -> bool:
        """Whether the devices are those given, or those that were saved last."""
        return np.array_equal(self.setting.devices, self._saved)

    @property
    def moved(self) -> int:
        """Vertices that are on another device than at the start."""
        return int((self.setting.devices != self._start.devices).sum())

    def move(self, vertices: Sequence[int], device: int) -> None:
        """Move vertices to a device."""
        count, chosen = self.graph.num_vertices, np.array(list(vertices), np.int64)
        if len(chosen) == 0 or chosen.min() < 0 or chosen.max() >= count:
            raise AssignmentError(f"vertices must be some numbers from 0 to {count - 1}")
        self._check_index(device, self.topology.num_devices, "device")
        if self.graph.is_input[chosen].any():
            raise AssignmentError("inputs have no device", hint="select other vertices")
        devices = self.setting.devices.copy()
        devices[chosen] = device
        self._change(replace(self.setting, devices=frozen(devices)))

    def set_speed(self, device: int, factor: float) -> None:
        """Set the speed of a device, relative to the speed that was given."""
        self._check_index(device, self.topology.num_devices, "device")
        speed = list(self.setting.speed)
        speed[device] = self._checked_factor(factor, 1.0, "the speed")
        self._change(replace(self.setting, speed=tuple(speed)))

    def set_bandwidth(self, link: int, bytes_per_s: float) -> None:
        """Give a link another bandwidth."""
        self._check_index(link, self.topology.num_links, "link")
        given = self._start.bandwidth[link]
        if not self.has_bandwidths or not isfinite(given):
            raise ConfigError(
                "the graph says how long its transfers take", hint="change the speed of a device"
            )
        bandwidth = list(self.setting.bandwidth)
        bandwidth[link] = self._checked_factor(bytes_per_s, given, "the bandwidth")
        self._change(replace(self.setting, bandwidth=tuple(bandwidth)))

    def undo(self) -> None:
        """Take back the last change; nothing where there is none."""
        if self._at > 0:
            self._go(self._history, self._at - 1)

    def redo(self) -> None:
        """Make the change again that was taken back last."""
        if self._at + 1 < len(self._history):
            self._go(self._history, self._at + 1)

    def reset(self) -> None:
        """Go back to the start; that can be undone too."""
        if self.moved or self.is_changed:
            self._change(self._start)

    @property
    def is_changed(self) -> bool:
        """Whether the machine is another than the one given."""
        return not self._start.has_machine_of(self.setting)

    @property
    def has_bandwidths(self) -> bool:
        """Whether the seconds of transfers depend on the bandwidth of links."""
        return self.graph.transfer_s is None

    def saved(self) -> None:
        """Note that the assignment was saved."""
        self._saved = self.setting.devices

    def document(self) -> dict[str, Any]:
        """JSON values: what is assumed now, and what can be done."""
        finite = [value if isfinite(value) else None for value in self.setting.bandwidth]
        return {
            "revision": self.revision,
            "start_s": self.start_s,
            "undo": self._at,
            "redo": len(self._history) - self._at - 1,
            "moved": self.moved,
            "changed": self.is_changed,
            "unsaved": not self.is_saved,
            "speed": list(self.setting.speed),
            "bandwidth": finite if self.has_bandwidths else None,
        }

    def update(self, since: int) -> dict[str, Any]:
        """JSON values for a page that shows revision `since`: what is new."""
        said: dict[str, Any] = {"whatIf": self.document()}
        if since == self.revision:
            return said
        keep = same_rows(self._rows, self._rows_before) if since == self.revision - 1 else 0
        trace = self.view.facts | {
            "keep": keep,
            "tasks": listed(self._rows, keep),
            "tick_s": self.tick_s,
            "chain": self.view.chain.tolist(),
            "deviceOf": self.view.devices.tolist(),
            "bound": self.bound_s or None,
        }
        return said | {"trace": trace, "machine": machine_data(self.topology)}

    def _change(self, setting: Setting) -> None:
        history = [*self._history[: self._at + 1], setting][-self._config.max_undo - 1 :]
        self._go(history, len(history) - 1)

    def _go(self, history: list[Setting], position: int) -> None:
        """Take a setting of a history; all stays as it was where nothing follows from it."""
        setting, machine = history[position], self._machine
        if not setting.has_machine_of(self.setting):
            machine = _Machine(self._changed_problem(setting), self._config)
        outcome = self._follow(setting, machine)
        self._history, self._at = history, position
        self._machine, self.outcome = machine, outcome
        self.view = trace_view(outcome.trace, self.graph, self._config.report)
        self._rows_before = self._rows
        self._rows = packed_columns(self.view.columns, self.tick_s)
        self.revision += 1

    def _follow(self, setting: Setting, machine: "_Machine") -> Outcome:
        """What follows from a setting; an assignment that does not fit gets a memory plan."""
        problem, assignment = machine.problem, self._assignment
        if not np.array_equal(setting.devices, assignment.devices):
            topology = self._given.topology
            assignment = assignment_for(self.graph, topology, setting.devices, placer=PLACER)
        try:
            trace = machine.simulator.run(self.graph, assignment)
        except OutOfMemoryError:
            if not can_plan(problem) or self._config.simulation.mode != DYNAMIC:
                raise
            assignment, _ = planned(problem, assignment, orders=ORDERS)
            trace = machine.simulator.run(self.graph, assignment)
        return Outcome(assignment, trace)

    def _changed_problem(self, setting: Setting) -> Problem:
        given = self._given
        links = tuple(
            replace(link, bandwidth_bytes_per_s=bandwidth)
            for link, bandwidth in zip(given.topology.links, setting.bandwidth, strict=True)
        )
        model = ChangedSpeeds(given.cost_model, setting.speed)
        return Problem(self.graph, replace(given.topology, links=links), model)

    def _check_index(self, number: int, count: int, what: str) -> None:
        if not 0 <= number < count:
            raise ConfigError(f"there is no {what} {number}: there are {count}")

    def _checked_factor(self, value: float, given: float, what: str) -> float:
        most = self._config.max_factor
        if not given / most <= value <= given * most:
            raise ConfigError(
                f"{what} must be between {given / most:g} and {given * most:g}, not {value:g}"
            )
        return float(value)


class _Machine:
    """A problem, its simulator, and its lower bound: a quick one until `prove` is done."""

    def __init__(self, problem: Problem, config: ViewConfig) -> None:
        self.problem, self._mode = problem, config.simulation.mode
        self.simulator = Simulator(problem, config.simulation)
        self.bound_s = bounds_of(problem, self._mode, quick=True).best_s
        self.is_proven = False

    def prove(self, assignment: Assignment) -> None:
        """Find the best bound known: of the problem, or what a placer proved."""
        self.bound_s = max(self.bound_s, proven_bound_s(self.problem, assignment, self._mode))
        self.is_proven = True
