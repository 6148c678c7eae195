"""Guides: what a policy compares its choices with, from list schedulers or any assignment."""

from dataclasses import replace

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.guide import NO_TIMES, Guide
from doppler.mdp.instance import Instance, make_instance
from doppler.mdp.parts import nested_parts
from doppler.placers.lists.fewer_devices import listed_on, shortest
from doppler.policies.arrays.config import PolicyConfig
from doppler.problem import Problem
from doppler.sim.simulator import Simulator


def instance_for(config: object, problem: Problem) -> Instance:
    """The instance of a problem as a policy of this config reads it: with a guide, or without."""
    return with_guide(config, make_instance(problem))


def with_guide(config: object, instance: Instance) -> Instance:
    """An instance with the best list schedule as its guide, if such a policy reads one.

    One that has a guide keeps it.
    """
    reads_guide = isinstance(config, PolicyConfig) and config.reads_guide
    if not reads_guide or not instance.num_vertices or len(instance.guide.devices):
        return instance
    devices = listed_best(instance.problem)[instance.vertices]
    return replace(instance, guide=make_guide(instance, devices))


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
    """(V,) devices of the best list schedule, in simulation, on all devices or some of them."""
    listed = listed_on(problem, nested_parts(problem))
    return listed[shortest(problem, listed)].devices
