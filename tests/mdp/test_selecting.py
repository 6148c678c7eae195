"""The tree that vertices are drawn with, against a lottery that lists all candidates."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mdp.playing import graph_of, no_opinion, play, random_weights, uniform
from strategies import examples, graphs

from doppler.base.arrays import FloatArray
from doppler.mdp import Instance, make_instance
from doppler.mdp.rollout import Sampling
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import Topology

MACHINE = Topology.preset("p100x4")
MASK = 2**64 - 1


def draws(seed: int) -> Iterator[float]:
    """SplitMix64, as numbers in [0, 1)."""
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield ((z ^ (z >> 31)) >> 11) / 2**53


def listed_order(instance: Instance, score: FloatArray, sampling: Sampling, seed: int) -> list[int]:
    """The vertices as they are selected, where every lottery lists all candidates."""
    tables, luck = instance.tables, draws(seed)
    missing, order = tables.num_reads.copy(), list[int]()
    slots = np.flatnonzero(missing == 0).tolist()
    while slots:
        drawn, chance, _, _ = (next(luck) for _ in range(4))  # the others place
        at = listed_slot(score[slots], slots, sampling, drawn, chance)
        order.append(slots[at])
        slots[at] = slots[0]
        slots[0] = slots[-1]
        slots.pop()
        for e in range(tables.edge_ptr[order[-1]], tables.edge_ptr[order[-1] + 1]):
            missing[tables.edge_reader[e]] -= 1
            if missing[tables.edge_reader[e]] == 0:
                slots.append(int(tables.edge_reader[e]))
    return order


def listed_slot(
    score: FloatArray, vertices: list[int], sampling: Sampling, drawn: float, chance: float
) -> int:
    """Where among the candidates the choice is."""
    if chance < sampling.epsilon:
        return int(drawn * len(vertices))
    if sampling.select_temperature == 0.0:
        return max(range(len(vertices)), key=lambda i: (score[i], -vertices[i]))
    weight = np.exp((score - score.max()) / sampling.select_temperature).cumsum()
    return int(np.searchsorted(weight, drawn * weight[-1], side="right"))


def assert_as_listed(instance: Instance, score: FloatArray, sampling: Sampling, seed: int) -> None:
    weights = random_weights(instance)._replace(score=score)
    order = play(instance, weights, sampling, seeds=np.array([seed])).record.order[0]
    assert order.tolist() == listed_order(instance, score, sampling, seed)


samplings = st.builds(
    Sampling,
    select_temperature=st.sampled_from([0.0, 0.15, 1.0]),
    epsilon=st.sampled_from([0.0, 0.3]),
)
spreads = st.sampled_from([0.0, 1.0, 30.0, 1e3, 1e5])  # at 1e5 most weights are beyond all floats


@settings(max_examples=examples(200))
@given(data=st.data(), sampling=samplings, spread=spreads, seed=st.integers(0, 2**40))
def test_small_graphs(data: st.DataObject, sampling: Sampling, spread: float, seed: int) -> None:
    instance = make_instance(Problem(data.draw(graphs(max_vertices=12, num_devices=4)), MACHINE))
    rng = np.random.default_rng(seed)
    score = spread * rng.integers(-4, 5, size=instance.num_vertices) / 4  # some are equal
    assert_as_listed(instance, score, sampling, seed)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("spread", [1.0, 300.0, 5e3])
@pytest.mark.parametrize("depth", [2, 40])
def test_larger_graphs(depth: int, spread: float, temperature: float) -> None:
    graph = random_dag(vertices=300, depth=depth, seed=1)
    instance = make_instance(Problem(graph, MACHINE))
    for seed in range(4):
        score = spread * np.random.default_rng(seed).normal(size=300)
        sampling = Sampling(select_temperature=temperature, epsilon=0.05)
        assert_as_listed(instance, score, sampling, seed)


@pytest.mark.parametrize("downhill", [True, False])
def test_scores_that_run_away_along_a_chain(downhill: bool) -> None:
    """Weights beside the best of all vertices, or beside the first, would be 0 or infinite."""
    size = 120
    edges = {(v, v + 2): 1.0 for v in range(size - 2)}  # two chains: always two candidates
    instance = make_instance(Problem(graph_of([1.0] * size, edges), uniform(2)))
    score = np.arange(size) // 2 * (-100.0 if downhill else 100.0) + np.arange(size) % 2
    for seed in range(5):
        assert_as_listed(instance, score, Sampling(), seed)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_still_make_episodes(bad: float, temperature: float) -> None:
    """Training ends with an error where a policy has come to this, but only after the episode."""
    instance = make_instance(Problem(random_dag(vertices=50, depth=4, seed=0), MACHINE))
    rng = np.random.default_rng(0)
    for share in (0.2, 1.0):
        score = np.where(rng.random(50) < share, bad, rng.normal(size=50))
        weights = no_opinion(instance)._replace(score=score)
        sampling = Sampling(select_temperature=temperature)
        for row in play(instance, weights, sampling, seeds=20).record.order:
            assert sorted(row) == list(range(50))
