"""Features of vertices and devices, computed by hand."""

from dataclasses import replace
from itertools import pairwise
from math import log, log1p

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mdp.playing import graph_of, replay, unequal_pair, uniform
from strategies import graphs, topologies

from doppler.graph import GraphBuilder
from doppler.mdp import DEVICE_FEATURES, FEATURE_SETS, VERTEX_FEATURES, Episode, make_instance
from doppler.mdp.features import (
    GUIDED,
    MOST_SHARE,
    NOT_SECONDS,
    NUM_STATIC,
    early,
    outlook,
    squeeze,
)
from doppler.mdp.guide import Guide
from doppler.mdp.instance import Instance
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import Host, Topology

A, B, C, E = range(4)
SCALE_S = 5.75  # (2.5 + 3 + 3 + 3) / 2


def example() -> Instance:
    """C reads A and B, E reads B. A mean transfer takes 0.5 + 0.75 per byte: 3.5 s, 2 s, 2 s."""
    exec_s = [[2, 3], [4, 2], [1, 5], [3, 3]]
    return make_instance(
        Problem(graph_of(exec_s, {(A, C): 4.0, (B, C): 2.0, (B, E): 2.0}), unequal_pair())
    )


def seconds(episode: Episode, vertex: int) -> dict[str, list[float]]:
    """Every device feature in seconds (shares and flags as they are), by name."""
    table = episode.device_features(vertex)
    assert table.shape == (2, len(DEVICE_FEATURES))
    raw = np.sign(table) * np.expm1(np.abs(table) * log1p(100.0)) / 100.0 * SCALE_S
    columns = {name: raw[:, i].tolist() for i, name in enumerate(DEVICE_FEATURES)}
    return columns | {DEVICE_FEATURES[i]: table[:, i].tolist() for i in NOT_SECONDS}


def assert_features(episode: Episode, vertex: int, expected: dict[str, list[float]]) -> None:
    found = seconds(episode, vertex)
    assert list(expected) == list(found)
    for name, values in expected.items():
        is_static = name in DEVICE_FEATURES[GUIDED - NUM_STATIC : GUIDED]
        rel = 1e-7 if is_static else None  # these are float32
        assert found[name] == pytest.approx(values, rel=rel, abs=1e-12), name


def test_static_features() -> None:
    instance = example()
    assert instance.tables.scale_s == SCALE_S
    expected = {
        "exec": [2.5, 3.0, 3.0, 3.0],
        "input_transfer": [0.0, 0.0, 5.5, 2.0],
        "output_transfer": [3.5, 4.0, 0.0, 0.0],
        "top_level": [0.0, 0.0, 6.0, 5.0],
        "bottom_level": [9.0, 8.0, 3.0, 3.0],
    }
    assert tuple(expected) == VERTEX_FEATURES
    for i, values in enumerate(expected.values()):
        assert instance.vertex_features[:, i] * SCALE_S == pytest.approx(values)
    assert instance.edges.tolist() == [[A, B, B], [C, C, E]]
    assert instance.edge_features[:, 0] * SCALE_S == pytest.approx([3.5, 2.0, 2.0])
    assert instance.entry_path.tolist() == [-1, -1, A, B]
    assert instance.exit_path.tolist() == [C, C, -1, -1]  # of B's two equal paths the lower id


