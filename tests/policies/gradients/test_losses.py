"""Log-probabilities of what episodes did, against the lotteries they were drawn from."""

import numpy as np
import pytest
from mdp.playing import replay, softmax, twenty_devices

from doppler.mdp import Instance, make_instance
from doppler.mdp.kernel import Weights
from doppler.mdp.rollout import Roller, Rollouts, Sampling
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import Topology

torch = pytest.importorskip("torch")

from doppler.policies.dual import DualPolicy, PolicyConfig, Scores, make_policy  # noqa: E402
from doppler.policies.gradients.losses import (  # noqa: E402
    chosen,
    entropy,
    place_log_probs,
    select_log_probs,
)
from doppler.policies.inputs import make_inputs  # noqa: E402
from doppler.policies.plc import place_log_softmax  # noqa: E402


def played(
    topology: Topology | None = None, most: int = 12
) -> tuple[Instance, DualPolicy, Scores, Rollouts]:
    topology = topology or Topology.preset("p100x4")
    instance = make_instance(Problem(random_dag(vertices=30, depth=5, seed=0), topology))
    policy = make_policy(PolicyConfig(width=8, rounds=1, most_devices=most), 0)
    scores = policy(make_inputs(instance))
    rollouts = Roller(instance).play(Weights(**policy.arrays(scores)), Sampling(), np.arange(3))
    return instance, policy, scores, rollouts


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_selections(temperature: float) -> None:
    instance, _, scores, rollouts = played()
    picked, entropies = (t.detach() for t in select_log_probs(scores, rollouts, temperature))
    values = scores.select.detach().numpy().astype(np.float64)
    for b in range(len(rollouts.order)):
        steps = replay(instance, rollouts.order[b], rollouts.devices[b])
        for step, (episode, vertex) in enumerate(steps):
            lots = softmax(values[episode.candidates], temperature)
            expected = np.log(lots[episode.candidates.index(vertex)])
            assert float(picked[b, step]) == pytest.approx(expected, rel=1e-5, abs=1e-6)
            expected = -(lots * np.log(lots)).sum()
            assert float(entropies[b, step]) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("most", [0, 3, 12])
@pytest.mark.parametrize("machine", ["p100x4", "twenty"])
def test_the_device_that_was_chosen(machine: str, most: int) -> None:
    topology = twenty_devices() if machine == "twenty" else Topology.preset(machine)
    _, policy, scores, rollouts = played(topology, most)
    table = place_log_probs(policy, scores, rollouts, 0.5).detach()
    np.testing.assert_allclose(table.exp().sum(dim=2).numpy(), 1.0, rtol=1e-5)
    picked = chosen(table, rollouts).numpy()
    for b, step in np.ndindex(rollouts.order.shape):
        device = rollouts.devices[b, rollouts.order[b, step]]
        place = rollouts.scored[b, step].tolist().index(device)
        assert picked[b, step] == float(table[b, step, place])
    warm = place_log_probs(policy, scores, rollouts)
    plain = place_log_probs(policy, scores, rollouts, 0.5, alike=False)
    np.testing.assert_allclose((2 * warm).log_softmax(2).detach(), plain.detach(), atol=1e-5)


def test_devices_that_cannot_be_told_apart_are_one_choice() -> None:
    """Probabilities .4, and .6 shared by three: squared and normed, the three together win."""
    logits = torch.tensor([0.4, 0.2, 0.2, 0.2]).log()
    found = place_log_softmax(logits, 0.5).exp()
    together = 0.36 / (0.16 + 0.36)
    np.testing.assert_allclose(found, [1 - together, *[together / 3] * 3], rtol=1e-5)
    np.testing.assert_allclose(place_log_softmax(logits, 1.0).exp(), logits.exp(), rtol=1e-5)
    alone = place_log_softmax(logits, 0.5, alike=False).exp()
    np.testing.assert_allclose(alone, np.array([16, 4, 4, 4]) / 28, rtol=1e-5)


def test_entropy_of_lotteries_known_by_heart() -> None:
    never = -torch.inf
    lots = torch.tensor([[[0.0, 0.0, never, never], [0.0, never, never, never], [0.0] * 4]])
    found = entropy(lots.log_softmax(dim=2))
    assert found[0].tolist() == pytest.approx(np.log([2, 1, 4]).tolist(), abs=1e-6)


def test_gradients_are_finite_where_choices_are_impossible() -> None:
    _, policy, scores, rollouts = played()
    picked, entropies = select_log_probs(scores, rollouts)
    place = place_log_probs(policy, scores, rollouts)
    (entropies.sum() + entropy(place).sum() + picked.sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
