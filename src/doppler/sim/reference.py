"""The readable simulator: drives the scheduler's state machine in virtual time (Alg. 1)."""

from heapq import heappop, heappush, heapreplace
from pathlib import Path

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray
from doppler.cost import CostModel, DefaultCostModel
from doppler.errors import ConfigError
from doppler.graph.graph import Graph
from doppler.memory_plan import MemoryPlan
from doppler.problem import Problem
from doppler.resolve import as_topology
from doppler.scheduler.choose import FIXED, priorities
from doppler.scheduler.state import SchedulerState
from doppler.sim.config import SimConfig
from doppler.sim.fixed import run_fixed
from doppler.sim.noise import draw
from doppler.tasks import Tasks, enumerate_tasks, task_table, with_moves
from doppler.topology.topology import Topology
from doppler.trace import Trace, build_trace

END, SEEN, HOST = 0, 1, 2  # kinds of event


class SimulatorBase:
    """What a simulator runs graphs on: a topology, a cost model and a config.

    Made from a problem, it has the problem's topology and costs; other graphs are priced by the
    same cost model.
    """

    def __init__(
        self,
        on: Problem | Topology | str | Path,
        config: SimConfig | None = None,
        *,
        cost_model: CostModel | None = None,
    ) -> None:
        """`on` is a problem; or a topology, or the name of a preset, or the path of a file."""
        self._problem: Problem | None = None
        if isinstance(on, Problem):
            if cost_model is not None:
                raise ConfigError("a problem has a cost model already: leave out `cost_model`")
            self._problem, self.topology, self.cost_model = on, on.topology, on.cost_model
        else:
            self.topology, self.cost_model = as_topology(on), cost_model or DefaultCostModel()
        self.config = config or SimConfig()

    def problem(self, graph: Graph) -> Problem:
        """The graph on this topology; that of the last graph is kept."""
        if self._problem is None or self._problem.graph is not graph:
            self._problem = Problem(graph, self.topology, self.cost_model)
        return self._problem


class ReferenceSimulator(SimulatorBase):
    """An Executor in virtual time, written to be read. `Simulator` must equal it.

    Time stands still while the scheduler chooses. Starting a task keeps the host busy for
    `dispatch_s`; the task begins when that is over and, if the host started it ahead, the tasks
    started before it on its device or link have left it a slot or lane. When it ends its slot or
    lane is free at once, but its result is only seen `completion_s` later. Of everything that
    happens at the same instant, all is taken in before the scheduler chooses again.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> assignment = dp.place(graph, "p100x4", "heft")
    >>> slow, fast = dp.ReferenceSimulator("p100x4"), dp.Simulator("p100x4")
    >>> slow.run(graph, assignment).makespan_s == fast.run(graph, assignment).makespan_s
    True
    """

    def run(self, graph: Graph, assignment: Assignment, seed: int = 0) -> Trace:
        """Every begin and end of every exec and transfer."""
        return self._run(graph, assignment, seed, None)

    def run_with_loans(
        self, graph: Graph, assignment: Assignment, seed: int = 0
    ) -> tuple[Trace, FloatArray]:
        """The trace where devices are lent the memory they lack, and (D,) how much each was lent.

        A device is lent memory, for good, where tasks wait for it and nothing runs: as much as lets
        one more task start.
        """
        lent_bytes = np.zeros(self.topology.num_devices)
        return self._run(graph, assignment, seed, lent_bytes), lent_bytes

    def _run(
        self, graph: Graph, assignment: Assignment, seed: int, lent_bytes: FloatArray | None
    ) -> Trace:
        """The trace; memory is lent, and added to (D,) `lent_bytes`, where these are given."""
        topology, config, host = self.topology, self.config, self.topology.host
        assignment.check(graph, topology)
        problem = self.problem(graph)
        drawn = draw(config.noise, problem, seed)
        plan = checked_plan(assignment, config)
        tasks = with_moves(topology, enumerate_tasks(graph, topology, assignment.devices), plan)
        size = graph.num_vertices

        duration_s = drawn.task_seconds(problem, tasks).tolist()
        if config.mode == FIXED:
            return run_fixed(problem, config, assignment, tasks, duration_s, seed)
        priority = priorities(config.strategy, problem, assignment, seed)
        table = task_table(graph, topology, tasks, plan=plan)
        state = SchedulerState(
            *(graph, topology, tasks, priority),
            synchronous=config.synchronous,
            limit_memory=config.limit_memory and plan is None,
            table=table,
        )
        rooms = _Rooms(topology, tasks)
        begin = np.zeros(size + tasks.num_transfers)
        end = np.zeros(size + tasks.num_transfers)
        now, host_is_free = 0.0, True
        events: list[tuple[float, int, int]] = []  # (time, kind, task)
        state.begin(now)
        while True:
            while host_is_free and (task := state.choose()) is not None:
                dispatched = now + host.dispatch_s
                begin[task], end[task] = rooms.take(task, dispatched, duration_s[task])
                heappush(events, (end[task], END, task))
                if host.dispatch_s > 0:
                    host_is_free = False
                    heappush(events, (dispatched, HOST, -1))
            if not events:
                if lent_bytes is None or not state.unfinished:
                    break
                device, lack = state.lend()
                lent_bytes[device] += lack
                continue
            now = events[0][0]
            while events and events[0][0] == now:
                _, kind, task = heappop(events)
                if kind == HOST:
                    host_is_free = True
                elif kind == END:
                    state.release(task)
                    if host.completion_s > 0:
                        heappush(events, (now + host.completion_s, SEEN, task))
                    else:
                        state.complete(task, now)
                else:
                    state.complete(task, now)
        if state.unfinished:
            raise state.stuck()
        times = (np.array(state.ready_s), begin, end)
        return build_trace(graph, topology, tasks, times, placer=assignment.placer, plan=plan)


def checked_plan(assignment: Assignment, config: SimConfig) -> MemoryPlan | None:
    """The memory plan of an assignment; a `ConfigError` where its tasks cannot be simulated."""
    if assignment.memory is not None and config.synchronous:
        raise ConfigError(
            "a memory plan cannot run with a barrier after every level: its tasks wait for others "
            "of any level",
            hint="leave out `synchronous`, or the plan",
        )
    return assignment.memory


class _Rooms:
    """When each slot and lane is free again; tasks take them in the order they are started."""

    def __init__(self, topology: Topology, tasks: Tasks) -> None:
        rooms = [device.slots for device in topology.devices]
        rooms += [link.lanes for link in topology.links]
        self._free_s = [[0.0] * room for room in rooms]  # heaps; empty where there is no limit
        self._devices, self._links = tasks.devices, tasks.link + topology.num_devices

    def take(self, task: int, earliest_s: float, duration_s: float) -> tuple[float, float]:
        """Begin and end of a task that may begin at `earliest_s`."""
        size = len(self._devices)
        free_s = self._free_s[self._devices[task] if task < size else self._links[task - size]]
        if not free_s:
            return earliest_s, earliest_s + duration_s
        begin = max(earliest_s, free_s[0])
        heapreplace(free_s, begin + duration_s)
        return begin, begin + duration_s