def test_device_features_before_and_after_each_step() -> None:
    episode = Episode(example())
    assert episode.candidates == [A, B]
    nothing = [0.0, 0.0]
    always = {
        "num_devices": [1 / 6] * 2,  # 2 of 64 devices, by logarithms
        "communication": [(1 + log(7.5 / 11.5) / log(100)) / 2] * 2,
        "parallelism": [log(11.5 / 6) / log(64)] * 2,  # B and C are the longest path
        "dispatch": nothing,  # the host takes no time
    }
    untouched = dict.fromkeys(DEVICE_FEATURES, nothing) | always
    of_b = {"exec": [4.0, 2.0], "extra_end": [2.0, 0.0], "unused": [1.0, 1.0]}
    assert_features(episode, B, untouched | of_b)

    episode.place(B, 1)  # from 0 to 2
    assert episode.candidates == [A, E]
    of_a = {
        "device_work": [0.0, 2.0],
        "earliest_start": [0.0, 2.0],
        "sibling_bytes": [0.0, 2.0],  # B, which C reads too
        "sibling_share": [0.0, 1.0],
        "sibling_distance": [5.0, 0.0],  # 4 bytes there, at 1 + 1 per byte
        "exec": [2.0, 3.0],
        "extra_work": [0.0, 2.0],
        "extra_start": [0.0, 2.0],
        "extra_end": [0.0, 3.0],
        "unused": [1.0, 0.0],
        "used_share": [0.5, 0.5],
        "placed_share": [3 / 11.5] * 2,  # B, of a mean of 3 s
    }
    assert_features(episode, A, untouched | of_a)

    episode.place(A, 0)  # from 0 to 2
    assert episode.candidates == [C, E]
    of_c = {
        "device_work": [2.0, 2.0],
        "input_work": [2.0, 2.0],
        "input_start": [0.0, 0.0],
        "input_end": [2.0, 2.0],
        "earliest_start": [3.0, 7.0],  # B arrives at 2 + 2 / 2, A at 2 + 1 + 4
        "exec": [1.0, 5.0],
        "input_transfer": [1.0, 5.0],
        "extra_start": [0.0, 4.0],
        "extra_end": [0.0, 8.0],
        "used_share": [1.0, 1.0],
        "placed_share": [5.5 / 11.5] * 2,
    }
    assert_features(episode, C, untouched | of_c)

    episode.place(C, 0)  # from 3 to 4; the other slot is free
    of_e = {
        "device_work": [3.0, 2.0],
        "input_work": [0.0, 2.0],
        "input_end": [0.0, 2.0],
        "earliest_start": [4.0, 2.0],  # the link is busy until 3
        "exec": [3.0, 3.0],
        "input_transfer": [1.0, 0.0],
        "extra_work": [1.0, 0.0],
        "extra_start": [2.0, 0.0],
        "extra_end": [2.0, 0.0],
        "used_share": [1.0, 1.0],
        "placed_share": [8.5 / 11.5] * 2,
    }
    assert_features(episode, E, untouched | of_e)
    assert not episode.done
    episode.place(E, 0)
    assert episode.done
    assert episode.candidates == []
    assert episode.order == [B, A, C, E]
    assert episode.begin_s.tolist() == [0.0, 0.0, 3.0, 4.0]
    assert episode.end_s.tolist() == [2.0, 2.0, 4.0, 7.0]


def test_inputs_start_at_the_earliest_and_end_at_the_latest() -> None:
    instance = make_instance(Problem(graph_of([1, 2, 4], {(0, 2): 1.0, (1, 2): 1.0}), uniform(2)))
    episode = Episode(instance)
    episode.place(1, 0)
    episode.place(0, 0)
    row = dict(zip(DEVICE_FEATURES, episode.device_features(2)[0], strict=True))
    scale = instance.tables.scale_s
    assert row["input_work"] == pytest.approx(squeeze(np.float64(3 / scale)))
    assert row["input_start"] == 0.0
    assert row["input_end"] == pytest.approx(squeeze(np.float64(3 / scale)))


def test_all_siblings_are_a_share_of_one_whatever_the_number_of_tensors() -> None:
    g = GraphBuilder("two tensors for one reader")
    two, other, reader = (g.vertex(n, "matmul", exec_s=1.0) for n in ("two", "other", "reader"))
    for producer in (two, two, other):
        g.edge(g.tensor(producer, 1.0), reader)
    instance = make_instance(Problem(g.build(), uniform(2)))
    episode = Episode(instance)
    share = DEVICE_FEATURES.index("sibling_share")
    assert episode.device_features(two)[:, share].tolist() == [0.0, 0.0]
    episode.place(other, 1)
    assert episode.device_features(two)[:, share].tolist() == [0.0, 1.0]


