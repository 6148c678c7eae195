"""Policies as arrays: repeatable, on any graph, in any thread, and without torch."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from policies.arrays.making import array_policy, write_policy

from doppler.graph import build_graph
from doppler.mdp.instance import Instance, make_instance
from doppler.mdp.kernel import Weights
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.arrays.kernel import BLOCK, linear, make_scratch, means_along
from doppler.problem import Problem
from doppler.programs.random_dag import random_dag
from doppler.topology import read_topology

SMALL = PolicyConfig(width=8, rounds=2)


def instance_of(vertices: int = 50, seed: int = 0, machine: str = "p100x4") -> Instance:
    graph = random_dag(vertices=vertices, depth=min(6, vertices), seed=seed)
    return make_instance(Problem(graph, read_topology(machine)))


def same(one: Weights, other: Weights) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("rows", "size", "to"), list(product((0, 1, 2, 7), (1, 3, 4, 13), (1, 4, 5, 33)))
)
def test_linear_layers_of_any_size(rows: int, size: int, to: int) -> None:
    rng = np.random.default_rng(0)
    x, matrix, bias = (
        rng.normal(size=shape).astype(np.float32) for shape in ((rows, size), (size, to), (to,))
    )
    out = np.full((rows, to), np.nan, np.float32)
    linear(x, matrix, bias, out)
    np.testing.assert_allclose(out, x.astype(float) @ matrix + bias, atol=1e-5)


def test_equal_rows_stay_equal() -> None:
    """Wherever they are, also as the odd one at the end."""
    rng = np.random.default_rng(0)
    matrix, bias = rng.normal(size=(13, 37)).astype(np.float32), np.ones(37, np.float32)
    x = np.tile(rng.normal(size=13).astype(np.float32), (BLOCK + 1, 1))
    out = np.empty((len(x), 37), np.float32)
    linear(x, matrix, bias, out)
    assert (out == out[0]).all()


def test_vertices_that_look_the_same_have_the_same_score() -> None:
    size = 2 * BLOCK + 1
    graph = build_graph(
        name="alike",
        kinds=["matmul"] * (size + 1),
        exec_s=[1.0] * (size + 1),
        tensor_producer=list(range(size)),
        tensor_bytes=[8.0] * size,
        edge_tensor=list(range(size)),
        edge_reader=[size] * size,
        transfer_s=[0.5] * size,
    )
    weights = array_policy(PolicyConfig(width=10, rounds=3)).on(
        make_instance(Problem(graph, read_topology("p100x4")))
    )
    assert len(np.unique(weights.score)) == 2
    assert len(np.unique(weights.vertex, axis=0)) == 2


def test_means_along_a_long_path() -> None:
    size = 100_000
    scratch = make_scratch(size, 1)
    values = np.random.default_rng(0).normal(size=(size, 1)).astype(np.float32)
    means_along(np.array([*range(1, size), -1]), values, scratch, 2)
    expected = np.cumsum(values[::-1].astype(float), axis=0)[::-1, 0] / np.arange(size, 0, -1)
    np.testing.assert_allclose(scratch.wide[:, 2], expected, atol=1e-6)


@pytest.mark.parametrize("kinds", [["input"], ["matmul"], ["input", "matmul"], ["matmul"] * 3])
def test_graphs_without_edges(kinds: list[str]) -> None:
    count = len(kinds)
    graph = build_graph(
        name="loose",
        kinds=kinds,
        exec_s=[1.0] * count,
        tensor_producer=[0],
        tensor_bytes=[8.0],
        edge_tensor=[],
        edge_reader=[],
    )
    instance = make_instance(Problem(graph, read_topology("p100x4")))
    weights = array_policy(SMALL).on(instance)
    assert weights.score.shape == (instance.num_vertices,)
    assert all(np.isfinite(array).all() for array in weights)


def test_the_same_policy_and_instance_give_the_same() -> None:
    policy, instance = array_policy(SMALL), instance_of()
    before = {name: array.copy() for name, array in policy.tensors.items()}
    assert same(policy.on(instance), policy.on(instance_of()))
    assert not same(policy.on(instance), array_policy(SMALL, seed=1).on(instance))
    assert all(np.array_equal(before[name], array) for name, array in policy.tensors.items())


def test_threads_do_not_disturb_each_other() -> None:
    policy = array_policy(SMALL)
    instances = [instance_of(200, seed) for seed in range(4)]
    expected = [policy.on(instance) for instance in instances]
    placer = DopplerPlacer(policy, samples=8)
    proposed = [placer.propose(instance)[0] for instance in instances]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            found = list(pool.map(policy.on, instances))
            assert all(same(a, b) for a, b in zip(found, expected, strict=True))
        devices = [found[0] for found in pool.map(placer.propose, instances)]
    assert all(np.array_equal(a, b) for a, b in zip(devices, proposed, strict=True))


PROGRAM = """
import sys
sys.modules["torch"] = None
import doppler
from doppler.errors import MissingExtraError
from doppler.placers import make_placer
graph = doppler.programs.random_dag(vertices=20, depth=4, seed=0)
placer = make_placer("doppler:" + sys.argv[1])
print(doppler.place(graph, doppler.Topology.preset("p100x4"), placer).devices.tolist())
try:
    placer.policy
except MissingExtraError as error:
    print(error.hint)
"""


def test_nothing_needs_torch(tmp_path: Path) -> None:
    write_policy(array_policy(SMALL), tmp_path / "policy.safetensors")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    graph, topology = random_dag(vertices=20, depth=4, seed=0), read_topology("p100x4")
    placed = DopplerPlacer(array_policy(SMALL)).place(Problem(graph, topology))
    devices, hint = ran.stdout.splitlines()
    assert devices == str(placed.devices.tolist())
    assert "[torch]" in hint
