"""Expert iteration: the pool, and the search that feeds it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from doppler.errors import ConfigError
from doppler.graph import Graph
from doppler.placers.search.improver import Improver
from doppler.problem import Problem
from doppler.programs.random_dag import random_dag
from doppler.sim import Noise, SimConfig, Simulator
from doppler.topology import Topology, read_topology
from doppler.training.config import ExpertConfig, ReinforceConfig, TrainConfig
from doppler.training.expert import Expert, Pool
from doppler.training.trainer import Trainer


def devices(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.int64)


def graph() -> Graph:
    return random_dag(vertices=40, depth=6, bytes_per_flop=2e-6, seed=0)


def samples(count: int) -> np.ndarray:
    found = np.random.default_rng(0).integers(4, size=(count, graph().num_vertices))
    found[:, graph().is_input] = -1
    return found


def topology() -> Topology:
    return read_topology("p100x4")


def test_the_pool_keeps_the_best_and_of_equals_the_last() -> None:
    pool = Pool(size=2, num_vertices=1)
    pool.add(devices([3], [2], [1]), np.array([3.0, 2.0, np.inf]))
    assert pool.costs_s.tolist() == [2.0, 3.0]
    assert pool.devices.tolist() == [[2], [3]]
    pool.add(devices([7], [8]), np.array([2.0 + 1e-12, 1.0]))
    assert pool.costs_s == pytest.approx([1.0, 2.0])
    assert pool.devices.tolist() == [[8], [7]]


def test_what_runs_out_of_memory_is_no_elite() -> None:
    pool = Pool(size=2, num_vertices=1)
    pool.add(devices([3]), np.array([np.inf]))
    assert len(pool.costs_s) == 0


def test_improving_never_makes_it_worse_and_costs_are_makespans() -> None:
    starts = samples(3)
    improver = Improver(Problem(graph(), topology()), SimConfig())
    before = improver.costs_s(starts)
    assert np.array_equal(before, Simulator(topology()).makespans(graph(), starts))
    better, costs_s = improver.improve(starts, 300, hot=1e-3, cold=1e-5, seed=1, threads=2)
    assert (costs_s < before).all()
    assert np.array_equal(costs_s, Simulator(topology()).makespans(graph(), better))
    again = improver.improve(starts, 300, hot=1e-3, cold=1e-5, seed=1)
    assert np.array_equal(again[0], better)


def test_what_is_improved_closely_differs_only_where_that_matters() -> None:
    starts = samples(3)
    improver, how = Improver(Problem(graph(), topology()), SimConfig()), {"hot": 1e-3, "cold": 1e-5}
    far, far_s = improver.improve(starts, 300, seed=1, **how)
    close, close_s = improver.improve(starts, 300, seed=1, closely=True, **how)
    assert (close_s <= far_s).all()
    assert np.array_equal(close_s, Simulator(topology()).makespans(graph(), close))
    assert (close != starts).sum() < (far != starts).sum()
    for start, found, cost_s in zip(starts, close, close_s, strict=True):
        last = [v for v in graph().topological_order if found[v] != start[v]][-1]
        back = found.copy()
        back[last] = start[last]
        assert Simulator(topology()).makespans(graph(), back[None])[0] > cost_s


def test_costs_under_noise_are_means_over_the_draws() -> None:
    starts = samples(2)
    config = SimConfig(noise=Noise(exec_sigma=0.3))
    costs_s = Improver(Problem(graph(), topology()), config, draws=3, seed=5).costs_s(starts)
    simulator = Simulator(topology(), config)
    draws = [simulator.makespans(graph(), starts, seed=seed) for seed in (5, 6, 7)]
    assert costs_s == pytest.approx(np.mean(draws, axis=0))


def test_lessons_are_improved_samples_and_a_pool_that_gets_better() -> None:
    expert_config = ExpertConfig(samples=2, elites=1, lessons=6, pool=4, moves=200)
    config = TrainConfig(stages=("sim",), sim=ReinforceConfig(expert=expert_config))
    expert = Expert(Problem(graph(), topology()), config, threads=1)
    pool = expert.first_pool()
    first_s = pool.best_s
    makespans = Simulator(topology()).makespans(graph(), samples(6))
    for number in range(3):
        lessons, own = expert.lessons(pool, samples(6), makespans, number)
        assert lessons.shape == (6, graph().num_vertices)
        assert own == 3
        known = {row.tobytes() for row in pool.devices}
        assert all(row.tobytes() in known for row in lessons[3:])
        costs_s = expert.improver.costs_s(lessons[:3])
        assert (costs_s < makespans.min()).all()
    assert pool.best_s < first_s
    assert len(pool.costs_s) == 4
    assert (np.diff(pool.costs_s) > 0).all()


def expert_with(**changes: int) -> Expert:
    config = TrainConfig(stages=("sim",), sim=ReinforceConfig(expert=ExpertConfig(**changes)))
    return Expert(Problem(graph(), topology()), config, threads=1)


def test_the_first_pool_is_improved_by_search_where_that_has_moves() -> None:
    heuristics = expert_with().first_pool()
    expert = expert_with(first_moves=500)
    pool = expert.first_pool()
    assert pool.best_s < heuristics.best_s
    assert len(pool.costs_s) == len(heuristics.costs_s) == ExpertConfig().pool
    assert (pool.costs_s <= heuristics.costs_s).all()
    assert pool.costs_s == pytest.approx(expert.improver.costs_s(pool.devices))
    again = expert_with(first_moves=500).first_pool()
    assert np.array_equal(again.devices, pool.devices)


def test_a_first_pool_of_nothing_that_runs_is_empty() -> None:
    devices = tuple(replace(d, memory_bytes=1.0) for d in topology().devices)
    sim = ReinforceConfig(expert=ExpertConfig(first_moves=10))
    problem = Problem(graph(), replace(topology(), devices=devices))
    pool = Expert(problem, TrainConfig(stages=("sim",), sim=sim), threads=1).first_pool()
    assert len(pool.costs_s) == 0


def test_moves_of_the_first_search_are_not_negative() -> None:
    with pytest.raises(ConfigError, match=r"sim\.expert\.first_moves is -1"):
        ExpertConfig(first_moves=-1)


@pytest.mark.parametrize(("until", "expected"), [(1.0, 8), (0.5, 4), (0.0, 0)])
def test_lessons_end_when_they_are_to(
    monkeypatch: pytest.MonkeyPatch, until: float, expected: int
) -> None:
    given = []
    real = Expert.lessons

    def lessons(self: Expert, pool: Pool, devices: Any, makespans: Any, number: int) -> Any:
        given.append(number)
        return real(self, pool, devices, makespans, number)

    monkeypatch.setattr(Expert, "lessons", lessons)
    expert = ExpertConfig(moves=5, lessons=2, until=until)
    sim = ReinforceConfig(episodes=16, batch=2, expert=expert)
    trainer = Trainer([(graph(), topology())], TrainConfig(stages=("sim",), sim=sim))
    assert len(list(trainer.run())) == 8
    assert given == list(range(expected))
