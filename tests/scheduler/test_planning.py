"""Memory plans: whatever order a run takes, nothing is read too early or overwritten too soon."""

import math
import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tight import tight_problem

from doppler.assignment import Assignment
from doppler.errors import OutOfMemoryError
from doppler.graph import Graph, GraphBuilder
from doppler.problem import Problem
from doppler.scheduler.places import IN_PLACE, memory_places, memory_sizes
from doppler.scheduler.planning import PlanConfig, plan_memory
from doppler.tasks import dependencies, enumerate_tasks, with_moves
from doppler.topology import Topology


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**31))
def test_no_order_overwrites_what_is_needed(seed: int) -> None:
    problem, assignment = tight_problem(seed)
    graph, topology = problem.graph, problem.topology
    try:
        found = plan_memory(problem, assignment)
    except OutOfMemoryError:
        assume(False)
        raise
    found.check(graph, topology)  # acyclic, and every move is consistent
    places = memory_places(graph, topology, found)
    for device, top in zip(topology.devices, places.top, strict=True):
        assert top <= device.memory_bytes
    play(problem, found, random.Random(seed))


@pytest.mark.parametrize("memory_bytes", [25.0, 200.0])
def test_a_first_look_at_large_graphs_changes_nothing_else(memory_bytes: float) -> None:
    graph = weights()
    topology = Topology.uniform(1, memory_bytes=memory_bytes, host_bandwidth_bytes_per_s=1.0)
    assignment = Assignment(np.where(graph.is_input, -1, 0))
    problem, looks = Problem(graph, topology), PlanConfig(large=0, headroom=0.0)
    found = plan_memory(problem, assignment, looks)
    assert found.memory == plan_memory(problem, assignment, PlanConfig(large=10**9)).memory
    assert found.memory is not None
    assert bool(found.memory.num_moves) == (memory_bytes == 25.0)


def play(problem: Problem, found: Assignment, rng: random.Random) -> None:
    """Start and end tasks in any order that the dependencies allow, and watch the memory."""
    graph, topology, plan = problem.graph, problem.topology, found.memory
    tasks = with_moves(topology, enumerate_tasks(graph, topology, found.devices), plan)
    needed, needs = dependencies(graph, tasks, plan)
    size = graph.num_vertices + tasks.num_transfers
    missing = np.bincount(needs, minlength=size)
    places = memory_places(graph, topology, found)
    sizes, temporaries = memory_sizes(graph)
    memory: list[dict[int, int]] = [{} for _ in topology.devices]  # begin of a place: its copy
    reads: list[list[int]] = [[] for _ in range(size)]
    writes: list[list[int]] = [[] for _ in range(size)]
    for i, copy in enumerate(places.copies):
        for user in copy.users:
            reads[user].append(i)
        if copy.writer != IN_PLACE:
            writes[copy.writer].append(i)

    def occupy(i: int) -> None:
        copy = places.copies[i]
        low, high = places.offset[i], places.offset[i] + sizes[copy.tensor]
        there = memory[copy.device]
        for other in list(there.values()):
            begin = places.offset[other]
            if begin < high and low < begin + sizes[places.copies[other].tensor]:
                del there[begin]  # overwritten
        if high > low:
            there[low] = i

    def is_there(i: int) -> bool:
        copy = places.copies[i]
        return not sizes[copy.tensor] or memory[copy.device].get(places.offset[i]) == i

    for i, copy in enumerate(places.copies):
        if copy.writer == IN_PLACE:
            occupy(i)
    exists = [not graph.is_input[t] for t in range(graph.num_vertices)]
    exists += [True] * tasks.num_transfers
    ready = [t for t in range(size) if exists[t] and not missing[t]]
    running: list[int] = []
    done = 0
    while ready or running:
        if ready and (not running or rng.random() < 0.5):
            task = ready.pop(rng.randrange(len(ready)))
            running.append(task)
            assert all(map(is_there, reads[task]))
            for i in writes[task]:
                occupy(i)
            if task < graph.num_vertices and temporaries[task]:
                low = places.temporary[task]
                high, there = low + temporaries[task], memory[tasks.devices[task]]
                for other in list(there.values()):
                    begin = places.offset[other]
                    if begin < high and low < begin + sizes[places.copies[other].tensor]:
                        del there[begin]
            continue
        task = running.pop(rng.randrange(len(running)))
        assert all(map(is_there, reads[task])), "overwritten while it was read"
        assert all(map(is_there, writes[task])), "overwritten while it was written"
        done += 1
        for other in needs[needed == task].tolist():
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    assert done == sum(exists)
    kept = [i for i, copy in enumerate(places.copies) if copy.is_kept]
    assert all(map(is_there, kept))