def test_the_distance_to_siblings_is_a_mean_and_of_the_largest_output() -> None:
    g = GraphBuilder("siblings")
    v, p, q, r, s = (g.vertex(n, "matmul", exec_s=1.0) for n in "vpqrs")
    small, large = g.tensor(v, 1.0), g.tensor(v, 5.0)
    for tensor, reader in ((small, r), (large, s), (g.tensor(p, 1.0), r), (g.tensor(q, 1.0), s)):
        g.edge(tensor, reader)
    instance = make_instance(Problem(g.build(), uniform(3)))
    episode = Episode(instance)
    episode.place(p, 0)
    episode.place(q, 1)
    distance = episode.device_features(v)[:, DEVICE_FEATURES.index("sibling_distance")]
    move_s = 0.1 + 5.0
    expected = squeeze(np.array([move_s / 2, move_s / 2, move_s]) / instance.tables.scale_s)
    assert distance == pytest.approx(expected)


def test_inputs_are_no_vertices_of_the_process() -> None:
    g = GraphBuilder("with an input")
    x = g.input("x", output_bytes=1e9)
    h = g.op("h", "matmul", reads=[x], output_bytes=2.0, exec_s=1.0)
    g.op("y", "matmul", reads=[h, x], output_bytes=0.0, exec_s=1.0)
    instance = make_instance(Problem(g.build(), uniform(2)))
    assert instance.vertices.tolist() == [1, 2]
    assert instance.edges.tolist() == [[0], [1]]
    assert instance.vertex_features[0, 1] == 0.0  # what an input sends costs nothing
    assert instance.expand(np.array([[1, 0]])).tolist() == [[-1, 1, 0]]
    assignment = instance.assignment(np.array([1, 0]), np.array([0, 1]), "me")
    assignment.check(instance.graph, instance.topology)
    assert (assignment.placer, assignment.order.tolist()) == ("me", [1, 2])


@pytest.mark.parametrize("factor", [1e-6, 1e4])
def test_features_do_not_depend_on_the_unit_of_time(factor: float) -> None:
    exec_s, edges = [2.0, 4.0, 1.0, 3.0], {(0, 2): 4.0, (1, 2): 2.0, (1, 3): 2.0}
    moves = np.array([1.0, 2.0, 3.0])
    one, other = (
        make_instance(
            Problem(
                graph_of([s * f for s in exec_s], edges, transfer_s=(moves * f).tolist()),
                uniform(3),
            )
        )
        for f in (1.0, factor)
    )
    np.testing.assert_allclose(one.vertex_features, other.vertex_features, rtol=1e-6)
    np.testing.assert_allclose(one.edge_features, other.edge_features, rtol=1e-6)
    order, devices = np.array([1, 3, 0, 2]), np.array([0, 1, 2, 1])
    for (a, v), (b, _) in zip(
        replay(one, order, devices), replay(other, order, devices), strict=True
    ):
        np.testing.assert_allclose(a.device_features(v), b.device_features(v), atol=1e-12)


@settings(max_examples=100)
@given(data=st.data())
def test_features_are_finite_and_not_negative(data: st.DataObject) -> None:
    memories = st.just(float("inf")) | st.integers(1, 40).map(float)
    topology = data.draw(topologies(memory_bytes=memories))
    instance = make_instance(Problem(data.draw(graphs(num_devices=topology.num_devices)), topology))
    for static in (instance.vertex_features, instance.edge_features):
        assert np.isfinite(static).all()
        assert (static >= 0).all()
    episode = Episode(instance)
    while not episode.done:
        vertex = data.draw(st.sampled_from(episode.candidates))
        features = episode.device_features(vertex)
        assert np.isfinite(features).all()
        assert (features >= 0).all()
        assert early(features).any()
        episode.place(vertex, data.draw(st.integers(0, topology.num_devices - 1)))
    graph = instance.graph
    made = ~graph.is_input[graph.tensor_producer]
    results = made & ~np.isin(np.arange(graph.num_tensors), graph.edge_tensor)
    inputs = sum(instance.tables.input_bytes[sorted(on)].sum() for on in episode.inputs_on)
    assert episode.held_bytes.sum() == graph.tensor_bytes[results].sum() + inputs


