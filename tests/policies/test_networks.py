"""The networks against loops that follow the equations, and under other numberings."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mdp.playing import graph_of, last_step_on, play, replay, twenty_devices, uniform
from strategies import graphs, topologies

from doppler.base.arrays import IntArray
from doppler.graph import Graph, build_graph
from doppler.graph.levels import Levels
from doppler.mdp import FEATURE_SETS, Episode, Instance, make_instance
from doppler.mdp.features import CROWDED, DEVICE_FEATURES, OVERFULL, TIE
from doppler.mdp.guide import Guide
from doppler.mdp.kernel import Weights
from doppler.mdp.rollout import (
    GREEDY,
    UNASSIGNED,
    PartialAssignments,
    Roller,
    Rollouts,
    Sampling,
)
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import Topology

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.nn.functional import leaky_relu  # noqa: E402

from doppler.errors import ConfigError, UnknownNameError  # noqa: E402
from doppler.policies import plc  # noqa: E402
from doppler.policies.dual import DualPolicy, PolicyConfig, Scores, make_policy  # noqa: E402
from doppler.policies.gradients.losses import steps_of  # noqa: E402
from doppler.policies.inputs import (  # noqa: E402
    NUM_STATE_COLUMNS,
    Inputs,
    doubled,
    make_inputs,
    path_sums,
    replicate,
    with_state,
)
from doppler.policies.plc import Steps, place_log_softmax, sums_by_device  # noqa: E402
from doppler.training.presets import PRESETS  # noqa: E402

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def small_policy(
    features: str = "default", *, seed: int = 0, rounds: int = 2, most: int = 12
) -> DualPolicy:
    """A policy that minds the state of the episode too."""
    config = PolicyConfig(width=8, rounds=rounds, features=features, most_devices=most)
    policy = make_policy(config, seed)
    for layer in (policy.encoder.embed, policy.features):
        layer.weight.data[:, -NUM_STATE_COLUMNS:] = 0.5
    return policy


def scored(policy: DualPolicy, instance: Instance) -> Scores:
    with torch.no_grad():
        scores: Scores = policy(make_inputs(instance))
    return scores


def weights_of(policy: DualPolicy, scores: Scores) -> Weights:
    return Weights(**policy.arrays(scores))


def larger(machine: str = "a100x2-t4x2", seed: int = 0) -> Instance:
    """A graph of 50 vertices; the devices of a `small` machine hold only a few of its tensors."""
    name, _, small = machine.partition(" ")
    graph = random_dag(vertices=50, depth=6, seed=seed)
    topology = twenty_devices() if name == "twenty" else Topology.preset(name)
    if small:
        most = 4 * graph.tensor_bytes.max()
        devices = tuple(replace(d, memory_bytes=most) for d in topology.devices)
        topology = replace(topology, devices=devices)
    return make_instance(Problem(graph, topology))


def paths(instance: Instance) -> tuple[Levels, Levels]:
    """Longest paths to an entry and to an exit, as the graph knows them."""
    return instance.problem.top_levels, instance.problem.bottom_levels


@settings(max_examples=60)
@given(data=st.data())
def test_sums_along_paths_equal_a_walk_along_each(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    instance = make_instance(
        Problem(data.draw(graphs(max_vertices=14, num_devices=topology.num_devices)), topology)
    )
    inputs = make_inputs(instance)
    values = np.random.default_rng(0).normal(size=(instance.graph.num_vertices, 3))
    ours = torch.as_tensor(values[instance.vertices])
    for levels, jumps, length in zip(
        paths(instance),
        (inputs.entry_paths, inputs.exit_paths),
        (inputs.entry_length, inputs.exit_length),
        strict=True,
    ):
        walks = [levels.path(v) for v in instance.vertices.tolist()]
        expected = np.array([values[walk].sum(axis=0) for walk in walks]).reshape(-1, 3)
        np.testing.assert_allclose(path_sums(ours, jumps).numpy(), expected, atol=1e-12)
        assert length[:, 0].tolist() == [len(walk) for walk in walks]


def test_sums_along_a_long_path_take_few_steps() -> None:
    jumps = doubled(torch.tensor([*range(1, 1000), -1]))
    assert len(jumps) == 10
    sums = path_sums(torch.ones(1000, 1), jumps)
    assert sums[:, 0].tolist() == list(range(1000, 0, -1))


def spread(columns: np.ndarray) -> Tensor:
    return torch.as_tensor(np.concatenate([np.log1p(columns), np.sqrt(columns)], axis=1))


def embeddings(policy: DualPolicy, instance: Instance) -> tuple[Tensor, Tensor]:
    """H and Z, by a loop over the vertices and their neighbours."""
    state = torch.as_tensor(Episode(instance).vertex_state(), dtype=torch.float32)
    x = torch.cat([spread(instance.vertex_features), state], dim=1)
    edges = spread(instance.edge_features)
    h = policy.encoder.embed(x)
    pairs = list(zip(*instance.edges.tolist(), strict=True))
    for one in policy.encoder.rounds:
        width = h.shape[1]
        ends, edge = one.ends.weight.chunk(4), one.edge.weight.chunk(2)
        bias = one.ends.bias.chunk(4)
        rows = []
        for v in range(len(h)):
            received, returned = torch.zeros(width), torch.zeros(width)
            for e, (producer, reader) in enumerate(pairs):
                if reader == v:
                    message = ends[0] @ h[producer] + bias[0] + ends[1] @ h[v] + bias[1]
                    received += leaky_relu(message + edge[0] @ edges[e])
                if producer == v:
                    message = ends[2] @ h[reader] + bias[2] + ends[3] @ h[v] + bias[3]
                    returned += leaky_relu(message + edge[1] @ edges[e])
            update = leaky_relu(one.update(torch.cat([h[v], received, returned])))
            rows.append(one.norm(h[v] + update))
        h = torch.stack(rows)
    return h, policy.features(x)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_the_encoder_and_sel_follow_their_equations(rounds: int) -> None:
    instance, policy = larger(), small_policy(rounds=rounds)
    with torch.no_grad():
        h, z = embeddings(policy, instance)
        encoded = policy.encoder(make_inputs(instance))
        np.testing.assert_allclose(encoded.numpy(), h.numpy(), **CLOSE)
        index = {v: i for i, v in enumerate(instance.vertices.tolist())}
        expected = []
        for v in instance.vertices.tolist():
            means = [
                h[[index[u] for u in levels.path(v)]].mean(dim=0) for levels in paths(instance)
            ]
            row = torch.cat([h[index[v]], *means, z[index[v]]])
            expected.append(float(policy.select.head(row)))
    assert len(set(expected)) > 40
    np.testing.assert_allclose(scored(policy, instance).select.numpy(), expected, **CLOSE)


def random_guide(instance: Instance) -> Guide:
    """Two assignments with gaps, and random seconds."""
    rng, size = np.random.default_rng(1), (2, instance.num_vertices)
    times = rng.random((2, *size)) * instance.tables.scale_s
    return Guide(rng.integers(UNASSIGNED, instance.num_devices, size=size), times)


def logits_by_hand(
    policy: DualPolicy, instance: Instance, rollouts: Rollouts, b: int, guide: Guide
) -> np.ndarray:
    """(n, C) PLC's logits at each step of episode b, from the equation of `Place`."""
    place = policy.place
    columns = [DEVICE_FEATURES.index(name) for name in FEATURE_SETS[policy.config.features]]
    n, num_devices = instance.num_vertices, instance.num_devices
    h = policy.encoder(make_inputs(instance))
    z = policy.features(make_inputs(instance).vertices)
    table = torch.zeros(rollouts.scored[b].shape)
    steps = replay(instance, rollouts.order[b], rollouts.devices[b], guide)
    for step, (episode, v) in enumerate(steps):
        scored = rollouts.scored[b, step].tolist()
        seen = torch.as_tensor(episode.device_features(v), dtype=torch.float32)
        for i, d in enumerate(scored):
            here = np.flatnonzero(episode.devices == d)
            h_d = h[here].sum(dim=0) * num_devices / n
            layer = place.vertex(torch.cat([h[v], z[v]])) + place.placed(h_d)
            layer = layer + place.feature(seen[d, columns])
            table[step, i] = place.out(leaky_relu(place.hidden(leaky_relu(layer))))
            if policy.config.features == "default":
                table[step, i] -= CROWDED * (seen[d, OVERFULL] - seen[scored, OVERFULL].min())
    return table.numpy()


