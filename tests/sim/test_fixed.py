"""Mode `fixed`: by hand, compiled equals readable, and what holds for every schedule."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim.test_by_hand import (
    chain_and_fork,
    independent,
    machine,
    producer_consumers,
    times,
    two_transfers,
)
from sim.test_kernel_equals_reference import assert_equal, memories
from strategies import devices_for, examples, graphs, schedules_for, topologies

from doppler.assignment import Assignment
from doppler.errors import AssignmentError, ConfigError, OutOfMemoryError, UnknownNameError
from doppler.graph import Graph, GraphBuilder
from doppler.placers import bounds_of
from doppler.problem import Problem
from doppler.schedule import Schedule
from doppler.scheduler.choose import STRATEGIES
from doppler.scheduler.list_scheduling import list_schedule, schedule_from_trace
from doppler.sim import Noise, ReferenceSimulator, SimConfig, Simulator
from doppler.testing import check_trace
from doppler.topology import Host, Topology
from doppler.trace import Trace

BOTH = pytest.mark.parametrize("simulator", [Simulator, ReferenceSimulator])
FIXED = SimConfig(mode="fixed")


def in_order(tasks: list[int], rooms: list[int] | None = None) -> Schedule:
    return Schedule(tasks, [0] * len(tasks) if rooms is None else rooms)


@BOTH
def test_devices_wait_for_one_another_and_the_host_runs_ahead(simulator: type[Simulator]) -> None:
    """The host starts a, b, a→1, c, c→0, d at 0.5, 1, …, 3; it is never asked about an end."""
    topology = machine(host=Host(dispatch_s=0.5, completion_s=10))
    trace = simulator(topology, FIXED).run(chain_and_fork(), Assignment([-1, 0, 0, 1, 0]))
    assert times(trace) == {
        "a": (0.5, 2.5),
        "b": (2.5, 5.5),
        "a→1": (2.5, 3.5),
        "c": (3.5, 7.5),
        "c→0": (7.5, 8.5),
        "d": (8.5, 9.5),
    }


@BOTH
def test_a_slow_host_starts_one_task_after_the_other(simulator: type[Simulator]) -> None:
    topology = machine(3, host=Host(dispatch_s=2))
    trace = simulator(topology, FIXED).run(independent(1, 1, 1), Assignment([0, 1, 2]))
    assert times(trace) == {"v0": (2, 3), "v1": (4, 5), "v2": (6, 7)}


@BOTH
def test_the_order_is_kept_even_if_a_later_task_could_begin(simulator: type[Simulator]) -> None:
    """d0 runs b, which waits for a on d1, before v, which could begin at once."""
    g = GraphBuilder("wait")
    a = g.op("a", "matmul", reads=[], output_bytes=1, exec_s=4, transfer_s=1)
    g.op("b", "matmul", reads=[a], output_bytes=1, exec_s=2, transfer_s=1)
    g.op("v", "matmul", reads=[], output_bytes=1, exec_s=3, transfer_s=1)
    assignment = Assignment([1, 0, 0], schedule=in_order([0, 3, 1, 2]))
    trace = simulator(machine(), FIXED).run(g.build(), assignment)
    assert times(trace) == {"a": (0, 4), "a→0": (4, 5), "b": (5, 7), "v": (7, 10)}
    dynamic = simulator(machine()).run(g.build(), assignment)
    assert times(dynamic)["v"] == (0, 3)


@BOTH
def test_a_task_keeps_to_its_slot(simulator: type[Simulator]) -> None:
    graph, topology = independent(2, 3, 4), machine(1, slots=2)
    together = Assignment([0, 0, 0], schedule=in_order([2, 0, 1], [1, 1, 0]))
    trace = simulator(topology, FIXED).run(graph, together)
    assert times(trace) == {"v2": (0, 4), "v0": (4, 6), "v1": (0, 3)}


@BOTH
@pytest.mark.parametrize(
    ("topology", "rooms", "makespan"),
    [
        (machine(3, shared=True), [0] * 5, 6),
        (machine(3, shared=True, lanes=2), [0, 0, 1, 0, 0], 4),
        (machine(3, shared=True, lanes=2), [0, 0, 1, 1, 0], 6),
        (machine(3, shared=True, lanes=0), [0, 0, -1, -1, 0], 4),
    ],
)
def test_transfers_keep_to_their_lanes(
    simulator: type[Simulator], topology: Topology, rooms: list[int], makespan: float
) -> None:
    graph, assignment = two_transfers()
    scheduled = replace(assignment, schedule=in_order([0, 1, 4, 3, 2], rooms))
    trace = simulator(topology, FIXED).run(graph, scheduled)
    assert trace.makespan_s == makespan
    if makespan == 6:
        assert times(trace)["q→2"] == (1, 3)


@BOTH
def test_memory_is_taken_in_the_order_of_the_schedule(simulator: type[Simulator]) -> None:
    """Of 9 bytes p takes 6 and c 2; q's 4 are there when c, the last to read p, has ended."""
    graph, topology = producer_consumers(), machine(1, slots=2, memory=9)
    patient = Assignment([0, 0, 0], schedule=in_order([0, 1, 2], [0, 0, 1]))
    trace = simulator(topology, FIXED).run(graph, patient)
    assert times(trace) == {"p": (0, 1), "c": (1, 2), "q": (2, 3)}
    early = Assignment([0, 0, 0], schedule=in_order([0, 2, 1], [0, 1, 0]))
    with pytest.raises(OutOfMemoryError, match=r"`d0`.*vertex `q` needs 4 bytes, 3 are free"):
        simulator(topology, FIXED).run(graph, early)
    unlimited = simulator(topology, replace(FIXED, limit_memory=False)).run(graph, early)
    assert times(unlimited) == {"p": (0, 1), "q": (0, 1), "c": (1, 2)}


