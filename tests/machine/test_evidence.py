"""Calibration follows a machine that changes."""

from dataclasses import replace

import numpy as np
import pytest
from engine.playing_backend import machine, small_graph

from doppler.assignment import Assignment
from doppler.cost import DefaultCostModel
from doppler.graph import Graph
from doppler.machine.calibration import calibrate
from doppler.sim import Noise, SimConfig, Simulator
from doppler.topology import Topology
from doppler.trace import Trace


def changed(topology: Topology, what: str, factor: float) -> Topology:
    """The machine with the first device, the first link, or everything slowed down by a factor."""
    count = {"device": 1, "everything": topology.num_devices, "link": 0}[what]
    moved = {"device": 0, "everything": topology.num_links, "link": 1}[what]
    devices = [
        replace(
            device,
            flops_per_s={k: v / factor for k, v in device.flops_per_s.items()},
            memory_bytes_per_s=device.memory_bytes_per_s / factor,
            launch_s=device.launch_s * factor,
        )
        if i < count
        else device
        for i, device in enumerate(topology.devices)
    ]
    links = [
        replace(
            link,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / factor,
            latency_s=link.latency_s * factor,
        )
        if i < moved
        else link
        for i, link in enumerate(topology.links)
    ]
    return replace(topology, devices=tuple(devices), links=tuple(links))


def runs(graph: Graph, topology: Topology, count: int, seed: int) -> list[Trace]:
    rng = np.random.default_rng(seed)
    simulator = Simulator(topology, SimConfig(noise=Noise(exec_sigma=0.05, transfer_sigma=0.05)))
    rows = rng.integers(topology.num_devices, size=(count, graph.num_vertices))
    rows = np.where(graph.is_input, -1, rows)
    return [simulator.run(graph, Assignment(row), seed=seed + i) for i, row in enumerate(rows)]


@pytest.mark.parametrize("what", ["device", "link", "everything"])
@pytest.mark.parametrize("factor", [1.3, 2.0, 5.0, 1 / 1.3, 1 / 2, 1 / 5])
def test_a_machine_that_changes_is_followed(what: str, factor: float) -> None:
    graph, before = small_graph(), machine(3)
    after = changed(before, what, factor)
    traces = runs(graph, before, 24, seed=0) + runs(graph, after, 24, seed=100)
    found, truth = (
        DefaultCostModel().costs(graph, t) for t in (calibrate(before, graph, traces), after)
    )
    assigned = graph.assigned
    np.testing.assert_allclose(found.exec_s[assigned], truth.exec_s[assigned], rtol=0.1)
    size = 1e6
    for name in ("latency_s", "s_per_byte"):
        assert np.isfinite(getattr(found, name)).all()
    mine, theirs = (c.latency_s + size * c.s_per_byte for c in (found, truth))
    np.testing.assert_allclose(mine, theirs, rtol=0.15)


def test_a_kernel_that_never_ran_on_a_slower_device_is_priced_there_as_slower() -> None:
    """All but one vertex run on the first device after it became five times as slow."""
    graph, before = small_graph(), machine(3)
    after = changed(before, "device", 5.0)
    kinds = np.array(graph.kinds)
    alone = np.where(graph.is_input, -1, np.where(kinds == kinds[graph.assigned[-1]], 1, 0))
    simulator = Simulator(after)
    traces = runs(graph, before, 24, seed=0)
    traces += [simulator.run(graph, Assignment(alone), seed=i) for i in range(24)]
    found, truth = (
        DefaultCostModel().costs(graph, t) for t in (calibrate(before, graph, traces), after)
    )
    np.testing.assert_allclose(found.exec_s[graph.assigned], truth.exec_s[graph.assigned], rtol=0.1)
