"""The simulated runtime once more, as a plain SimPy model: what `simulator.py` compares with."""

from collections.abc import Generator
from typing import Any

import simpy

from doppler.arrays import rows
from doppler.cost import DefaultCostModel
from doppler.graph.graph import Graph
from doppler.topology.topology import Topology

Steps = Generator[simpy.Event, Any, None]


class SimPyModel:
    """A graph on a topology, first in, first out, as lists of plain numbers made once.

    Under `reference:N` its makespans equal doppler's. With host costs they may differ by a few
    dispatches where several tasks become ready at the same instant: SimPy serves them in the
    order of its events, doppler by task number.
    """

    def __init__(self, graph: Graph, topology: Topology) -> None:
        costs = DefaultCostModel().costs(graph, topology)
        tensors, links = range(graph.num_tensors), range(topology.num_links)
        self.exec_s: list[list[float]] = costs.exec_s.tolist()
        self.transfer_s = [[costs.transfer_s(graph, t, n) for n in links] for t in tensors]
        self.reads = rows(graph.read_ptr, graph.read_tensor)
        self.outputs = rows(graph.output_ptr, graph.output_tensor)
        self.readers = rows(graph.reader_ptr, graph.reader)
        self.route: list[list[int]] = topology.route.tolist()
        self.slots = [device.slots for device in topology.devices]
        self.lanes = [link.lanes for link in topology.links]
        self.dispatch_s = topology.host.dispatch_s
        self.completion_s = topology.host.completion_s

    def makespan(self, devices: list[int]) -> float:
        """Seconds until the last task ends, with the vertices on `devices`."""
        return _Run(self, devices).makespan()


class _Run:
    """One simulation: its environment, its resources, and an event for each arrival."""

    def __init__(self, model: SimPyModel, devices: list[int]) -> None:
        env = simpy.Environment()
        self.env, self.model, self.devices = env, model, devices
        self.slots = [simpy.Resource(env, count) for count in model.slots]
        # A link with any number of lanes is no resource: nothing ever waits for it.
        self.lanes = [simpy.Resource(env, count) if count else None for count in model.lanes]
        self.host = simpy.PriorityResource(env, 1) if model.dispatch_s else None
        self.arrived: list[dict[int, simpy.Event]] = []  # by tensor: device -> event
        self.end_s = 0.0

    def makespan(self) -> float:
        devices = self.devices
        for tensors, home in zip(self.model.outputs, devices, strict=True):
            for tensor in tensors:
                places = sorted({home, *(devices[r] for r in self.model.readers[tensor])})
                self.arrived.append({place: self.env.event() for place in places})
        for vertex, home in enumerate(devices):
            self.env.process(self.exec(vertex, home))
        self.env.run()
        return self.end_s

    def exec(self, vertex: int, home: int) -> Steps:
        """Wait for the inputs, hold a slot, then send the outputs to where they are read."""
        model, arrived = self.model, self.arrived
        if reads := model.reads[vertex]:
            yield self.env.all_of([arrived[tensor][home] for tensor in reads])
        yield from self.hold(self.slots[home], model.exec_s[vertex][home])
        for tensor in model.outputs[vertex]:
            for target, event in arrived[tensor].items():
                if target == home:
                    event.succeed()
                else:
                    self.env.process(self.transfer(tensor, home, target))

    def transfer(self, tensor: int, source: int, target: int) -> Steps:
        """Hold a lane of the link, then say that the tensor is there."""
        link = self.model.route[source][target]
        yield from self.hold(self.lanes[link], self.model.transfer_s[tensor][link])
        self.arrived[tensor][target].succeed()

    def hold(self, resource: simpy.Resource | None, seconds: float) -> Steps:
        """Take a resource for some time once the host has started it, then wait to be seen."""
        env = self.env
        if resource is None:
            yield from self.dispatch(env.now)
            yield env.timeout(seconds)
            self.end_s = env.now
        else:
            ready_s = env.now
            with resource.request() as request:
                yield request
                yield from self.dispatch(ready_s)
                yield env.timeout(seconds)
                self.end_s = env.now
        if self.model.completion_s:
            yield env.timeout(self.model.completion_s)

    def dispatch(self, ready_s: float) -> Steps:
        """Keep the host, which starts one task at a time, the one that was ready first."""
        if self.host is not None:
            with self.host.request(priority=ready_s) as request:
                yield request
                yield self.env.timeout(self.model.dispatch_s)
