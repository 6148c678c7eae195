"""What holds for every simulation, and what the noise does on average."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import devices_for, examples, graphs, topologies

from doppler.assignment import Assignment
from doppler.errors import ConfigError
from doppler.graph import Graph, build_graph
from doppler.placers import lower_bounds
from doppler.programs import random_dag
from doppler.sim import Noise, SimConfig, Simulator
from doppler.testing import check_trace
from doppler.topology import Host, Topology
from doppler.trace import Trace


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), strategy=st.sampled_from(["fifo", "critical-path", "depth-first"]))
def test_no_makespan_is_below_a_lower_bound(data: st.DataObject, strategy: str) -> None:
    topology = data.draw(topologies())
    graph = data.draw(graphs(max_vertices=10, num_devices=topology.num_devices))
    assignment = Assignment(data.draw(devices_for(graph, topology)))
    makespan = Simulator(topology, SimConfig(strategy=strategy)).run(graph, assignment).makespan_s
    bounds = lower_bounds(graph, topology)
    for bound in (bounds.path_s, bounds.work_s, bounds.window_s, bounds.host_s):
        assert makespan >= bound * (1 - 1e-9)


def relabelled(graph: Graph, rng: np.random.Generator) -> tuple[Graph, np.ndarray]:
    """The same graph with its vertices and tensors renumbered, and where each vertex went."""
    vertex, tensor = rng.permutation(graph.num_vertices), rng.permutation(graph.num_tensors)
    back_v, back_t = np.argsort(vertex), np.argsort(tensor)
    same = build_graph(
        name=graph.name,
        vertex_names=[graph.vertex_names[v] for v in back_v],
        kinds=[graph.kinds[v] for v in back_v],
        dtypes=[graph.dtypes[v] for v in back_v],
        flops=graph.flops[back_v],
        touched_bytes=graph.touched_bytes[back_v],
        tensor_producer=vertex[graph.tensor_producer[back_t]],
        tensor_bytes=graph.tensor_bytes[back_t],
        edge_tensor=tensor[graph.edge_tensor],
        edge_reader=vertex[graph.edge_reader],
    )
    return same, vertex


@pytest.mark.parametrize("strategy", ["order", "critical-path"])
def test_numbering_of_vertices_does_not_matter(strategy: str) -> None:
    """Where nothing ties: no two vertices are equally urgent, and transfers do not queue."""
    preset = Topology.preset("a100x2-t4x2")
    links = tuple(replace(link, lanes=0) for link in preset.links)
    topology = Topology("no queues", preset.devices, links, preset.route, Host(completion_s=1e-4))
    simulator = Simulator(topology, SimConfig(strategy=strategy))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        graph = random_dag(vertices=40, depth=8, seed=seed)
        devices = np.where(graph.is_input, -1, rng.integers(4, size=graph.num_vertices))
        order = rng.permutation(graph.assigned)
        same, vertex = relabelled(graph, rng)
        moved = np.empty_like(devices)
        moved[vertex] = devices
        first = simulator.run(graph, Assignment(devices, order))
        second = simulator.run(same, Assignment(moved, vertex[order]))
        assert first.makespan_s == second.makespan_s


def test_numbering_of_equal_devices_does_not_matter() -> None:
    topology, rng = Topology.preset("p100x4"), np.random.default_rng(0)
    graph = random_dag(seed=1)
    devices = np.where(graph.is_input, -1, rng.integers(4, size=(50, graph.num_vertices)))
    swapped = np.where(devices < 0, -1, rng.permutation(4)[devices])
    simulator = Simulator(topology)
    assert np.allclose(
        simulator.makespans(graph, devices), simulator.makespans(graph, swapped), rtol=1e-12
    )


def test_noise_has_mean_one_and_the_spread_it_says() -> None:
    graph = build_graph(
        name="wide",
        kinds=["matmul"] * 4000,
        exec_s=[1.0] * 4000,
        tensor_producer=[],
        tensor_bytes=[],
        edge_tensor=[],
        edge_reader=[],
    )
    config = SimConfig(noise=Noise(exec_sigma=0.4))
    topology = Topology.preset("reference:1")
    trace = Simulator(topology, config).run(graph, Assignment(np.zeros(4000, int)), seed=3)
    factor = trace.end_s - trace.begin_s
    assert abs(factor.mean() - 1) < 5 * factor.std() / math.sqrt(4000)
    assert abs(np.log(factor).std() - 0.4) < 0.02


def test_noise_on_transfers_and_devices_is_separate() -> None:
    graph, topology = random_dag(seed=0), Topology.preset("p100x4")
    devices = np.where(graph.is_input, -1, np.arange(graph.num_vertices) % 4)
    assignment = Assignment(devices)
    plain = Simulator(topology).run(graph, assignment)

    def factors(noise: Noise) -> tuple[np.ndarray, np.ndarray]:
        """Factor of each exec by vertex, and of each transfer by tensor and device."""
        noisy = Simulator(topology, SimConfig(noise=noise)).run(graph, assignment, seed=1)
        tables = []
        for trace in (noisy, plain):
            keys = np.lexsort((trace.device, trace.tensor, trace.vertex))
            tables.append(((trace.end_s - trace.begin_s)[keys], trace.is_transfer[keys]))
        ratio, moves = tables[0][0] / tables[1][0], tables[0][1]
        return ratio[~moves], ratio[moves]

    execs, moves = factors(Noise(transfer_sigma=0.5))
    assert np.allclose(execs, 1)
    assert moves.std() > 0.2
    execs, moves = factors(Noise(device_sigma=0.5))
    assert np.allclose(moves, 1)
    assert len(np.unique(execs.round(9))) == topology.num_devices
    execs, moves = factors(Noise(slowdown=(1.0, 2.0, 1.0, 1.0)))
    assert set(execs.round(9).tolist()) == {1.0, 2.0}


def test_noise_is_the_same_for_the_same_seed() -> None:
    graph, topology = random_dag(seed=0), Topology.preset("p100x4")
    assignment = Assignment(np.where(graph.is_input, -1, 0))
    simulator = Simulator(topology, SimConfig(noise=Noise(0.1, 0.1, 0.1)))
    first, again, other = (simulator.run(graph, assignment, seed).makespan_s for seed in (4, 4, 5))
    assert first == again != other


@pytest.mark.parametrize(
    "options",
    [
        {"exec_sigma": -0.1},
        {"transfer_sigma": math.nan},
        {"device_sigma": 11},
        {"slowdown": (0.0,)},
    ],
)
def test_noise_that_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Noise(**options)


def test_slowdown_needs_one_factor_per_device() -> None:
    graph, topology = random_dag(seed=0), Topology.preset("p100x4")
    simulator = Simulator(topology, SimConfig(noise=Noise(slowdown=(1.0, 2.0))))
    with pytest.raises(ConfigError, match="2 factors"):
        simulator.run(graph, Assignment(np.where(graph.is_input, -1, 0)))


def test_the_contract_notices_an_idle_slot_and_a_missing_task() -> None:
    graph, topology = random_dag(seed=0), Topology.preset("a100x2-t4x2")
    assignment = Assignment(np.where(graph.is_input, -1, np.arange(graph.num_vertices) % 4))
    trace = Simulator(topology).run(graph, assignment)
    check_trace(trace, graph, topology, assignment)
    ready = np.where(trace.after < 0, 0.0, trace.ready_s + 5)
    late = Trace(
        **columns(trace)
        | {"ready_s": ready, "begin_s": trace.begin_s + 5, "end_s": trace.end_s + 5}
    )
    with pytest.raises(AssertionError, match="idles"):
        check_trace(late, graph, topology, assignment)
    early = Trace(**columns(trace) | {"begin_s": trace.begin_s * 0})
    with pytest.raises(AssertionError, match="before its inputs"):
        check_trace(early, graph, topology, assignment)
    elsewhere = Assignment(np.where(graph.is_input, -1, 0))
    with pytest.raises(AssertionError, match="tasks are missing"):
        check_trace(trace, graph, topology, elsewhere)


def columns(trace: Trace) -> dict[str, Any]:
    return {name: getattr(trace, name) for name in Trace.__slots__}
