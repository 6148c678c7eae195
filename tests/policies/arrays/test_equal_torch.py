"""Policies as arrays against the torch networks: the same scores, and the same episodes."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mdp.playing import twenty_devices
from strategies import examples, graphs, topologies

from doppler.base.arrays import IntArray
from doppler.graph import Graph
from doppler.mdp.features import FEATURE_SETS, TIE
from doppler.mdp.instance import Instance, make_instance
from doppler.mdp.kernel import Weights
from doppler.mdp.rollout import GREEDY, Rollouts, Sampling
from doppler.policies.arrays.acting import play
from doppler.policies.arrays.checkpoint import read_policy
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.arrays.policy import from_torch, shapes_of
from doppler.problem import Problem
from doppler.programs.random_dag import random_dag
from doppler.topology import Topology, read_topology

torch = pytest.importorskip("torch")

from doppler.policies.acting import Actor  # noqa: E402
from doppler.policies.checkpoint import save_policy, to_torch  # noqa: E402
from doppler.policies.dual import DualPolicy, make_policy  # noqa: E402
from doppler.policies.gradients.losses import steps_of  # noqa: E402
from doppler.policies.inputs import NUM_STATE_COLUMNS, make_inputs  # noqa: E402
from doppler.policies.plc import log_same  # noqa: E402

CLOSE = 1e-5
MACHINES = {
    **{name: read_topology(name) for name in ("p100x4", "v100x8", "a100x2-t4x2")},
    "twenty": twenty_devices(),
}
WARM = Sampling(select_temperature=0.3, place_temperature=0.3)
SHAPES = [
    PolicyConfig(),
    PolicyConfig(width=7, rounds=1, features="paper", most_devices=0),
    PolicyConfig(width=8, rounds=1, most_devices=3),
    PolicyConfig(width=16, rounds=3, place=False),
    PolicyConfig(width=2, rounds=0, select=False),
]


def mindful(config: PolicyConfig, seed: int) -> DualPolicy:
    """A policy all of whose weights matter: none are zero, nor those of the norms one."""
    policy = make_policy(config, seed)
    rng = torch.Generator().manual_seed(seed)
    for layer in (policy.encoder.embed, policy.features):
        layer.weight.data[:, -NUM_STATE_COLUMNS:] = 0.3
    for one in policy.encoder.rounds:
        one.norm.weight.data += 0.2 * torch.randn(config.width, generator=rng)
        one.norm.bias.data += 0.2 * torch.randn(config.width, generator=rng)
    return policy


def by_torch(policy: DualPolicy, instance: Instance) -> Weights:
    return Weights(**policy.arrays(policy.scores(make_inputs(instance))))


def assert_close(policy: DualPolicy, instance: Instance) -> None:
    mine, other = from_torch(policy).on(instance), by_torch(policy, instance)
    for field, one, two in zip(Weights._fields, mine, other, strict=True):
        assert (one.dtype, one.shape) == (two.dtype, two.shape), field
        scale = max(1.0, float(np.abs(two).max(initial=0.0)))  # float32 has seven digits
        np.testing.assert_allclose(one, two, rtol=0, atol=CLOSE * scale, err_msg=field)


def configs() -> st.SearchStrategy[PolicyConfig]:
    return st.builds(
        PolicyConfig,
        width=st.integers(2, 40),
        rounds=st.integers(0, 6),
        features=st.sampled_from(sorted(FEATURE_SETS)),
        most_devices=st.integers(0, 20),
    )


@settings(max_examples=examples(150))
@given(data=st.data(), config=configs(), seed=st.integers(0, 99))
def test_scores_on_odd_graphs(data: st.DataObject, config: PolicyConfig, seed: int) -> None:
    topology = data.draw(topologies())
    graph = data.draw(graphs(max_vertices=14, num_devices=topology.num_devices))
    assert_close(mindful(config, seed), make_instance(Problem(graph, topology)))


@pytest.mark.parametrize(("machine", "vertices"), list(product(MACHINES, (1, 33, 229, 1000))))
def test_scores_on_larger_graphs(machine: str, vertices: int) -> None:
    for seed, config in enumerate(SHAPES):
        graph = random_dag(vertices=vertices, depth=min(9, vertices), seed=seed)
        assert_close(mindful(config, seed), make_instance(Problem(graph, MACHINES[machine])))


def test_scores_of_many_readers_and_long_chains() -> None:
    """Sums of thousands of terms, the same order or not."""
    for depth in (2, 2000):
        graph = random_dag(vertices=2000, depth=depth, seed=0)
        assert_close(
            mindful(PolicyConfig(), 0), make_instance(Problem(graph, read_topology("p100x4")))
        )


def differing(one: Rollouts, other: Rollouts) -> IntArray:
    """Episodes that are not the same in both."""
    order = (one.order != other.order).any(axis=1)
    return np.flatnonzero(order | (one.devices != other.devices).any(axis=1))


def is_tie(policy: DualPolicy, actor: Actor, one: Rollouts, other: Rollouts, b: int) -> bool:
    """Whether episode b of two greedy ones first differs where a policy is of two minds."""
    scores = policy.scores(actor.inputs)
    went, went_too = one.devices[b][one.order[b]], other.devices[b][other.order[b]]
    unequal = (one.order[b] != other.order[b]) | (went != went_too)
    step = int(np.argmax(unequal))
    v, u = int(one.order[b, step]), int(other.order[b, step])
    if v != u:
        return bool(abs(scores.select[v] - scores.select[u]) <= 2 * CLOSE)
    with torch.no_grad():
        logits = policy.place(scores.place, steps_of(scores.select, one))[b, step]
    apart = (logits[:, None] - logits[None]).abs()
    on_the_edge = bool(((apart - TIE).abs() <= CLOSE).logical_and(apart > 0).any())
    value = logits + log_same(logits)
    places = np.searchsorted(one.scored[b, step], [went[step], went_too[step]])
    return on_the_edge or bool(abs(value[places[0]] - value[places[1]]) <= 3 * CLOSE)


def with_memory(topology: Topology, graph: Graph, seed: int) -> Topology:
    """Every other time, devices that hold only a few of the graph's tensors."""
    if seed % 2:
        return topology
    small = 4 * graph.tensor_bytes.max()
    devices = tuple(replace(device, memory_bytes=small) for device in topology.devices)
    return replace(topology, devices=devices)