@pytest.mark.parametrize("is_guided", [False, True])
@pytest.mark.parametrize("features", ["paper", "default"])
@pytest.mark.parametrize(
    "machine",
    ["reference:1", "cpu2", "a100x2-t4x2", "v100x8", "v100x8 small", "twenty", "twenty small"],
)
def test_teacher_forced_logits_equal_those_of_each_step(
    features: str, machine: str, is_guided: bool
) -> None:
    policy = small_policy(features)
    alone = make_instance(Problem(chain(), uniform(1)))
    instance = alone if machine == "reference:1" else larger(machine)
    scores = scored(policy, instance)
    given_ = np.random.default_rng(0).integers(instance.num_devices, size=instance.num_vertices)
    partial = PartialAssignments(np.stack([np.full_like(given_, UNASSIGNED), given_]))
    guide = Guide(partial.devices)  # without another, what is given already is compared with
    if is_guided:
        guide = random_guide(instance)
        partial = partial._replace(guide=guide)
    weights = weights_of(policy, scores)
    rollouts = Roller(instance).play(weights, Sampling(), np.arange(2), partial=partial)
    with torch.no_grad():
        logits = policy.place(scores.place, steps_of(scores.select, rollouts)).numpy()
        assert logits.shape == (2, instance.num_vertices, min(instance.num_devices, 12))
        for b in range(2):
            expected = logits_by_hand(policy, instance, rollouts, b, guide.rows(slice(b, b + 1)))
            np.testing.assert_allclose(logits[b], expected, **CLOSE)
    assert instance.num_devices == 1 or logits.std(axis=2).max() > 1e-3


