"""The readable simulator: drives the scheduler's state machine in virtual time (Alg. 1)."""

from heapq import heappop, heappush

import numpy as np

from doppler.assignment import Assignment
from doppler.graph.graph import Graph
from doppler.scheduler.state import SchedulerState
from doppler.sim.config import SimConfig, priorities
from doppler.sim.noise import draw
from doppler.tasks import enumerate_tasks
from doppler.topology.topology import Topology
from doppler.trace import Trace, build_trace

END, SEEN, HOST = 0, 1, 2  # kinds of event


class ReferenceSimulator:
    """An Executor in virtual time, written to be read. `Simulator` must equal it.

    Time stands still while the scheduler chooses. Starting a task keeps the host busy for
    `dispatch_s`; the task begins when that is over. When it ends its slot or lane is free at
    once, but its result is only seen `completion_s` later. Of everything that happens at the
    same instant, all is taken in before the scheduler chooses again.
    """

    def __init__(self, topology: Topology, config: SimConfig | None = None) -> None:
        self.topology = topology
        self.config = config or SimConfig()

    def run(self, graph: Graph, assignment: Assignment, seed: int = 0) -> Trace:
        """Every begin and end of every exec and transfer."""
        topology, config, host = self.topology, self.config, self.topology.host
        assignment.check(graph, topology)
        costs = config.cost_model.costs(graph, topology)
        drawn = draw(config.noise, graph, topology, costs, seed)
        tasks = enumerate_tasks(graph, topology, assignment.devices)
        size = graph.num_vertices

        def duration_s(task: int) -> float:
            if task < size:
                return float(drawn.exec_s[task, tasks.devices[task]])
            tensor, link = int(tasks.tensor[task - size]), int(tasks.link[task - size])
            seconds = costs.transfer_s(graph, tensor, link)
            if drawn.transfer_factor.size:
                seconds *= drawn.transfer_factor[tensor, tasks.target[task - size]]
            return float(seconds)

        state = SchedulerState(
            graph,
            topology,
            tasks,
            priorities(config, graph, topology, costs, assignment, seed),
            synchronous=config.synchronous,
            limit_memory=config.limit_memory,
        )
        begin = np.zeros(size + tasks.num_transfers)
        end = np.zeros(size + tasks.num_transfers)
        now, host_is_free = 0.0, True
        events: list[tuple[float, int, int]] = []  # (time, kind, task)
        state.begin(now)
        while True:
            while host_is_free and (task := state.choose()) is not None:
                begin[task] = now + host.dispatch_s
                end[task] = begin[task] + duration_s(task)
                heappush(events, (end[task], END, task))
                if host.dispatch_s > 0:
                    host_is_free = False
                    heappush(events, (begin[task], HOST, -1))
            if not events:
                break
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
        return build_trace(graph, topology, tasks, times, placer=assignment.placer)
