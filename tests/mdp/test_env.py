"""The Gymnasium environment: its spaces, rewards, masks and mistakes."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from mdp.playing import graph_of, unequal_pair, uniform

from doppler.assignment import Assignment
from doppler.errors import GraphError
from doppler.graph import Graph, GraphBuilder
from doppler.mdp import DEVICE_FEATURES, Episode
from doppler.programs import random_dag
from doppler.sim import Noise, SimConfig, Simulator
from doppler.topology import Device, Topology
from doppler.trace import Trace

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from doppler.gym import ENV_ID, make_env  # noqa: E402


def example() -> Graph:
    exec_s = [[2, 3], [4, 2], [1, 5], [3, 3]]
    return graph_of(exec_s, {(0, 2): 4.0, (1, 2): 2.0, (1, 3): 2.0})


CASES = {
    "by hand": (example, unequal_pair),
    "one vertex": (lambda: graph_of([1.0]), lambda: uniform(2)),
    "no edges, one device": (lambda: graph_of([1.0, 2.0]), lambda: Topology.preset("reference:1")),
    "larger": (lambda: random_dag(vertices=40, seed=0), lambda: Topology.preset("v100x8")),
    "no work": (lambda: graph_of([0.0, 0.0], {(0, 1): 1.0}), lambda: uniform(2)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_environment_passes_gymnasiums_own_check(case: str) -> None:
    graph, topology = (make() for make in CASES[case])
    env = gymnasium.make(ENV_ID, graph=graph, topology=topology)
    check_env(env.unwrapped)


@pytest.mark.parametrize("case", CASES)
def test_masked_samples_are_valid_and_place_every_vertex(case: str) -> None:
    graph, topology = (make() for make in CASES[case])
    env = gymnasium.make(ENV_ID, graph=graph, topology=topology)
    env.action_space.seed(1)
    observation, info = env.reset(seed=1)
    rewards = []
    for _ in graph.assigned:
        action = env.action_space.sample(info["action_mask"])
        assert observation["candidates"][action[0]] == 1
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation in env.observation_space
        assert observation["devices"][action[0]] == action[1]
        assert not truncated
        rewards.append(reward)
    assert terminated
    assert not any(rewards[:-1])
    assignment = env.unwrapped.assignment()
    assignment.check(graph, topology)
    makespan_s = Simulator(topology).run(graph, assignment).makespan_s
    assert info["makespan_s"] == makespan_s
    assert rewards[-1] == -makespan_s / env.unwrapped.instance.tables.scale_s


def test_observations_are_those_of_the_readable_episode() -> None:
    env = make_env(example(), unequal_pair())
    observation, _ = env.reset(seed=0)
    episode = Episode(env.instance)
    for action in ((1, 1), (0, 0), (3, 1), (2, 0)):
        np.testing.assert_array_equal(observation["vertex_features"], env.instance.vertex_features)
        np.testing.assert_array_equal(observation["edges"], [[0, 1, 1], [2, 2, 3]])
        np.testing.assert_array_equal(observation["edge_features"], env.instance.edge_features)
        assert np.flatnonzero(observation["candidates"]).tolist() == episode.candidates
        assert observation["devices"].tolist() == episode.devices.tolist()
        for v in range(4):
            expected = np.zeros((2, len(DEVICE_FEATURES)))
            if v in episode.candidates:
                expected = episode.device_features(v)
            np.testing.assert_allclose(observation["device_features"][v], expected, rtol=1e-6)
        episode.place(*action)
        observation, reward, terminated, _, info = env.step(np.array(action))
    assert terminated
    # B runs on the second device until 2 and E until 5; C on the first from 3, when B gets there.
    assert info["makespan_s"] == 5.0
    assert reward == -5.0 / 5.75
    assert not observation["candidates"].any()
    assert not observation["device_features"].any()


def test_a_vertex_that_is_no_candidate_changes_nothing_and_costs() -> None:
    env = make_env(example(), unequal_pair())
    before, _ = env.reset(seed=0)
    after, reward, terminated, truncated, info = env.step(np.array([2, 0]))
    assert (reward, terminated, truncated) == (-1.0, False, False)
    for key, values in before.items():
        np.testing.assert_array_equal(after[key], values)
    assert info["action_mask"][0].tolist() == [1, 1, 0, 0]
    env.step(np.array([1, 0]))
    _, reward, *_ = env.step(np.array([1, 1]))  # placed already
    assert reward == -1.0


@pytest.mark.parametrize(
    "action", [(4, 0), (0, 2), (-1, 0), (0.0, 1.0), (0,), (0, 0, 0), 3, None, "ab"]
)
def test_what_is_no_action_is_refused(action: Any) -> None:
    env = make_env(example(), unequal_pair())
    env.reset(seed=0)
    with pytest.raises(gymnasium.error.InvalidAction, match="vertex < 4, device < 2"):
        env.step(action)


def test_after_the_end_comes_a_reset() -> None:
    env = make_env(graph_of([1.0]), uniform(2))
    env.reset(seed=0)
    assert env.step((0, 1))[2]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step((0, 1))
    env.reset()
    assert env.step((0, 1))[2]


def test_graphs_of_inputs_only_are_refused() -> None:
    g = GraphBuilder("inputs")
    g.input("x", output_bytes=1.0)
    with pytest.raises(GraphError, match="no vertices to place"):
        make_env(g.build(), uniform(2))


class Recording:
    """A noisy simulator that remembers what it was asked."""

    def __init__(self, topology: Topology) -> None:
        self.simulator = Simulator(topology, SimConfig(noise=Noise(exec_sigma=0.5)))
        self.seeds: list[int] = []

    def run(self, graph: Graph, assignment: Assignment, seed: int = 0) -> Trace:
        self.seeds.append(seed)
        return self.simulator.run(graph, assignment, seed)


def test_the_executor_that_is_given_is_asked_with_a_seed_of_the_episode() -> None:
    topology = uniform(2)
    executor = Recording(topology)
    env = gymnasium.make(ENV_ID, graph=graph_of([1.0]), topology=topology, executor=executor)
    rewards = []
    for seed in (5, None, 5, None, 6):
        env.reset(seed=seed)
        rewards.append(env.step((0, 0))[1])
    assert executor.seeds[:2] == executor.seeds[2:4]
    assert rewards[:2] == rewards[2:4]
    assert len(set(executor.seeds)) == len(set(rewards)) == 3


def test_too_little_memory_is_worse_than_one_device_doing_everything() -> None:
    devices = (Device("a", memory_bytes=1.0), Device("b", memory_bytes=1.0))
    topology = Topology("small", devices, uniform(2).links, uniform(2).route)
    env = make_env(graph_of([1.0, 1.0], {(0, 1): 8.0}), topology)
    env.reset(seed=0)
    env.step((0, 0))
    _, reward, terminated, _, info = env.step((1, 1))
    assert terminated
    assert (reward, info["makespan_s"]) == (-4.0, np.inf)


def test_several_at_once() -> None:
    envs = gymnasium.make_vec(ENV_ID, num_envs=3, graph=example(), topology=unequal_pair())
    observations, _ = envs.reset(seed=0)
    assert observations["device_features"].shape == (3, 4, 2, 30)
    _, rewards, *_ = envs.step(np.array([[0, 0], [1, 0], [2, 0]]))
    assert rewards.tolist() == [0.0, 0.0, -1.0]
    envs.close()


def run_python(code: str) -> str:
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return out.stdout.strip()


@pytest.mark.parametrize(
    ("module", "name"), [("doppler.gym", ENV_ID), ("doppler", f"doppler.gym:{ENV_ID}")]
)
def test_the_environment_is_known_by_its_name(module: str, name: str) -> None:
    code = (
        f"import {module}, doppler, gymnasium;"
        "g = doppler.GraphBuilder(); g.vertex('v', 'matmul', exec_s=1.0);"
        f"env = gymnasium.make({name!r}, graph=g.build(),"
        "topology=doppler.Topology.preset('reference:2'));"
        "env.reset(seed=0); print(env.step((0, 1))[1])"
    )
    assert run_python(code) == "-2.0"


def test_nothing_else_loads_gymnasium() -> None:
    code = "import sys, doppler.mdp; print('gymnasium' in sys.modules)"
    assert run_python(code) == "False"


@pytest.mark.parametrize("module", ["doppler.gym", "doppler.mdp.env"])
def test_without_gymnasium_the_error_says_what_to_install(module: str) -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None; import doppler.errors\n"
        f"try:\n  import {module}\nexcept doppler.errors.MissingExtraError as e: print(e)"
    )
    expected = "the environment needs `gymnasium`\nhint: pip install doppler-placement[gym]"
    assert run_python(code) == expected
