"""The stages: imitation reaches its teacher, reinforcement improves, and both see all options."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from doppler import errors
from doppler.base.arrays import FloatArray
from doppler.graph import Graph
from doppler.graph.builder import GraphBuilder
from doppler.mdp.rollout import GREEDY, Sampling
from doppler.placers import lower_bounds, place
from doppler.policies.dual import DualPolicy, PolicyConfig
from doppler.programs.random_dag import random_dag
from doppler.sim import Noise, Simulator
from doppler.topology import Topology, read_topology
from doppler.training.config import ExpertConfig, ImitationConfig, ReinforceConfig, TrainConfig
from doppler.training.exercise import Exercise
from doppler.training.exercise_record import ExerciseRecord
from doppler.training.presets import PRESETS, preset
from doppler.training.reinforce import advantages, between, imitate, reinforce
from doppler.training.trainer import Trainer

SMALL = TrainConfig(
    stages=("imitation", "sim"),
    policy=PolicyConfig(width=16, rounds=2),
    imitation=ImitationConfig(episodes=512, batch=16, lr=(5e-3, 5e-3)),
    sim=ReinforceConfig(
        episodes=1024, batch=32, lr=(5e-3, 1e-3), expert=ExpertConfig(moves=20, lessons=8)
    ),
    threads=1,
)


def graph() -> Graph:
    return random_dag(vertices=24, depth=6, bytes_per_flop=2e-6, seed=0)


def topology() -> Topology:
    return read_topology("p100x4")


def trained(config: TrainConfig) -> tuple[Trainer, list[float]]:
    trainer = Trainer([(graph(), topology())], config)
    return trainer, [progress.mean_s for progress in trainer.run()]


def without_expert(config: TrainConfig) -> TrainConfig:
    return replace(config, sim=replace(config.sim, expert=None))


def test_imitation_learns_to_act_like_its_teacher() -> None:
    trainer = Trainer([(graph(), topology())], replace(SMALL, stages=("imitation",)))
    losses = [progress.loss for progress in trainer.run()]
    assert losses[-1] < 0.6 * losses[0]
    record = trainer.records[0]
    played = trainer.policy.acting(record.view(trainer.policy)).play(GREEDY, np.arange(1))
    level = record.exercise.instance.tables.bottom_s[played.order[0]]
    longest = np.maximum.accumulate(level[::-1])[::-1]  # of all that are left
    assert (level == longest).mean() > 0.75  # the most urgent first


def test_reinforcement_alone_improves_on_chance() -> None:
    config = replace(without_expert(SMALL), stages=("sim",))
    trainer, means = trained(config)
    assert np.mean(means[-4:]) < 0.97 * np.mean(means[:4])
    assert trainer.records[0].exercise.expert is None


def test_the_best_is_the_best_ever_seen_and_is_what_it_says() -> None:
    trainer, _ = trained(replace(SMALL, stages=("sim",)))
    record = trainer.records[0]
    makespan_s = Simulator(topology()).run(graph(), record.best()).makespan_s
    assert makespan_s == record.best_s
    assert record.best_s == record.pool.best_s
    assert record.best_s >= lower_bounds(graph(), topology()).best_s
    for name in ("critical-path", "heft", "etf", "single"):
        heuristic = place(graph(), topology(), name)
        assert record.best_s <= Simulator(topology()).run(graph(), heuristic).makespan_s


def test_the_same_seed_trains_the_same_policy() -> None:
    short = replace(SMALL, sim=replace(SMALL.sim, episodes=64), stages=("sim",))
    one, two = (trained(short)[0].policy.state_dict() for _ in range(2))
    other = trained(replace(short, seed=1))[0].policy.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("part", ["select", "place"])
def test_a_part_that_is_not_learned_gets_no_gradient(part: str) -> None:
    policy_config = replace(SMALL.policy, select=part != "select", place=part != "place")
    config = replace(SMALL, policy=policy_config)
    trainer = Trainer([(graph(), topology())], config)
    for update in (imitate, reinforce):
        trainer.policy.zero_grad()
        loss, _ = update(trainer.policy, trainer.records[0], config, 0.0, 0)
        loss.backward()
        module = getattr(trainer.policy, part)
        assert all(p.grad is None or not p.grad.any() for p in module.parameters())
        other = trainer.policy.place if part == "select" else trainer.policy.select
        assert any(p.grad is not None and p.grad.any() for p in other.parameters())


def test_several_graphs_take_turns() -> None:
    pairs = [(graph(), topology()), (random_dag(vertices=10, depth=3, seed=1), topology())]
    config = replace(SMALL, imitation=ImitationConfig(episodes=32, batch=16), stages=("imitation",))
    labels = [progress.exercise for progress in Trainer(pairs, config).run()]
    assert labels == [f"{g.name}@p100x4" for g, _ in pairs] * 2


def test_stages_end_by_episodes_or_by_seconds() -> None:
    trainer, means = trained(replace(SMALL, sim=replace(SMALL.sim, episodes=0)))
    assert len(means) == 512 / 16
    trainer, means = trained(replace(SMALL, seconds=1e-6))
    assert len(means) == 1
    assert trainer.is_finished


def test_a_budget_is_by_the_clock_that_is_given() -> None:
    """Every update begins and ends with a look at a clock that goes a second on each time."""
    ticks = count()
    config = replace(SMALL, stages=("imitation",), seconds=5.0)
    trainer = Trainer([(graph(), topology())], config, clock=lambda: float(next(ticks)))
    assert [progress.seconds for progress in trainer.run()] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_advantages_against_the_batch_and_against_all_episodes() -> None:
    record = ExerciseRecord(Exercise(graph(), topology(), SMALL))
    makespans = np.array([1.0, 3.0])
    assert advantages(record, makespans, SMALL.sim) == pytest.approx([1.0, -1.0])
    assert (record.mean_s, record.episodes) == (2.0, 2)
    running = replace(SMALL.sim, running_mean=True)
    gains = advantages(record, np.array([5.0]), running)
    assert gains == pytest.approx([-3.0 / record.exercise.instance.tables.scale_s])
    assert (record.mean_s, record.episodes) == (3.0, 3)


def test_noise_takes_part_in_the_reward() -> None:
    noisy = replace(SMALL, noise=Noise(exec_sigma=0.5), stages=("sim",))
    trainer = Trainer([(graph(), topology())], noisy)
    (record,) = trainer.records
    played = trainer.policy.acting(record.view(trainer.policy)).play(Sampling(), np.arange(4))
    assert not np.array_equal(record.measure(played, 0), record.measure(played, 1))
    draws = [
        Simulator(topology(), noisy.sim_config).run(graph(), record.best(), s).makespan_s
        for s in range(4)
    ]
    assert record.best_s == pytest.approx(np.mean(draws))


def test_running_out_of_memory_is_worse_than_anything_that_runs() -> None:
    builder = GraphBuilder("crowd")
    for name in "abcd":
        builder.op(name, "matmul", reads=[], output_bytes=9e9, exec_s=1.0, transfer_s=1.0)
    trainer = Trainer([(builder.build(), read_topology("p100x4"))], SMALL)
    (record,) = trainer.records
    forward = trainer.policy.acting(record.view(trainer.policy))
    played = forward.play(Sampling(epsilon=1.0), np.arange(64))
    makespans = record.measure(played, 0)
    alone = np.array([len(set(row)) == 4 for row in played.devices])
    assert alone.any()
    assert not alone.all()
    assert makespans[alone].max() < makespans[~alone].min() < np.inf
    assert len(set(record.best().devices)) == 4


def test_bad_configs_are_refused() -> None:
    with pytest.raises(errors.UnknownNameError, match="no stage named `simm`"):
        replace(SMALL, stages=("simm",))
    with pytest.raises(errors.UnknownNameError, match="no training preset"):
        preset("papr")
    with pytest.raises(errors.ConfigError, match="seconds"):
        replace(SMALL, seconds=0.0)
    with pytest.raises(errors.ConfigError, match="batch"):
        replace(SMALL, sim=replace(SMALL.sim, batch=0))
    with pytest.raises(errors.ConfigError, match="no graph"):
        Trainer([], SMALL)
    empty = GraphBuilder("empty")
    empty.input("x", output_bytes=1)
    with pytest.raises(errors.ConfigError, match="no vertices"):
        Trainer([(empty.build(), topology())], SMALL)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_several_graphs_make_one_step_whatever_the_threads(size: int) -> None:
    pairs = [(random_dag(vertices=12, depth=4, seed=s), topology()) for s in range(3)]
    few = replace(SMALL, stages=("sim",), sim=replace(SMALL.sim, episodes=64, batch=8))
    found = []
    for threads in (1, 3):
        trainer = Trainer(pairs, replace(few, problems_per_step=size, threads=threads))
        lines = list(trainer.run())
        found.append((trainer.policy.state_dict(), lines))
        assert lines[-1].episodes >= 3 * 64
        assert len(lines) == -(-3 * 8 // min(size, 3))
        assert {line.exercise for line in lines} <= {record.label for record in trainer.records}
        assert all(record.episodes for record in trainer.records)
    (one, lines), (other, same) = found
    assert all(torch.equal(one[k], other[k]) for k in one)
    assert [line.mean_s for line in lines] == [line.mean_s for line in same]


def test_alone_or_together_the_mean_gradient_is_taken() -> None:
    """Twice the same graph teaches what it teaches once, but for what it draws."""
    once = Trainer([(graph(), topology())], replace(SMALL, stages=("imitation",)))
    twice = Trainer(
        [(graph(), topology())] * 2, replace(SMALL, stages=("imitation",), problems_per_step=2)
    )
    means = [np.mean([p.mean_s for p in list(t.run())[-8:]]) for t in (once, twice)]
    assert means[0] == pytest.approx(means[1], rel=0.1)


def no_number(policy: DualPolicy, *_: object) -> tuple[Tensor, FloatArray]:
    """An update gone wrong."""
    return sum(p.sum() for p in policy.parameters()) * torch.tensor(float("nan")), np.ones(1)


def test_a_loss_that_is_no_number_stops_before_the_step() -> None:
    trainer = Trainer([(graph(), topology())], SMALL, updates={"imitation": no_number})
    before = {k: v.clone() for k, v in trainer.policy.state_dict().items()}
    with pytest.raises(errors.TrainingError, match="nan at update 0"):
        next(trainer.run())
    assert all(torch.equal(before[k], v) for k, v in trainer.policy.state_dict().items())


def test_the_paper_preset_is_the_papers() -> None:
    paper = PRESETS["paper"].sim
    assert (paper.epsilon, paper.lr, paper.entropy) == ((0.2, 0.0), (1e-4, 1e-7), 1e-2)
    assert paper.running_mean
    assert paper.expert is None
    assert PRESETS["paper"].policy.features == "paper"
    assert between((0.2, 0.0), 0.25) == pytest.approx(0.15)
