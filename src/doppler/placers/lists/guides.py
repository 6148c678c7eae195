"""Guides: what a policy compares its choices with, from list schedulers or any assignment."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.guide import NO_TIMES, Guide
from doppler.mdp.instance import Instance, make_instance
from doppler.mdp.parts import nested_parts, on_part
from doppler.placers.lists.fewer_devices import SCHEDULERS
from doppler.policies.arrays.config import PolicyConfig
from doppler.problem import Problem
from doppler.sim.simulator import Simulator


def instance_for(config: object, problem: Problem) -> Instance:
    """The instance of a problem as a policy of this config reads it: with a guide, or without."""
    instance = make_instance(problem)
    reads_guide = isinstance(config, PolicyConfig) and config.reads_guide
    if not reads_guide or not instance.num_vertices:
        return instance
    return replace(instance, guide=make_guide(instance, listed_best(problem)[instance.vertices]))


def make_guide(instance: Instance, devices: IntArray, simulator: Simulator | None = None) -> Guide:
    """The guide of (n,) devices, with when they end in simulation; without, where they run out of
    memory.
    """
    times = simulated_times(instance, devices, simulator or Simulator(instance.problem))
    return Guide(devices[None], NO_TIMES if times is None else times[None, 1:])


def simulated_times(
    instance: Instance, devices: IntArray, simulator: Simulator
) -> FloatArray | None:
    """(3, n) begin, end and slack of (n,) devices in simulation; None where they do not fit."""
    from doppler.mdp.guide_kernel import fill_slack

    found = simulator.vertex_times(instance.graph, instance.expand(devices))
    if found is None:
        return None
    times = np.empty((3, len(devices)))
    times[0], times[1] = (each[instance.vertices] for each in found)
    order = np.argsort(times[0], kind="stable")
    fill_slack(instance.tables, devices, order, times[0], times[1], times[2])
    return times


def listed_best(problem: Problem) -> IntArray:
    """(V,) devices of the best list schedule, in simulation, on all devices or some of them.

    Where none fits in memory it is the one that gets furthest.
    """
    devices, _ = listed_on(problem, nested_parts(problem))
    best: IntArray = devices[best_of(problem, devices)]
    return best


def best_of(problem: Problem, devices: IntArray) -> int:
    """Which of (K, V) devices is the best in simulation; of equal ones the first."""
    simulator = Simulator(problem)
    makespans = simulator.makespans(problem.graph, devices, threads=1)
    if np.isfinite(makespans).any():
        return int(np.argmin(makespans))
    return int(np.argmin(simulator.unfinished(problem.graph, devices)))


def listed_on(problem: Problem, parts: list[IntArray]) -> tuple[IntArray, IntArray]:
    """(K, V) devices and (K, n) orders of all list schedulers on each of some parts."""
    devices, orders = zip(*_listed_on(problem, parts), strict=True)
    return np.stack(devices), np.stack(orders)


def _listed_on(problem: Problem, parts: list[IntArray]) -> Iterator[tuple[IntArray, IntArray]]:
    for part in parts:
        is_whole = len(part) == problem.topology.num_devices
        on_it = problem if is_whole else on_part(problem, part)
        for kind in SCHEDULERS:
            schedule = kind().schedule(on_it)
            devices = np.where(problem.graph.is_input, -1, part[schedule.devices])
            yield devices, schedule.order
