"""Guides: what a policy compares its choices with, from list schedulers or any assignment."""

from dataclasses import replace

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.guide import NO_TIMES, UNASSIGNED, Guide
from doppler.mdp.instance import Instance, make_instance
from doppler.mdp.parts import on_part
from doppler.placers.lists.fewer_devices import nested_schedules
from doppler.policies.arrays.config import PolicyConfig
from doppler.problem import Problem
from doppler.sim.simulator import Simulator


def instance_for(config: object, problem: Problem) -> Instance:
    """The instance of a problem as a policy of this config reads it: with a guide, or without."""
    return with_guide(config, make_instance(problem))


def instance_on(config: object, problem: Problem, part: IntArray) -> Instance:
    """The same on a part of the machine, whose devices count from 0."""
    instance = make_instance(on_part(problem, part))
    if not _needs_guide(config, instance):
        return instance
    index = np.full(problem.topology.num_devices, UNASSIGNED, np.int64)
    index[part] = np.arange(len(part))
    devices = index[listed_best(problem, part)[instance.vertices]]
    return replace(instance, guide=make_guide(instance, devices))


def with_guide(config: object, instance: Instance) -> Instance:
    """An instance with the best list schedule as its guide, if such a policy reads one.

    One that has a guide keeps it.
    """
    if not _needs_guide(config, instance):
        return instance
    devices = listed_best(instance.problem)[instance.vertices]
    return replace(instance, guide=make_guide(instance, devices))


def _needs_guide(config: object, instance: Instance) -> bool:
    reads_guide = isinstance(config, PolicyConfig) and config.reads_guide
    return reads_guide and instance.num_vertices > 0 and not len(instance.guide.devices)


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


def listed_best(problem: Problem, part: IntArray | None = None) -> IntArray:
    """(V,) devices of the best list schedule, in simulation, on all devices or some of them.

    With a `part` of the machine it is the best on that, or on some of its devices.
    """
    nested = nested_schedules(problem)
    wanted = nested.parts[0] if part is None else part
    for number, each in enumerate(nested.parts):
        if np.array_equal(each, wanted):
            return nested.best(problem, number).devices
    devices = listed_best(on_part(problem, wanted))
    found: IntArray = np.where(problem.graph.is_input, -1, wanted[devices])
    return found