def test_logits_do_not_depend_on_how_many_are_computed_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance, policy = larger(), small_policy()
    scores = scored(policy, instance)
    rollouts = Roller(instance).play(weights_of(policy, scores), Sampling(), np.arange(5))
    steps = steps_of(scores.select, rollouts)
    with torch.no_grad():
        whole = policy.place(scores.place, steps)
        monkeypatch.setattr(plc, "CHUNK", 2 * 50 * 4)
        parts = policy.place(scores.place, steps)
    np.testing.assert_allclose(whole.numpy(), parts.numpy(), **CLOSE)


def chain() -> Graph:
    return graph_of([1.0, 2.0, 3.0], {(0, 1): 1.0, (1, 2): 1.0})


@pytest.mark.parametrize(
    ("features", "machine", "most"),
    [
        ("paper", "a100x2-t4x2", 12),
        ("default", "a100x2-t4x2", 12),
        ("default", "a100x2-t4x2", 3),
        ("paper", "twenty", 0),
        ("default", "twenty", 12),
        ("default", "twenty small", 12),
    ],
)
def test_the_kernel_draws_from_the_teacher_forced_logits(
    features: str, machine: str, most: int
) -> None:
    """With all devices given but one vertex's, what is left in memory are its logits."""
    instance, policy = larger(machine), small_policy(features, most=most)
    count = min(most or instance.num_devices, instance.num_devices)
    scores = scored(policy, instance)
    weights = weights_of(policy, scores)
    rollouts = Roller(instance).play(weights, Sampling(), np.arange(1))
    with torch.no_grad():
        logits = policy.place(scores.place, steps_of(scores.select, rollouts))[0].numpy()
    assert logits.shape == (50, count)
    for step, vertex in enumerate(rollouts.order[0].tolist()):
        devices_but_one = rollouts.devices.copy()
        devices_but_one[0, vertex] = UNASSIGNED
        partial = PartialAssignments(devices_but_one)
        sampling = Sampling(place_temperature=0.0, alike=False)  # the same order; the best device
        played = play(instance, weights, sampling, partial=partial)
        found = played.state.logits[:count]
        np.testing.assert_allclose(found, logits[step], **CLOSE)
        place = rollouts.scored[0, step].tolist().index(played.record.devices[0, vertex])
        assert found[place] >= found.max() - TIE  # of those as good, the lowest id
        for alike in (False, True):
            sampling = Sampling(place_temperature=0.5, alike=alike)
            warm = play(instance, weights, sampling, partial=partial)
            expected = place_log_softmax(torch.as_tensor(logits[step]), 0.5, alike=alike).exp()
            shares = warm.state.logits[:count] / warm.state.logits[:count].sum()
            np.testing.assert_allclose(shares, expected, **CLOSE)


def test_the_kernel_selects_by_the_scores() -> None:
    instance, policy = larger(), small_policy()
    scores = scored(policy, instance)
    select = scores.select.numpy()
    (order,) = play(instance, weights_of(policy, scores), GREEDY).record.order
    for episode, vertex in replay(instance, order, np.zeros(50, np.int64)):
        assert select[vertex] == select[episode.candidates].max()


