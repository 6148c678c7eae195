"""Moves of search that a model chooses: their features, the model, and what it is fitted to."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import devices_for, examples, graphs, topologies

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.errors import CheckpointError, ConfigError
from doppler.placers.search.annealing import SearchConfig, search, starting_points
from doppler.placers.search.improver import (
    PRICING,
    make_chain,
    make_judge,
    make_neighbourhood,
)
from doppler.placers.search.judge_kernel import AT_FIRST, NUM_CLASSES, Judge
from doppler.placers.search.judging import FEW, KINDS, MOVE_FEATURES, Move, MoveDescriber
from doppler.placers.search.kernel import observe
from doppler.placers.search.move_model import (
    MoveModel,
    blank_model,
    read_move_model,
    shapes_of,
    shipped_move_model,
    write_move_model,
)
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.sim import ReferenceSimulator, Simulator
from doppler.sim.memory_kernel import priced_s
from doppler.sim.state_kernel import make_scratch
from doppler.topology import preset

CANDIDATES = 12
memories = st.sampled_from([math.inf, 2.0, 5.0, 2e9]) | st.integers(1, 10**9).map(float)


class Observation:
    """One move of a search, with all candidates for it."""

    def __init__(self, problem: Problem, devices: IntArray, seed: int, temperature: float) -> None:
        simulator = Simulator(problem)
        self.arrays = simulator.arrays(problem.graph, [0])
        self.priority, scratch = simulator.priority(problem.graph, 0), make_scratch(self.arrays)
        self.chain = make_chain(self.arrays, self.priority, scratch, devices)
        self.before_s, self.share = self.chain.lent[:2].tolist()
        self.cost = float(self.chain.cost[0])
        self.judge = make_judge(self.arrays, shipped_move_model(), candidates=CANDIDATES)
        self.features, self.gains = np.zeros((1, len(MOVE_FEATURES))), np.zeros(1)
        self.seen = observe(
            *(self.arrays, make_neighbourhood(problem), self.chain, self.judge, self.priority),
            *(scratch, seed, temperature, self.features, self.gains),
        )


def moved(judge: Judge, k: int, before: IntArray) -> tuple[tuple[int, ...], IntArray]:
    """The vertices of a candidate, and the assignment after it."""
    count, after = judge.counts[k], before.copy()
    after[judge.vertices[k, :count]] = judge.devices[k, :count]
    return tuple(judge.vertices[k, :count].tolist()), after


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_compiled_features_equal_readable_ones(data: st.DataObject) -> None:
    topology = data.draw(topologies(memory_bytes=memories))
    size = data.draw(st.sampled_from([8, 60]))
    if size == 8:
        graph = data.draw(graphs(max_vertices=size, num_devices=topology.num_devices))
    else:
        graph = random_dag(vertices=size, depth=6, seed=data.draw(st.integers(0, 99)))
    assume(len(graph.assigned))  # search has nothing to move otherwise
    problem, before = Problem(graph, topology), data.draw(devices_for(graph, topology))
    one = Observation(problem, before, data.draw(st.integers(0, 999)), 1e-3)
    if not one.before_s:
        assert one.seen == 0
        return
    trace, _ = ReferenceSimulator(problem).run_with_loans(graph, Assignment(before))
    describer = MoveDescriber(problem, before, trace)
    for k in np.flatnonzero(one.judge.counts).tolist():
        vertices, after = moved(one.judge, k, before)
        kind = int(one.judge.classes[k]) // (NUM_CLASSES // len(KINDS))
        expected = describer.features(Move(kind, vertices, after, AT_FIRST, 1e-3))
        found = one.judge.features[k]
        for name, a, b in zip(MOVE_FEATURES, found, expected, strict=True):
            assert a == pytest.approx(b, rel=1e-6, abs=1e-6), (name, len(vertices), FEW)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_a_chosen_move_is_one_of_the_candidates_and_is_taken_back_if_it_is_worse(
    data: st.DataObject,
) -> None:
    topology = data.draw(topologies(memory_bytes=memories))
    graph = data.draw(graphs(max_vertices=8, num_devices=topology.num_devices))
    assume(len(graph.assigned))  # search has nothing to move otherwise
    problem, before = Problem(graph, topology), data.draw(devices_for(graph, topology))
    one = Observation(problem, before, data.draw(st.integers(0, 999)), 0.0)
    now, (now_s, share, price) = one.chain.devices[0], one.chain.lent.tolist()
    assert priced_s(now_s, share, PRICING[0]) <= one.cost
    assert one.chain.cost[0] == priced_s(now_s, share, price)
    trace, lent_bytes = ReferenceSimulator(problem).run_with_loans(graph, Assignment(now))
    assert (trace.makespan_s, bool(lent_bytes.any())) == (now_s, share > 0)
    if one.seen:
        if problem.may_run_out:
            assert (price > PRICING[0]) == (share > 0)
        gain = max(1 - priced_s(now_s, share, PRICING[0]) / one.cost, 0.0)
        assert one.gains[0] == pytest.approx(gain)
        candidates = [moved(one.judge, k, before)[1] for k in np.flatnonzero(one.judge.counts)]
        assert any(np.array_equal(now, each) for each in [before, *candidates])


def test_a_blank_model_chooses_at_random_and_a_model_chooses_what_it_likes() -> None:
    """One that likes moves of single vertices makes these, where one is among the candidates."""
    problem = Problem(random_dag(vertices=60, depth=6, seed=0), preset("p100x4"))
    likes_one = blank_model()
    likes_one.inner[MOVE_FEATURES.index("is-one"), 0] = 1.0
    likes_one.outer[0] = 20.0
    shares = []
    for model in (blank_model(), likes_one):
        simulator = Simulator(problem)
        arrays, priority = simulator.arrays(problem.graph, [0]), simulator.priority(problem.graph)
        start = np.where(problem.graph.is_input, -1, np.arange(problem.graph.num_vertices) % 4)
        scratch = make_scratch(arrays)
        chain = make_chain(arrays, priority, scratch, start)
        judge = make_judge(arrays, model, candidates=8)
        features = np.zeros((400, len(MOVE_FEATURES)))
        seen = observe(
            *(arrays, make_neighbourhood(problem), chain, judge, priority, scratch),
            *(1, 1e-3, features, np.zeros(400)),
        )
        shares.append(features[:seen, MOVE_FEATURES.index("is-one")].mean())
    assert shares[1] > 2 * shares[0]


def test_without_candidates_moves_are_random_whatever_the_model() -> None:
    problem = Problem(random_dag(vertices=40, depth=6, seed=1), preset("p100x4"))
    starts = starting_points(problem, 0)
    found = [
        search(problem, starts, SearchConfig(evaluations=900, chains=1, candidates=0, moves=model))
        for model in (blank_model(), shipped_move_model())
    ]
    assert found[0].devices.tolist() == found[1].devices.tolist()


def test_search_repeats_with_chosen_moves() -> None:
    problem = Problem(random_dag(vertices=40, depth=6, seed=1), preset("p100x4"))
    starts = starting_points(problem, 0)
    a, b = (search(problem, starts, SearchConfig(evaluations=900, chains=2)) for _ in range(2))
    assert (a.devices.tolist(), a.cost_s) == (b.devices.tolist(), b.cost_s)


def test_a_model_is_read_as_it_was_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(size=shape).astype("f4") for n, shape in shapes_of(5).items()}
    write_move_model(MoveModel(**weights), tmp_path / "m.safetensors", {"seed": 0})
    again = read_move_model(tmp_path / "m.safetensors")
    for name, array in weights.items():
        np.testing.assert_array_equal(getattr(again, name), array)


def test_other_files_are_no_models_of_moves(tmp_path: Path) -> None:
    from importlib.resources import files

    path = tmp_path / "m.safetensors"
    path.write_bytes(files("doppler").joinpath("data", "policy.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="no model of moves"):
        read_move_model(path)
    write_move_model(blank_model(), path, {})
    data = path.read_bytes()
    for broken in (data[: len(data) // 2], data.replace(b"least-slack", b"least-slacj")):
        path.write_bytes(broken)
        with pytest.raises(CheckpointError):
            read_move_model(path)


@pytest.mark.parametrize("wrong", [{"candidates": -1}, {"random_moves": 1.5}])
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        SearchConfig(**wrong)  # type: ignore[arg-type]
