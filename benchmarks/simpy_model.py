"""The simulated runtime once more, as a plain SimPy model: what `simulator.py` compares with."""

from collections.abc import Generator
from typing import Any

import simpy

from doppler.base.arrays import rows
from doppler.cost import DefaultCostModel
from doppler.graph.graph import Graph
from doppler.topology.topology import Topology

Steps = Generator[simpy.Event, Any, None]


class SimPyModel:
    """A graph without inputs on a topology, first in, first out; plain numbers, made once.

    Under `reference:N` its makespans equal doppler's. With host costs they may differ, because
    SimPy serves what becomes ready at the same instant in the order of its events, and gives the
    host to whatever got a slot or lane first; doppler goes by ready time, then by task number.
    """

    def __init__(self, graph: Graph, topology: Topology) -> None:
        costs = DefaultCostModel().costs(graph, topology)
        tensors, links = range(graph.num_tensors), range(topology.num_links)
        self.exec_s: list[list[float]] = costs.exec_s.tolist()
        self.transfer_s = [[costs.transfer_s(graph, t, n) for n in links] for t in tensors]
        self.producer: list[int] = graph.tensor_producer.tolist()
        self.reads = rows(graph.read_ptr, graph.read_tensor)
        self.outputs = rows(graph.output_ptr, graph.output_tensor)
        self.readers = rows(graph.reader_ptr, graph.reader)
        self.route: list[list[int]] = topology.route.tolist()
        self.slots = [device.slots for device in topology.devices]
        self.lanes = [link.lanes for link in topology.links]
        self.dispatch_s = topology.host.dispatch_s
        self.completion_s = topology.host.completion_s

    def makespan(self, devices: list[int], *, counting: bool = False) -> float:
        """Seconds until the last task ends, with the vertices on `devices`."""
        run = _CountingRun(self, devices) if counting else _EventRun(self, devices)
        run.begin()
        run.env.run()
        return run.end_s


class _Run:
    """One simulation: an environment, its resources, a process for each exec and transfer."""

    def __init__(self, model: SimPyModel, devices: list[int]) -> None:
        self.model, self.devices, self.env = model, devices, simpy.Environment()
        self.slots = [simpy.Resource(self.env, count) for count in model.slots]
        # Nothing ever waits for a link with any number of lanes, nor for a host that costs nothing.
        self.lanes = [simpy.Resource(self.env, count) if count else None for count in model.lanes]
        self.host = simpy.Resource(self.env) if model.dispatch_s else None
        self.end_s = 0.0

    def exec(self, vertex: int, home: int) -> Steps:
        """Hold a slot, then send the outputs to where they are read."""
        yield from self.hold(self.slots[home], self.model.exec_s[vertex][home])
        for tensor in self.model.outputs[vertex]:
            self.deliver(tensor, home)
            for target in sorted({self.devices[r] for r in self.model.readers[tensor]}):
                if target != home:
                    self.env.process(self.transfer(tensor, home, target))

    def transfer(self, tensor: int, source: int, target: int) -> Steps:
        """Hold a lane of the link, then say that the tensor is there."""
        link = self.model.route[source][target]
        yield from self.hold(self.lanes[link], self.model.transfer_s[tensor][link])
        self.deliver(tensor, target)

    def hold(self, resource: simpy.Resource | None, seconds: float) -> Steps:
        """Take a resource, be started by the host, run, give it back, and be seen."""
        env, model = self.env, self.model
        if resource is not None:
            request = resource.request()
            yield request
        if self.host is not None:
            with self.host.request() as turn:
                yield turn
                yield env.timeout(model.dispatch_s)
        yield env.timeout(seconds)
        self.end_s = env.now
        if resource is not None:
            resource.release(request)
        if model.completion_s:
            yield env.timeout(model.completion_s)

    def begin(self) -> None:
        """Create the processes that exist from the start."""
        raise NotImplementedError

    def deliver(self, tensor: int, device: int) -> None:
        """Say that a tensor is on a device."""
        raise NotImplementedError


class _EventRun(_Run):
    """The textbook way: every process exists from the start and waits for all its inputs."""

    def begin(self) -> None:
        self.arrived: list[dict[int, simpy.Event]] = []  # by tensor: device -> event
        for producer, readers in zip(self.model.producer, self.model.readers, strict=True):
            places = {self.devices[v] for v in (producer, *readers)}
            self.arrived.append({place: self.env.event() for place in places})
        for vertex, home in enumerate(self.devices):
            self.env.process(self.exec(vertex, home))

    def exec(self, vertex: int, home: int) -> Steps:
        if reads := self.model.reads[vertex]:
            yield self.env.all_of([self.arrived[tensor][home] for tensor in reads])
        yield from super().exec(vertex, home)

    def deliver(self, tensor: int, device: int) -> None:
        self.arrived[tensor][device].succeed()


class _CountingRun(_Run):
    """The way with the fewest events: a process begins when the last of its inputs arrives."""

    def begin(self) -> None:
        self.missing = [len(reads) for reads in self.model.reads]
        for vertex, home in enumerate(self.devices):
            if self.missing[vertex] == 0:
                self.env.process(self.exec(vertex, home))

    def deliver(self, tensor: int, device: int) -> None:
        for reader in self.model.readers[tensor]:
            if self.devices[reader] == device:
                self.missing[reader] -= 1
                if self.missing[reader] == 0:
                    self.env.process(self.exec(reader, device))
