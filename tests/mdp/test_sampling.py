"""How actions follow from scores: lotteries, greed, chance, force and the critical-path rule."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mdp.playing import (
    assert_frequencies,
    candidates_of,
    graph_of,
    no_opinion,
    play,
    random_weights,
    replay,
    softmax,
    twenty_devices,
    unequal_pair,
    uniform,
    with_scores,
)
from strategies import graphs, topologies

from doppler.base.arrays import FloatArray
from doppler.graph import GraphBuilder
from doppler.mdp import DEVICE_FEATURES, Instance, make_instance
from doppler.mdp.kernel import Weights
from doppler.mdp.rollout import GREEDY, MIN_PART, PartialAssignments, Roller, Sampling
from doppler.placers.lists.reference import place_by_rank
from doppler.placers.lists.rules import RankRule, flatten
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import Host, Topology

MANY = 20_000


def loose(count: int = 4, num_devices: int = 2) -> Instance:
    """Vertices without edges: all are candidates from the beginning."""
    return make_instance(Problem(graph_of([1.0] * count), uniform(num_devices)))


def larger() -> tuple[Instance, Weights]:
    instance = make_instance(
        Problem(random_dag(vertices=60, depth=6, seed=3), Topology.preset("p100x4"))
    )
    return instance, random_weights(instance, 3)


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_vertices_are_drawn_by_the_softmax_over_the_candidates(temperature: float) -> None:
    scores = [0.0, 1.0, 0.5, -1.0]
    instance = loose()
    weights = with_scores(no_opinion(instance), scores)
    sampling = Sampling(select_temperature=temperature)
    order = play(instance, weights, sampling, seeds=MANY).record.order
    assert_frequencies(order[:, 0], softmax(np.array(scores), temperature))
    second = order[order[:, 0] == 1, 1]  # the lottery among the three that are left
    left = np.array([0.0, -np.inf, 0.5, -1.0])
    assert_frequencies(second, softmax(left, temperature))


def test_candidates_far_below_the_best_vertex_are_drawn_by_their_softmax() -> None:
    """Beside the weight of a vertex that is no candidate theirs are nothing, but not zero."""
    instance = make_instance(Problem(graph_of([1.0] * 3, {(0, 2): 1.0, (1, 2): 1.0}), uniform(2)))
    weights = with_scores(no_opinion(instance), [-2000.0, -2001.0, 0.0])
    order = play(instance, weights, seeds=MANY).record.order
    assert_frequencies(order[:, 0], softmax(np.array([0.0, -1.0, -np.inf])))
    assert (order[:, 2] == 2).all()


def last_logits(instance: Instance, weights: Weights) -> FloatArray:
    """PLC's logits for the last vertex that it placed, greedily."""
    return play(instance, weights, GREEDY).state.logits


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_devices_are_drawn_by_the_softmax_of_their_logits(temperature: float) -> None:
    instance = make_instance(Problem(graph_of([[1.0, 2.0, 4.0]]), uniform(3)))
    weights = random_weights(instance, 1)
    logits = last_logits(instance, weights)
    assert len(set(logits.tolist())) == 3
    sampling = Sampling(place_temperature=temperature)
    devices = play(instance, weights, sampling, seeds=MANY).record.devices
    assert_frequencies(devices[:, 0], softmax(logits, temperature))


def test_epsilon_makes_a_part_of_the_actions_random() -> None:
    instance = make_instance(Problem(graph_of([[1.0, 2.0, 4.0]] * 4), uniform(3)))
    weights = with_scores(random_weights(instance, 1), [0.0, 9.0, 0.0, 0.0])
    for epsilon in (0.3, 1.0):
        record = play(instance, weights, replace(GREEDY, epsilon=epsilon), seeds=MANY).record
        expected = np.full(4, epsilon / 4)
        expected[1] += 1 - epsilon
        assert_frequencies(record.order[:, 0], expected)
    single = make_instance(Problem(graph_of([[1.0, 2.0, 4.0]]), uniform(3)))
    weights = random_weights(single, 1)
    best = int(np.argmax(last_logits(single, weights)))
    record = play(single, weights, replace(GREEDY, epsilon=0.3), seeds=MANY).record
    expected = np.full(3, 0.1)
    expected[best] += 0.7
    assert_frequencies(record.devices[:, 0], expected)