@BOTH
def test_what_is_left_of_a_release_is_not_there_before_it(simulator: type[Simulator]) -> None:
    """As above, and r takes 3 of the 6 bytes of p, of which q left them; z takes none."""
    g = GraphBuilder("memory")
    p = g.op("p", "matmul", reads=[], output_bytes=6, exec_s=1, transfer_s=1)
    g.op("c", "matmul", reads=[p], output_bytes=2, exec_s=1, transfer_s=1)
    g.op("q", "matmul", reads=[], output_bytes=4, exec_s=1, transfer_s=1)
    g.op("r", "matmul", reads=[], output_bytes=3, exec_s=1, transfer_s=1)
    g.op("z", "matmul", reads=[], output_bytes=0, exec_s=1, transfer_s=1)
    schedule = in_order([0, 1, 2, 3, 4], [0, 0, 1, 2, 3])
    assignment = Assignment([0] * 5, schedule=schedule)
    trace = simulator(machine(1, slots=4, memory=9), FIXED).run(g.build(), assignment)
    assert times(trace) == {"p": (0, 1), "c": (1, 2), "q": (2, 3), "r": (2, 3), "z": (0, 1)}


@BOTH
def test_a_copy_is_released_by_its_last_reader(simulator: type[Simulator]) -> None:
    """On d1: q stays with 4 bytes, the copy of p takes 6 until c ends, c 2; e needs 6 of 12."""
    g = GraphBuilder("copy")
    p = g.op("p", "matmul", reads=[], output_bytes=6, exec_s=1, transfer_s=1)
    c = g.op("c", "matmul", reads=[p], output_bytes=2, exec_s=1, transfer_s=1)
    g.op("e", "matmul", reads=[c], output_bytes=6, exec_s=1, transfer_s=1)
    g.op("q", "matmul", reads=[], output_bytes=4, exec_s=1, transfer_s=1)
    graph, schedule = g.build(), in_order([0, 3, 4, 1, 2])
    assignment = Assignment([0, 1, 1, 1], schedule=schedule)
    trace = simulator(machine(2, memory=12), FIXED).run(graph, assignment)
    assert times(trace) == {"p": (0, 1), "q": (0, 1), "p→1": (1, 2), "c": (2, 3), "e": (3, 4)}


def test_batches_take_rows_assignments_and_schedules() -> None:
    graph, topology = producer_consumers(), machine(2, slots=2, memory=9)
    simulator = Simulator(topology, FIXED)
    assert simulator.makespans(graph, np.array([[0, 0, 0], [1, 1, 0]])).tolist() == [3, 2]
    early = Assignment([0, 0, 0], schedule=in_order([0, 2, 1]))
    assert simulator.makespans(graph, [early, Assignment([0, 0, 0])]).tolist() == [math.inf, 3]
    assert simulator.makespans(graph, []).tolist() == []
    tight = Simulator(machine(2, memory=5), FIXED)
    assert tight.makespans(graph, np.array([[0, 0, 0]])).tolist() == [math.inf]
    with pytest.raises(OutOfMemoryError, match="vertex `p` needs 6 bytes"):
        tight.schedule(graph, Assignment([0, 0, 0]))


def test_strategy_order_needs_an_order_only_where_there_is_no_schedule() -> None:
    graph, simulator = independent(1, 2), Simulator(machine(1), replace(FIXED, strategy="order"))
    scheduled = Assignment([0, 0], schedule=in_order([1, 0]))
    assert simulator.makespans(graph, [scheduled, Assignment([0, 0], [1, 0])]).tolist() == [3, 3]
    with pytest.raises(AssignmentError, match="needs an assignment with an order"):
        simulator.makespans(graph, [Assignment([0, 0])])
    with pytest.raises(AssignmentError, match="needs assignments with their orders"):
        simulator.makespans(graph, np.array([[0, 0]]))


def test_a_batch_equals_single_runs_whatever_the_threads() -> None:
    rng = np.random.default_rng(0)
    graph, topology = chain_and_fork(), machine(3, host=Host(0.1, 0.2))
    devices = rng.integers(3, size=(100, graph.num_vertices))
    devices[:, 0] = -1
    simulator = Simulator(topology, FIXED)
    rows = [Assignment(row) for row in devices]
    rows[::2] = [replace(a, schedule=simulator.schedule(graph, a)) for a in rows[::2]]
    single = [simulator.run(graph, row).makespan_s for row in rows]
    for threads in (None, 1, 2):
        assert simulator.makespans(graph, rows, threads=threads).tolist() == single
        assert simulator.makespans(graph, devices, threads=threads).tolist() == single


