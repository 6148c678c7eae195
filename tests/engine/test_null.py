"""The event loop, with tasks that only take time: in virtual time it is the simulator."""

import gc
import math
from threading import Timer

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import devices_for, examples, graphs, topologies

pytest.importorskip("torch")

from engine.running import VirtualBackend, assign, chain, machine

from doppler.assignment import Assignment
from doppler.cost import DefaultCostModel
from doppler.engine.backends.null import NullBackend
from doppler.engine.backends.registry import make_backend
from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine, execute
from doppler.errors import EngineError, UnknownNameError
from doppler.executor import Executor
from doppler.graph import Graph
from doppler.programs import random_dag
from doppler.scheduler.choose import MODES, STRATEGIES
from doppler.sim import ReferenceSimulator, SimConfig
from doppler.tasks import Tasks
from doppler.testing import ExecutorContract, check_trace
from doppler.topology import Host, Topology

SLACK_S = 2.0  # a busy machine may look away for so long


class Scripted:
    """The seconds that a topology's cost model gives to each task."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def __call__(self, graph: Graph, tasks: Tasks, task: int) -> float:
        costs = DefaultCostModel().costs(graph, self._topology)
        if task < graph.num_vertices:
            return float(costs.exec_s[task, tasks.devices[task]])
        k = task - graph.num_vertices
        return costs.transfer_s(graph, int(tasks.tensor[k]), int(tasks.link[k]))


def virtual(topology: Topology, config: EngineConfig | None = None) -> Engine:
    return Engine(topology, VirtualBackend(topology, Scripted(topology)), config)


class TestNullEngine(ExecutorContract):
    def executor(self, topology: Topology) -> Executor:
        return virtual(topology)


@settings(max_examples=examples(150))
@given(st.data())
def test_in_virtual_time_the_engine_is_the_simulator(data: st.DataObject) -> None:
    """One scheduler, two clocks: but for the host, whose time is real here."""
    drawn = data.draw(topologies(memory_bytes=st.just(math.inf)))
    host = Host(ahead=drawn.host.ahead)
    topology = Topology(drawn.name, drawn.devices, drawn.links, drawn.route, host)
    graph = data.draw(graphs(num_devices=topology.num_devices))
    strategy = data.draw(st.sampled_from([s for s in sorted(STRATEGIES) if s != "order"]))
    mode = data.draw(st.sampled_from(sorted(MODES)))
    options = {"mode": mode, "synchronous": mode == "dynamic" and data.draw(st.booleans())}
    assignment = Assignment(data.draw(devices_for(graph, topology)))
    config = EngineConfig(strategy=strategy, **options)
    found = virtual(topology, config).run(graph, assignment, seed=7)
    simulator = ReferenceSimulator(topology, SimConfig(strategy=strategy, **options))
    expected = simulator.run(graph, assignment, seed=7)
    for column in ("vertex", "tensor", "device", "link", "ready_s", "begin_s", "end_s"):
        assert getattr(found, column).tolist() == getattr(expected, column).tolist(), column


def test_in_real_time_it_is_work_conserving() -> None:
    topology = Topology.preset("cpu2")
    graph = random_dag(vertices=40, depth=6, seed=0)
    assignment = assign(graph, 2)
    backend = NullBackend(topology, lambda graph, tasks, task: 1e-3)
    trace = Engine(topology, backend).run(graph, assignment)
    check_trace(trace, graph, topology, assignment, slack_s=SLACK_S)
    assert np.allclose(trace.end_s - trace.begin_s, 1e-3, rtol=1e-3)


def test_tasks_without_durations_take_none() -> None:
    graph, _, _ = chain()
    result = execute(graph, machine(), assign(graph, 2), backend="null", repeats=3, warm_up=2)
    assert len(result.makespans_s) == 3
    assert result.outputs == {}
    assert result.trace.busy_s().tolist() == [0, 0]
    assert result.mean_s == pytest.approx(result.makespans_s.mean())
    assert result.spread_s == pytest.approx(result.makespans_s.std())
    assert result.trace.makespan_s == sorted(result.makespans_s)[1]


@pytest.mark.parametrize("backend", [None, "null"])
def test_graphs_without_kernels_run_where_nothing_is_computed(backend: str | None) -> None:
    graph, topology = random_dag(vertices=10, depth=3), Topology.preset("p100x4")
    with Engine(topology, backend or VirtualBackend(topology)) as engine:
        assert len(engine.run(graph, assign(graph, 4)).vertex) >= 10


def test_a_task_that_takes_too_long_ends_the_run() -> None:
    graph, _, _ = chain()
    backend = NullBackend(machine(), lambda graph, tasks, task: 100.0 if task == 2 else 0.0)
    engine = Engine(machine(), backend, EngineConfig(timeout_s=0.05))
    message = (
        r"vertex `f1\[0\]` \(input-elemwise\) on device `d0`, ready at [\d.]+ ms and started at "
        r"[\d.]+ ms after 1 of 6 tasks, did not end within 0.05 s\nhint: raise timeout_s"
    )
    with pytest.raises(EngineError, match=message):
        engine.run(graph, assign(graph, 1))


def test_a_transfer_that_takes_too_long_is_named_too() -> None:
    graph, _, _ = chain()
    backend = NullBackend(
        machine(), lambda graph, tasks, task: 100.0 * (task >= graph.num_vertices)
    )
    engine = Engine(machine(), backend, EngineConfig(timeout_s=0.05))
    message = r"the transfer of the output of vertex `f0\[0\]` from device `d0` to `d1`, ready"
    with pytest.raises(EngineError, match=message):
        engine.run(graph, assign(graph, [0, 0, 1, 1, 1, 1, 1]))


@pytest.mark.parametrize("timeout_s", [30.0, math.inf])
def test_a_run_can_be_cancelled_and_the_next_is_not(timeout_s: float) -> None:
    graph, _, _ = chain()
    seconds = [100.0]
    backend = NullBackend(machine(), lambda graph, tasks, task: seconds[0])
    engine = Engine(machine(), backend, EngineConfig(timeout_s=timeout_s))
    Timer(0.05, engine.cancel).start()
    with pytest.raises(EngineError, match="the run was cancelled"):
        engine.run(graph, assign(graph, 2))
    seconds[0] = 0.0
    engine.run(graph, assign(graph, 2))


@pytest.mark.parametrize("mode", MODES)
def test_a_cancel_before_a_run_ends_no_run(mode: str) -> None:
    graph, _, _ = chain()
    backend = NullBackend(machine(), lambda graph, tasks, task: 2e-3)
    engine = Engine(machine(), backend, EngineConfig(mode=mode))
    engine.cancel()
    assert engine.run(graph, assign(graph, 2)).makespan_s > 0


def test_no_garbage_is_collected_during_a_run_and_again_afterwards() -> None:
    topology, seen = machine(), list[bool]()

    def seconds(graph: Graph, tasks: Tasks, task: int) -> float:
        seen.append(gc.isenabled())
        return 0.0

    graph = chain(3)[0]
    engine = Engine(topology, VirtualBackend(topology, seconds))
    engine.run(graph, assign(graph, 1))
    assert gc.isenabled()
    assert seen
    assert not any(seen)
    gc.disable()
    try:
        engine.run(graph, assign(graph, 1))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_backends_have_names() -> None:
    with pytest.raises(
        UnknownNameError, match="no backend named `cudo`\nhint: did you mean `cuda`"
    ):
        make_backend("cudo", machine())