def one_of_many() -> Instance:
    """A vertex that runs on twenty devices, the last the fastest."""
    return make_instance(Problem(graph_of([[float(20 - d) for d in range(20)]]), uniform(20)))


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_devices_are_drawn_among_those_that_are_scored(temperature: float) -> None:
    instance = one_of_many()
    weights = random_weights(instance, 1, most=3)
    logits = last_logits(instance, weights)[:3]
    assert len(set(logits.tolist())) == 3
    record = play(instance, weights, Sampling(place_temperature=temperature), seeds=MANY).record
    assert (record.scored == [17, 18, 19]).all()
    assert record.devices.min() == 17
    assert_frequencies(record.devices[:, 0] - 17, softmax(logits, temperature))
    greedy = play(instance, weights, GREEDY).record.devices
    assert greedy.tolist() == [[17 + int(np.argmax(logits))]]


def test_random_devices_are_drawn_among_those_that_are_scored() -> None:
    instance = one_of_many()
    sampling = replace(GREEDY, epsilon=1.0)
    for most, count in ((3, 3), (12, 12), (20, 20), (0, 20)):
        weights = random_weights(instance, 1, most=most)
        devices = play(instance, weights, sampling, seeds=MANY).record.devices[:, 0]
        assert devices.min() == 20 - count
        assert_frequencies(devices - devices.min(), np.full(count, 1 / count))


def test_the_policy_goes_only_where_it_scores() -> None:
    graph = random_dag(vertices=40, depth=5, seed=0)
    instance = make_instance(Problem(graph, twenty_devices()))
    for most in (1, 4, 12):
        weights = random_weights(instance, 1, most=most)
        record = play(instance, weights, Sampling(epsilon=0.3)).record
        order, devices = record.order[0], record.devices[0]
        for episode, vertex in replay(instance, order, devices):
            assert devices[vertex] in episode.scored(vertex, most)


def test_the_greedy_take_the_best_and_of_equals_the_lowest_id() -> None:
    instance = loose(5, num_devices=3)
    weights = with_scores(no_opinion(instance), [0.0, 1.0, 0.0, 2.0, 1.0])
    record = play(instance, weights, GREEDY, seeds=3).record
    assert record.order.tolist() == [[3, 1, 4, 0, 2]] * 3
    assert (record.devices == 0).all()


def test_given_devices_change_neither_order_nor_chance() -> None:
    instance, weights = larger()
    free = play(instance, weights, seeds=4).record
    rng = np.random.default_rng(0)
    devices = np.where(rng.random(free.devices.shape) < 0.5, rng.integers(4, size=(4, 60)), -1)
    record = play(instance, weights, seeds=4, partial=PartialAssignments(devices)).record
    assert record.order.tolist() == free.order.tolist()
    assert (record.devices[devices >= 0] == devices[devices >= 0]).all()
    again = play(instance, weights, seeds=4, partial=PartialAssignments(record.devices)).record
    np.testing.assert_array_equal(again.features, record.features)


def test_groups_are_placed_together_by_their_first() -> None:
    instance, weights = larger()
    free = play(instance, weights, seeds=8).record
    groups = np.arange(60) // 5
    record = play(instance, weights, seeds=8, partial=PartialAssignments(groups=groups)).record
    assert record.order.tolist() == free.order.tolist()
    assert (record.devices == record.devices[:, 5 * groups]).all()
    rows, first = np.arange(8), record.order[:, 0]
    assert (record.devices[rows, first] == free.devices[rows, first]).all()
    assert len(np.unique(record.devices)) > 1


def unhindered(topology: Topology) -> Topology:
    """The same devices, with links and a host that never make anything wait: the teacher's plan.

    Without links to the host, inputs are in place: when they arrive is not part of the rule.
    """
    links = tuple(replace(link, lanes=0) for link in topology.links)
    return replace(topology, host=Host(), links=links, host_links=())


