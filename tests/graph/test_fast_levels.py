"""The compiled levels equal the readable ones, number for number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples, graphs, seconds

from doppler.graph import Graph, fast_levels, levels
from doppler.graph.levels import Levels
from doppler.programs import random_dag

few = st.sampled_from([0.0, 1.0, 2.0])  # so that paths are equally long


def assert_equal(fast: Levels, readable: Levels) -> None:
    for column in ("length_s", "via"):
        mine, its = getattr(fast, column), getattr(readable, column)
        assert mine.tobytes() == its.tobytes(), column
        assert mine.dtype == its.dtype
        assert not mine.flags.writeable


def assert_all_equal(graph: Graph, exec_s: np.ndarray, transfer_s: np.ndarray) -> None:
    costs = (graph, exec_s, transfer_s)
    assert_equal(fast_levels.bottom_levels(*costs, large=0), levels.bottom_levels(*costs))
    assert_equal(fast_levels.top_levels(*costs, large=0), levels.top_levels(*costs))
    mine, its = fast_levels.depths(graph, large=0), levels.depths(graph)
    assert mine.tobytes() == its.tobytes()
    assert mine.dtype == its.dtype
    assert not mine.flags.writeable


@settings(max_examples=examples(200), deadline=None)
@given(graphs(max_vertices=12), st.data(), st.sampled_from([seconds, few]))
def test_small_graphs(graph: Graph, data: st.DataObject, costs: st.SearchStrategy[float]) -> None:
    def column(size: int) -> np.ndarray:
        return np.array(data.draw(st.lists(costs, min_size=size, max_size=size)), np.float64)

    assert_all_equal(graph, column(graph.num_vertices), column(graph.num_tensors))


@pytest.mark.parametrize("kinds", [2, 10**9])
def test_large_graphs(kinds: int) -> None:
    for seed in range(3):
        graph, rng = random_dag(vertices=600, depth=30, seed=seed), np.random.default_rng(seed)
        sizes = (graph.num_vertices, graph.num_tensors)
        exec_s, transfer_s = (rng.integers(kinds, size=size) / 7 for size in sizes)
        assert_all_equal(graph, exec_s, transfer_s)
        assert_all_equal(graph, exec_s[::-1], np.zeros(graph.num_tensors))


def test_a_small_graph_takes_the_readable_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    for name in ("_paths_up", "_paths_down"):
        monkeypatch.setattr(fast_levels, name, lambda *_: called.append(1) or 1 / 0)
    graph = random_dag(vertices=40, depth=4, seed=0)
    ones, zeros = np.ones(graph.num_vertices), np.zeros(graph.num_tensors)
    fast_levels.bottom_levels(graph, ones, zeros)
    fast_levels.top_levels(graph, ones, zeros)
    fast_levels.depths(graph)
    assert not called
    with pytest.raises(ZeroDivisionError):
        fast_levels.depths(random_dag(vertices=600, depth=30, seed=0))
