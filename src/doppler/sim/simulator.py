"""Simulator: the compiled work-conserving simulator, one assignment or many at a time."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.assignment import Assignment, check_devices
from doppler.base.arrays import FloatArray, IntArray
from doppler.cost import CostModel
from doppler.errors import AssignmentError, ConfigError
from doppler.graph.fast_levels import depths
from doppler.graph.graph import Graph
from doppler.problem import Problem
from doppler.resolve import as_assignment, as_problem
from doppler.schedule import Schedule, all_tasks
from doppler.scheduler.choose import FIXED, ORDER, priorities
from doppler.sim.config import SimConfig
from doppler.sim.fixed import hostless_arrays, schedule_for
from doppler.sim.noise import draw
from doppler.sim.planned import run_planned
from doppler.sim.reference import ReferenceSimulator, SimulatorBase, checked_plan
from doppler.tasks import enumerate_tasks
from doppler.topology.topology import Topology
from doppler.trace import Trace, build_trace

if TYPE_CHECKING:
    from doppler.sim.fixed_kernel import Fixed, Rows
    from doppler.sim.state_kernel import Arrays
MIN_BATCH = 16  # assignments from which threads pay
MAX_PART = 1_000_000  # vertices and edges that a thread takes at a time
MAX_SORTED = 4096  # vertices up to which sorted arrays beat heaps whatever the graph


class Simulator(SimulatorBase):
    """An Executor in virtual time: `ReferenceSimulator`, compiled.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> assignment = dp.place(graph, "p100x4", "heft")
    >>> simulator = dp.Simulator("p100x4")
    >>> simulator.run(graph, assignment).makespan_s == simulator.makespans(graph, [assignment])[0]
    np.True_
    """

    _fixed: tuple[Problem, dict[str, Any]] | None = None  # of the last problem
    _arrays: "tuple[Problem, tuple[int, ...], Arrays] | None" = None  # the last ones

    def run(self, graph: Graph, assignment: Assignment, seed: int = 0) -> Trace:
        """Every begin and end of every exec and transfer."""
        from doppler.sim.kernel import run_batch
        from doppler.sim.state_kernel import NOT_LENT, make_scratch

        assignment.check(graph, self.topology)
        if (plan := checked_plan(assignment, self.config)) is not None:
            tasks, times = run_planned(self.problem(graph), self.config, assignment, seed)
            return build_trace(
                graph, self.topology, tasks, times, placer=assignment.placer, plan=plan
            )
        arrays = self.arrays(graph, [seed])
        scratch, makespan = make_scratch(arrays), np.zeros(1)
        row = assignment.devices.reshape(1, -1).copy()
        if self.config.mode == FIXED:
            self._run_fixed(
                graph, self._rows(graph, row, [assignment], seed), makespan, scratch, seed
            )
        else:
            priority = self._priority(graph, assignment, seed)
            run_batch(arrays, 0, row, priority, scratch, makespan, np.inf, NOT_LENT)
        if np.isinf(makespan[0]):
            # The readable twin stops at the same place and can say why.
            return ReferenceSimulator(self.problem(graph), self.config).run(graph, assignment, seed)
        tasks = enumerate_tasks(graph, self.topology, assignment.devices)
        count = graph.num_vertices + tasks.num_transfers
        times = (scratch.ready_s[:count], scratch.begin_s[:count], scratch.end_s[:count])
        return build_trace(graph, self.topology, tasks, times, placer=assignment.placer)

    def makespans(
        self,
        graph: Graph,
        devices: IntArray | Sequence[Assignment],
        *,
        seed: int = 0,
        threads: int | None = None,
        limit_s: float = inf,
    ) -> FloatArray:
        """(B,) makespan of every assignment; infinity where memory never suffices.

        `devices` is (B, V), or assignments (with their orders, for strategy `order`, and their
        schedules, for mode `fixed`). All see the same draw of the noise. Runs on all cores unless
        `threads` says otherwise. A makespan above `limit_s` may come out as any number above it
        that is not more, which takes less time.
        """
        if threads is not None and threads < 1:
            raise ConfigError(f"threads is {threads}, must be at least 1")
        if not isinstance(devices, np.ndarray) and any(a.memory is not None for a in devices):
            return np.array([self._makespan(graph, a, seed) for a in devices])
        table = self._device_table(graph, devices)
        makespan = np.zeros(len(table))
        evaluate = self._evaluate(graph, table, devices, seed, float(limit_s), makespan)

        # Parts large enough to outweigh handing them out, small enough to share and to stop.
        workers = _num_threads(threads) if len(table) >= MIN_BATCH else 1
        size = MAX_PART // max(graph.num_vertices + graph.num_edges, 1)
        if workers > 1:
            size = min(size, len(table) // (4 * workers))
        parts = [slice(i, i + max(size, 1)) for i in range(0, len(table), max(size, 1))]
        if workers == 1:
            for part in parts:
                evaluate(part)
            return makespan
        with ThreadPoolExecutor(workers) as pool:
            try:
                list(pool.map(evaluate, parts))
            except BaseException:  # an interrupt: do not finish what is still queued
                pool.shutdown(cancel_futures=True)
                raise
        return makespan

    def vertex_times(
        self, graph: Graph, devices: IntArray, seed: int = 0
    ) -> tuple[FloatArray, FloatArray] | None:
        """(V,) when every vertex begins and ends with (V,) devices; None where they do not fit."""
        from doppler.sim.kernel import run_batch
        from doppler.sim.state_kernel import NOT_LENT, make_scratch

        arrays, table = self.arrays(graph, [seed]), self._device_table(graph, devices[None])
        scratch, makespan = make_scratch(arrays), np.zeros(1)
        priority = self._batch_priority(graph, table, seed)
        run_batch(arrays, 0, table, priority, scratch, makespan, inf, NOT_LENT)
        if makespan[0] == inf:
            return None
        size = graph.num_vertices
        return scratch.begin_s[:size].copy(), scratch.end_s[:size].copy()

    def _evaluate(
        self,
        graph: Graph,
        table: IntArray,
        devices: IntArray | Sequence[Assignment],
        seed: int,
        limit_s: float,
        makespan: FloatArray,
    ) -> Callable[[slice], None]:
        """What puts the makespans of some rows of the table into (B,) `makespan`."""
        from doppler.sim.kernel import run_batch
        from doppler.sim.state_kernel import NOT_LENT, make_scratch
        from doppler.sim.uncontended_kernel import run_uncontended_batch

        arrays = self.arrays(graph, [seed])
        if self.config.mode == FIXED:
            own = None if isinstance(devices, np.ndarray) else devices

            def fixed(part: slice) -> None:
                rows = self._rows(graph, table[part], own and own[part], seed)
                self._run_fixed(graph, rows, makespan[part], make_scratch(arrays), seed)

            return fixed
        uncontended = self._only_slots_are_contended(graph, arrays)
        priority = self._batch_priority(graph, devices, seed)

        def dynamic(part: slice) -> None:
            scratch = make_scratch(arrays)
            if uncontended:
                run_uncontended_batch(arrays, 0, table[part], scratch, makespan[part])
                return
            rows = priority if len(priority) == 1 else priority[part]
            run_batch(arrays, 0, table[part], rows, scratch, makespan[part], limit_s, NOT_LENT)

        return dynamic

    def _makespan(self, graph: Graph, assignment: Assignment, seed: int) -> float:
        """The makespan of one assignment, which may have a memory plan."""
        if checked_plan(assignment, self.config) is None:
            return float(self.makespans(graph, [assignment], seed=seed, threads=1)[0])
        assignment.check(graph, self.topology)
        _, (_, _, end_s) = run_planned(self.problem(graph), self.config, assignment, seed)
        return float(end_s.max(initial=0.0))

    def schedule(self, graph: Graph, assignment: Assignment, seed: int = 0) -> Schedule:
        """The assignment's schedule in mode `fixed`: its own, or one by list scheduling."""
        from doppler.sim.state_kernel import make_scratch

        assignment.check(graph, self.topology)
        if assignment.schedule is not None or assignment.memory is not None:
            return schedule_for(self.problem(graph), self.config, assignment, seed)
        row, makespan = assignment.devices.reshape(1, -1).copy(), np.zeros(1)
        rows, scratch = self._rows(graph, row, [assignment], seed), make_scratch(self.arrays(graph))
        fixed = self._run_fixed(graph, rows, makespan, scratch, 0)
        if np.isinf(makespan[0]):  # the readable twin stops at the same place and can say why
            return schedule_for(self.problem(graph), self.config, assignment, seed)
        count = len(all_tasks(graph, enumerate_tasks(graph, self.topology, assignment.devices)))
        return Schedule(fixed.tasks[:count], fixed.rooms[:count])

    def _run_fixed(
        self, graph: Graph, rows: "Rows", makespan: FloatArray, scratch: Any, seed: int
    ) -> "Fixed":
        from doppler.sim.fixed_kernel import make_fixed, run_fixed_batch

        arrays = self.arrays(graph, [seed])
        hostless, fixed = hostless_arrays(self.problem(graph), arrays), make_fixed(arrays)
        run_fixed_batch(arrays, hostless, rows, scratch, fixed, makespan)
        return fixed

    def _rows(
        self, graph: Graph, table: IntArray, own: Sequence[Assignment] | None, seed: int
    ) -> "Rows":
        """Rows of devices for the kernel, with the schedules of those that have one."""
        from doppler.sim.fixed_kernel import Rows

        none = Schedule(*np.zeros((2, 0), np.int64))
        found = [none] * len(table) if own is None else [a.schedule or none for a in own]
        if own is None or self.config.strategy != ORDER:
            priority = self._batch_priority(graph, table, seed)
        else:  # what has a schedule needs no order
            zeros = np.zeros((1, graph.num_vertices))
            rows = [zeros if a.schedule else self._priority(graph, a, seed) for a in own]
            priority = np.concatenate(rows)
        return Rows(
            devices=table,
            priority=priority,
            ptr=np.cumsum([0, *(len(schedule.tasks) for schedule in found)]),
            tasks=np.concatenate([none.tasks, *(schedule.tasks for schedule in found)]),
            rooms=np.concatenate([none.rooms, *(schedule.rooms for schedule in found)]),
        )

    def lent_shares(self, graph: Graph, devices: IntArray, *, seed: int = 0) -> FloatArray:
        """(B,) share of all memory that `run_with_loans` lends them; 0 for those that run."""
        from doppler.sim.kernel import run_batch
        from doppler.sim.memory_kernel import lent_share
        from doppler.sim.state_kernel import make_scratch

        table, arrays = self._device_table(graph, devices), self.arrays(graph, [seed])
        priority, scratch = self._batch_priority(graph, devices, seed), make_scratch(arrays)
        shares = np.zeros(len(table))
        for row in range(len(table)):
            run_batch(arrays, 0, table[row:][:1], priority, scratch, np.zeros(1), np.inf, 0.0)
            shares[row] = lent_share(arrays, scratch)
        return shares

    def _device_table(self, graph: Graph, devices: Any) -> IntArray:
        if isinstance(devices, np.ndarray):
            if devices.ndim != 2 or devices.shape[1] != graph.num_vertices:
                raise AssignmentError(
                    f"devices has shape {devices.shape}, expected (B, {graph.num_vertices})"
                )
            table = np.array(devices, np.int64, order="C")
            inputs = graph.is_input
            low, high = table.min(axis=0, initial=2**62), table.max(axis=0, initial=-1)
            if len(table) and not (
                (low[inputs] == -1).all()
                and (high[inputs] == -1).all()
                and (low[~inputs] >= 0).all()
                and (high[~inputs] < self.topology.num_devices).all()
            ):
                for row in table:
                    check_devices(graph, self.topology.num_devices, row)
            return table
        for assignment in devices:
            assignment.check(graph, self.topology)
        size = graph.num_vertices
        return np.array([a.devices for a in devices], np.int64).reshape(len(devices), size)

    def arrays(self, graph: Graph, seeds: Sequence[int] = (0,)) -> "Arrays":
        """The problem of the graph for the kernel, with a draw of the noise for each seed."""
        from doppler.sim.state_kernel import Arrays

        problem, last, key = self.problem(graph), self._arrays, tuple(seeds)
        if last is not None and last[0] is problem and last[1] == key:
            return last[2]
        draws = [draw(self.config.noise, problem, seed) for seed in key]
        arrays = Arrays(
            exec_s=np.array([d.exec_s for d in draws]),
            transfer_factor=np.array([d.transfer_factor for d in draws])
            if self.config.noise.transfer_sigma
            else np.zeros((0, 0, 0)),
            **self._prepare(problem),
        )
        self._arrays = problem, key, arrays
        return arrays

    def _only_slots_are_contended(self, graph: Graph, arrays: "Arrays") -> bool:
        """Whether `run_uncontended` applies: no lanes, host, memory or priorities to wait for."""
        return (
            arrays.eager_transfers
            and arrays.fifo
            and arrays.ahead == 0
            and graph.num_vertices <= MAX_SORTED
            and all(device.slots == 1 for device in self.topology.devices)
            and all(link.lanes == 0 for link in self.topology.links)
            and bool((arrays.exec_s[:, ~graph.is_input] > 0).all())
        )

    def _priority(self, graph: Graph, assignment: Assignment, seed: int) -> FloatArray:
        priority = priorities(self.config.strategy, self.problem(graph), assignment, seed)
        values = np.zeros(graph.num_vertices) if priority is None else np.array(priority)
        return values.reshape(1, -1)

    def priority(self, graph: Graph, seed: int = 0) -> FloatArray:
        """(1, V) the strategy's priorities for the kernel, where they do not vary by assignment."""
        return self._batch_priority(graph, np.zeros((0, graph.num_vertices)), seed)

    def _batch_priority(self, graph: Graph, devices: Any, seed: int) -> FloatArray:
        """(1, V), or (B, V) where each assignment has an order of its own."""
        if self.config.strategy != ORDER:
            return self._priority(graph, Assignment(np.where(graph.is_input, -1, 0)), seed)
        if isinstance(devices, np.ndarray):
            raise AssignmentError("strategy `order` needs assignments with their orders")
        own = [self._priority(graph, assignment, seed) for assignment in devices]
        return np.concatenate(own) if own else np.zeros((1, graph.num_vertices))

    def _prepare(self, problem: Problem) -> dict[str, Any]:
        """The arrays of a problem that no draw of the noise changes; the last ones are kept."""
        if self._fixed is not None and self._fixed[0] is problem:
            return self._fixed[1]
        from doppler.sim.state_kernel import UNLIMITED

        graph, topology, config = problem.graph, problem.topology, self.config
        rooms, ahead = np.concatenate([problem.slots, problem.lanes]), topology.host.ahead
        is_moved = problem.is_produced | problem.is_arriving
        limit_memory = bool(config.limit_memory and problem.may_run_out)
        fixed = {
            "is_input": graph.is_input,
            "order": graph.topological_order,
            "level": np.maximum(depths(graph), 0),
            "num_reads": np.bincount(
                graph.edge_reader[is_moved[graph.edge_tensor]], minlength=graph.num_vertices
            ),
            "arriving": np.flatnonzero(problem.is_arriving),
            "producer": graph.tensor_producer,
            "output_ptr": graph.output_ptr,
            "output_tensor": graph.output_tensor,
            "reader_ptr": graph.reader_ptr,
            "reader": graph.reader,
            "read_ptr": graph.read_ptr,
            "read_tensor": graph.read_tensor,
            "is_moved": is_moved,
            "is_in_place": problem.is_in_place,
            "is_released": problem.is_released,
            "is_result": graph.is_result,
            "whole_bytes": problem.whole_bytes,
            "temporary_bytes": problem.temporary_bytes,
            "need_bytes": problem.made_bytes + problem.temporary_bytes,
            "fixed_s": problem.costs.fixed_s,
            "tensor_bytes": graph.tensor_bytes,
            "latency_s": problem.costs.latency_s,
            "s_per_byte": problem.costs.s_per_byte,
            "route": topology.route_from_host,
            "room_ptr": np.concatenate([[0], np.cumsum(rooms)]),
            "capacity": np.where(rooms > 0, rooms + ahead, UNLIMITED),
            "memory_bytes": problem.memory_bytes,
            "dispatch_s": float(topology.host.dispatch_s),
            "completion_s": float(topology.host.completion_s),
            "ahead": ahead,
            "fifo": config.strategy == "fifo",
            "synchronous": bool(config.synchronous),
            "limit_memory": limit_memory,
            "eager_transfers": bool(
                topology.host.dispatch_s == 0
                and not limit_memory
                and not config.synchronous
                and problem.transfers_take_time
            ),
        }
        self._fixed = problem, fixed
        return fixed


def _num_threads(threads: int | None) -> int:
    if threads is None and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return threads or os.cpu_count() or 1


def simulate(
    graph: Graph | str | Path,
    topology: Topology | str | Path,
    assignment: Assignment | str | Path,
    *,
    seed: int = 0,
    config: SimConfig | None = None,
    cost_model: CostModel | None = None,
) -> Trace:
    """The trace of running `graph` under `assignment` on `topology`, in virtual time.

    Each may be given as the path of its file, and the topology as the name of a preset.
    `cost_model` prices the graph, instead of the default one.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> trace = dp.simulate(graph, "p100x4", dp.place(graph, "p100x4", "heft"))
    >>> trace.makespan_s > 0
    True
    """
    problem = as_problem(graph, topology, cost_model)
    return Simulator(problem, config).run(problem.graph, as_assignment(assignment), seed)