@pytest.mark.parametrize("exec_s", [0.0, 1e-30, 1e-20])
def test_graphs_without_work_have_features(exec_s: float) -> None:
    graph = graph_of([exec_s] * 2, {(0, 1): 1.0}, transfer_s=[10.0])
    instance = make_instance(Problem(graph, uniform(2)))
    assert np.isfinite(instance.vertex_features).all()
    episode = Episode(instance)
    episode.place(0, 0)
    assert np.isfinite(episode.device_features(1)).all()
    placed = episode.device_features(1)[:, DEVICE_FEATURES.index("placed_share")]
    assert placed.tolist() == [0.5 if exec_s else 0.0] * 2


OUTLOOKS = {  # number of devices; seconds of work, moves, longest path and host
    "least of each": ((1, 100.0, 1.0, 100.0, 0.0), [0.0, 0.0, 0.0, 0.0]),
    "the middle": ((8, 2.0, 2.0, 0.25, 0.25 * 0.09), [0.5, 0.5, 0.5, log(10) / log(101)]),
    "much of each": ((64, 64.0, 6400.0, 1.0, 1.0), [1.0, 1.0, 1.0, 1.0]),
    "more": ((512, 512.0, 512e4, 1.0, 101.99), [1.5, 1.5, 1.5, log(10200) / log(101)]),
    "nothing to move": ((1, 1.0, 0.0, 1.0, 0.0), [0.0, 0.0, 0.0, 0.0]),
    "no work": ((1, 0.0, 1.0, 0.0, 1.0), [0.0, 1.0, 0.0, 0.0]),
    "hardly any work": (
        (1, 1e-300, 1e300, 1e-300, 1e300),
        [0.0, 2.0, 0.0, log1p(1e8) / log(101)],
    ),
}


@pytest.mark.parametrize("case", OUTLOOKS)
def test_the_outlook_by_hand(case: str) -> None:
    given_, expected = OUTLOOKS[case]
    found = outlook(*given_)
    assert found.dtype == np.float32
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_outlook_counts_tensors_once_and_paths_without_moves() -> None:
    """One tensor has three readers, which is 0.1 + 3.9 s once; the longest path is 1 + 3 of 7 s."""
    g = GraphBuilder("fan")
    x = g.input("x", output_bytes=1e9)
    a = g.op("a", "matmul", reads=[x], output_bytes=3.9, exec_s=1.0)
    for name, exec_s in (("b", 1.0), ("c", 2.0), ("d", 3.0)):
        g.op(name, "matmul", reads=[a], output_bytes=1e9, exec_s=exec_s)
    instance = make_instance(Problem(g.build(), uniform(4)))
    assert instance.tables.work_s.tolist() == [1.0, 1.0, 2.0, 3.0]
    expected = outlook(4, 7.0, 4.0, 4.0, 0.0).tolist()
    assert instance.tables.outlook.tolist() == pytest.approx(expected)


def test_the_outlook_counts_what_the_host_starts_without_inputs() -> None:
    """Two vertices and an input: the host takes 2 × 0.75 s, over a mean of 1 s on two devices."""
    g = GraphBuilder("pair")
    x = g.input("x", output_bytes=1e9)
    for name in "ab":
        g.op(name, "matmul", reads=[x], output_bytes=0.0, exec_s=1.0)
    topology = replace(uniform(2), host=Host(dispatch_s=0.75, completion_s=8.0))
    tables = make_instance(Problem(g.build(), topology)).tables
    assert tables.dispatch_s == 0.75
    assert tables.outlook[-1] == pytest.approx(log(151) / log(101))


def scored_in_turn(episode: Episode, vertex: int, count: int) -> list[int]:
    """The first devices that are chosen to be scored, as they are chosen."""
    sets = [set[int](), *(set(episode.scored(vertex, most)) for most in range(1, count + 1))]
    turns = [after - before for before, after in pairwise(sets)]
    assert all(len(turn) == 1 for turn in turns)
    return [device for turn in turns for device in turn]


