"""ExecutorContract: what every executor must do, as tests to inherit.

```python
class TestMyExecutor(ExecutorContract):
    def executor(self, topology):
        return MyExecutor(topology)
```
"""

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.executor import Executor
from doppler.graph.graph import Graph
from doppler.programs.random_dag import random_dag
from doppler.tasks import Tasks, enumerate_tasks
from doppler.topology.presets import preset
from doppler.topology.topology import Topology
from doppler.trace import Trace

EARLY = "a task begins before its inputs are there"


class ExecutorContract:
    """Inherit and give `executor`; the test methods come along."""

    work_conserving = True  # false for an executor in mode `fixed`

    def executor(self, topology: Topology) -> Executor:
        """The executor under test, for a topology."""
        raise TypeError("override `executor`")

    def test_runs_every_task_once_and_in_order(self) -> None:
        for topology, graph, assignment in _cases():
            trace = self.executor(topology).run(graph, assignment, seed=1)
            check_trace(trace, graph, topology, assignment, work_conserving=self.work_conserving)

    def test_same_seed_same_tasks(self) -> None:
        topology, graph, assignment = next(iter(_cases()))
        first, second = (self.executor(topology).run(graph, assignment, seed=3) for _ in range(2))
        assert set(_task_keys(first)) == set(_task_keys(second))

    def test_tells_where_the_trace_comes_from(self) -> None:
        topology, graph, assignment = next(iter(_cases()))
        trace = self.executor(topology).run(graph, assignment)
        assert (trace.graph, trace.topology) == (graph.name, topology.name)
        assert trace.vertex_names == graph.vertex_names


def check_trace(
    trace: Trace,
    graph: Graph,
    topology: Topology,
    assignment: Assignment,
    *,
    slack_s: float = 0.0,
    work_conserving: bool = True,
) -> None:
    """Assert that a trace is one of this graph under this assignment, and work-conserving.

    Every vertex runs once, on its device; every tensor goes once to each device that needs it;
    nothing starts before its inputs are there; slots and lanes are never exceeded; and, if it is to
    be `work_conserving`, none is idle for longer than `slack_s` (plus a dispatch) while a task for
    it is ready.
    """
    tasks = enumerate_tasks(graph, topology, assignment.devices)
    expected = {(int(v), -1, int(tasks.devices[v])) for v in graph.assigned}
    producers = graph.tensor_producer[tasks.tensor]
    expected |= set(
        zip(producers.tolist(), tasks.tensor.tolist(), tasks.target.tolist(), strict=True)
    )
    found = _task_keys(trace)
    assert len(found) == len(set(found)), "a task ran twice"
    assert set(found) == expected, "tasks are missing, or there are too many"
    _check_inputs(trace, graph, tasks)
    _check_capacity(trace, topology)
    if work_conserving:
        _check_no_idling(trace, topology, slack_s)


def _check_inputs(trace: Trace, graph: Graph, tasks: Tasks) -> None:
    end = dict(zip(_task_keys(trace), trace.end_s.tolist(), strict=True))
    for row in range(len(trace.vertex)):
        vertex, device = int(trace.vertex[row]), int(trace.device[row])
        if trace.tensor[row] >= 0:
            if graph.is_input[vertex]:
                continue
            source = int(tasks.devices[vertex])
            assert end[vertex, -1, source] <= trace.ready_s[row] <= trace.begin_s[row], EARLY
            continue
        reads = graph.read_tensor[graph.read_ptr[vertex] : graph.read_ptr[vertex + 1]]
        for tensor in reads.tolist():
            producer = int(graph.tensor_producer[tensor])
            local = tasks.devices[producer] == device
            arrived = end.get((producer, -1 if local else tensor, device))
            if arrived is None:
                assert graph.is_input[producer], EARLY
                continue
            assert arrived <= trace.ready_s[row] <= trace.begin_s[row], EARLY


def _resources(trace: Trace, topology: Topology) -> list[tuple[IntArray, int]]:
    """Rows of each device and each limited link, with its capacity."""
    execs = [
        (np.flatnonzero((trace.device == d) & ~trace.is_transfer), device.slots)
        for d, device in enumerate(topology.devices)
    ]
    moves = [
        (np.flatnonzero(trace.link == i), link.lanes)
        for i, link in enumerate(topology.links)
        if link.lanes
    ]
    return execs + moves


def _check_capacity(trace: Trace, topology: Topology) -> None:
    for rows, capacity in _resources(trace, topology):
        for row in rows:
            running = (trace.begin_s[rows] <= trace.begin_s[row]) & (
                trace.end_s[rows] > trace.begin_s[row]
            )
            assert running.sum() <= capacity, "more tasks at once than slots or lanes"


def _check_no_idling(trace: Trace, topology: Topology, slack_s: float) -> None:
    """A task that waits finds all slots or lanes taken until a dispatch before it begins.

    The host may be busy starting others: it is idle only where it starts nothing. Where it
    starts tasks ahead, a trace does not tell when, and there is nothing to check.
    """
    if topology.host.ahead and topology.host.dispatch_s:
        return
    dispatch = topology.host.dispatch_s
    slack_s += 1e-9 * trace.makespan_s  # `begin - dispatch` is rounded
    chosen = trace.begin_s - dispatch
    for rows, capacity in _resources(trace, topology):
        for row in rows:
            ready, begin = trace.ready_s[row], trace.begin_s[row]
            for moment in _moments(trace, rows, ready, begin - dispatch - slack_s):
                taken = int(
                    ((chosen[rows] <= moment + slack_s) & (trace.end_s[rows] > moment)).sum()
                )
                host_busy = bool(((chosen <= moment + slack_s) & (moment < trace.begin_s)).any())
                assert taken >= capacity or host_busy, "a slot or lane idles while a task is ready"


def _moments(trace: Trace, rows: IntArray, first: float, last: float) -> list[float]:
    """When a slot or lane became free between two times, and the first of them."""
    if not first < last:
        return []
    ends = trace.end_s[rows]
    return [float(first), *ends[(ends > first) & (ends < last)].tolist()]


def _task_keys(trace: Trace) -> list[tuple[int, int, int]]:
    """(vertex, tensor or -1, device) of each row."""
    return list(
        zip(trace.vertex.tolist(), trace.tensor.tolist(), trace.device.tolist(), strict=True)
    )


def _cases() -> list[tuple[Topology, Graph, Assignment]]:
    cases = []
    for seed, name in enumerate(("p100x4", "a100x2-t4x2", "cpu2")):
        topology, graph = preset(name), random_dag(vertices=30, depth=6, seed=seed)
        devices = np.random.default_rng(seed).integers(
            topology.num_devices, size=graph.num_vertices
        )
        cases.append((topology, graph, Assignment(np.where(graph.is_input, -1, devices))))
    return cases
