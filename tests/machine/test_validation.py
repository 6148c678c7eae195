"""Validation: an engine that plays out the simulator's topology is predicted perfectly."""

import json
from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np
import pytest
from engine.playing_backend import PlayingBackend, machine, small_graph

from doppler.assignment import Assignment
from doppler.engine.engine import Engine
from doppler.errors import ConfigError, EngineError
from doppler.graph import GraphBuilder
from doppler.machine.calibration import Measured, Refined
from doppler.machine.validation import (
    PROBED,
    Validation,
    diverse_assignments,
    good_assignments,
    refine,
    validate,
    write_validation,
)
from doppler.programs import llama_block
from doppler.sharding import shard
from doppler.sim import Noise, SimConfig, Simulator
from doppler.topology import Host, Topology
from doppler.trace import Trace


def test_what_the_simulator_knows_is_predicted_perfectly() -> None:
    graph = small_graph()
    topology = replace(machine(3, lanes=2), host=Host(ahead=1))
    assignments = diverse_assignments(graph, topology, 20)
    with Engine(topology, PlayingBackend(topology)) as engine:
        found = validate(graph, topology, engine, assignments, repeats=2)
    np.testing.assert_allclose(found.predicted_s, found.measured_s, rtol=1e-9)
    assert found.pearson == pytest.approx(1)
    assert found.spearman == pytest.approx(1)
    assert found.best_spearman == pytest.approx(1)
    assert found.mape == pytest.approx(0, abs=1e-9)
    assert found.spread_s.max() < 1e-12
    assert len(found.placers) == 20


def test_what_it_does_not_know_shows() -> None:
    graph, truth = small_graph(), machine(3)
    assignments = diverse_assignments(graph, truth, 20)
    slow = Simulator(truth, SimConfig(noise=Noise(slowdown=(1.0, 1.0, 3.0))))
    found = validate(graph, truth, slow, assignments)
    assert 0 < found.mape < 1
    assert found.pearson < 0.999
    worst = found.worst(3).tolist()
    assert len(worst) == 3
    assert np.abs(found.errors[worst]).min() >= np.median(np.abs(found.errors))


def test_assignments_that_fail_are_listed_and_left_out() -> None:
    graph, topology = small_graph(), machine(2)
    assignments = diverse_assignments(graph, topology, 8)

    class Moody:
        """Fails on the second assignment, the second time."""

        def __init__(self) -> None:
            self.seen = 0

        def run(self, graph, assignment, seed=0) -> Trace:  # type: ignore[no-untyped-def]
            self.seen += assignment == assignments[1]
            if assignment == assignments[1] and self.seen == 2:
                raise EngineError("out of luck")
            return Simulator(topology).run(graph, assignment, seed)

    found = validate(graph, topology, Moody(), assignments)
    assert found.failures == (f"{assignments[1].placer}: out of luck",)
    assert len(found.placers) == 7


def test_assignments_that_do_not_fit_are_not_run() -> None:
    graph = small_graph()
    devices = tuple(replace(d, memory_bytes=4_000.0) for d in machine(2).devices)
    topology = replace(machine(2), devices=devices)
    alone = Assignment(np.where(graph.is_input, -1, 0), placer="single")
    found = validate(graph, topology, Simulator(topology), [alone])
    assert found.failures == ("single: runs out of memory in the simulator",)
    assert isnan(found.pearson)
    assert isnan(found.mape)


def test_assignments_are_diverse_and_many_are_good() -> None:
    graph, topology = shard(llama_block(), parts=4), Topology.preset("p100x4")
    found = diverse_assignments(graph, topology, 60, seed=3)
    assert len(set(found)) == 60
    for assignment in found:
        assignment.check(graph, topology)
    makespans = Simulator(topology).makespans(graph, found)
    assert makespans.max() > 1.5 * makespans.min()
    assert (makespans <= 1.1 * makespans.min()).sum() >= 20
    assert (makespans > 1.5 * makespans.min()).sum() >= 10
    assert found == diverse_assignments(graph, topology, 60, seed=3)
    assert found != diverse_assignments(graph, topology, 60, seed=4)


