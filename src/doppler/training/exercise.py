"""Exercise: one graph on one topology that a policy is trained on, and variants of a graph."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from doppler.base.arrays import FloatArray, IntArray, frozen
from doppler.graph.graph import Graph
from doppler.mdp.instance import Instance
from doppler.placers.base import cores
from doppler.placers.bounds.lower import bounds_of
from doppler.placers.lists.guides import instance_for
from doppler.policies.trainable import TrainablePolicy
from doppler.problem import Problem
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology
from doppler.training.config import TrainConfig
from doppler.training.expert import Expert


@dataclass(frozen=True, eq=False)  # without slots: what takes a while is made once, when needed
class Exercise:
    """A graph on a topology, as the config says to train on it. Nothing here changes."""

    graph: Graph
    topology: Topology
    config: TrainConfig

    @cached_property
    def problem(self) -> Problem:
        """The graph on the topology, priced once."""
        return Problem(self.graph, self.topology)

    @property
    def label(self) -> str:
        """`graph@topology`."""
        return f"{self.graph.name}@{self.topology.name}"

    @cached_property
    def threads(self) -> int:
        """Those of rollouts, simulation and search: the others are for the next exercises."""
        config = self.config
        return max((config.threads or len(cores()) or 1) // config.problems_per_step, 1)

    @cached_property
    def simulator(self) -> Simulator:
        """What assignments are simulated by."""
        return Simulator(self.problem, self.config.sim_config)

    @cached_property
    def instance(self) -> Instance:
        """The decision process."""
        return instance_for(self.config.policy, self.problem)

    @cached_property
    def bound_s(self) -> float:
        """A lower bound of the makespan of any assignment."""
        return bounds_of(self.problem).best_s

    @cached_property
    def expert(self) -> Expert | None:
        """The expert of Stage II, if it has one."""
        if not self.config.has_expert:
            return None
        return Expert(self.problem, self.config, self.threads)

    def view(self, policy: TrainablePolicy, topology: Topology | None = None) -> Any:
        """What a policy reads, with the costs of this topology or another."""
        other = None if topology is None else Problem(self.graph, topology)
        instance = self.instance if other is None else instance_for(self.config.policy, other)
        return policy.view(instance, self.config.device, threads=self.threads)

    def makespans(self, devices: IntArray, number: int) -> FloatArray:
        """(K,) makespans of (K, V) devices under one draw of the noise; infinity if none fits."""
        return self.simulator.makespans(self.graph, devices, seed=number, threads=self.threads)

    def mean_makespan_s(self, devices: IntArray, simulator: Simulator | None = None) -> float:
        """The mean makespan of (V,) devices over the draws of the noise, on this simulator."""
        simulator = self.simulator if simulator is None else simulator
        seeds = range(self.config.seed, self.config.seed + self.config.draws)
        row = devices.reshape(1, -1)
        return float(np.mean([simulator.makespans(self.graph, row, seed=s) for s in seeds]))


def vary(graph: Graph, number: int, sigma: float) -> Graph:
    """The graph with the exec costs and the bytes of every meta-op times a random factor.

    So a policy learns what depends on them.
    Factors are log-normal; all shards, or all reduces, of a meta-op have the same.
    """
    rng = np.random.default_rng(number)
    kinds = list(zip(graph.meta_ops, graph.roles, graph.kinds, strict=True))
    names = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    which = np.array([names[kind] for kind in kinds], np.int64)
    exec_factor = np.exp(sigma * rng.standard_normal(len(names)))[which]  # (V,)
    byte_factor = np.exp(sigma * rng.standard_normal(len(names)))[which][graph.tensor_producer]
    return replace(
        graph,
        name=f"{graph.name}~{number}",
        kernels=(),  # seconds measured for them are not those of a variant
        flops=frozen(graph.flops * exec_factor),
        touched_bytes=frozen(graph.touched_bytes * exec_factor),
        exec_s=_scaled(graph.exec_s, exec_factor[:, None]),
        tensor_bytes=frozen(graph.tensor_bytes * byte_factor),
        transfer_s=_scaled(graph.transfer_s, byte_factor),
    )


def _scaled(values: FloatArray | None, factor: FloatArray) -> FloatArray | None:
    return None if values is None else frozen(values * factor)
