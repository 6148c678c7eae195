from itertools import pairwise

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from doppler.graph import GraphBuilder, bottom_levels, depths, top_levels, widths


@pytest.fixture
def diamonds():
    """x is an input; a → c, a → d, b → d, c → e, d → e."""
    b = GraphBuilder()
    x = b.input("x", output_bytes=1)
    first, second = (b.op(name, "matmul", reads=[x], output_bytes=1) for name in "ab")
    third = b.op("c", "matmul", reads=[first], output_bytes=1)
    fourth = b.op("d", "matmul", reads=[first, second], output_bytes=1)
    b.op("e", "matmul", reads=[third, fourth], output_bytes=1)
    return b.build()


EXEC_S = np.array([100.0, 2.0, 3.0, 1.0, 4.0, 1.0])  # x a b c d e; inputs are not counted
TRANSFER_S = np.array([100.0, 1.0, 2.0, 0.5, 1.0, 7.0])


def test_bottom_levels_are_the_longest_paths_to_an_exit(diamonds):
    levels = bottom_levels(diamonds, EXEC_S, TRANSFER_S)
    assert levels.length_s.tolist() == [0, 9, 11, 2.5, 6, 1]
    assert [levels.path(v) for v in range(6)] == [[0], [1, 4, 5], [2, 4, 5], [3, 5], [4, 5], [5]]


def test_top_levels_are_the_longest_paths_from_an_entry(diamonds):
    levels = top_levels(diamonds, EXEC_S, TRANSFER_S)
    assert levels.length_s.tolist() == [0, 0, 0, 3, 5, 10]
    assert [levels.path(v) for v in range(6)] == [[0], [1], [2], [3, 1], [4, 2], [5, 4, 2]]


def test_ties_go_to_the_lowest_vertex(diamonds):
    ones, zeros = np.ones(6), np.zeros(6)
    assert bottom_levels(diamonds, ones, zeros).path(1) == [1, 3, 5]
    assert top_levels(diamonds, ones, zeros).path(5) == [5, 3, 1]


def test_depths_leave_out_inputs_and_widths_count_the_rest(diamonds):
    assert depths(diamonds).tolist() == [-1, 0, 0, 1, 1, 2]
    assert widths(diamonds).tolist() == [2, 2, 1]


def test_a_graph_of_inputs_has_no_levels():
    b = GraphBuilder()
    b.input("x", output_bytes=1)
    graph = b.build()
    assert widths(graph).tolist() == []
    assert bottom_levels(graph, np.ones(1), np.ones(1)).length_s.tolist() == [0]


@st.composite
def priced_graphs(draw):
    graph = draw(strategies.graphs(max_vertices=7))
    lists = (st.lists(strategies.seconds, min_size=n, max_size=n) for n in (7, 14))
    exec_s, transfer_s = (np.array(draw(values)) for values in lists)
    return graph, exec_s[: graph.num_vertices], transfer_s[: graph.num_tensors]


def steps(graph, vertex):
    """(tensor, reader) for every edge that leaves a vertex."""
    return [
        (t, r)
        for t, r in zip(graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True)
        if graph.tensor_producer[t] == vertex
    ]


def all_path_lengths(graph, exec_s, transfer_s, vertex):
    """The lengths of all paths from a vertex to wherever they may stop."""
    yield exec_s[vertex]
    for tensor, reader in steps(graph, vertex):
        for rest in all_path_lengths(graph, exec_s, transfer_s, reader):
            yield exec_s[vertex] + transfer_s[tensor] + rest


def path_length(graph, exec_s, transfer_s, path):
    total = exec_s[path].sum()
    for vertex, following in pairwise(path):
        total += max(transfer_s[t] for t, r in steps(graph, vertex) if r == following)
    return total


@given(priced_graphs())
def test_bottom_level_equals_the_longest_of_all_paths(priced):
    graph, exec_s, transfer_s = priced
    levels = bottom_levels(graph, exec_s, transfer_s)
    for v in graph.assigned.tolist():
        longest = max(all_path_lengths(graph, exec_s, transfer_s, v))
        assert levels.length_s[v] == pytest.approx(longest)
        assert path_length(graph, exec_s, transfer_s, levels.path(v)) == pytest.approx(longest)


@given(priced_graphs())
def test_top_level_is_the_length_of_its_path(priced):
    graph, exec_s, transfer_s = priced
    levels = top_levels(graph, exec_s, transfer_s)
    for v in graph.assigned.tolist():
        path = levels.path(v)[::-1]
        length = path_length(graph, exec_s, transfer_s, path) - exec_s[v]
        assert levels.length_s[v] == pytest.approx(length)


@given(priced_graphs())
def test_paths_through_a_vertex_reach_but_never_exceed_the_critical_path(priced):
    graph, exec_s, transfer_s = priced
    top = top_levels(graph, exec_s, transfer_s).length_s
    bottom = bottom_levels(graph, exec_s, transfer_s).length_s
    assert (top + bottom)[graph.assigned].max(initial=0) == pytest.approx(bottom.max())


@given(strategies.graphs())
def test_depth_is_the_bottom_up_count_of_vertices_on_the_longest_path(graph):
    counts = top_levels(graph, np.ones(graph.num_vertices), np.zeros(graph.num_tensors)).length_s
    assert np.array_equal(depths(graph)[graph.assigned], counts[graph.assigned])
    assert widths(graph).sum() == len(graph.assigned)