def test_modes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean `fixed`"):
        SimConfig(mode="fixd")
    with pytest.raises(ConfigError, match="mode `fixed` has no barriers"):
        SimConfig(mode="fixed", synchronous=True)


configs = st.builds(
    SimConfig,
    mode=st.just("fixed"),
    strategy=st.sampled_from(sorted(STRATEGIES)),
    noise=st.builds(
        Noise,
        exec_sigma=st.sampled_from([0.0, 0.3]),
        transfer_sigma=st.sampled_from([0.0, 0.5]),
        device_sigma=st.sampled_from([0.0, 0.2]),
    ),
    limit_memory=st.booleans(),
)


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), config=configs)
def test_the_compiled_simulator_equals_the_readable_one(
    data: st.DataObject, config: SimConfig
) -> None:
    topology = data.draw(topologies(memory_bytes=memories))
    graph = data.draw(graphs(max_vertices=10, num_devices=topology.num_devices))
    devices = data.draw(devices_for(graph, topology))
    order = np.array(data.draw(st.permutations(graph.assigned.tolist())), np.int64)
    schedule = data.draw(st.none() | schedules_for(graph, topology, devices))
    assignment = Assignment(devices, order, schedule=schedule)
    assert_equal(graph, topology, assignment, config)
    listed = replace(assignment, schedule=None)
    made: list[Schedule | str] = []
    for make in (Simulator(topology, config).schedule, by_list(topology, config)):
        try:
            made.append(make(graph, listed, 7))
        except OutOfMemoryError as error:
            made.append(str(error))
    assert made[0] == made[1]


def by_list(topology: Topology, config: SimConfig):
    def make(graph: Graph, assignment: Assignment, seed: int) -> Schedule:
        problem, limit = Problem(graph, topology), config.limit_memory
        made = list_schedule(problem, assignment, config.strategy, seed, limit_memory=limit)
        replace(assignment, schedule=made).check(graph, topology)
        return made

    return make


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), strategy=st.sampled_from(["fifo", "critical-path", "depth-first", "order"]))
def test_without_a_host_both_modes_are_the_same(data: st.DataObject, strategy: str) -> None:
    topology = replace(data.draw(topologies(memory_bytes=memories)), host=Host())
    graph = data.draw(graphs(max_vertices=10, num_devices=topology.num_devices))
    order = np.array(data.draw(st.permutations(graph.assigned.tolist())), np.int64)
    assignment = Assignment(data.draw(devices_for(graph, topology)), order)
    dynamic = SimConfig(strategy=strategy, limit_memory=data.draw(st.booleans()))
    fixed = Simulator(topology, replace(dynamic, mode="fixed"))
    (expected,) = Simulator(topology, dynamic).makespans(graph, [assignment])
    assert fixed.makespans(graph, [assignment]).tolist() == [expected]
    if not math.isfinite(expected) or dynamic.limit_memory:
        return
    trace = Simulator(topology, dynamic).run(graph, assignment)
    seen = replace(assignment, schedule=schedule_from_trace(graph, topology, trace))
    assert fixed.makespans(graph, [seen]).tolist() == [expected]


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_no_makespan_is_below_a_lower_bound(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    graph = data.draw(graphs(max_vertices=10, num_devices=topology.num_devices))
    devices = data.draw(devices_for(graph, topology))
    schedule = data.draw(st.none() | schedules_for(graph, topology, devices))
    assignment = Assignment(devices, schedule=schedule)
    trace = Simulator(topology, FIXED).run(graph, assignment)
    check_trace(trace, graph, topology, assignment, work_conserving=False)
    makespan = trace.makespan_s
    bounds = bounds_of(Problem(graph, topology), mode="fixed")
    for bound in (bounds.path_s, bounds.work_s, bounds.window_s, bounds.host_s):
        assert makespan >= bound * (1 - 1e-9)


def test_noise_changes_durations_but_not_the_order() -> None:
    graph, topology = chain_and_fork(), machine(3, host=Host(0.01, 0.02))
    assignment = Assignment([-1, 0, 1, 2, 0])
    simulator = Simulator(topology, replace(FIXED, noise=Noise(0.5, 0.5)))
    runs = [simulator.run(graph, assignment, seed) for seed in (0, 0, 1)]
    assert runs[0].makespan_s == runs[1].makespan_s != runs[2].makespan_s
    drawn = Simulator(topology, SimConfig(noise=Noise(0.5, 0.5))).run(graph, assignment, 1)

    def seconds(trace: Trace) -> dict[str, float]:
        return {name: round(end - begin, 9) for name, (begin, end) in times(trace).items()}

    assert seconds(runs[2]) == seconds(drawn)
