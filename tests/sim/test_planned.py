"""Runs with a memory plan: the compiled simulator equals the readable one, event for event."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tight import tight_problem

from doppler.assignment import Assignment
from doppler.errors import ConfigError, OutOfMemoryError
from doppler.graph import GraphBuilder
from doppler.problem import Problem
from doppler.scheduler.choose import FIXED, STRATEGIES
from doppler.scheduler.planning import plan_memory
from doppler.sim import Noise, ReferenceSimulator, SimConfig, Simulator
from doppler.topology import Host, Topology
from doppler.trace import Trace, trace_from_json, trace_to_json

times = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0.01, 3)
configs = st.builds(
    SimConfig,
    strategy=st.sampled_from([s for s in STRATEGIES if s != "order"]),
    mode=st.sampled_from(["dynamic", "fixed"]),
    noise=st.just(Noise()) | st.just(Noise(exec_sigma=0.2, transfer_sigma=0.3)),
)


def rows(trace: Trace) -> list[list[float]]:
    names = ("vertex", "tensor", "source", "device", "link", "ready_s", "begin_s", "end_s", "after")
    return [getattr(trace, name).tolist() for name in names]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**31),
    st.builds(Host, times, times, st.integers(0, 2)),
    configs,
    st.booleans(),
)
def test_the_kernel_equals_its_readable_twin(
    seed: int, host: Host, config: SimConfig, has_schedule: bool
) -> None:
    problem, assignment = tight_problem(seed)
    problem = Problem(problem.graph, replace(problem.topology, host=host))
    try:
        planned = plan_memory(problem, assignment)
    except OutOfMemoryError:
        assume(False)
        raise
    if not has_schedule:
        planned = replace(planned, schedule=None)
    slow = ReferenceSimulator(problem, config).run(problem.graph, planned, seed)
    fast = Simulator(problem, config).run(problem.graph, planned, seed)
    assert rows(slow) == rows(fast)
    both = Simulator(problem, config).makespans(problem.graph, [planned, planned], seed=seed)
    assert both.tolist() == [slow.makespan_s] * 2
    assert rows(trace_from_json(trace_to_json(fast), "trace")) == rows(fast)


def streamed(config: SimConfig | None = None) -> Trace:
    """Three vertices with a weight of 10 bytes each, where one fits, at a second per byte."""
    builder = GraphBuilder("weights")
    for i in range(3):
        weight = builder.input(f"w{i}", output_bytes=10.0, kind="resident")
        builder.op(f"v{i}", "matmul", reads=[weight], output_bytes=0.0, exec_s=4.0)
    topology = Topology.uniform(1, memory_bytes=10.0, host_bandwidth_bytes_per_s=1.0)
    problem = Problem(builder.build(), topology)
    found = plan_memory(problem, Assignment(np.array([-1, 0, -1, 0, -1, 0])))
    return Simulator(problem, config).run(problem.graph, found)


@pytest.mark.parametrize("mode", ["dynamic", FIXED])
def test_weights_that_do_not_fit_together_by_hand(mode: str) -> None:
    trace = streamed(SimConfig(mode=mode))
    loads = trace.is_transfer
    assert trace.source[loads].tolist() == [1, 1]  # the host
    assert trace.begin_s[loads].tolist() == [4.0, 18.0]
    assert trace.begin_s[~loads].tolist() == [0.0, 14.0, 28.0]
    assert trace.makespan_s == 32.0
    assert trace.bytes_moved == 20.0


def test_barriers_and_plans_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="cannot run with a barrier"):
        streamed(SimConfig(synchronous=True))
