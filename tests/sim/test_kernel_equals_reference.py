"""The compiled simulator equals the readable one, event for event."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import devices_for, examples, graphs, topologies

from doppler.assignment import Assignment
from doppler.errors import OutOfMemoryError
from doppler.graph import Graph, InputKind, build_graph
from doppler.placers import place
from doppler.programs import random_dag
from doppler.scheduler.choose import STRATEGIES
from doppler.sim import Noise, ReferenceSimulator, SimConfig, Simulator
from doppler.sim.kernel import run_batch
from doppler.sim.memory_kernel import lent_share, priced_s
from doppler.sim.state_kernel import NOT_LENT, UNFINISHED, make_scratch
from doppler.testing import check_trace
from doppler.topology import Device, Host, Link, Topology
from doppler.trace import Trace

COLUMNS = ("vertex", "tensor", "source", "device", "link", "moved_bytes")
TIMES = ("ready_s", "begin_s", "end_s", "after")

configs = st.builds(
    SimConfig,
    strategy=st.sampled_from(sorted(STRATEGIES)),
    noise=st.builds(
        Noise,
        exec_sigma=st.sampled_from([0.0, 0.3]),
        transfer_sigma=st.sampled_from([0.0, 0.5]),
        device_sigma=st.sampled_from([0.0, 0.2]),
    ),
    synchronous=st.booleans(),
    limit_memory=st.booleans(),
)
memories = st.sampled_from([math.inf, 2.0, 5.0, 2e9]) | st.integers(1, 10**9).map(float)


def run(
    simulator: Simulator | ReferenceSimulator, graph: Graph, assignment: Assignment
) -> Trace | str:
    try:
        return simulator.run(graph, assignment, seed=7)
    except OutOfMemoryError as error:
        return str(error)


def assert_equal(
    graph: Graph, topology: Topology, assignment: Assignment, config: SimConfig
) -> None:
    simulator = Simulator(topology, config)
    fast = run(simulator, graph, assignment)
    slow = run(ReferenceSimulator(topology, config), graph, assignment)
    (makespan,) = simulator.makespans(graph, [assignment], seed=7)
    if isinstance(slow, str) or isinstance(fast, str):
        assert fast == slow
        assert makespan == math.inf
        return
    for column in COLUMNS + TIMES:
        assert getattr(fast, column).tolist() == getattr(slow, column).tolist(), column
    assert makespan == slow.makespan_s


def assert_limits_hold(
    graph: Graph, topology: Topology, assignment: Assignment, config: SimConfig
) -> None:
    """With a limit the makespan is exact up to it, and above it a number between the two."""
    simulator = Simulator(topology, config)
    makespan = float(simulator.makespans(graph, [assignment], seed=7)[0])
    problem, priority = simulator.arrays(graph, [7]), np.zeros((1, graph.num_vertices))
    if config.strategy != "fifo":
        priority = simulator._priority(graph, assignment, 7)
    found, devices = np.zeros(1), np.array(assignment.devices, np.int64).reshape(1, -1)
    for share in (0.0, 0.5, 0.9, 0.999, 1.0, 1.001, 2.0):
        limit = share * (makespan if math.isfinite(makespan) else 1.0)
        run_batch(problem, 0, devices, priority, make_scratch(problem), found, limit, NOT_LENT)
        for made in (found, simulator.makespans(graph, [assignment], seed=7, limit_s=limit)):
            assert made[0] == makespan if makespan <= limit else limit < made[0] <= makespan


def assert_loans_equal(
    graph: Graph, topology: Topology, assignment: Assignment, config: SimConfig
) -> None:
    """What is lent is the same, and with a limit exact up to it, priced or not."""
    simulator = Simulator(topology, config)
    slow, lent_bytes = ReferenceSimulator(topology, config).run_with_loans(
        graph, assignment, seed=7
    )
    arrays, makespan = simulator.arrays(graph, [7]), np.zeros(1)
    priority = simulator._priority(graph, assignment, 7)
    devices, scratch = np.array(assignment.devices, np.int64).reshape(1, -1), make_scratch(arrays)
    for price in (0.0, 3.0):
        state = (arrays, 0, devices, priority, scratch, makespan)
        run_batch(*state, math.inf, price)
        share = lent_share(arrays, scratch)
        assert makespan[0] == slow.makespan_s
        assert scratch.lent_bytes.tolist() == lent_bytes.tolist() or not arrays.limit_memory
        exact_s = priced_s(slow.makespan_s, share, price)
        for limit in (0.5 * exact_s, 0.999 * exact_s, exact_s, 2 * exact_s):
            run_batch(*state, limit, price)
            found_s = priced_s(makespan[0], lent_share(arrays, scratch), price)
            assert found_s == exact_s if exact_s <= limit else limit < found_s <= exact_s
    runs = simulator.makespans(graph, [assignment], seed=7)[0] < math.inf
    assert runs == (share == 0.0) == (not lent_bytes.any())


@settings(max_examples=examples(400), deadline=None)
@given(data=st.data(), config=configs)
def test_small_graphs(data: st.DataObject, config: SimConfig) -> None:
    topology = data.draw(topologies(memory_bytes=memories))
    graph = data.draw(graphs(max_vertices=10, num_devices=topology.num_devices))
    devices = data.draw(devices_for(graph, topology))
    order = data.draw(st.permutations(graph.assigned.tolist()))
    assignment = Assignment(devices, np.array(order, np.int64))
    assert_equal(graph, topology, assignment, config)
    assert_limits_hold(graph, topology, assignment, config)
    assert_loans_equal(graph, topology, assignment, config)


def random_graph(rng: np.random.Generator, *, ties: bool) -> Graph:
    """A graph of up to 60 vertices; with `ties`, costs are small whole numbers."""
    size = int(rng.integers(2, 60))
    producer = np.sort(rng.integers(0, size, int(rng.integers(size, 2 * size))))
    edges = set()
    for _ in range(int(rng.integers(size, 3 * size))):
        tensor = int(rng.integers(len(producer)))
        if producer[tensor] < size - 1:
            edges.add((tensor, int(rng.integers(producer[tensor] + 1, size))))
    readers = {reader for _, reader in edges}
    kinds = ["matmul" if v in readers or rng.random() < 0.5 else "input" for v in range(size)]

    def costs(count: int) -> list[float]:
        return (rng.integers(0, 4, count) if ties else rng.random(count) * 3).astype(float).tolist()

    return build_graph(
        name="random",
        kinds=kinds,
        input_kinds=[str(rng.choice(list(InputKind))) if k == "input" else "" for k in kinds],
        temporary_bytes=rng.integers(0, 9, size) * rng.integers(0, 2),
        exec_s=costs(size),
        tensor_producer=producer,
        tensor_bytes=rng.integers(0, 9, len(producer)).astype(float),
        transfer_s=costs(len(producer)),
        edge_tensor=[tensor for tensor, _ in edges],
        edge_reader=[reader for _, reader in edges],
    )


def random_topology(rng: np.random.Generator, *, ties: bool) -> Topology:
    size, links = int(rng.integers(1, 6)), int(rng.integers(1, 7))
    route = rng.integers(0, links, (size, size))
    np.fill_diagonal(route, -1)
    host = (0.0, 0.0) if rng.random() < 0.3 else rng.integers(0, 3, 2) * (0.5 if ties else 0.123)
    memory = math.inf if rng.random() < 0.5 else float(rng.integers(20, 150))
    return Topology(
        "random",
        tuple(
            Device(f"d{i}", memory_bytes=memory, slots=int(rng.integers(1, 4))) for i in range(size)
        ),
        tuple(Link(f"l{i}", lanes=int(rng.integers(0, 3))) for i in range(links)),
        route,
        Host(float(host[0]), float(host[1]), ahead=int(rng.integers(0, 4))),
        host_links=rng.integers(0, links, size).tolist() if rng.random() < 0.7 else (),
    )


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("ties", [False, True])
def test_larger_graphs(strategy: str, ties: bool) -> None:
    rng = np.random.default_rng([ties, *strategy.encode()])
    for _ in range(40):
        graph, topology = random_graph(rng, ties=ties), random_topology(rng, ties=ties)
        devices = np.where(
            graph.is_input, -1, rng.integers(topology.num_devices, size=graph.num_vertices)
        )
        assignment = Assignment(devices, rng.permutation(graph.assigned))
        config = SimConfig(strategy=strategy, synchronous=bool(rng.random() < 0.3))
        assert_equal(graph, topology, assignment, config)
        assert_limits_hold(graph, topology, assignment, config)
        assert_loans_equal(graph, topology, assignment, config)


def test_a_limit_saves_work() -> None:
    graph, topology = random_dag(vertices=200, depth=20, seed=0), Topology.preset("p100x4")
    simulator, assignment = Simulator(topology), place(graph, topology, "round-robin")
    makespan = float(simulator.makespans(graph, [assignment])[0])
    problem, priority = simulator.arrays(graph), simulator.priority(graph)
    scratch, devices = make_scratch(problem), np.array(assignment.devices, np.int64).reshape(1, -1)
    run_batch(problem, 0, devices, priority, scratch, np.zeros(1), makespan * 0.9, NOT_LENT)
    assert scratch.counters[UNFINISHED] > graph.num_vertices // 10


def test_first_in_first_out_with_only_slots_contended() -> None:
    rng = np.random.default_rng(0)
    for i in range(200):
        graph = random_graph(rng, ties=i % 2 == 0)
        size = int(rng.integers(1, 5))
        topology = Topology.preset(f"reference:{size}")
        if i % 3 == 0:
            topology = Topology(
                "slow host", topology.devices, topology.links, topology.route, Host(0.0, 0.25)
            )
        if i % 4 < 2 and size > 1:
            topology = replace(topology, host_links=(0,) * size)
        if i % 7 < 3:  # nothing that takes no time: without events
            least = {
                name: np.maximum(graph.columns()[name], 1) for name in ("exec_s", "transfer_s")
            }
            graph = build_graph(**graph.columns() | least)
        devices = np.where(graph.is_input, -1, rng.integers(size, size=graph.num_vertices))
        noise = Noise(transfer_sigma=0.2) if i % 5 == 0 else Noise()
        assert_equal(graph, topology, Assignment(devices), SimConfig(noise=noise))


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), strategy=st.sampled_from(sorted(STRATEGIES)))
def test_traces_are_work_conserving(data: st.DataObject, strategy: str) -> None:
    topology = data.draw(topologies())
    graph = data.draw(graphs(max_vertices=10, num_devices=topology.num_devices))
    order = data.draw(st.permutations(graph.assigned.tolist()))
    assignment = Assignment(data.draw(devices_for(graph, topology)), np.array(order, np.int64))
    trace = Simulator(topology, SimConfig(strategy=strategy)).run(graph, assignment)
    check_trace(trace, graph, topology, assignment)
