"""Every kind of policy can be trained: the same forward pass, shapes and gradients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from doppler.mdp import make_instance  # noqa: E402
from doppler.mdp.instance import Instance  # noqa: E402
from doppler.mdp.rollout import Sampling  # noqa: E402
from doppler.policies.arrays.config import PolicyConfig  # noqa: E402
from doppler.policies.configs import (  # noqa: E402
    AnyConfig,
    GdpConfig,
    PlacetoConfig,
    Seq2SeqConfig,
)
from doppler.policies.kinds import make_any  # noqa: E402
from doppler.problem import Problem  # noqa: E402
from doppler.programs import random_dag  # noqa: E402
from doppler.topology import Topology  # noqa: E402

DUAL = PolicyConfig(width=4, rounds=1)
CONFIGS: dict[str, AnyConfig] = {
    "dual": DUAL,
    "dual, SEL only": replace(DUAL, place=False),
    "dual, PLC only": replace(DUAL, select=False),
    "placeto": PlacetoConfig(width=4, rounds=1, devices=4),
    "gdp": GdpConfig(width=4, devices=4),
    "seq2seq": Seq2SeqConfig(width=4, groups=5, devices=4),
}
EVERY = pytest.mark.parametrize("name", CONFIGS)


def instance() -> Instance:
    return make_instance(
        Problem(random_dag(vertices=15, depth=4, seed=0), Topology.preset("p100x4"))
    )


def on(name: str) -> tuple[Any, Any]:
    policy: Any = make_any(CONFIGS[name], 1)
    return policy, policy.on(policy.view(instance()))


@EVERY
def test_what_was_played_without_a_record_can_be_recorded(name: str) -> None:
    _, forward = on(name)
    seeds, rows, warm = np.arange(7, 13), np.array([4, 1]), Sampling(epsilon=0.2)
    played = forward.play(warm, seeds, record=False)
    assert played.devices.shape == played.order.shape == (6, forward.instance.num_vertices)
    again = forward.recorded(played, rows, warm, seeds)
    assert np.array_equal(again.devices, played.devices[rows])
    assert np.array_equal(again.order, played.order[rows])
    assert np.array_equal(forward.play(warm, seeds).devices, played.devices)


@EVERY
def test_choices_and_the_rule_have_gradients(name: str) -> None:
    policy, forward = on(name)
    rollouts = forward.play(Sampling(), np.arange(3))
    choices = forward.choices(rollouts, Sampling())
    assert len(choices) == (2 if name == "dual" else 1)
    weights = list(policy.parameters())
    for each in choices:
        assert each.log_probs.shape == each.entropies.shape
        assert (each.log_probs <= 0).all()
        assert (each.entropies >= 0).all()
        loss = each.log_probs.sum() + each.entropies.sum()
        found = torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)
        gradients = [gradient for gradient in found if gradient is not None]
        assert gradients
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
    rule = forward.select_rule_loss(rollouts) + forward.place_rule_loss(rollouts)
    assert rule.shape == ()
    assert rule.requires_grad
    assert float(rule.detach()) > 0


@pytest.mark.parametrize("name", ["placeto", "gdp", "seq2seq"])
def test_the_placing_of_an_assignment_is_as_likely_as_it_was_when_played(name: str) -> None:
    _, forward = on(name)
    rollouts = forward.play(Sampling(), np.arange(3))
    devices = forward.instance.expand(rollouts.devices)
    log_probs = forward.place_log_probs(devices, Sampling(), np.arange(3))
    (played,) = forward.choices(rollouts, Sampling())
    torch.testing.assert_close(log_probs, played.log_probs)


@EVERY
def test_a_pass_for_acting_plays_the_same_without_gradients(name: str) -> None:
    policy, forward = on(name)
    acting = policy.acting(policy.view(instance()))
    rows = [each.play(Sampling(), np.arange(4), record=False) for each in (acting, forward)]
    assert np.array_equal(rows[0].devices, rows[1].devices)


def test_states_before_each_step_where_each_is_rewarded() -> None:
    policy: Any = make_any(PlacetoConfig(width=4, rounds=1, devices=4, form="improve"), 1)
    view = policy.view(instance())
    forward = policy.on(view)
    rollouts = forward.play(Sampling(), np.arange(3))
    states = forward.states(rollouts)
    assert states.shape == (3, view.num_steps + 1, forward.instance.num_vertices)
    assert (states[:, 0] == 0).all()
    assert np.array_equal(states[:, -1], rollouts.devices)
    for step in range(view.num_steps):  # one vertex moves, if any
        changed = np.flatnonzero((states[:, step] != states[:, step + 1]).any(axis=0))
        assert set(changed) <= {view.order[step]}
    assert on("placeto")[1].states(rollouts) is None
