"""What a plan says of each device: counted by hand, and against the scheduler's own account."""

from typing import Any

import numpy as np
import pytest

from doppler.assignment import Assignment
from doppler.graph import GraphBuilder, build_graph
from doppler.plan import device_loads, peak_bytes
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
    first, second = device_loads(graph, topology, assignment, simulate(graph, topology, assignment))
    assert (first.operations, first.exec_s, first.bytes_in, first.bytes_out) == (1, 1.0, 0, 10)
    assert (second.operations, second.exec_s, second.bytes_in) == (2, 7.0, 10)
    assert first.peak_bytes == 10
    assert second.peak_bytes == 30  # a's copy and b's output; then b's and c's: 25


@pytest.mark.parametrize("seed", range(30))
def test_peaks_are_those_of_the_scheduler(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine whose host costs nothing, where a task takes its memory when it begins."""
    random = np.random.default_rng(seed)
    drawn = random_dag(vertices=25, depth=5, seed=seed)
    graph = build_graph(
        **drawn.columns()
        | {
            "exec_s": random.uniform(0.1, 1, (drawn.num_vertices, 1)),
            "transfer_s": random.uniform(0.1, 1, drawn.num_tensors),
        }
    )
    topology = Topology.preset("reference:3")
    devices = np.where(graph.is_input, -1, random.integers(0, 3, graph.num_vertices))
    free, lowest = [1e15] * 3, [1e15] * 3  # bytes: more than are ever taken
    monkeypatch.setattr(Memory, "take", _watched(Memory.take, free, lowest))
    monkeypatch.setattr(Memory, "give_back", _watched(Memory.give_back, free, lowest))
    trace = ReferenceSimulator(topology).run(graph, Assignment(devices))
    peaks = 1e15 - np.array(lowest)
    assert peaks.min() > 0
    assert peak_bytes(graph, topology, Assignment(devices), trace).tolist() == peaks.tolist()


def _watched(method: Any, free: list[float], lowest: list[float]) -> Any:
    """A method of `Memory` that counts from `free` and notes the lowest."""

    def watched(memory: Memory, task: int) -> Any:
        memory.free_bytes = free
        result = method(memory, task)
        lowest[:] = np.minimum(lowest, free).tolist()
        return result

    return watched
