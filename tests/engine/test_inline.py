"""Runs in the calling thread: what threads of a device would compute, and nothing left behind."""

import os
import threading

import numpy as np
import pytest
import torch
from engine.two_outputs import SIZE, expected_outputs, two_outputs

from doppler.assignment import Assignment
from doppler.engine.engine import Engine, EngineConfig
from doppler.errors import ConfigError, EngineError

INLINE = EngineConfig(mode="fixed", inline=True)


def test_one_device_runs_in_the_calling_thread():
    graph, x = two_outputs(), torch.randn(SIZE, SIZE)
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    before = threading.active_count()
    with Engine("cpu2", "cpu", INLINE) as engine:
        for value in (x, -x):
            found = engine.compute(graph, Assignment(devices=np.array([-1, 1, 1, 1])), {"x": value})
            for name, whole in expected_outputs(value).items():
                assert torch.equal(found[name], whole), name
                assert not found[name].is_inference()
        assert threading.active_count() == before
        (prepared,) = engine._prepared.values()
        assert sum(cell.value is not None for cell in prepared.cells._cells) == 3  # of 5: results
        trace = engine.run(graph, Assignment(devices=np.array([-1, 1, 1, 1])))
        assert trace.makespan_s > 0
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == (threads, cores)


def test_several_devices_have_threads():
    graph, x = two_outputs(), torch.randn(SIZE, SIZE)
    before = threading.active_count()
    with Engine("cpu2", "cpu", INLINE) as engine:
        found = engine.compute(graph, Assignment(devices=np.array([-1, 0, 1, 0])), {"x": x})
        assert threading.active_count() > before
    assert torch.equal(found["w"], expected_outputs(x)["w"])


def test_a_failing_piece_names_its_vertex_and_the_next_run_is_well():
    graph = two_outputs()
    inputs = {"x": torch.randn(SIZE, SIZE)}
    assignment = Assignment(devices=np.array([-1, 0, 0, 0]))
    with Engine("cpu2", "cpu", INLINE) as engine:
        engine.compute(graph, assignment, inputs)
        loop = engine._loop(graph, assignment, 0, inline=True)[1]

        def fail():
            raise RuntimeError("no such luck")

        launches = list(loop._inline.launches)
        launches[2] = (fail,)
        loop._inline = loop._inline._replace(launches=launches)
        with pytest.raises(EngineError, match=r"vertex `.*` .*no such luck"):
            loop.run(timed=False)
        found = engine.compute(graph, assignment, inputs)
    assert torch.equal(found["w"], expected_outputs(inputs["x"])["w"])


def test_cancelled():
    graph = two_outputs()
    with Engine("cpu2", "cpu", INLINE) as engine:
        engine.load(graph)
        loop = engine._loop(graph, Assignment(devices=np.array([-1, 0, 0, 0])), 0, inline=True)[1]
        engine.cancel()
        with pytest.raises(EngineError, match="cancelled"):
            loop.run(timed=False)


def test_only_in_a_fixed_order():
    with pytest.raises(ConfigError, match="inline"):
        EngineConfig(inline=True)
