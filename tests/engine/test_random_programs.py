"""Random programs, cut at random, on random devices in random orders: what numpy computes."""

import os
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.running import machine  # noqa: E402
from hypothesis import assume, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from sharding.random_programs import cut_programs, whole_inputs  # noqa: E402
from strategies import schedules_for  # noqa: E402
from tight import least_bytes  # noqa: E402

from doppler.assignment import Assignment  # noqa: E402
from doppler.engine.config import EngineConfig  # noqa: E402
from doppler.engine.engine import Engine  # noqa: E402
from doppler.errors import OutOfMemoryError  # noqa: E402
from doppler.problem import Problem  # noqa: E402
from doppler.scheduler.places import memory_places  # noqa: E402
from doppler.scheduler.planning import plan_memory  # noqa: E402
from doppler.sharding import INPUTS, shard  # noqa: E402
from doppler.sharding.evaluate import evaluate_graph  # noqa: E402
from doppler.sim import SimConfig, Simulator  # noqa: E402

EXAMPLES = int(os.environ.get("ENGINE_EXAMPLES", "60"))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_outputs_are_those_of_numpy_in_every_mode(data: st.DataObject) -> None:
    """Values are whole numbers, so any order of summation gives the same bits."""
    program, cuts = data.draw(cut_programs())
    graph = shard(program, 1, partitions=cuts)
    inputs = whole_inputs(program, data.draw(st.integers(0, 99)))
    expected = evaluate_graph(graph, inputs)
    size = data.draw(st.integers(1, 3))
    options = {
        "slots": data.draw(st.integers(1, 2)),
        "lanes": data.draw(st.integers(0, 2)),
        "ahead": data.draw(st.integers(0, 2)),
        "memory_bytes": data.draw(st.sampled_from([np.inf, 1 << 12, 1 << 14, 1 << 16])),
    }
    topology = machine(size, **options)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    devices = np.where(graph.is_input, -1, rng.integers(size, size=graph.num_vertices))
    schedule = data.draw(schedules_for(graph, topology, devices))
    dynamic, fixed = EngineConfig(), EngineConfig(mode="fixed")
    barriers = EngineConfig(synchronous=True)
    for config, own in ((dynamic, None), (barriers, None), (fixed, None), (fixed, schedule)):
        assignment = Assignment(devices, schedule=own)
        with Engine(topology, "cpu", config) as engine:
            try:
                found = engine.execute(graph, assignment, inputs, repeats=2).outputs
            except OutOfMemoryError:
                assert np.isfinite(options["memory_bytes"])
                continue
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert np.array_equal(found[name], value, equal_nan=True), name


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_memory_plans_run_in_every_mode(data: st.DataObject) -> None:
    """Devices with little more memory than the largest vertex needs; inputs of any kind."""
    program, cuts = data.draw(cut_programs())
    graph = shard(program, 1, partitions=cuts, inputs=data.draw(st.sampled_from(INPUTS)))
    if data.draw(st.booleans()):
        graph = graph.cold()
    inputs = whole_inputs(program, data.draw(st.integers(0, 99)))
    expected = evaluate_graph(graph, inputs)
    size, rng = data.draw(st.integers(1, 3)), np.random.default_rng(data.draw(st.integers(0, 99)))
    devices = np.where(graph.is_input, -1, rng.integers(size, size=graph.num_vertices))
    rooms = {name: data.draw(st.integers(1, 2)) for name in ("slots", "lanes", "host_lanes")}
    slack = data.draw(st.sampled_from([1.0, 1.2, 2.0, 1e9]))
    topology = machine(size, **rooms, ahead=data.draw(st.integers(0, 2)))
    limits = [slack * max(least_bytes(graph, devices, d), 256) for d in range(size)]
    machines = zip(topology.devices, limits, strict=True)
    limited = tuple(replace(device, memory_bytes=limit) for device, limit in machines)
    topology = replace(topology, devices=limited)
    try:
        planned = plan_memory(Problem(graph, topology), Assignment(devices))
    except OutOfMemoryError:  # places leave gaps
        assume(False)
    peak = memory_places(graph, topology, planned).top
    for config in (EngineConfig(), EngineConfig(mode="fixed")):
        with Engine(topology, "cpu", config) as engine:
            result = engine.execute(graph, planned, inputs, repeats=3)
        for name, value in expected.items():
            assert np.array_equal(result.outputs[name], value, equal_nan=True), name
        assert result.peak_bytes.tolist() == peak
        simulated = Simulator(topology, SimConfig(mode=config.mode)).run(graph, planned)
        for trace in (result.trace, simulated):
            used = [use.peak_bytes for use in trace.memory(graph, is_planned=True)]
            assert all(now <= most for now, most in zip(used, peak, strict=True))
        assert all(found <= limit for found, limit in zip(peak, limits, strict=True))
