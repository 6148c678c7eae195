"""What a plan says of each device: counted by hand, and against the scheduler's own account."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from doppler.assignment import Assignment
from doppler.graph import GraphBuilder, InputKind, build_graph
from doppler.plan import device_loads
from doppler.programs import random_dag
from doppler.scheduler.memory import Memory
from doppler.sim import ReferenceSimulator, simulate
from doppler.topology import Topology


def test_by_hand() -> None:
    """x → a on 0, a → b on 1, b → c on 1; a's copy is freed when b is done."""
    builder = GraphBuilder("chain")
    a = builder.op("a", "matmul", reads=[], output_bytes=10, exec_s=1.0, transfer_s=2.0)
    b = builder.op("b", "matmul", reads=[a], output_bytes=20, exec_s=3.0, transfer_s=2.0)
    builder.op("c", "matmul", reads=[b], output_bytes=5, exec_s=4.0, transfer_s=2.0)
    graph, topology = builder.build(), Topology.preset("reference:2")
    assignment = Assignment(np.array([0, 1, 1]))
    first, second = device_loads(graph, topology, simulate(graph, topology, assignment))
    assert (first.operations, first.exec_s, first.bytes_in, first.bytes_out) == (1, 1.0, 0, 10)
    assert (second.operations, second.exec_s, second.bytes_in) == (2, 7.0, 10)
    assert first.peak_bytes == 10
    assert second.peak_bytes == 30  # a's copy and b's output; then b's and c's: 25


def test_memory_over_time_by_hand() -> None:
    """a reads w, which stays, and x, which arrives in a second; 3 bytes of temporaries."""
    builder = GraphBuilder("inputs")
    w = builder.input("w", output_bytes=100, kind="resident")
    x = builder.input("x", output_bytes=10, kind="streamed")
    a = builder.op("a", "matmul", reads=[w, x], output_bytes=5, exec_s=1, temporary_bytes=3)
    builder.op("b", "matmul", reads=[a], output_bytes=7, exec_s=1)
    graph = builder.build()
    topology = Topology.uniform(2, bandwidth_bytes_per_s=5, host_bandwidth_bytes_per_s=10)
    trace = simulate(graph, topology, Assignment(np.array([-1, -1, 0, 1])))
    first, second = trace.memory(graph)
    steps = [list(zip(m.time_s, m.used_bytes, strict=True)) for m in (first, second)]
    assert steps[0][:5] == [(0, 0), (0, 100), (0, 110), (1, 115), (1, 118)]
    assert (2, 105) in steps[0]
    assert steps[0][-1] == (3, 100)  # a's output has left, w stays
    assert steps[1] == [(0, 0), (2, 5), (3, 12), (4, 7)]
    assert [first.peak_bytes, second.peak_bytes] == [118, 12]
    cold = simulate(graph.cold(), topology, Assignment(np.array([-1, -1, 0, 1])))
    assert [m.peak_bytes for m in cold.memory(graph.cold())] == [118, 12]
    assert cold.makespan_s == 14  # both inputs over one link: 11 s


@pytest.mark.parametrize("seed", range(30))
def test_peaks_are_those_of_the_scheduler(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine whose host costs nothing, where a task takes its memory when it begins."""
    random = np.random.default_rng(seed)
    drawn = random_dag(vertices=25, depth=5, seed=seed)
    graph = build_graph(
        **drawn.columns()
        | {
            "input_kinds": [
                str(random.choice(list(InputKind))) if i else "" for i in drawn.is_input.tolist()
            ],
            "temporary_bytes": random.integers(0, 10**6, drawn.num_vertices),
            "exec_s": random.uniform(0.1, 1, (drawn.num_vertices, 1)),
            "transfer_s": random.uniform(0.1, 1, drawn.num_tensors),
        }
    )
    topology = replace(Topology.preset("reference:3"), host_links=(0, 0, 0)[: 3 * (seed % 2)])
    devices = np.where(graph.is_input, -1, random.integers(0, 3, graph.num_vertices))
    lowest = [1e15] * 3  # bytes: more than are ever taken
    roomy = tuple(replace(device, memory_bytes=1e15) for device in topology.devices)
    topology = replace(topology, devices=roomy)
    monkeypatch.setattr(Memory, "take", _watched(Memory.take, lowest))
    monkeypatch.setattr(Memory, "give_back", _watched(Memory.give_back, lowest))
    trace = ReferenceSimulator(topology).run(graph, Assignment(devices))
    peaks = 1e15 - np.array(lowest)
    assert peaks.min() > 0
    assert [use.peak_bytes for use in trace.memory(graph)] == peaks.tolist()


def _watched(method: Any, lowest: list[float]) -> Any:
    """A method of `Memory` that notes the fewest bytes that were free."""

    def watched(memory: Memory, task: int) -> Any:
        lowest[:] = np.minimum(lowest, memory.free_bytes).tolist()
        result = method(memory, task)
        lowest[:] = np.minimum(lowest, memory.free_bytes).tolist()
        return result

    return watched
