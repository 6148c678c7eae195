"""The learned policy as a placer, alone and in the portfolio."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from doppler import errors
from doppler.graph import Graph
from doppler.mdp.instance import make_instance
from doppler.placers import Placer, ask, make_placer
from doppler.placers.auto import AutoPlacer
from doppler.placers.doppler import POLICY_FILE, DopplerPlacer
from doppler.policies.checkpoint import save_policy
from doppler.policies.dual import DualPolicy, PolicyConfig, make_policy
from doppler.programs.random_dag import random_dag
from doppler.sim import Simulator
from doppler.testing import PlacerContract
from doppler.topology import load_topology

TOPOLOGY = load_topology("p100x4")


def policy(seed: int = 0) -> DualPolicy:
    return make_policy(PolicyConfig(width=8, rounds=2), seed)


def graph(seed: int = 0) -> Graph:
    return random_dag(vertices=30, depth=6, bytes_per_flop=2e-6, seed=seed)


class TestContract(PlacerContract):
    def placer(self) -> Placer:
        return DopplerPlacer(policy(), samples=4)


def test_the_best_proposal_is_placed() -> None:
    placer = DopplerPlacer(policy(), samples=100)
    devices, order, makespans = placer.propose(make_instance(graph(), TOPOLOGY), seed=3)
    assert devices.shape == order.shape == (101, 30)
    placed = placer.place(graph(), TOPOLOGY, seed=3)
    trace = Simulator(TOPOLOGY).run(graph(), placed)
    assert trace.makespan_s == makespans.min() < makespans[0]
    assert placed.placer == "doppler"
    assert placed.order is not None


def test_more_samples_are_never_worse() -> None:
    few, many = (
        DopplerPlacer(policy(), samples=count).propose(make_instance(graph(), TOPOLOGY))[2].min()
        for count in (64, 256)
    )
    assert many <= few


def test_without_place_the_critical_path_rule_places() -> None:
    """PLC's weights do not matter then; SEL's do not matter without `select`."""
    instance = make_instance(graph(), TOPOLOGY)
    by_rule = [
        DopplerPlacer(policy(seed), samples=0, select=False).propose(instance)[1] for seed in (0, 1)
    ]
    assert np.array_equal(*by_rule)
    longest_first = instance.tables.bottom_s[by_rule[0][0, 0]]
    entries = instance.tables.bottom_s[instance.tables.num_reads == 0]
    assert longest_first == entries.max()
    plc, other = policy(0), policy(0)
    other.place.out.weight.data.neg_()
    devices = [DopplerPlacer(p, samples=0, place=False).propose(instance)[0] for p in (plc, other)]
    assert np.array_equal(*devices)
    assert not np.array_equal(
        *(DopplerPlacer(p, samples=0).propose(instance)[0] for p in (plc, other))
    )


def test_neither_policy_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="must select or place"):
        DopplerPlacer(policy(), select=False, place=False)


def test_a_run_and_a_checkpoint_can_be_named(tmp_path: Path) -> None:
    file = tmp_path / POLICY_FILE
    save_policy(policy(), file, {})
    expected = DopplerPlacer(policy()).place(graph(), TOPOLOGY)
    for path in (tmp_path, file):
        assert make_placer(f"doppler:{path}").place(graph(), TOPOLOGY) == expected


def test_what_has_no_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="needs a policy"):
        make_placer("doppler")
    with pytest.raises(errors.CheckpointError, match="does not exist"):
        make_placer(f"doppler:{tmp_path}")
    with pytest.raises(errors.UnknownNameError):
        make_placer("heft:runs/x")


def test_the_portfolio_asks_the_policy(tmp_path: Path) -> None:
    save_policy(policy(), tmp_path / POLICY_FILE, {})
    placer = AutoPlacer(evaluations=50, instant=("single",), learned=DopplerPlacer(policy()))
    answer = ask(placer, graph(), TOPOLOGY)
    found = {member.name: member.makespan_s for member in answer.members}
    assert set(found) == {"single", "doppler", "cp-sat", "annealing"} or set(found) == {
        "single",
        "doppler",
        "annealing",
    }
    assert found["annealing"] <= found["doppler"] < found["single"]
    by_name = make_placer(f"auto:{tmp_path}", budget_s=3.0)
    assert isinstance(by_name, AutoPlacer)
    assert by_name.learned is not None
    assert by_name.seconds == 3.0
