"""Variants: other costs, the same dataflow; they are trained on but not reported."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from doppler.policies.dual import PolicyConfig
from doppler.programs.chainmm import chainmm
from doppler.programs.random_dag import random_dag
from doppler.sharding import shard
from doppler.topology import read_topology
from doppler.training.config import ImitationConfig, TrainConfig
from doppler.training.exercise import vary
from doppler.training.trainer import Trainer


def test_a_variant_has_the_same_dataflow_and_one_factor_per_meta_op() -> None:
    graph = shard(chainmm(size=64), 4)
    other = vary(graph, 1, 0.5)
    assert np.array_equal(other.edge_tensor, graph.edge_tensor)
    assert other.vertex_names == graph.vertex_names
    assert other.name != graph.name
    working = graph.flops > 0
    factor = other.flops[working] / graph.flops[working]
    assert not np.allclose(factor, 1.0)
    keys = np.array([f"{m} {r}" for m, r in zip(graph.meta_ops, graph.roles, strict=True)])
    for key in set(keys[working]):
        same = factor[keys[working] == key]
        assert same == pytest.approx(same[0])
    assert len(set(np.round(factor, 9))) > 1


def test_variants_differ_and_repeat() -> None:
    graph = random_dag(vertices=20, depth=4, seed=0)
    first, again, second = vary(graph, 1, 0.5), vary(graph, 1, 0.5), vary(graph, 2, 0.5)
    assert np.array_equal(first.tensor_bytes, again.tensor_bytes)
    assert not np.array_equal(first.tensor_bytes, second.tensor_bytes)
    same = vary(graph, 1, 0.0)
    assert np.array_equal(same.flops, graph.flops)


def test_variants_take_turns_but_do_not_add_episodes() -> None:
    graph, topology = random_dag(vertices=10, depth=3, seed=0), read_topology("p100x4")
    config = TrainConfig(
        policy=PolicyConfig(width=8, rounds=1),
        imitation=ImitationConfig(episodes=64, batch=8),
        stages=("imitation",),
        threads=1,
    )
    plain = [p.exercise for p in Trainer([(graph, topology)], config).run()]
    trainer = Trainer([(graph, topology)], replace(config, variants=1))
    varied = [p.exercise for p in trainer.run()]
    assert len(varied) == len(plain) == 8
    assert varied == [plain[0], f"{graph.name}~1@p100x4"] * 4
    assert [record.label for record in trainer.records] == [plain[0]]