def assert_as_the_critical_path(instance: Instance, weights: Weights, seed: int) -> None:
    """The rule of the teacher, given the same luck, plans and places the same."""
    rule = replace(GREEDY, place_early=True)
    played = play(instance, weights, rule, seeds=np.array([seed]))
    order, devices = played.record.order[0], played.record.devices[0]
    draws = np.zeros(instance.graph.num_vertices)
    for episode, v in replay(instance, order, devices):
        starts = [
            max(min(episode.slot_free_s[d]), episode.arrival_s(v, d))
            for d in range(instance.num_devices)
        ]
        best = [d for d, start in enumerate(starts) if start == min(starts)]
        assert devices[v] in best
        draws[instance.vertices[v]] = (best.index(devices[v]) + 0.5) / len(best)
    graph, topology = instance.graph, instance.topology
    problem = flatten(Problem(graph, topology))
    inputs = np.flatnonzero(graph.is_input)
    by_score = instance.vertices[np.argsort(-weights.score, kind="stable")]
    sequence = np.concatenate([by_score, inputs])
    plan = place_by_rank(problem, RankRule(sequence, np.zeros(problem.exec_s.shape), draws))
    assert plan.order.tolist() == instance.vertices[order].tolist()
    assert plan.devices.tolist() == instance.expand(devices).tolist()
    assert plan.end_s[instance.vertices].tolist() == played.state.end_s.tolist()


@settings(max_examples=100)
@given(data=st.data(), seed=st.integers(0, 99))
def test_placing_early_is_the_rule_of_the_critical_path(data: st.DataObject, seed: int) -> None:
    topology = unhindered(data.draw(topologies()))
    graph = data.draw(graphs(max_vertices=12, num_devices=topology.num_devices))
    instance = make_instance(Problem(graph, topology))
    assert_as_the_critical_path(instance, with_bottom_levels(instance), seed)


def with_bottom_levels(instance: Instance) -> Weights:
    return no_opinion(instance)._replace(score=instance.tables.bottom_s.copy())


@pytest.mark.parametrize("machine", ["p100x4", "a100x2-t4x2"])
def test_placing_early_on_larger_graphs(machine: str) -> None:
    for seed in range(4):
        graph = random_dag(vertices=80, depth=4 + 4 * seed, seed=seed)
        instance = make_instance(Problem(graph, unhindered(Topology.preset(machine))))
        assert_as_the_critical_path(instance, with_bottom_levels(instance), seed)


def test_the_best_choice_may_be_one_that_several_devices_share() -> None:
    """At temperature 0 the device that stands alone loses, though each of the others is less."""
    instance = loose(2, num_devices=4)
    weights = no_opinion(instance)
    for array, value in ((weights.vertex, 1.0), (weights.placed, 0.5), (weights.hidden, 1.0)):
        array[:, 0] = value
    weights.hidden[1:] = 0.0
    weights.out[0] = 1.0  # so the logit is 1, or 1.5 with the other vertex there
    first, second = play(instance, weights, GREEDY).record.devices[0]
    assert first != second
    alone = play(instance, weights, replace(GREEDY, alike=False)).record.devices[0]
    assert alone[0] == alone[1]


def test_placing_early_breaks_ties_at_random() -> None:
    instance = loose(1, num_devices=3)
    rule = Sampling(place_early=True)
    devices = play(instance, no_opinion(instance), rule, seeds=MANY).record.devices
    assert_frequencies(devices[:, 0], np.full(3, 1 / 3))


def test_placing_early_looks_at_all_devices() -> None:
    """However few are scored; where it places is one of those that are recorded."""
    instance = one_of_many()
    weights = random_weights(instance, most=2)
    record = play(instance, weights, Sampling(place_early=True), seeds=MANY).record
    assert_frequencies(record.devices[:, 0], np.full(20, 1 / 20))
    expected = np.stack([record.devices[:, 0], np.full(MANY, 19)], axis=1)
    expected[expected[:, 0] == 19] = [18, 19]
    assert (record.scored[:, 0] == expected).all()


