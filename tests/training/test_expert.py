"""Expert iteration: the pool, and the search that feeds it."""

import numpy as np
import pytest

pytest.importorskip("torch")

from doppler.graph import Graph
from doppler.placers.improver import Improver
from doppler.programs.random_dag import random_dag
from doppler.sim import Noise, SimConfig, Simulator
from doppler.topology import Topology, load_topology
from doppler.training.config import ExpertConfig, ReinforceConfig, TrainConfig
from doppler.training.expert import Expert, Pool


def devices(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.int64)


def graph() -> Graph:
    return random_dag(vertices=40, depth=6, bytes_per_flop=2e-6, seed=0)


def samples(count: int) -> np.ndarray:
    found = np.random.default_rng(0).integers(4, size=(count, graph().num_vertices))
    found[:, graph().is_input] = -1
    return found


def topology() -> Topology:
    return load_topology("p100x4")


def test_the_pool_keeps_the_best_and_of_equals_one() -> None:
    pool = Pool(size=2, num_vertices=1)
    pool.add(devices([3], [2], [1]), np.array([3.0, 2.0, np.inf]))
    assert pool.costs_s.tolist() == [2.0, 3.0]
    assert pool.devices.tolist() == [[2], [3]]
    pool.add(devices([7], [8]), np.array([2.0 + 1e-12, 1.0]))
    assert pool.costs_s.tolist() == [1.0, 2.0]
    assert pool.devices.tolist() == [[8], [2]]


def test_what_runs_out_of_memory_is_no_elite() -> None:
    pool = Pool(size=2, num_vertices=1)
    pool.add(devices([3]), np.array([np.inf]))
    assert len(pool.costs_s) == 0


def test_improving_never_makes_it_worse_and_costs_are_makespans() -> None:
    starts = samples(3)
    improver = Improver(graph(), topology(), SimConfig())
    before = improver.costs_s(starts)
    assert np.array_equal(before, Simulator(topology()).makespans(graph(), starts))
    better, costs_s = improver.improve(starts, 300, hot=1e-3, cold=1e-5, seed=1, threads=2)
    assert (costs_s < before).all()
    assert np.array_equal(costs_s, Simulator(topology()).makespans(graph(), better))
    again = improver.improve(starts, 300, hot=1e-3, cold=1e-5, seed=1)
    assert np.array_equal(again[0], better)


def test_costs_under_noise_are_means_over_the_draws() -> None:
    starts = samples(2)
    config = SimConfig(noise=Noise(exec_sigma=0.3))
    costs_s = Improver(graph(), topology(), config, draws=3, seed=5).costs_s(starts)
    simulator = Simulator(topology(), config)
    draws = [simulator.makespans(graph(), starts, seed=seed) for seed in (5, 6, 7)]
    assert costs_s == pytest.approx(np.mean(draws, axis=0))


def test_lessons_come_from_a_pool_that_gets_better() -> None:
    expert_config = ExpertConfig(samples=2, elites=1, lessons=5, pool=4, moves=200)
    config = TrainConfig(sim=ReinforceConfig(expert=expert_config))
    expert = Expert(graph(), topology(), config, threads=1)
    first_s = expert.best_s
    makespans = Simulator(topology()).makespans(graph(), samples(6))
    for number in range(3):
        lessons = expert.lessons(samples(6), makespans, number)
        assert lessons.shape == (5, graph().num_vertices)
        known = {row.tobytes() for row in expert.pool.devices}
        assert all(row.tobytes() in known for row in lessons)
    assert expert.best_s < first_s
    assert len(expert.pool.costs_s) == 4
    assert (np.diff(expert.pool.costs_s) > 0).all()
