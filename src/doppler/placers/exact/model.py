"""ScheduleModel: all static schedules of a graph on a topology, as a CP-SAT model."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from math import frexp, gcd, ldexp
from typing import Any

import numpy as np

from doppler.base.arrays import IntArray, rows
from doppler.cost import Costs
from doppler.errors import Interrupted
from doppler.graph.graph import Graph
from doppler.problem import Problem
from doppler.topology.topology import Topology
from doppler.trace import Trace

RESOLUTION = 2**30  # units in the makespan of the schedule to start from, at most


@dataclass(frozen=True, slots=True)
class Units:
    """Durations in whole units of time, rounded down.

    Rounding down keeps bounds valid: `floor(a) + floor(b) <= floor(a + b)`, so every schedule in
    seconds, its begins rounded down too, is one in units. A unit is a power of two times a whole
    number, so that units convert to seconds and back without any error of floating point.
    """

    unit_s: float
    horizon: int  # length of the schedule to start from; nothing longer is of interest
    exec: IntArray  # (V, D), at most horizon + 1
    transfer: IntArray  # (T, L), at most horizon + 1
    dispatch: int
    completion: int

    @property
    def seen(self) -> int:
        """From the end of a task until one that waits for it can begin."""
        return self.completion + self.dispatch


def whole_units(problem: Problem, horizon_s: float) -> Units:
    """The durations in units of about `horizon_s / RESOLUTION`, or coarser where that is exact."""
    fine_s = ldexp(1.0, max(frexp(horizon_s / RESOLUTION)[1], -1000))
    longest = int(horizon_s / fine_s) + 1
    host = problem.topology.host
    host_s = np.array([host.dispatch_s, host.completion_s])
    links = np.arange(problem.topology.num_links)
    parts = [
        np.minimum(np.floor(np.minimum(seconds, 2 * horizon_s) / fine_s), longest).astype(np.int64)
        for seconds in (problem.costs.exec_s, problem.transfer_table(links), host_s)
    ]
    # Whole seconds, say, have a common divisor: the smaller the numbers, the easier the search.
    used = {n for part in parts for n in np.unique(part).tolist() if n < longest}
    scale = max(gcd(*used), 1) if used else 1
    horizon = int(horizon_s / fine_s) // scale
    execs, transfers, hosts = (
        np.where(part < longest, part // scale, horizon + 1) for part in parts
    )
    return Units(fine_s * scale, horizon, execs, transfers, int(hosts[0]), int(hosts[1]))


def alike(topology: Topology, costs: Costs) -> list[list[int]]:
    """Classes of devices that can trade places with each other without changing any schedule."""
    classes: list[list[int]] = []
    for device in range(topology.num_devices):
        home = next((c for c in classes if _can_swap(topology, costs, c[0], device)), None)
        if home is None:
            classes.append([device])
        else:
            home.append(device)
    return classes


def _can_swap(topology: Topology, costs: Costs, a: int, b: int) -> bool:
    if topology.devices[a].slots != topology.devices[b].slots:
        return False
    if not np.array_equal(costs.exec_s[:, a], costs.exec_s[:, b]):
        return False
    swapped = np.arange(topology.num_devices)
    swapped[[a, b]] = b, a
    # Links go along; each must become one link, of the same lanes and seconds.
    image: dict[int, int] = {}
    moved = topology.route[np.ix_(swapped, swapped)]
    for old, new in zip(topology.route.ravel().tolist(), moved.ravel().tolist(), strict=True):
        if image.setdefault(old, new) != new:
            return False
    traits = list(
        zip((n.lanes for n in topology.links), costs.latency_s, costs.s_per_byte, strict=True)
    )
    return len(set(image.values())) == len(image) and all(
        old < 0 or traits[old] == traits[new] for old, new in image.items()
    )


def first_come(devices: IntArray, order: IntArray, classes: list[list[int]]) -> IntArray:
    """The same assignment with devices that are alike renamed to be used lowest first."""
    renamed: dict[int, int] = {}
    left = {device: list(members) for members in classes for device in members[:1]}
    home = {device: members[0] for members in classes for device in members}
    for device in devices[order].tolist():
        if device not in renamed:
            renamed[device] = left[home[device]].pop(0)
    return np.array([renamed.get(d, d) for d in devices.tolist()], np.int64)


@dataclass(frozen=True, slots=True)
class StaticSchedule:
    """A static schedule, in units."""

    devices: IntArray  # (V,), -1 for inputs
    start: dict[int, int]  # by vertex
    end: dict[int, int]  # by vertex
    begin: dict[tuple[int, int], int]  # of (tensor, target), where transfers queue for links

    def order(self, graph: Graph) -> IntArray:
        """(assigned,) vertices by start.

        Of those that start together, the ones that take no time come first, then the producers.
        """
        position = np.argsort(graph.topological_order).tolist()
        key = {v: (at, self.end[v], position[v]) for v, at in self.start.items()}
        return np.array(sorted(key, key=key.__getitem__), np.int64)


class ScheduleModel:
    """Variables and constraints: a start and a device per vertex, a begin per transfer.

    ```text
    x[v, d]      v is on d                      exactly one d per v
    start[v]     an interval on its device      at most `slots` at a time
    move[t, d]   t is moved to d                x[reader, d] and not x[producer, d]
    begin[t, d]  an interval on its link        at most `lanes` at a time
    makespan     >= end[v]                      minimized
    ```
    """

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        units: Units,
        classes: list[list[int]],
        order: IntArray,
    ) -> None:
        """`classes` of devices that are alike; each is used lowest first, along `order`."""
        from ortools.sat.python import cp_model

        self.model = cp_model.CpModel()
        self.graph, self.topology, self.units = graph, topology, units
        self.interrupted = False
        self.makespan = self._time("makespan")
        self.on: dict[tuple[int, int], Any] = {}
        self.start: dict[int, Any] = {}
        self.end: dict[int, Any] = {}
        self.begin: dict[tuple[int, int], Any] = {}
        self.move: dict[tuple[int, int], Any] = {}
        self._arrival: dict[tuple[int, int], Any] = {}
        self._apart: dict[tuple[int, int], Any] = {}
        self._on_link: list[list[Any]] = [[] for _ in topology.links]
        self._execs()
        self._reads()
        for link, intervals in zip(topology.links, self._on_link, strict=True):
            self._share(intervals, link.lanes)
        self._break_symmetry(classes, order)
        self.model.minimize(self.makespan)

    def _time(self, name: str) -> Any:
        return self.model.new_int_var(0, self.units.horizon, name)

    def _share(self, intervals: list[Any], room: int) -> None:
        """At most `room` of the intervals at a time."""
        if room == 1:
            self.model.add_no_overlap(intervals)
        elif 0 < room < len(intervals):
            self.model.add_cumulative(intervals, [1] * len(intervals), room)

    def _execs(self) -> None:
        """A device and a start for every vertex; devices run `slots` at a time."""
        model, units = self.model, self.units
        devices = range(self.topology.num_devices)
        on_device: list[list[Any]] = [[] for _ in devices]
        everywhere = []
        for v in self.graph.assigned.tolist():
            table = units.exec[v].tolist()
            start = self.start[v] = self._time(f"start{v}")
            for d in devices:
                self.on[v, d] = model.new_bool_var(f"on{v},{d}")
                if table[d] > units.horizon:  # too slow there to be in any schedule of interest
                    model.add(self.on[v, d] == 0)
            model.add_exactly_one(self.on[v, d] for d in devices)
            size: Any = table[0]
            if len(set(table)) > 1:
                size = model.new_int_var(min(table), min(max(table), units.horizon), f"size{v}")
                model.add(size == sum(table[d] * self.on[v, d] for d in devices))
                end = self._time(f"end{v}")
            else:
                end = start + size
            self.end[v] = end
            everywhere.append(model.new_interval_var(start, size, end, f"exec{v}"))
            for d in devices:
                on_device[d].append(
                    model.new_optional_fixed_size_interval_var(
                        start, min(table[d], units.horizon), self.on[v, d], f"exec{v},{d}"
                    )
                )
            model.add(self.makespan >= end)
            model.add(start >= units.dispatch)
        slots = [device.slots for device in self.topology.devices]
        for d in devices:
            self._share(on_device[d], slots[d])
            # Implied, but the linear relaxation sees it only here: work fits into the makespan.
            work = sum(int(units.exec[v, d]) * self.on[v, d] for v in self.start)
            model.add(work <= slots[d] * self.makespan)
        self._share(everywhere, sum(slots))  # implied too, and known before any device is

    def _reads(self) -> None:
        """A vertex begins after each tensor it reads was made and, from elsewhere, moved."""
        reads = rows(self.graph.read_ptr, self.graph.read_tensor)
        for reader in self.start:
            for tensor in reads[reader]:
                producer = int(self.graph.tensor_producer[tensor])
                if self.graph.is_input[producer]:
                    continue
                self.model.add(self.start[reader] >= self.end[producer] + self.units.seen)
                if self.topology.num_devices == 1:
                    continue
                if all(link.lanes == 0 for link in self.topology.links):
                    self._read_at_once(tensor, producer, reader)
                else:
                    self._read_moved(tensor, producer, reader)

    def _read_at_once(self, tensor: int, producer: int, reader: int) -> None:
        """Nothing to queue for: a transfer begins when its tensor is seen."""
        by_link = self.units.transfer[tensor].tolist()
        wait = 2 * self.units.seen
        if len(set(by_link)) == 1:
            apart = self._are_apart(producer, reader)
            late = self.start[reader] >= self.end[producer] + wait + by_link[0]
            self.model.add(late).only_enforce_if(apart)
            return
        for (source, target), link in np.ndenumerate(self.topology.route):
            if link >= 0:
                late = self.start[reader] >= self.end[producer] + wait + by_link[link]
                both = self.on[producer, source], self.on[reader, target]
                self.model.add(late).only_enforce_if(*both)

    def _are_apart(self, producer: int, reader: int) -> Any:
        """A literal: the two are on different devices."""
        if (producer, reader) not in self._apart:
            apart = self.model.new_bool_var(f"apart{producer},{reader}")
            self._apart[producer, reader] = apart
            for d in range(self.topology.num_devices):
                here, there = self.on[producer, d], self.on[reader, d]
                self.model.add_bool_or(~here, there, apart)
                self.model.add_bool_or(here, ~there, apart)
                self.model.add_bool_or(~here, ~there, ~apart)
        return self._apart[producer, reader]

    def _read_moved(self, tensor: int, producer: int, reader: int) -> None:
        """A transfer queues for its link; it is one for all readers on a device."""
        # Implied, but known before the devices are: a transfer takes its seconds on any link.
        least = 2 * self.units.seen + int(self.units.transfer[tensor].min())
        late = self.start[reader] >= self.end[producer] + least
        self.model.add(late).only_enforce_if(self._are_apart(producer, reader))
        for target in range(self.topology.num_devices):
            if (tensor, target) not in self.move:
                self._transfer(tensor, producer, target)
            move, there = self.move[tensor, target], self.on[reader, target]
            self.model.add_bool_or(~there, self.on[producer, target], move)
            late = self.start[reader] >= self._arrival[tensor, target] + self.units.seen
            self.model.add(late).only_enforce_if(there, move)

    def _transfer(self, tensor: int, producer: int, target: int) -> None:
        """The transfer of a tensor to a device, over the link from wherever it is made."""
        model, name = self.model, f"{tensor},{target}"
        move = self.move[tensor, target] = model.new_bool_var(f"move{name}")
        begin = self.begin[tensor, target] = self._time(f"begin{name}")
        model.add(begin >= self.end[producer] + self.units.seen).only_enforce_if(move)
        links = {a: int(n) for a, n in enumerate(self.topology.route[:, target]) if a != target}
        sizes = {a: int(self.units.transfer[tensor, n]) for a, n in links.items()}
        same = len(set(sizes.values())) == 1
        arrival = self._time(f"arrival{name}") if not same else begin + min(sizes.values())
        self._arrival[tensor, target] = arrival
        over = {a: model.new_bool_var(f"move{name},{a}") for a in links}
        model.add(sum(over.values()) == move)
        model.add_implication(move, ~self.on[producer, target])
        for a, link in links.items():
            model.add_implication(over[a], self.on[producer, a])
            if not same:
                model.add(arrival >= begin + sizes[a]).only_enforce_if(over[a])
            if self.topology.links[link].lanes:
                interval = model.new_optional_fixed_size_interval_var(
                    begin, sizes[a], over[a], f"move{name},{a}"
                )
                self._on_link[link].append(interval)

    def _break_symmetry(self, classes: list[list[int]], order: IntArray) -> None:
        """Of devices that are alike, none is used before a lower one, along `order`."""
        for members in classes:
            for lower, higher in pairwise(members):
                before: list[Any] = []
                for v in order.tolist():
                    self.model.add_bool_or(*before, ~self.on[v, higher])
                    before.append(self.on[v, lower])

    def start_from(self, trace: Trace) -> None:
        """Begin the search at a run of the graph; its begins, rounded down, are a schedule."""
        model = self.model
        begins = np.floor(trace.begin_s / self.units.unit_s).astype(np.int64).tolist()
        columns = (trace.vertex, trace.tensor, trace.device)
        moved = set()
        for begin, vertex, tensor, device in zip(
            begins, *(column.tolist() for column in columns), strict=True
        ):
            if tensor < 0:
                model.add_hint(self.start[vertex], begin)
                for d in range(self.topology.num_devices):
                    model.add_hint(self.on[vertex, d], d == device)
            elif (tensor, device) in self.begin:
                model.add_hint(self.begin[tensor, device], begin)
                moved.add((tensor, device))
        for key, move in self.move.items():
            model.add_hint(move, key in moved)
        model.add_hint(self.makespan, self.units.horizon)

    def solve(self, parameters: Mapping[str, Any]) -> tuple[list[StaticSchedule], float]:
        """Schedules, each shorter than the one before, and a lower bound in units.

        There are none where time was too short even to take over the one to start from.
        """
        from ortools.sat.python import cp_model

        found: list[StaticSchedule] = []

        class Collect(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(collector) -> None:  # noqa: N805
                found.append(self._schedule(collector.value))

        solver = cp_model.CpSolver()
        for name, value in parameters.items():
            setattr(solver.parameters, name, value)
        status = self._interruptible(solver, Collect())
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
            raise RuntimeError(f"CP-SAT says {solver.status_name(status)} of a feasible model")
        if status != cp_model.UNKNOWN:
            found.append(self._schedule(solver.value))
        return found, max(0.0, float(np.rint(solver.best_objective_bound)))

    def _interruptible(self, solver: Any, callback: Any) -> Any:
        """The status the solver ends with; on Ctrl-C, which it would keep to itself, it stops."""
        solver.parameters.catch_sigint_signal = False
        with ThreadPoolExecutor(1) as pool:
            solving = pool.submit(solver.solve, self.model, callback)
            try:
                return solving.result()
            except (KeyboardInterrupt, Interrupted):
                self.interrupted = True
                solver.stop_search()
                return solving.result()

    def _schedule(self, value: Callable[[Any], int]) -> StaticSchedule:
        devices = np.full(self.graph.num_vertices, -1)
        for (v, d), literal in self.on.items():
            if value(literal):
                devices[v] = d
        start = {v: value(variable) for v, variable in self.start.items()}
        return StaticSchedule(
            devices,
            start,
            {v: at + int(self.units.exec[v, devices[v]]) for v, at in start.items()},
            {key: value(begin) for key, begin in self.begin.items() if value(self.move[key])},
        )