@pytest.mark.parametrize("config", SHAPES, ids=str)
def test_the_same_episodes_for_the_same_seeds(config: PolicyConfig) -> None:
    played, apart = 0, 0
    for machine, vertices, seed in product(MACHINES, (30, 200), range(4)):
        graph = random_dag(vertices=vertices, depth=8, bytes_per_flop=2e-6, seed=seed)
        instance = make_instance(Problem(graph, with_memory(MACHINES[machine], graph, seed)))
        policy = mindful(config, seed)
        actor, weights, seeds = Actor(instance), from_torch(policy).on(instance), np.arange(8)
        scores = policy.scores(actor.inputs)
        one = actor.play(policy, scores, GREEDY, seeds)
        other = play(actor.roller, weights, config, GREEDY, seeds)
        for b in differing(one, other).tolist():
            assert is_tie(policy, actor, one, other, b)
        one = actor.play(policy, scores, WARM, seeds)
        other = play(actor.roller, weights, config, WARM, seeds)
        played, apart = played + len(seeds), apart + len(differing(one, other))
    assert apart <= played / 50  # numbers drawn within rounding of where one choice ends


@pytest.mark.parametrize("config", [*SHAPES, PolicyConfig(width=3, rounds=2)], ids=str)
def test_the_same_tensors(config: PolicyConfig, tmp_path: Path) -> None:
    policy = mindful(config, 0)
    state = policy.state_dict()
    assert shapes_of(config) == {name: tuple(tensor.shape) for name, tensor in state.items()}
    save_policy(policy, tmp_path / "policy", {})
    arrays = read_policy(tmp_path / "policy")
    assert arrays.config == config
    for name, tensor in to_torch(arrays).state_dict().items():
        assert np.array_equal(arrays.tensors[name], state[name].numpy())
        assert torch.equal(tensor, state[name])


def test_the_copy_of_a_torch_policy_is_its_own() -> None:
    policy = mindful(SHAPES[1], 0)
    arrays = from_torch(policy)
    with torch.no_grad():
        policy.place.out.weight += 1
    assert not np.array_equal(arrays.tensors["place.out.weight"], policy.place.out.weight.detach())
    copied = to_torch(arrays)
    with torch.no_grad():
        copied.place.out.weight += 1
    assert not np.array_equal(arrays.tensors["place.out.weight"], copied.place.out.weight.detach())


def test_a_policy_of_doubles_is_rounded() -> None:
    policy = mindful(SHAPES[1], 0)
    arrays = from_torch(policy.double())
    assert {array.dtype for array in arrays.tensors.values()} == {np.dtype(np.float32)}