def test_devices_are_chosen_to_be_scored_by_one_feature_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    episode = Episode(make_instance(Problem(graph_of([1.0]), uniform(16))))
    best = {  # of each feature, in turn
        "guided": [15],
        "extra_end": [3, 7, 11, 14],
        "input_transfer": [4, 5],
        "extra_start": [6],
        "sibling_distance": [9],
        "guide_output": [2],
        "sibling_share": [10],
        "extra_work": [13],
    }
    features = np.ones((16, len(DEVICE_FEATURES)))
    features[:, DEVICE_FEATURES.index("overfull")] = 0.0
    for name, devices in best.items():
        values = 0.1 * np.arange(len(devices))
        the_most = name in ("guided", "sibling_share")
        features[devices, DEVICE_FEATURES.index(name)] = 2.0 if the_most else values
    monkeypatch.setattr(episode, "device_features", lambda vertex: features)
    assert scored_in_turn(episode, 0, 12) == [15, 3, 4, 6, 9, 7, 2, 10, 13, 11, 5, 14]
    features[:, GUIDED] = 0.0  # then the first is the one that ends first, too
    features[[3, 6, 13], DEVICE_FEATURES.index("overfull")] = [1.1, 1.5, 1.2]
    # 7 is the next to end first; no other starts early, so the one that ends first is next.
    assert scored_in_turn(episode, 0, 4) == [7, 11, 4, 14]
    assert scored_in_turn(episode, 0, 15)[-2:] == [3, 13]  # the least full of those
    assert episode.scored(0, 0) == episode.scored(0, 16) == list(range(16))


def test_devices_that_are_scored_are_near_the_inputs_or_fast() -> None:
    graph = graph_of([[1.0] * 5, [5.0, 4.0, 3.0, 2.0, 1.0]], {(0, 1): 10.0})
    episode = Episode(make_instance(Problem(graph, uniform(5))))
    assert scored_in_turn(episode, 0, 4) == [0, 1, 2, 3]  # all are alike
    episode.place(0, 0)
    # The first device, where the input is, ends first; of the others the faster.
    assert scored_in_turn(episode, 1, 4) == [0, 4, 3, 2]


def test_the_sets_of_features() -> None:
    assert FEATURE_SETS["paper"] == DEVICE_FEATURES[:5]
    assert FEATURE_SETS["default"] == DEVICE_FEATURES


def test_devices_of_different_speed_look_different() -> None:
    topology = Topology.preset("a100x2-t4x2")
    episode = Episode(make_instance(Problem(random_dag(vertices=40, depth=5, seed=1), topology)))
    exec_s = episode.device_features(episode.candidates[0])[:, DEVICE_FEATURES.index("exec")]
    assert exec_s[0] == exec_s[1] < exec_s[2] == exec_s[3]


def test_the_host_takes_its_time_and_a_tensor_is_moved_once() -> None:
    """One tensor with two readers elsewhere; a hop is a completion and a dispatch."""
    builder = GraphBuilder("fan")
    tensor = builder.op("a", "matmul", reads=[], output_bytes=1, exec_s=1.0, transfer_s=2.0)
    for name in "bc":
        builder.op(name, "matmul", reads=[tensor], output_bytes=1, exec_s=1.0, transfer_s=2.0)
    host = Host(dispatch_s=0.25, completion_s=0.25)
    instance = make_instance(Problem(builder.build(), replace(uniform(2), host=host)))
    assert instance.tables.hop_s == 0.5
    episode = Episode(instance)
    episode.place(0, 0)
    assert (episode.arrival_s(1, 0), episode.arrival_s(1, 1)) == (1.5, 4.0)
    episode.place(1, 1)
    assert episode.arrival_s(2, 1) == 4.0  # it is there already
    episode.place(2, 1)
    assert episode.end_s.tolist() == [1.0, 5.0, 6.0]


def of_host(episode: Episode, vertex: int) -> tuple[list[float], list[float]]:
    """Of each device, `host_time` in seconds and `host_load`."""
    table, scale_s = episode.device_features(vertex), episode.instance.tables.scale_s
    squeezed, load = (table[:, DEVICE_FEATURES.index(n)] for n in ("host_time", "host_load"))
    return (np.expm1(squeezed * log(101)) / 100 * scale_s).tolist(), load.tolist()