def renumbered(graph: Graph, new: IntArray) -> Graph:
    """The same graph with vertex v called new[v], and its tensors shuffled."""
    back, rng = np.argsort(new), np.random.default_rng(1)
    tensors = rng.permutation(graph.num_tensors)  # old tensor of each new one
    now = np.argsort(tensors)
    return build_graph(
        name=graph.name,
        kinds=[graph.kinds[v] for v in back],
        flops=graph.flops[back],
        touched_bytes=graph.touched_bytes[back],
        dtypes=[graph.dtypes[v] for v in back],
        tensor_producer=new[graph.tensor_producer[tensors]],
        tensor_bytes=graph.tensor_bytes[tensors],
        edge_tensor=now[graph.edge_tensor],
        edge_reader=new[graph.edge_reader],
    )


def untied(seed: int) -> Graph:
    """A random graph no two of whose paths are equally long."""
    columns, rng = (
        random_dag(vertices=50, depth=6, seed=seed).columns(),
        np.random.default_rng(seed),
    )
    for name in ("flops", "touched_bytes", "tensor_bytes"):
        columns[name] = columns[name] * (1 + rng.random(len(columns[name])))
    return build_graph(**columns)


def place_logits(
    policy: DualPolicy, instance: Instance, order: IntArray, devices: IntArray
) -> np.ndarray:
    """(n, D) PLC's logits when vertices come in an order and go to given devices."""
    scores, every = scored(policy, instance), range(instance.num_devices)
    features, last_step = [], []
    for episode, v in replay(instance, order, devices):
        features.append(episode.device_features(v))
        last_step.append([last_step_on(episode, d) for d in every])
    arrays = (order, devices[order], np.array(features, np.float32), np.array(last_step))
    steps = Steps(*(torch.as_tensor(array)[None] for array in arrays))
    with torch.no_grad():
        logits: np.ndarray = policy.place(scores.place, steps)[0].numpy()
    return logits


@pytest.mark.parametrize("seed", [0, 1])
def test_other_numbers_for_vertices_change_nothing(seed: int) -> None:
    graph, topology, policy = untied(seed), Topology.preset("a100x2-t4x2"), small_policy(seed=seed)
    new = np.random.default_rng(seed).permutation(graph.num_vertices)
    one, other = (
        make_instance(Problem(graph, topology)),
        make_instance(Problem(renumbered(graph, new), topology)),
    )
    to = np.searchsorted(other.vertices, new[one.vertices])  # of assigned ones among themselves
    assert sorted(to) == list(range(50))
    assert to.tolist() != list(range(50))
    with torch.no_grad():
        np.testing.assert_allclose(
            policy.encoder(make_inputs(one)).numpy(),
            policy.encoder(make_inputs(other)).numpy()[to],
            **CLOSE,
        )
    mine, theirs = scored(policy, one), scored(policy, other)
    np.testing.assert_allclose(mine.select.numpy(), theirs.select.numpy()[to], **CLOSE)
    (order,) = play(one, weights_of(policy, mine)).record.order
    devices = np.random.default_rng(seed).integers(4, size=50)
    moved = np.zeros_like(devices)
    moved[to] = devices
    np.testing.assert_allclose(
        place_logits(policy, one, order, devices),
        place_logits(policy, other, to[order], moved),
        **CLOSE,
    )


def test_other_numbers_for_equal_devices_change_nothing() -> None:
    rng, policy = np.random.default_rng(0), small_policy()
    edges = {(i, j): float(rng.random()) for i in range(12) for j in range(i + 1, 12, 3)}
    instance = make_instance(Problem(graph_of(rng.random(12).tolist(), edges), uniform(4)))
    devices, to = rng.integers(4, size=12), np.array([2, 0, 3, 1])
    order = np.arange(12)
    mine = place_logits(policy, instance, order, devices)
    theirs = place_logits(policy, instance, order, to[devices])
    np.testing.assert_allclose(mine, theirs[:, to], **CLOSE)
    assert abs(mine - theirs).max() > 1e-3


@pytest.mark.parametrize("num_devices", [1, 2, 3, 7, 16])
def test_one_policy_for_any_number_of_devices(num_devices: int) -> None:
    policy = small_policy(most=0)
    instance = make_instance(Problem(chain(), uniform(num_devices)))
    rollouts = Roller(instance).play(
        weights_of(policy, scored(policy, instance)), Sampling(), np.arange(200)
    )
    assert sorted(set(rollouts.devices.flat)) == list(range(num_devices))


