"""A backend that plays out a topology in virtual time: what it measures is known exactly."""

from functools import cache
from typing import Any

import numpy as np

from doppler.cost import Costs, DefaultCostModel
from doppler.engine.backends.base import Action, Exec
from doppler.engine.backends.null import NullBackend
from doppler.graph.graph import Graph
from doppler.programs import llama_block
from doppler.sharding import shard
from doppler.tasks import Tasks
from doppler.topology import Device, Link, Topology


class PlayingBackend(NullBackend):
    """Tasks take what the true topology says, and wait for its slots and lanes.

    Time passes only while it is waited for, and by `dispatch_s` of the true host for every task
    that is started.
    """

    def __init__(self, truth: Topology) -> None:
        super().__init__(truth, self._seconds)
        self._truth = truth
        self._known: tuple[Graph, Costs] | None = None
        self._now_s = 0.0

    def begin(self, commands: Any, *, timed: bool = True) -> None:
        super().begin(commands, timed=timed)
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def _pause(self, seconds: float) -> None:
        first_end = min((end for end, _ in self._running), default=0.0)
        self._now_s = max(self._now_s + seconds, first_end)

    def start(self, task: int) -> None:
        self._now_s += self._truth.host.dispatch_s
        super().start(task)

    def _resource(self, action: Action) -> int:
        if isinstance(action, Exec):
            return action.device
        return self._num_devices + int(self._truth.route[action.source, action.target])

    def _seconds(self, graph: Graph, tasks: Tasks, task: int) -> float:
        if self._known is None or self._known[0] is not graph:
            self._known = graph, DefaultCostModel().costs(graph, self._truth)
        costs = self._known[1]
        if task < graph.num_vertices:
            return float(costs.exec_s[task, tasks.devices[task]])
        k = task - graph.num_vertices
        link = int(self._truth.route[tasks.source[k], tasks.target[k]])
        return costs.transfer_s(graph, int(tasks.tensor[k]), link)


def machine(devices: int = 4, *, lanes: int = 1, by: str = "all", rate: float = 2e9) -> Topology:
    """Equal devices; links are shared by all pairs, or there is one per source or pair."""
    pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
    keys = {"all": lambda a, b: 0, "source": lambda a, b: a, "pair": lambda a, b: (a, b)}
    found = list(dict.fromkeys(keys[by](a, b) for a, b in pairs))
    route = np.full((devices, devices), -1)
    for a, b in pairs:
        route[a, b] = found.index(keys[by](a, b))
    speeds = {"float16": 2e12, "float32": 1e12, "float64": 5e11}
    return Topology(
        "true",
        tuple(Device(f"d{i}", speeds, 1e11, launch_s=3e-6) for i in range(devices)),
        tuple(Link(f"l{i}", rate, latency_s=2e-5, lanes=lanes) for i in range(len(found))),
        route,
    )


@cache
def small_graph() -> Graph:
    """A graph with kernels of many kinds, and tensors of several sizes."""
    program = llama_block(sequence=32, heads=4, head_dim=8, hidden=64, dtype="float32")
    return shard(program, parts=4)
