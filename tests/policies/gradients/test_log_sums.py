"""SEL's losses in n log n, against those that list all candidates of every step."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mdp.playing import random_weights
from strategies import examples, graphs

from doppler.base.arrays import IntArray
from doppler.graph import Graph
from doppler.mdp import Instance, make_instance
from doppler.mdp.rollout import Roller, Rollouts, Sampling
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import Topology

torch = pytest.importorskip("torch")

from policies.gradients.listed_losses import (  # noqa: E402
    listed_miss,
    listed_select,
    listed_urgent,
    possible,
)
from torch import Tensor  # noqa: E402

from doppler.policies.dual import Scores  # noqa: E402
from doppler.policies.gradients.log_sums import log_sums  # noqa: E402
from doppler.policies.gradients.losses import (  # noqa: E402
    select_log_probs,
    select_miss,
    urgent_since,
)

MACHINE = Topology.preset("p100x4")


def listed_log_sums(values: Tensor, since: IntArray) -> tuple[Tensor, Tensor]:
    """As `log_sums`, where every step lists all."""
    raw = values.unsqueeze(1).masked_fill(~possible(since), -torch.inf)
    return raw.logsumexp(dim=2), (raw.softmax(dim=2) * values.unsqueeze(1)).sum(dim=2)


def with_gradients(
    values: Tensor, compute: Callable[[Tensor], tuple[Tensor, ...]], weights: Tensor
) -> tuple[Tensor, ...]:
    """What is computed of values, and the gradient of its weighted sum."""
    leaf = values.clone().requires_grad_()
    found = compute(leaf)
    sum((weight * one).sum() for weight, one in zip(weights, found, strict=True)).backward()
    assert leaf.grad is not None
    return (*(one.detach() for one in found), leaf.grad)


def assert_same(values: Tensor, since: IntArray, seed: int) -> None:
    """Log-sum-exps, means and gradients are those of the lists, but for the last few bits."""
    weights = torch.as_tensor(np.random.default_rng(seed).normal(size=(2, *values.shape)))
    atol = 1e-13 * (1.0 + float(values.abs().max()))
    mine = with_gradients(values, lambda x: log_sums(x, since), weights)
    listed = with_gradients(values, lambda x: listed_log_sums(x, since), weights)
    for one, other in zip(mine, listed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=atol)


@settings(max_examples=examples(200))
@given(
    steps=st.integers(1, 40),
    spread=st.sampled_from([0.0, 1.0, 30.0, 1e3, 1e5]),
    temperature=st.sampled_from([1.0, 0.3, 0.15]),
    seed=st.integers(0, 999),
)
def test_any_intervals(steps: int, spread: float, temperature: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    since = rng.integers(np.arange(steps) + 1, size=(2, steps))
    scores = rng.uniform(-spread, spread, size=(2, steps))
    assert_same(torch.as_tensor(scores / temperature), since, seed)


@pytest.mark.parametrize("slope", [0.0, 30.0, -30.0])
def test_values_that_run_away_over_a_long_episode(slope: float) -> None:
    """They differ by 30,000 from the first step to the last: no float is as small as that ratio."""
    steps, rng = np.arange(1000), np.random.default_rng(0)
    since = np.maximum(steps - rng.integers(60, size=(2, 1000)), 0)
    assert_same(torch.as_tensor(slope * steps + rng.normal(size=(2, 1000))), since, 0)


def test_nothing_is_lost_when_a_giant_leaves() -> None:
    """Sums from which the giant is subtracted would have nothing left of the others."""
    values = torch.tensor([[0.0, 700.0, 1.0, 2.0]], dtype=torch.float64)
    log_sum, _ = log_sums(values, np.zeros((1, 4), np.int64))
    expected = [700.0, 700.0, 2.0 + np.log1p(np.exp(-1.0)), 2.0]
    assert log_sum[0].tolist() == pytest.approx(expected, rel=1e-15)


def test_those_who_never_take_part_get_no_gradient() -> None:
    values = torch.tensor([[1.0, 5.0, 2.0]], dtype=torch.float64, requires_grad=True)
    log_sum, mean = log_sums(values, np.array([[0, 3, 0]]))
    (log_sum[:, 0] + mean[:, 2]).sum().backward()
    first = np.log(np.exp(1.0) + np.exp(2.0))
    assert log_sum[0].tolist() == pytest.approx([first, 2.0, 2.0])
    share = 1 / (1 + np.exp(1.0))
    assert values.grad.tolist()[0] == pytest.approx([share, 0.0, 2.0 - share])


def test_gradients_by_differences() -> None:
    since = np.array([[0, 0, 1, 0, 4, 2, 3]])
    values = torch.as_tensor(np.random.default_rng(0).normal(size=(1, 7))).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: log_sums(x, since), (values,))


def played(instance: Instance, spread: float) -> tuple[Rollouts, Tensor]:
    """Some episodes, and scores of the vertices."""
    weights = random_weights(instance, 1)
    rollouts = Roller(instance).play(weights, Sampling(epsilon=0.1), np.arange(3))
    score = np.random.default_rng(0).uniform(-spread, spread, size=instance.num_vertices)
    return rollouts, torch.as_tensor(score)


@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.15])
@pytest.mark.parametrize("spread", [1.0, 30.0])
@pytest.mark.parametrize("depth", [2, 20])
def test_selections_of_episodes(depth: int, spread: float, temperature: float) -> None:
    graph = random_dag(vertices=120, depth=depth, seed=0)
    rollouts, score = played(make_instance(Problem(graph, MACHINE)), spread)
    weights = torch.as_tensor(np.random.default_rng(1).normal(size=(2, 3, 120)))
    ways = (select_log_probs, listed_select)
    mine, listed = (
        with_gradients(score, lambda x, way=way: way(plain(x), rollouts, temperature), weights)
        for way in ways
    )
    for one, other in zip(mine, listed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def plain(select: Tensor) -> Scores:
    """Scores without any for places."""
    return Scores(select, None)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gradients_reach_scores_on_a_gpu() -> None:
    graph = random_dag(vertices=60, depth=6, seed=0)
    rollouts, score = played(make_instance(Problem(graph, MACHINE)), 1.0)
    weights = torch.as_tensor(np.random.default_rng(1).normal(size=(2, 3, 60)))
    here, there = (
        with_gradients(
            score.to(device),
            lambda x: select_log_probs(plain(x), rollouts, 0.3),
            weights.to(device),
        )
        for device in ("cpu", "cuda")
    )
    for one, other in zip(here, there, strict=True):
        assert other.is_cuda
        torch.testing.assert_close(one, other.cpu())


@settings(max_examples=examples(200))
@given(graph=graphs(max_vertices=12, num_devices=4))
def test_the_teachers_choices(graph: Graph) -> None:
    instance = make_instance(Problem(graph, MACHINE))
    if instance.num_vertices:
        assert_same_choices(instance)


@pytest.mark.parametrize("depth", [2, 20])
def test_the_teachers_choices_on_larger_graphs(depth: int) -> None:
    graph = random_dag(vertices=120, depth=depth, seed=0)
    assert_same_choices(make_instance(Problem(graph, MACHINE)))


def test_the_teachers_choices_where_all_paths_are_as_long() -> None:
    """Work that takes no time: every candidate is right."""
    instance = make_instance(Problem(random_dag(vertices=40, depth=4, seed=0), MACHINE))
    level = np.zeros(instance.num_vertices)
    instance = replace(instance, tables=instance.tables._replace(bottom_s=level))
    assert_same_choices(instance)


def assert_same_choices(instance: Instance) -> None:
    bottom_s = instance.tables.bottom_s
    rollouts, _ = played(instance, 1.0)
    since = urgent_since(bottom_s[rollouts.order], rollouts.since)
    assert torch.equal(possible(since), listed_urgent(bottom_s, rollouts))


def test_the_cross_entropy_to_the_teacher() -> None:
    instance = make_instance(Problem(random_dag(vertices=80, depth=6, seed=0), MACHINE))
    rollouts, score = played(instance, 3.0)
    bottom_s = instance.tables.bottom_s
    ones = torch.ones(1)
    mine = with_gradients(score, lambda x: (select_miss(instance, plain(x), rollouts),), ones)
    listed = with_gradients(score, lambda x: (listed_miss(bottom_s, plain(x), rollouts),), ones)
    for one, other in zip(mine, listed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)
    half = select_miss(instance, plain(score.float()), rollouts)
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(float(mine[0]), rel=1e-6)