def weights(count: int = 6, size: float = 10.0) -> Graph:
    """A chain of vertices, each of which reads a weight of its own."""
    builder = GraphBuilder("weights")
    before = builder.input("x", output_bytes=1.0, kind="streamed")
    for i in range(count):
        weight = builder.input(f"w{i}", output_bytes=size, kind="resident")
        before = builder.op(f"v{i}", "matmul", reads=[before, weight], output_bytes=1.0, exec_s=1.0)
    return builder.build()


def machine(memory_bytes: float, bandwidth: float = 10.0) -> Topology:
    return Topology.uniform(
        1, memory_bytes=memory_bytes, host_bandwidth_bytes_per_s=bandwidth, lanes=1
    )


def test_weights_are_streamed() -> None:
    graph = weights()
    problem = Problem(graph, machine(32.0))
    found = plan_memory(problem, Assignment(np.where(graph.is_input, -1, 0)))
    plan = found.memory
    assert plan is not None
    assert plan.is_load.tolist() == [True] * 3  # three are in place, nothing is evicted
    names = [graph.vertex_names[graph.tensor_producer[t]] for t in plan.tensor.tolist()]
    assert names == ["w3", "w4", "w5"]
    assert plan.moved_bytes(graph) == (0.0, 30.0)
    first = {graph.vertex_names[t] for t in plan.needed.tolist() if t < graph.num_vertices}
    assert {"v0", "v1", "v2"} <= first  # each load waits for the weight whose place it takes


def test_what_is_used_last_leaves() -> None:
    builder = GraphBuilder("late")
    late = builder.op("late", "matmul", reads=[], output_bytes=10.0, exec_s=1.0)
    soon = builder.op("soon", "matmul", reads=[], output_bytes=10.0, exec_s=1.0)
    big = builder.op("big", "matmul", reads=[soon], output_bytes=20.0, exec_s=1.0)
    last = builder.op("last", "matmul", reads=[big], output_bytes=1.0, exec_s=1.0)
    builder.op("end", "matmul", reads=[late, last], output_bytes=1.0, exec_s=1.0)
    graph = builder.build()
    problem = Problem(graph, machine(32.0))
    found = plan_memory(problem, Assignment(np.zeros(graph.num_vertices, np.int64)))
    assert found.memory is not None
    assert found.memory.is_load.tolist() == [False, True]
    assert found.memory.tensor.tolist() == [0, 0]
    assert found.memory.moved_bytes(graph) == (10.0, 10.0)


def test_what_one_vertex_needs_is_the_least() -> None:
    graph = weights()
    devices = np.where(graph.is_input, -1, 0)
    with pytest.raises(OutOfMemoryError, match=r"what vertex `v0` reads and makes does not fit"):
        plan_memory(Problem(graph, machine(11.0)), Assignment(devices))
    plan_memory(Problem(graph, machine(12.0)), Assignment(devices))


def test_without_links_to_the_host_there_is_no_plan() -> None:
    graph = weights()
    topology = Topology.uniform(1, memory_bytes=math.inf)
    with pytest.raises(OutOfMemoryError, match="has no links to the host"):
        plan_memory(Problem(graph, topology), Assignment(np.where(graph.is_input, -1, 0)))
