"""Message passing at every step, against message passing once per episode."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from mdp.playing import candidates_of, graph_of, uniform

from doppler.base.arrays import IntArray
from doppler.errors import ConfigError, UnknownNameError
from doppler.graph import Graph
from doppler.mdp import DEVICE_FEATURES, Episode, make_instance
from doppler.mdp.features import squeeze
from doppler.mdp.rollout import GREEDY, Sampling
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.sim import Simulator
from doppler.topology import Topology

torch = pytest.importorskip("torch")

from doppler.policies.acting import Actor  # noqa: E402
from doppler.policies.dual import DualPolicy, PolicyConfig, make_policy  # noqa: E402
from doppler.policies.gradients.losses import (  # noqa: E402
    chosen,
    entropy,
    place_log_probs,
    select_log_probs,
)
from doppler.policies.inputs import NUM_STATE_COLUMNS, make_inputs  # noqa: E402
from doppler.training.config import ImitationConfig, ReinforceConfig, TrainConfig  # noqa: E402
from doppler.training.exercise import Exercise  # noqa: E402
from doppler.training.exercise_record import ExerciseRecord  # noqa: E402
from doppler.training.per_step import pick, play, reinforce_by_steps  # noqa: E402
from doppler.training.reinforce import reinforce  # noqa: E402
from doppler.training.trainer import Trainer  # noqa: E402

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SHAPE = PolicyConfig(width=8, rounds=2)
PER_STEP = ReinforceConfig(episodes=6, batch=2, expert=None, messages="step")


def graph() -> Graph:
    return random_dag(vertices=20, depth=5, seed=0)


def topology() -> Topology:
    return Topology.preset("p100x4")


def actor() -> Actor:
    return Actor(make_instance(Problem(graph(), topology())))


def record_of(config: TrainConfig) -> ExerciseRecord:
    return ExerciseRecord(Exercise(graph(), topology(), config))


def policy(*, mindful: bool, shape: PolicyConfig = SHAPE) -> DualPolicy:
    """One that minds the state of the episode, or does not."""
    made = make_policy(shape, 0)
    for layer in (made.encoder.embed, made.features):
        layer.weight.data[:, -NUM_STATE_COLUMNS:] = 0.7 if mindful else 0.0
    return made


def test_what_messages_start_from() -> None:
    """A chain of three: the first is placed, then the second."""
    chain = graph_of([1.0, 2.0, 3.0], {(0, 1): 1.0, (1, 2): 1.0})
    instance = make_instance(Problem(chain, uniform(2)))
    episode, scale_s = Episode(instance), instance.tables.scale_s
    shown = make_inputs(instance).vertices[:, -NUM_STATE_COLUMNS:]
    assert shown.tolist() == episode.vertex_state().tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
    episode.place(0, 1)
    first = float(squeeze(np.array(1.0 / scale_s)))
    assert episode.vertex_state().tolist() == [[1, 0, first], [0, 1, 0], [0, 0, 0]]
    episode.place(1, 1)
    second = float(squeeze(np.array(3.0 / scale_s)))
    assert episode.vertex_state().tolist() == [[1, 0, first], [1, 0, second], [0, 1, 0]]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_a_policy_that_ignores_the_state_thinks_the_same_at_every_step(temperature: float) -> None:
    sampling = Sampling(select_temperature=temperature, place_temperature=temperature, epsilon=0.1)
    mine, where = policy(mindful=False), actor()
    played = play(mine, where, sampling, np.arange(3))
    scores = mine(where.inputs)
    picked, entropies = select_log_probs(scores, played.rollouts, temperature or 1.0)
    place = place_log_probs(mine, scores, played.rollouts, temperature or 1.0)
    np.testing.assert_allclose(played.selected().detach(), picked.detach(), **CLOSE)
    np.testing.assert_allclose(entropy(played.select).detach(), entropies.detach(), **CLOSE)
    np.testing.assert_allclose(played.place.detach(), place.detach(), **CLOSE)


@pytest.mark.parametrize("every_step", [True, False])
def test_a_policy_that_minds_the_state_does_so_only_where_it_is_shown(every_step: bool) -> None:
    mine, where = policy(mindful=True), actor()
    played = play(mine, where, Sampling(), np.arange(3), every_step=every_step)
    scores = mine(where.inputs)
    once = chosen(place_log_probs(mine, scores, played.rollouts), played.rollouts)
    stepwise = chosen(played.place, played.rollouts)
    differs = (once - stepwise).abs().amax(dim=0)  # of each step
    assert differs[0] < 1e-5  # when nothing has been placed yet
    assert differs.max() > 1e-3 if every_step else differs.max() < 1e-5, differs


def test_the_greedy_episode_is_the_compiled_one() -> None:
    mine, where = policy(mindful=False), actor()
    compiled = where.play(mine, mine.scores(where.inputs), GREEDY, np.arange(1))
    for every_step in (True, False):
        played = play(mine, where, GREEDY, np.arange(1), every_step=every_step).rollouts
        assert played.order.tolist() == compiled.order.tolist()
        assert played.devices.tolist() == compiled.devices.tolist()
        np.testing.assert_allclose(played.features, compiled.features, **CLOSE)
        assert played.since.tolist() == compiled.since.tolist()


@pytest.mark.parametrize("missing", ["select", "place"])
def test_the_rules_that_replace_a_policy_are_those_of_the_compiled_episode(missing: str) -> None:
    mine, where = policy(mindful=True, shape=replace(SHAPE, **{missing: False})), actor()
    played = play(mine, where, Sampling(), np.arange(2)).rollouts
    if missing == "select":
        bottom_s = where.instance.tables.bottom_s
        for order, since in zip(played.order, played.since, strict=True):
            for step, vertex in enumerate(order):
                assert bottom_s[vertex] == bottom_s[candidates_of(order, since, step)].max()
    else:
        extra_start = played.features[..., DEVICE_FEATURES.index("extra_start")]
        went = np.take_along_axis(played.devices, played.order, axis=1)
        assert (np.take_along_axis(extra_start, went[..., None], axis=2) == 0).all()


def test_every_vertex_is_placed_once_and_seeds_matter() -> None:
    mine, where = policy(mindful=True), actor()
    played = play(mine, where, Sampling(), np.array([1, 1, 2]))
    order = played.rollouts.order
    assert (np.sort(order, axis=1) == np.arange(20)).all()
    assert order[0].tolist() == order[1].tolist()
    assert order[0].tolist() != order[2].tolist()
    for log_probs in (played.select, played.place):
        np.testing.assert_allclose(log_probs.detach().exp().sum(dim=2), 1.0, rtol=1e-5)


def test_gradients_reach_every_weight_and_are_those_without_recomputing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gradients(mine: DualPolicy) -> list[torch.Tensor]:
        played = play(mine, actor(), Sampling(), np.arange(2))
        (played.selected().sum() + chosen(played.place, played.rollouts).sum()).backward()
        found = {name: p.grad for name, p in mine.named_parameters()}
        for name, grad in found.items():
            assert grad is not None, name
            assert grad.abs().max() > 0, name
        state = found["encoder.embed.weight"][:, -NUM_STATE_COLUMNS:]
        assert (state.abs().amax(dim=0) > 0).all()
        return list(found.values())

    saving = gradients(policy(mindful=True))
    plain: Callable[..., object] = lambda network, inputs, **_: network(inputs)  # noqa: E731
    monkeypatch.setattr("doppler.training.per_step.checkpoint", plain)
    for mine, theirs in zip(saving, gradients(policy(mindful=True)), strict=True):
        np.testing.assert_allclose(mine, theirs, **CLOSE)


@pytest.mark.parametrize("anchor", [0.0, 0.1])
def test_the_loss_is_that_of_reinforce_for_the_same_episodes(
    anchor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that ignores the state learns the same either way."""
    mine = policy(mindful=False)
    config = TrainConfig(policy=SHAPE, sim=replace(PER_STEP, batch=4, anchor=anchor), threads=1)
    loss, makespans = reinforce_by_steps(mine, record_of(config), config, 0.5, 7)

    def played(
        where: Actor, mine: DualPolicy, _: object, how: Sampling, seeds: IntArray, **__: object
    ) -> object:
        return play(mine, where, how, seeds).rollouts

    monkeypatch.setattr(Actor, "play", played)
    config = replace(config, sim=replace(config.sim, messages="episode"))
    expected, same = reinforce(mine, record_of(config), config, 0.5, 7)
    assert makespans.tolist() == same.tolist()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-4)