def test_the_host_starts_one_task_after_the_other() -> None:
    """C reads A and B, E reads B; all take 0.5 s, a move 0.25 s, and the host 1 s for each."""
    edges = {(A, C): 1.0, (B, C): 1.0, (B, E): 1.0}
    graph = graph_of([0.5] * 4, edges, transfer_s=[0.25] * 3)
    topology = replace(uniform(2), host=Host(dispatch_s=1.0))
    episode = Episode(make_instance(Problem(graph, topology)))
    assert of_host(episode, A) == ([0.0, 0.0], [0.0, 0.0])
    assert [episode.arrival_s(A, d) for d in (0, 1)] == [0.0, 0.0]

    episode.place(A, 0)  # from 0 to 0.5
    assert episode.host_free_s == 1.0
    assert [episode.arrival_s(B, d) for d in (0, 1)] == [1.0, 1.0]
    assert of_host(episode, B) == ([0.0, 0.0], [2.0, 2.0])  # started by 1, over the end at 0.5

    episode.place(B, 0)  # from 1, although the device is free from 0.5 on
    assert (episode.begin_s[B], episode.host_free_s) == (1.0, 2.0)
    # On the first device B is seen at 2.5. To the second, A moves from 2 and B from 3: the host
    # has started all else by then. It sees a second later that B has arrived, at 3.25.
    assert [episode.arrival_s(C, d) for d in (0, 1)] == [2.5, 4.25]
    times, load = of_host(episode, C)
    assert times == pytest.approx([0.0, 2.0])
    assert load == pytest.approx([2 / 1.5] * 2)
    static = episode.device_features(C)[:, DEVICE_FEATURES.index("dispatch")]
    assert static == pytest.approx(log(401) / log(101))  # 4 s over a mean of 1 s

    episode.place(C, 1)
    assert (episode.begin_s[C], episode.host_free_s) == (4.25, 5.0)
    times, load = of_host(episode, E)
    assert times == pytest.approx([0.0, 1.0])  # the tensor that E reads is not the one C reads
    assert load == pytest.approx([5 / 4.75] * 2)
    assert [episode.arrival_s(E, d) for d in (0, 1)] == [5.0, 6.25]
    episode.place(E, 1)
    assert (episode.begin_s[E], episode.host_free_s) == (6.25, 7.0)


def test_the_host_starts_what_comes_from_it_one_after_the_other() -> None:
    """A transfer from the host takes 2 s, to start a task 3 s."""
    builder = GraphBuilder("streamed")
    x, y = (builder.input(n, output_bytes=6.0, kind="streamed") for n in "xy")
    a = builder.op("a", "matmul", reads=[x, y], output_bytes=4.0, exec_s=0.5)
    builder.op("b", "matmul", reads=[a, x], output_bytes=1.0, exec_s=1.0)
    builder.op("c", "matmul", reads=[x], output_bytes=1.0, exec_s=1.0)
    topology = Topology.uniform(2, bandwidth_bytes_per_s=2.0, host_bandwidth_bytes_per_s=3.0)
    topology = replace(topology, host=Host(dispatch_s=3.0))
    episode = Episode(make_instance(Problem(builder.build(), topology)))
    assert of_host(episode, 0)[0] == pytest.approx([6.0, 6.0])
    episode.place(0, 0)  # x comes from 0 to 2, y from 3 to 5
    assert (episode.begin_s[0], episode.host_free_s) == (8.0, 9.0)
    assert of_host(episode, 2)[0] == pytest.approx([0.0, 3.0])  # x is on the first device
    assert [episode.arrival_s(2, d) for d in (0, 1)] == [9.0, 14.0]
    # x comes to the second device from 9 to 11, and `a`, seen at 11.5, moves from 12 to 14.
    assert of_host(episode, 1)[0] == pytest.approx([0.0, 6.0])
    assert [episode.arrival_s(1, d) for d in (0, 1)] == [11.5, 17.0]


