"""The compiled episodes equal the readable one, step for step."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mdp.playing import (
    Played,
    candidates_of,
    graph_of,
    last_step_on,
    play,
    random_weights,
    replay,
    twenty_devices,
    uniform,
)
from strategies import examples, graphs, topologies

from doppler.graph import Graph, GraphBuilder, build_graph
from doppler.mdp import Episode, Instance, make_instance
from doppler.mdp.guide import NO_GUIDE, Guide, slack_s
from doppler.mdp.guide_kernel import fill_slack
from doppler.mdp.rollout import NO_GROUP, UNASSIGNED, PartialAssignments, Roller, Sampling
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import Topology

samplings = st.builds(
    Sampling,
    select_temperature=st.sampled_from([0.0, 0.5, 1.0]),
    place_temperature=st.sampled_from([0.0, 0.5, 1.0]),
    epsilon=st.sampled_from([0.0, 0.3, 1.0]),
    place_early=st.booleans(),
)


memories = st.just(float("inf")) | st.integers(1, 40).map(float)


def recorded_devices(episode: Episode, vertex: int, device: int, most: int) -> list[int]:
    """The devices that a record has of a step: those that are scored, and the one it went to.

    A device that was given takes the place of the one that was chosen last.
    """
    scored = episode.scored(vertex, most)
    if device in scored:
        return scored
    all_but_last = episode.scored(vertex, most - 1) if most > 1 else []
    return sorted([*all_but_last, device])


def assert_equal(
    instance: Instance, played: Played, most: int = 0, guides: Guide | None = None
) -> None:
    """Every episode is a valid one, and was seen as the readable one sees it."""
    state, record = played.state, played.record
    tight = {"rtol": 1e-5, "atol": 1e-6}
    for b in range(len(record.order)):
        assert sorted(record.order[b]) == list(range(instance.num_vertices))
        guide = None if guides is None else guides.rows(slice(b, b + 1))
        steps = replay(instance, record.order[b], record.devices[b], guide)
        for step, (episode, vertex) in enumerate(steps):
            seen = candidates_of(record.order[b], record.since[b], step)
            assert seen == episode.candidates
            device = int(record.devices[b, vertex])
            scored = recorded_devices(episode, vertex, device, most)
            assert record.scored[b, step].tolist() == scored
            last_step = [last_step_on(episode, d) for d in scored]
            assert record.last_step[b, step].tolist() == last_step
            features = episode.device_features(vertex)[scored]
            np.testing.assert_allclose(record.features[b, step], features, **tight)
    assert state.held_bytes.tolist() == episode.held_bytes.tolist()
    assert state.begin_s.tolist() == episode.begin_s.tolist()
    assert state.end_s.tolist() == episode.end_s.tolist()


@settings(max_examples=examples(300))
@given(
    data=st.data(),
    sampling=samplings,
    most=st.sampled_from([0, 1, 2, 3, 12]),
    seed=st.integers(0, 2**40),
)
def test_small_graphs(data: st.DataObject, sampling: Sampling, most: int, seed: int) -> None:
    topology = data.draw(topologies(max_devices=5, memory_bytes=memories))
    instance = make_instance(
        Problem(data.draw(graphs(max_vertices=12, num_devices=topology.num_devices)), topology)
    )
    if instance.num_vertices == 0:
        assert Episode(instance).done
        return
    partial = data.draw(partial_assignments(instance))
    seeds, weights = np.array([seed, seed + 1]), random_weights(instance, seed % 5, most=most)
    played = play(instance, weights, sampling, seeds=seeds, partial=partial)
    assert_equal(instance, played, most, partial.guide)
    if len(partial.devices):
        given_ = partial.devices != UNASSIGNED
        assert (played.record.devices[given_] == partial.devices[given_]).all()
    if len(partial.groups):
        assert_together(instance, played, partial)
    unseen = Roller(instance).play(weights, sampling, seeds, partial=partial, record=False)
    np.testing.assert_array_equal(unseen.order, played.record.order)
    np.testing.assert_array_equal(unseen.devices, played.record.devices)
    in_order = partial._replace(orders=played.record.order)
    again = play(instance, weights, sampling, seeds=seeds, partial=in_order)
    for one, other in zip(again.record, played.record, strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=examples(100))
@given(data=st.data())
def test_slack(data: st.DataObject) -> None:
    topology = data.draw(topologies(max_devices=4))
    graph = data.draw(graphs(max_vertices=12, num_devices=topology.num_devices))
    instance = make_instance(Problem(graph, topology))
    shape = (instance.num_vertices,)
    devices = data.draw(arrays(np.int64, shape, elements=st.integers(0, topology.num_devices - 1)))
    begin_s = data.draw(arrays(np.float64, shape, elements=st.sampled_from([0.0, 1.0, 2.5, 9.0])))
    end_s = begin_s + instance.tables.exec_s[range(*shape), devices]
    out, order = np.empty(shape), np.argsort(begin_s, kind="stable")
    fill_slack(instance.tables, devices, order, begin_s, end_s, out)
    expected = slack_s(instance.tables, devices, begin_s, end_s)
    np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-12 * end_s.max(initial=1.0))


def test_slack_by_hand() -> None:
    """A and B end at 1 and 2, then C, which reads both, at 9; D has its device for itself."""
    graph = graph_of([1.0, 2.0, 1.0, 3.0], {(0, 2): 4.0, (1, 2): 0.0})
    instance = make_instance(Problem(graph, uniform(3)))
    devices, begin_s = np.array([0, 1, 1, 2]), np.array([0.0, 0.0, 8.0, 0.0])
    end_s = np.array([1.0, 2.0, 9.0, 3.0])
    move_s = Episode(instance).move_s(0, 0, 1)
    assert move_s > 1
    found = slack_s(instance.tables, devices, begin_s, end_s)
    np.testing.assert_allclose(found, [8 - move_s - 1, 6, 0, 6])


@pytest.mark.parametrize("kind", ["its own", "what is given", "of the instance", "none"])
def test_which_guide_an_episode_has(kind: str) -> None:
    """That of the partial assignments; else these; else that of the instance, with its times."""
    graph = random_dag(vertices=30, depth=5, seed=0)
    alone = make_instance(Problem(graph, Topology.preset("p100x4")))
    rng = np.random.default_rng(0)
    own, given_, other = (rng.integers(UNASSIGNED, 4, size=(2, 30)) for _ in range(3))
    times = rng.random((1, 2, 30)) * alone.tables.scale_s
    instance = alone if kind == "none" else replace(alone, guide=Guide(other[:1], times))
    partial, expected = {
        "its own": (PartialAssignments(given_, guide=Guide(own)), Guide(own)),
        "what is given": (PartialAssignments(given_), Guide(given_)),
        "of the instance": (PartialAssignments(), instance.guide),
        "none": (PartialAssignments(), NO_GUIDE),
    }[kind]
    if kind == "of the instance":
        assert Episode(instance).guide.tolist() == other[0].tolist()
    roller, weights = Roller(instance), random_weights(instance)
    rollouts = roller.play(weights, Sampling(), np.arange(2), partial=partial)
    for b in range(2):
        guide = expected.rows(slice(b, b + 1)) if len(expected.devices) else None
        steps = replay(alone, rollouts.order[b], rollouts.devices[b], guide)
        for step, (episode, vertex) in enumerate(steps):
            features = episode.device_features(vertex)
            np.testing.assert_allclose(rollouts.features[b, step], features, rtol=1e-5, atol=1e-6)


@st.composite
def partial_assignments(draw: st.DrawFn, instance: Instance) -> PartialAssignments:
    """Two of them, with and without devices and groups."""
    n = instance.num_vertices

    def rows(low: int, high: int) -> st.SearchStrategy[list[int]]:
        return st.lists(st.integers(low, high), min_size=n, max_size=n)

    device_rows = rows(UNASSIGNED, instance.num_devices - 1)
    devices = draw(st.just(np.zeros((0, 0))) | st.tuples(device_rows, device_rows))
    groups = draw(st.just([]) | rows(NO_GROUP, min(2, n - 1)))
    given_ = [np.array(each, np.int64) for each in (devices, groups)]
    guides = draw(st.lists(device_rows, min_size=1, max_size=2))
    seconds = st.sampled_from([-1.0, 0.0, 1.0, 3.5])
    times = draw(st.lists(st.lists(seconds, min_size=2 * n, max_size=2 * n), max_size=2))
    known = np.array(times, np.float64).reshape(len(times), 2, n)
    known[:, 1] = np.where(known[:, 0] < 0, 0.0, np.abs(known[:, 1]))
    return PartialAssignments(*given_, guide=Guide(np.array(guides, np.int64), known))


def assert_together(instance: Instance, played: Played, partial: PartialAssignments) -> None:
    """Vertices of a group are where the one before them went, as long as there is room."""
    memory_bytes, record = instance.tables.memory_bytes, played.record
    for b, (order, devices) in enumerate(zip(record.order, record.devices, strict=True)):
        last: dict[int, int] = {}
        for episode, vertex in replay(instance, order, devices):
            is_given = len(partial.devices) and partial.devices[b, vertex] != UNASSIGNED
            group = NO_GROUP if is_given else int(partial.groups[vertex])
            if group in last:
                device = last[group]
                running = episode.running_bytes(vertex, device)
                assert devices[vertex] == device or running > memory_bytes[device]
            if group != NO_GROUP:
                last[group] = int(devices[vertex])


@pytest.mark.parametrize("machine", ["p100x4", "v100x8", "a100x2-t4x2", "cpu2", "reference:1"])
def test_larger_graphs(machine: str) -> None:
    topology = Topology.preset(machine)
    for seed in range(3):
        graph = random_dag(vertices=80, depth=3 + 5 * seed, seed=seed)
        if machine.startswith("reference"):
            graph = explicit(graph, seed)
        instance = make_instance(Problem(graph, topology))
        assert_equal(instance, play(instance, random_weights(instance, seed), seeds=3))


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("most", [0, 1, 5, 12])
def test_machines_of_many_devices(most: int, small: bool) -> None:
    """Half of the vertices go to given devices, some of which would not be scored."""
    graph = random_dag(vertices=40, depth=5, seed=most)
    memory_bytes = 1.5 * graph.tensor_bytes.max() if small else float("inf")
    instance = make_instance(Problem(graph, twenty_devices(memory_bytes)))
    rng = np.random.default_rng(most)
    devices = rng.integers(20, size=(2, 40))
    devices[rng.random((2, 40)) < 0.5] = UNASSIGNED
    weights = random_weights(instance, most=most)
    partial = PartialAssignments(devices, guide=Guide(devices))
    played = play(instance, weights, seeds=2, partial=partial)
    assert played.record.scored.shape == (2, 40, most or 20)
    assert_equal(instance, played, most, partial.guide)
    rollouts = Roller(instance).play(weights, Sampling(), np.arange(2), partial=partial)
    for name, expected in played.record._asdict().items():
        np.testing.assert_array_equal(getattr(rollouts, name), expected, name)


def test_what_comes_from_the_host_comes_over_its_link_one_by_one_and_once() -> None:
    builder = GraphBuilder("streamed")
    x, y = (builder.input(n, output_bytes=6.0, kind="streamed") for n in "xy")
    a = builder.op("a", "matmul", reads=[x, y], output_bytes=4.0, exec_s=1.0)
    builder.op("b", "matmul", reads=[a, x], output_bytes=1.0, exec_s=1.0)
    builder.op("c", "matmul", reads=[x], output_bytes=1.0, exec_s=1.0)
    topology = Topology.uniform(
        2, bandwidth_bytes_per_s=2.0, host_bandwidth_bytes_per_s=3.0
    )  # each device has its own link to the host
    episode = Episode(make_instance(Problem(builder.build(), topology)))
    for vertex, device, begin_s in ((0, 0, 4.0), (1, 1, 7.0), (2, 0, 5.0)):
        episode.place(vertex, device)
        assert episode.begin_s[vertex] == begin_s
    everywhere = Problem(builder.build(), replace(topology, host_links=()))
    episode = Episode(make_instance(everywhere))
    episode.place(0, 0)
    assert episode.begin_s[0] == 0


def explicit(graph: Graph, seed: int) -> Graph:
    """The same graph with costs of its own."""
    rng, columns = np.random.default_rng(seed), graph.columns()
    columns["exec_s"] = rng.random(graph.num_vertices)
    columns["transfer_s"] = rng.random(graph.num_tensors)
    return build_graph(**columns)


def test_a_graph_of_inputs_only_is_done_at_once() -> None:
    g = GraphBuilder("inputs")
    g.input("x", output_bytes=1.0)
    instance = make_instance(Problem(g.build(), Topology.preset("p100x4")))
    assert Episode(instance).done
    rollouts = Roller(instance).play(random_weights(instance), Sampling(), np.arange(2))
    assert rollouts.order.shape == (2, 0)