def test_there_are_only_so_many_assignments_of_a_small_graph() -> None:
    builder = GraphBuilder("pair")
    for name in ("a", "b"):
        builder.op(name, "matmul", reads=[], output_bytes=1, exec_s=1.0, transfer_s=1.0)
    found = diverse_assignments(builder.build(), Topology.preset("reference:2"), 10)
    assert 1 <= len(set(found)) == len(found) <= 4


def played(truth: Topology, prior: Topology, count: int = 24, noise: float = 0.0) -> Refined:
    """What refining makes of a topology that is wrong."""
    graph, rng = small_graph(), np.random.default_rng(0)
    chosen = diverse_assignments(graph, truth, count)
    factor = rng.lognormal(0, noise, count) if noise else np.ones(count)
    took = Simulator(truth).makespans(graph, chosen) * factor
    runs = [Measured(a, s) for a, s in zip(chosen, took.tolist(), strict=True)]
    held_out = runs[3::4]
    return refine(graph, prior, [run for run in runs if run not in held_out], held_out)


@pytest.mark.parametrize("dispatch_s", [2e-6, 8e-6])
def test_refining_finds_what_the_host_costs(dispatch_s: float) -> None:
    truth = replace(machine(3), host=Host(dispatch_s=4e-6, completion_s=3e-6, ahead=1))
    wrong = replace(truth, host=Host(dispatch_s=dispatch_s, completion_s=2e-6, ahead=1))
    found = played(truth, wrong)
    assert found.before > 0.2
    assert found.after < 0.03
    assert found.topology.host.dispatch_s == pytest.approx(4e-6, rel=0.25)
    assert replace(found.topology, host=wrong.host) == wrong
    assert found == played(truth, wrong)  # the same every time


def test_refining_never_makes_it_worse() -> None:
    truth = replace(machine(3), host=Host(dispatch_s=2e-6, completion_s=1e-6, ahead=1))
    assert played(truth, truth) == (truth, 0.0, 0.0)
    for noise in (0.02, 0.2):
        found = played(truth, truth, noise=noise)
        assert found.after <= found.before
        if found.after == found.before:
            assert found.topology == truth


def test_refining_needs_something_to_fit() -> None:
    graph, topology = small_graph(), machine(2)
    assert refine(graph, topology, [], []) == (topology, 0.0, 0.0)
    devices = tuple(replace(d, memory_bytes=4_000.0) for d in topology.devices)
    small = replace(topology, devices=devices)
    alone = Assignment(np.where(graph.is_input, -1, 0))
    assert refine(graph, small, [Measured(alone, 1.0)], []) == (small, 0.0, 0.0)


def test_good_assignments_are_good_but_not_those_to_validate() -> None:
    graph, topology = small_graph(), machine(3)
    found = good_assignments(graph, topology)
    makespans = Simulator(topology).makespans(graph, found)
    assert len(set(found)) == PROBED
    assert (makespans <= 1.5 * makespans.min()).sum() >= 0.75 * PROBED
    others = set(diverse_assignments(graph, topology, PROBED))
    assert len(others & set(found)) <= 0.5 * PROBED  # heuristics


def test_figures_need_some_assignments() -> None:
    one = np.ones(1)
    nothing = Validation("g", "t", ("a",), one, one, one)
    assert isnan(nothing.spearman)
    equal = Validation("g", "t", ("a",) * 4, np.ones(4), np.ones(4), np.arange(4.0))
    assert isnan(equal.pearson)


def test_file(tmp_path: Path) -> None:
    columns = (np.array([1.0, 2.0, 3.0]), np.zeros(3), np.array([1.1, 2.1, 3.5]))
    validation = Validation("g", "t", ("a", "b", "c"), *columns, failures=("d: why",))
    write_validation(validation, tmp_path / "scatter.json")
    document = json.loads((tmp_path / "scatter.json").read_text())
    assert document["assignments"]["predicted_s"] == [1.1, 2.1, 3.5]
    assert document["spearman"] == pytest.approx(1)
    assert document["best_spearman"] is None
    assert document["failures"] == ["d: why"]


def test_mistakes_are_refused() -> None:
    graph, topology = small_graph(), machine(2)
    with pytest.raises(ConfigError):
        validate(graph, topology, Simulator(topology), [], repeats=0)