def test_the_paper_scores_all_devices() -> None:
    config = PRESETS["paper"].policy
    instance, policy = larger("twenty"), make_policy(replace(config, width=8, rounds=1), 0)
    weights = weights_of(policy, scored(policy, instance))
    rollouts = Roller(instance).play(weights, Sampling(), np.arange(2))
    assert rollouts.features.shape == (2, 50, 20, len(DEVICE_FEATURES))
    assert (rollouts.scored == np.arange(20)).all()


@pytest.mark.parametrize(("episodes", "steps", "num_devices"), [(3, 17, 4), (2, 9, 30), (2, 5, 1)])
def test_sums_by_device_equal_a_loop(episodes: int, steps: int, num_devices: int) -> None:
    rng = np.random.default_rng(steps)
    added = torch.as_tensor(rng.normal(size=(episodes, steps, 3))).requires_grad_()
    devices = torch.as_tensor(rng.integers(num_devices, size=(episodes, steps)))
    expected = torch.zeros(episodes, steps + 1, 3, dtype=torch.float64)
    for b in range(episodes):
        on_device: dict[int, Tensor] = {}
        for step, device in enumerate(devices[b].tolist()):
            on_device[device] = on_device.get(device, torch.zeros(3)) + added[b, step]
            expected[b, step + 1] = on_device[device]
    found = sums_by_device(added, devices)
    torch.testing.assert_close(found, expected)
    weights = torch.as_tensor(rng.normal(size=found.shape))
    gradients = [torch.autograd.grad((weights * sums).sum(), added) for sums in (found, expected)]
    torch.testing.assert_close(*gradients)
    assert (gradients[0][0] != 0).all()


def test_copies_side_by_side_are_scored_as_each_alone() -> None:
    instance, policy, rng = larger(), small_policy(), np.random.default_rng(0)
    inputs = make_inputs(instance)
    states = torch.as_tensor(rng.random((3, 50, NUM_STATE_COLUMNS)), dtype=torch.float32)
    with torch.no_grad():
        together = policy(with_state(replicate(inputs, 3), states.flatten(0, 1)))
        for b, state in enumerate(states):
            alone = policy(with_state(inputs, state))
            rows = slice(50 * b, 50 * (b + 1))
            for mine, theirs in (
                (together.select, alone.select),
                (together.place.vertex, alone.place.vertex),
                (together.place.placed, alone.place.placed),
            ):
                np.testing.assert_allclose(mine[rows].numpy(), theirs.numpy(), **CLOSE)
    assert together.select.reshape(3, 50).std(dim=0).max() > 1e-3


def test_a_new_policy_does_not_mind_the_state_of_the_episode() -> None:
    inputs, policy = make_inputs(larger()), make_policy(PolicyConfig(width=8, rounds=2), 0)
    before, after = policy(inputs), policy(with_state(inputs, torch.ones(50, NUM_STATE_COLUMNS)))
    assert torch.equal(before.select, after.select)
    assert torch.equal(before.place.vertex, after.place.vertex)


def test_the_same_seed_makes_the_same_policy_and_leaves_torchs_generator_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (small_policy(seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    name = "place.vertex.weight"
    assert torch.equal(one.state_dict()[name], same.state_dict()[name])
    assert not torch.equal(one.state_dict()[name], other.state_dict()[name])


def test_policies_of_no_shape_are_refused() -> None:
    for bad in ({"width": 1}, {"rounds": -1}, {"most_devices": -1}):
        with pytest.raises(ConfigError):
            PolicyConfig(**bad)
    with pytest.raises(UnknownNameError, match="did you mean `paper`"):
        PolicyConfig(features="papers")


def test_a_graph_without_edges_and_gradients_everywhere() -> None:
    """Every weight matters to some log-probability, so every weight can learn."""
    policy, instance = small_policy(), larger("twenty")
    scores = policy(make_inputs(instance))
    rollouts = Roller(instance).play(weights_of(policy, scores), Sampling(), np.arange(2))
    logits = policy.place(scores.place, steps_of(scores.select, rollouts))
    (logits.log_softmax(2).pow(2).sum() + scores.select.log_softmax(0).pow(2).sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    lonely: Inputs = make_inputs(make_instance(Problem(graph_of([1.0, 2.0]), uniform(2))))
    assert lonely.num_vertices == 2
    assert torch.isfinite(policy(lonely).select).all()
