"""Layered drawings: edges lead to later layers, vertices do not overlap, few edges cross."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples

from doppler.graph.layering import layer_graph, layered, spaced
from doppler.programs import random_dag


def crossings(layering, source, target) -> int:
    """Pairs of edges between neighbouring layers that cross."""
    near = layering.layer[target] - layering.layer[source] == 1
    found = 0
    for layer in np.unique(layering.layer[source[near]]):
        here = near & (layering.layer[source] == layer)
        a, b = layering.offset[source[here]], layering.offset[target[here]]
        found += int(((a[:, None] < a[None, :]) & (b[:, None] > b[None, :])).sum())
    return found


def test_edges_lead_on_and_vertices_keep_their_distance() -> None:
    graph = random_dag(vertices=200, depth=12, seed=0)
    found = layer_graph(graph)
    source, target = graph.tensor_producer[graph.edge_tensor], graph.edge_reader
    assert (found.layer[source] < found.layer[target]).all()
    assert found.layer.min() == 0
    for layer in range(found.layer.max() + 1):
        offsets = np.sort(found.offset[found.layer == layer])
        assert (np.diff(offsets) > 1 - 1e-9).all()


def test_two_chains_do_not_cross() -> None:
    """Vertices 0→3→4 and 1→2→5, given in an order that crosses."""
    source, target = np.array([0, 3, 1, 2]), np.array([3, 4, 2, 5])
    found = layered(np.array([0, 0, 1, 1, 2, 2]), source, target)
    assert crossings(found, source, target) == 0
    assert found.offset[[0, 3, 4]].std() == found.offset[[1, 2, 5]].std() == 0


def test_sorting_the_layers_takes_crossings_away() -> None:
    graph = random_dag(vertices=300, depth=10, seed=1)
    source, target = graph.tensor_producer[graph.edge_tensor], graph.edge_reader
    found = layer_graph(graph)
    rng = np.random.default_rng(0)
    shuffled = type(found)(found.layer, rng.permutation(len(found.layer)).astype(float))
    assert crossings(found, source, target) < 0.6 * crossings(shuffled, source, target)


def test_no_vertices() -> None:
    empty = np.zeros(0, np.int64)
    assert len(layered(empty, empty, empty).offset) == 0


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.floats(-100, 100), max_size=12))
def test_spaced_is_the_nearest_such_row(wanted: list[float]) -> None:
    found = spaced(wanted)
    assert (np.diff(found) >= 1 - 1e-9).all()
    best = ((found - wanted) ** 2).sum()
    rng = np.random.default_rng(0)
    for _ in range(20):  # no step in any direction that keeps the distance is better
        other = found + rng.normal(size=len(found)) * 0.01
        if (np.diff(other) >= 1).all():
            assert ((other - wanted) ** 2).sum() >= best - 1e-9
