"""Where the time of a trace goes, by hand and in sum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples

import doppler as dp
from doppler.graph import build_graph
from doppler.programs import random_dag
from doppler.report.causes import chain_time, most_over_time, utilization_over_time


def two_on_one_device():
    """a(2) and b(3) have no inputs; c(1) reads a on another device, over a transfer of 4."""
    graph = build_graph(
        name="hand",
        kinds=["matmul"] * 3,
        vertex_names=["a", "b", "c"],
        exec_s=[2.0, 3.0, 1.0],
        tensor_producer=[0, 1],
        tensor_bytes=[1.0, 1.0],
        transfer_s=[4.0, 4.0],
        edge_tensor=[0, 1],
        edge_reader=[2, 2],
    )
    return graph, dp.Topology.uniform(2)


def test_a_chain_by_hand() -> None:
    """a 0–2, then b 2–5 on device 0; a moves 2–6, b 6–10 as the link is busy; c 10–11.

    The chain is a, a's transfer, b's transfer, c; b's was ready at 5 and waited until 6.
    """
    graph, topology = two_on_one_device()
    trace = dp.simulate(graph, topology, dp.Assignment([0, 0, 1]))
    assert trace.makespan_s == 11
    assert chain_time(trace) == (2 + 1, 3 + 4, 0, 1, 0)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["p100x4", "v100x8", "cpu2"]))
def test_causes_add_up_to_the_makespan(seed: int, machine: str) -> None:
    graph = random_dag(vertices=40, depth=6, seed=seed)
    trace = dp.simulate(graph, machine, dp.place(graph, machine, "random", seed=seed))
    spent = chain_time(trace)
    assert sum(spent) == pytest.approx(trace.makespan_s)
    assert min(spent) >= -1e-12


def test_utilization_over_time() -> None:
    graph, topology = two_on_one_device()
    trace = dp.simulate(graph, topology, dp.Assignment([0, 0, 1]))
    assert utilization_over_time(trace, 11).tolist() == [[1] * 5 + [0] * 6, [0] * 10 + [1]]
    mean = utilization_over_time(trace, 7).mean(axis=1)
    assert mean == pytest.approx(trace.utilization())


def test_the_most_of_steps_between_edges() -> None:
    time_s, values = np.array([0.0, 0.5, 1.5]), np.array([1.0, 4.0, 2.0])
    assert most_over_time(time_s, values, np.arange(4.0)).tolist() == [4, 4, 2]
    assert most_over_time(np.zeros(0), np.zeros(0), np.arange(3.0)).tolist() == [0, 0]
