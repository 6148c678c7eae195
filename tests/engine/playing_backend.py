"""A backend that plays out a topology in virtual time: what it measures is known exactly."""

from dataclasses import replace
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
        truth = truth if truth.has_host_links else _with_host_links(truth, "device")
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
        return self._num_devices + self._link(action.source, action.target)

    def _link(self, source: int, target: int) -> int:
        truth = self._truth
        if max(source, target) == truth.num_devices:
            return truth.host_links[min(source, target)]
        return int(truth.route[source, target])

    def _seconds(self, graph: Graph, tasks: Tasks, task: int) -> float:
        if self._known is None or self._known[0] is not graph:
            self._known = graph, DefaultCostModel().costs(graph, self._truth)
        costs = self._known[1]
        if task < graph.num_vertices:
            return float(costs.exec_s[task, tasks.devices[task]])
        k = task - graph.num_vertices
        link = self._link(int(tasks.source[k]), int(tasks.target[k]))
        return costs.transfer_s(graph, int(tasks.tensor[k]), link)


def machine(
    devices: int = 4,
    *,
    lanes: int = 1,
    by: str = "all",
    rate: float = 2e9,
    host_by: str | None = None,
    host_lanes: int = 1,
) -> Topology:
    """Equal devices; links are shared by all pairs, or there is one per source or pair.

    All devices share a link to the host, or each has its own; there is none if None.
    """
    pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
    keys = {"all": lambda a, b: 0, "source": lambda a, b: a, "pair": lambda a, b: (a, b)}
    kinds = list(dict.fromkeys(keys[by](a, b) for a, b in pairs))
    route = np.full((devices, devices), -1)
    for a, b in pairs:
        route[a, b] = kinds.index(keys[by](a, b))
    links = [Link(f"l{i}", rate, latency_s=2e-5, lanes=lanes) for i in range(len(kinds))]
    speeds = {"float16": 2e12, "float32": 1e12, "float64": 5e11}
    found = Topology(
        "true",
        tuple(Device(f"d{i}", speeds, 1e11, launch_s=3e-6) for i in range(devices)),
        tuple(links),
        route,
    )
    return found if host_by is None else _with_host_links(found, host_by, host_lanes)


def _with_host_links(topology: Topology, by: str, lanes: int = 1) -> Topology:
    first = topology.num_links
    host_links = tuple(first + d * (by == "device") for d in range(topology.num_devices))
    added = [Link(f"h{i}", 1e9, latency_s=1e-5, lanes=lanes) for i in dict.fromkeys(host_links)]
    return replace(topology, links=(*topology.links, *added), host_links=host_links)


@cache
def small_graph() -> Graph:
    """A graph with kernels of many kinds, and tensors of several sizes."""
    program = llama_block(sequence=32, heads=4, head_dim=8, hidden=64, dtype="float32")
    return shard(program, parts=4)
