"""Machines in virtual time that Stage III runs on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from training.tiny import CONFIG

from doppler.assignment import Assignment
from doppler.graph import Graph
from doppler.programs import ffnn
from doppler.serving.prediction import Predictor
from doppler.serving.trials import Trials
from doppler.sharding import shard
from doppler.sim import Noise, SimConfig, Simulator
from doppler.topology import Host, Topology
from doppler.trace import Trace
from doppler.training.config import RealConfig

MACHINE = Topology.preset("p100x4")
NOISE = Noise(exec_sigma=0.02, transfer_sigma=0.05)
REAL = replace(
    CONFIG,
    stages=("real",),
    real=RealConfig(episodes=20, batch=4, samples=8, plain=1, moves=20, lessons=2, max_runs=4),
)


def small() -> Graph:
    """A graph whose vertices say what they execute."""
    return shard(ffnn(batch=4096, hidden=8192), 4)


def limping(topology: Topology = MACHINE) -> Topology:
    """The same machine, but for the first device at half its speed, and links at a third."""
    devices = [
        replace(
            device,
            flops_per_s={k: v / (2 if i == 0 else 1) for k, v in device.flops_per_s.items()},
            memory_bytes_per_s=device.memory_bytes_per_s / (2 if i == 0 else 1),
        )
        for i, device in enumerate(topology.devices)
    ]
    links = [
        replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / 3)
        for link in topology.links
    ]
    return replace(topology, devices=tuple(devices), links=tuple(links))


def machine(noise: Noise = NOISE) -> Simulator:
    return Simulator(limping(), SimConfig(noise=noise))


class Flaky:
    """An executor that refuses some assignments, and says what it ran."""

    def __init__(self, inner: Any, refuse: Callable[[np.ndarray, int], Exception | None]) -> None:
        self.inner, self.refuse = inner, refuse
        self.ran: list[bytes] = []

    def run(self, graph: Graph, assignment: Assignment, seed: int = 0) -> Trace:
        self.ran.append(assignment.devices.tobytes())
        if (error := self.refuse(assignment.devices, len(self.ran))) is not None:
            raise error
        trace: Trace = self.inner.run(graph, assignment, seed)
        return trace


def trials_of(work: Graph, executor: Any, config: RealConfig = REAL.real) -> Trials:
    return Trials(executor, work, MACHINE, config, Predictor(work, MACHINE, SimConfig()))


def with_host(topology: Topology = MACHINE) -> Topology:
    """The machine with a host that takes long to see that a task has ended."""
    return replace(topology, host=Host(dispatch_s=1e-5, completion_s=1e-2))