def test_what_is_recorded_as_early_is_early() -> None:
    """The labels of Stage I: zero exactly where a vertex can begin first."""
    instance = make_instance(Problem(graph_of([[2, 3], [4, 2]], {(0, 1): 4.0}), unequal_pair()))
    record = play(instance, no_opinion(instance), GREEDY).record
    extra = record.features[0, :, :, DEVICE_FEATURES.index("extra_start")]
    assert (extra <= 0).tolist() == [[True, True], [True, False]]


def test_placing_early_looks_for_room() -> None:
    """Both could begin at once on either device, which holds one of them."""
    topology = uniform(2)
    small = tuple(replace(device, memory_bytes=3.0) for device in topology.devices)
    topology = replace(topology, devices=small)
    g = GraphBuilder("two")
    for name in "ab":
        g.op(name, "matmul", reads=[], output_bytes=2.0, exec_s=0.0)
    instance = make_instance(Problem(g.build(), topology))
    rule = Sampling(place_early=True)
    devices = play(instance, no_opinion(instance), rule, seeds=20).record.devices
    assert (devices.sum(axis=1) == 1).all()


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_any_number_of_threads_plays_the_same(threads: int) -> None:
    instance, weights = larger()
    seeds = np.arange(5 * MIN_PART + 3) * 7
    alone = Roller(instance).play(weights, Sampling(epsilon=0.1), seeds)
    together = Roller(instance, threads=threads).play(weights, Sampling(epsilon=0.1), seeds)
    for name in ("order", "devices", "features", "since", "scored", "last_step"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(together, name), name)


def test_an_episode_depends_on_its_own_seed_only() -> None:
    instance, weights = larger()
    roller, seeds = Roller(instance), np.arange(6)
    all_at_once = roller.play(weights, Sampling(), seeds)
    assert len({row.tobytes() for row in all_at_once.order}) == 6
    backwards = roller.play(weights, Sampling(), seeds[::-1])
    np.testing.assert_array_equal(all_at_once.devices, backwards.devices[::-1])
    one = roller.play(weights, Sampling(), seeds[4:5], record=False)
    assert one.devices[0].tolist() == all_at_once.devices[4].tolist()
    assert all(len(x) == 0 for x in (one.features, one.since, one.scored, one.last_step))


def test_all_vertices_may_be_candidates_at_once() -> None:
    rollouts = Roller(loose(40)).play(random_weights(loose(40)), Sampling(), np.arange(2))
    assert rollouts.since.tolist() == [[0] * 40] * 2
    assert candidates_of(rollouts.order[1], rollouts.since[1], 0) == list(range(40))
    assert candidates_of(rollouts.order[1], rollouts.since[1], 39) == [rollouts.order[1, 39]]


def test_a_roller_plays_policies_of_any_width_one_after_the_other() -> None:
    instance, _ = larger()
    roller = Roller(instance)
    for width, depth in ((6, 3), (40, 20), (2, 1)):
        weights = random_weights(instance, width=width, depth=depth)
        mine = roller.play(weights, Sampling(), np.arange(3))
        fresh = Roller(instance).play(weights, Sampling(), np.arange(3))
        np.testing.assert_array_equal(mine.devices, fresh.devices)


def test_given_devices_may_be_laid_out_in_any_way() -> None:
    instance, weights = larger()
    devices = np.asfortranarray(np.random.default_rng(0).integers(4, size=(20, 60)))
    partial = PartialAssignments(devices)
    rollouts = Roller(instance, threads=2).play(weights, Sampling(), np.arange(20), partial=partial)
    np.testing.assert_array_equal(rollouts.devices, devices)


def test_no_seeds_no_episodes() -> None:
    instance, weights = larger()
    rollouts = Roller(instance, threads=2).play(weights, Sampling(), np.arange(0))
    assert rollouts.order.shape == (0, 60)