@pytest.mark.parametrize("features", ["paper", "default"])
def test_the_trainer_passes_messages_per_step_if_told(features: str) -> None:
    config = TrainConfig(
        policy=replace(SHAPE, features=features),
        imitation=ImitationConfig(episodes=4, batch=2),
        sim=PER_STEP,
        threads=1,
    )
    trainer = Trainer([(graph(), topology())], config)
    before = {name: p.detach().clone() for name, p in trainer.policy.named_parameters()}
    stages = [progress.stage for progress in trainer.run()]
    assert stages == ["imitation"] * 2 + ["sim"] * 3
    (record,) = trainer.records
    assert (record.episodes, record.message_passes) == (6, 6 * 20)
    assert not torch.equal(before["encoder.embed.weight"], trainer.policy.encoder.embed.weight)
    simulated = Simulator(topology()).run(graph(), record.best()).makespan_s
    assert simulated == pytest.approx(record.best_s)


def test_passes_are_counted_as_in_the_paper() -> None:
    record = record_of(TrainConfig(sim=ReinforceConfig(expert=None)))
    record.episodes = 32
    assert record.message_passes == 32


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="no way to pass messages named `steps`"):
        ReinforceConfig(messages="steps")
    with pytest.raises(ConfigError, match="no expert") as caught:
        ReinforceConfig(messages="step")
    assert caught.value.hint


def test_picks_are_as_likely_as_they_should_be() -> None:
    rng, log_probs = np.random.default_rng(0), np.log([0.1, 0.6, 0.3])
    drawn = [pick(log_probs, False, 0.0, rng) for _ in range(4000)]
    np.testing.assert_allclose(np.bincount(drawn) / 4000, [0.1, 0.6, 0.3], atol=0.04)
    best = [pick(log_probs, True, 0.3, rng) for _ in range(4000)]
    np.testing.assert_allclose(np.bincount(best) / 4000, [0.1, 0.8, 0.1], atol=0.04)