@settings(max_examples=100)
@given(data=st.data())
def test_the_host_has_started_what_was_planned_before(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    instance = make_instance(Problem(data.draw(graphs(num_devices=topology.num_devices)), topology))
    episode, dispatch_s, started = Episode(instance), topology.host.dispatch_s, 0
    while not episode.done:
        vertex = data.draw(st.sampled_from(episode.candidates))
        moved = len(episode.there_s) + len(episode.arrived_s)
        episode.place(vertex, data.draw(st.integers(0, topology.num_devices - 1)))
        moves = len(episode.there_s) + len(episode.arrived_s) - moved
        assert episode.begin_s[vertex] >= (started + moves) * dispatch_s * (1 - 1e-9)
        started += moves + 1
        assert episode.host_free_s == pytest.approx(started * dispatch_s)


def test_siblings_meet_after_chains() -> None:
    """Two chains of three that meet at one vertex, which another edge of one chain also reaches.

    0 → 1 → 2 → 6, 3 → 4 → 5 → 6, and 4 → 7: what 3 makes meets others at 6 and at 7 only after 4.
    """
    chains = {(0, 1): 1.0, (1, 2): 1.0, (2, 6): 1.0, (3, 4): 1.0, (4, 5): 1.0, (5, 6): 1.0}
    instance = make_instance(Problem(graph_of([1] * 8, chains | {(4, 7): 1.0}), uniform(2)))
    tables = instance.tables
    meets = {
        (int(a), int(b)): int(w) for a, b, w in zip(*instance.edges, tables.edge_meets, strict=True)
    }
    assert meets[0, 1] == meets[1, 2] == meets[2, 6] == 6
    assert meets[3, 4] == 4  # which has two readers: nothing is passed on to one alone
    assert meets[4, 5] == meets[5, 6] == 6
    assert meets[4, 7] == 7
    assert tables.is_head.tolist() == [1, 0, 0, 1, 0, 1, 1, 1]
    episode = Episode(instance)
    episode.place(3, 1)
    episode.place(4, 1)
    share = DEVICE_FEATURES.index("sibling_share")
    assert episode.device_features(0)[:, share].tolist() == [0.0, 0.0]
    episode.place(5, 1)
    assert episode.device_features(0)[:, share].tolist() == [0.0, 1.0]
    episode.place(0, 0)
    assert episode.device_features(1)[:, share].tolist() == [1.0, 1.0]  # its own chain, and 5


def small_memories(*bytes_: float) -> Topology:
    """Equal devices and links; the memory of each device in bytes."""
    topology = uniform(len(bytes_))
    devices = [replace(d, memory_bytes=b) for d, b in zip(topology.devices, bytes_, strict=True)]
    return replace(topology, devices=tuple(devices))


def memory(episode: Episode, vertex: int) -> list[list[float]]:
    """Of each device, how full it would be, and the same where that is too much."""
    names = ("memory_share", "overfull")
    columns = [DEVICE_FEATURES.index(name) for name in names]
    return episode.device_features(vertex)[:, columns].tolist()


def test_memory_while_vertices_are_placed() -> None:
    """C reads A (4 bytes) and B (2); E reads B, and makes 3 that nobody reads."""
    g = GraphBuilder("memory")
    x = g.input("x", output_bytes=1e9)
    a = g.op("a", "matmul", reads=[x], output_bytes=3.5, exec_s=1.0)  # whole bytes count
    b = g.op("b", "matmul", reads=[x], output_bytes=2.0, exec_s=1.0)
    g.op("c", "matmul", reads=[a, b], output_bytes=0.0, exec_s=1.0)
    g.op("e", "matmul", reads=[b], output_bytes=3.0, exec_s=1.0)
    episode = Episode(make_instance(Problem(g.build(), small_memories(8.0, 4.0, float("inf")))))
    nothing = [0.0, 0.0]
    assert memory(episode, A) == [[0.5, 0.0], [1.0, 0.0], nothing]
    episode.place(A, 0)
    assert memory(episode, B) == [[0.75, 0.0], [0.5, 0.0], nothing]
    episode.place(B, 1)
    assert episode.held_bytes.tolist() == [4.0, 2.0, 0.0]
    assert memory(episode, C) == [[0.75, 0.0], [1.5, 1.5], nothing]  # with a copy of the other
    episode.place(C, 0)
    assert episode.held_bytes.tolist() == [2.0, 2.0, 0.0]  # A is gone; E reads B, so both stay
    assert memory(episode, E) == [[0.625, 0.0], [1.25, 1.25], nothing]
    episode.place(E, 0)
    assert episode.held_bytes.tolist() == [3.0, 0.0, 0.0]  # a result stays


def test_inputs_count_where_memory_may_run_out() -> None:
    """a and b read w, of 4 bytes; b takes 3 more while it runs. Each makes 2."""
    g = GraphBuilder("weights")
    w = g.input("w", output_bytes=4, kind="resident")
    for name, temporary in (("a", 0), ("b", 3)):
        g.op(name, "matmul", reads=[w], output_bytes=2, exec_s=1, temporary_bytes=temporary)
    graph = g.build()
    episode = Episode(make_instance(Problem(graph, small_memories(10, 20))))
    assert memory(episode, 0) == [[0.6, 0.0], [0.3, 0.0]]
    episode.place(0, 0)
    assert memory(episode, 1) == [[1.1, 1.1], [0.45, 0.0]]
    roomy = Episode(make_instance(Problem(graph, small_memories(11, 20))))
    assert memory(roomy, 1) == [[2 / 11, 0.0], [0.1, 0.0]]


def test_far_too_little_memory_is_all_the_same() -> None:
    g = GraphBuilder("large")
    g.op("a", "matmul", reads=[], output_bytes=1e9, exec_s=1.0)
    episode = Episode(make_instance(Problem(g.build(), small_memories(1.0, 1e8))))
    assert memory(episode, A) == [[MOST_SHARE, MOST_SHARE], [MOST_SHARE, MOST_SHARE]]


def test_early_is_the_first_of_those_with_room_or_nearly() -> None:
    start, overfull = (DEVICE_FEATURES.index(name) for name in ("extra_start", "overfull"))
    features = np.zeros((5, 3, len(DEVICE_FEATURES)))
    features[..., start] = [[0, 1, 0], [0, 1, 2], [0, 2, 2], [0, 1, 0], [0, 1, 2]]
    features[..., overfull] = [[0, 0, 0], [2, 0, 0], [2, 0, 0], [2, 2, 2], [2, 1.5, 1.5]]
    expected = [[1, 0, 1], [0, 1, 0], [0, 1, 1], [1, 0, 1], [0, 1, 0]]
    assert early(features).astype(int).tolist() == expected


def test_features_of_a_guide() -> None:
    devices = np.array([[0, 1, 1, -1]])  # of A, B, C and E: it says nothing of E
    times = np.array([[[4.0, 2.0, 9.0, -1.0], [1.0, 0.5, 0.0, 0.0]]])  # ends, and slack
    episode = Episode(example(), Guide(devices, times))
    names = (
        "guided",
        "guide_output",
        "guide_work",
        "extra_guide_work",
        "guide_late",
        "guide_slack",
    )

    def of(vertex: int) -> list[list[float]]:
        found = seconds(episode, vertex)
        return [pytest.approx(found[name], abs=1e-12) for name in names]

    # A's 4 bytes go to C on device 1; B and C take 2 and 5 s there.
    assert of(A) == [[1, 0], [5, 0], [0, 7], [0, 7], [-2, -1], [1, 1]]
    # B's 2 bytes go to C on device 1, nobody knows where E is; A takes 2 s on device 0.
    assert of(B) == [[0, 1], [3, 0], [2, 5], [0, 3], [2, 0], [0.5, 0.5]]
    episode.place(B, 0)  # which takes 4 s there, and nothing where the guide had it
    assert of(A) == [[1, 0], [5, 0], [4, 5], [0, 1], [-2, -1], [1, 1]]
    assert of(E) == [[0, 0], [0, 0], [6, 5], [1, 0], [0, 0], [0, 0]]


def test_without_a_guide_its_features_are_zero() -> None:
    instance = example()
    for episode in (Episode(instance), Episode(instance, Guide(np.full((1, 4), -1)))):
        episode.place(B, 0)
        assert (episode.device_features(A)[:, GUIDED:] == 0).all()
