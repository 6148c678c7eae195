"""The ratios that say why a run takes longer than its work spread over all devices."""

from dataclasses import replace

import numpy as np
import pytest
from engine.playing_backend import PlayingBackend, machine, small_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import devices_for, graphs, topologies

import doppler as dp
from doppler.assignment import Assignment
from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine
from doppler.graph import GraphBuilder
from doppler.machine import yardsticks
from doppler.problem import Problem
from doppler.sim import SimConfig, Simulator
from doppler.topology import Host


def dealt(graph, devices):
    return Assignment(np.where(graph.is_input, -1, np.arange(graph.num_vertices) % devices))


def chain_and_one():
    """Two vertices in a row, and one beside them: 2 + 1 seconds, and 3."""
    builder = GraphBuilder()
    first = builder.op("a", "matmul", reads=[], output_bytes=0, exec_s=2, transfer_s=1)
    builder.op("b", "matmul", reads=[first], output_bytes=0, exec_s=1, transfer_s=1)
    builder.op("c", "matmul", reads=[], output_bytes=0, exec_s=3, transfer_s=1)
    return builder.build()


def test_by_hand():
    graph, topology = chain_and_one(), dp.Topology.preset("reference:2")
    problem = Problem(graph, replace(topology, host=Host(dispatch_s=0.5, completion_s=0.25)))
    good, moved = (Assignment(np.array(devices)) for devices in ([0, 0, 1], [0, 1, 1]))
    assert yardsticks.schedule(problem, good) == 1  # all six seconds on two devices
    # On the second device c, and then b, whose tensor came long before: 4 of 3 seconds.
    assert yardsticks.schedule(problem, moved) == pytest.approx(4 / 3)
    trace = Simulator(problem).run(graph, good)
    assert trace.makespan_s == 4.25  # a from 0.5, seen at 2.75, b from 3.25; c from 1.0
    assert yardsticks.engine(problem, trace) == pytest.approx(4.25 / 3)
    assert yardsticks.replay(problem, trace).makespan_s == 3
    assert yardsticks.contention(problem) == 1


def test_contention_is_priced_or_measured():
    graph, topology = small_graph(), machine(4)
    factors = {"matmul": 1.5, "elementwise": 1.5, "reduction": 1.5}
    loaded = Problem(graph, replace(topology, contention=factors))
    assert yardsticks.contention(loaded) == pytest.approx(1.5)
    alone = Simulator(topology).run(graph, dealt(graph, 1))
    assert yardsticks.contention(loaded, alone=alone) == pytest.approx(1.5)
    assert yardsticks.contention(Problem(graph, topology), alone=alone) == pytest.approx(1)
    run = Simulator(loaded).run(graph, dealt(graph, 4))
    assert yardsticks.contention(loaded, loaded=run, alone=alone) == pytest.approx(1.5)
    assert yardsticks.contention(loaded, loaded=run) == pytest.approx(1.5)


@settings(deadline=None)
@given(data=st.data(), topology=topologies(), fixed=st.booleans())
def test_the_replay_of_a_run_without_a_host_is_that_run(data, topology, fixed):
    topology = replace(topology, host=Host())
    graph = data.draw(graphs(num_devices=topology.num_devices))
    assignment = Assignment(data.draw(devices_for(graph, topology)))
    problem = Problem(graph, topology)
    simulator = Simulator(problem, SimConfig(mode="fixed" if fixed else "dynamic"))
    trace = simulator.run(graph, assignment)
    order = simulator.schedule(graph, assignment) if fixed else None
    again = yardsticks.replay(problem, trace, order)
    np.testing.assert_allclose(again.makespan_s, trace.makespan_s, rtol=1e-9)
    np.testing.assert_array_equal(again.bytes_moved, trace.bytes_moved)
    np.testing.assert_allclose(again.busy_s(), trace.busy_s(), rtol=1e-6, atol=1e-9)


@settings(deadline=None)
@given(data=st.data(), topology=topologies())
def test_an_engine_is_never_faster_than_its_replay(data, topology):
    graph = data.draw(graphs(num_devices=topology.num_devices))
    problem = Problem(graph, topology)
    assignment = Assignment(data.draw(devices_for(graph, topology)))
    trace = Simulator(problem).run(graph, assignment)
    assert yardsticks.engine(problem, trace) >= 1 - 1e-9
    assert yardsticks.schedule(problem, assignment) >= 1 - 1e-9
    assert yardsticks.contention(problem) >= 1 - 1e-9


@pytest.mark.parametrize("mode", ["dynamic", "fixed"])
def test_engines_are_measured_in_both_modes(mode):
    graph = small_graph()
    truth = replace(machine(4), host=Host(dispatch_s=1e-4))
    placed = dp.place(graph, truth, "heft", mode=mode)
    with Engine(truth, PlayingBackend(truth), EngineConfig(mode=mode)) as running:
        trace = running.run(graph, placed)
    problem = Problem(graph, truth)
    slow = yardsticks.engine(problem, trace, placed.schedule)
    assert slow > 1.05  # starting tasks takes the host longer than most of them
    quick = Simulator(replace(truth, host=Host()), SimConfig(mode=mode)).run(graph, placed)
    assert yardsticks.engine(problem, quick, placed.schedule) == pytest.approx(1)


def test_a_graph_without_work():
    graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    nothing = replace(graph, exec_s=np.zeros((graph.num_vertices, 1)))
    problem = Problem(nothing, dp.Topology.preset("p100x4"))
    assert yardsticks.contention(problem) == 1
    assert yardsticks.schedule(problem, dealt(nothing, 1)) == 1
    assert yardsticks.schedule(problem, dealt(nothing, 4)) == float("inf")
