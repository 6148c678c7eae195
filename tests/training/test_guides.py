"""Guides of training: of which kinds they are, and what they give away of a lesson."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from doppler.base.arrays import IntArray
from doppler.mdp.guide import NO_GUIDE, UNASSIGNED, Guide
from doppler.mdp.rollout import Sampling
from doppler.placers.lists.guides import simulated_times
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.dual import make_policy
from doppler.policies.trainable import ForwardPass
from doppler.programs import random_dag
from doppler.topology import read_topology
from doppler.training.config import GuideConfig, ReinforceConfig, TrainConfig
from doppler.training.exercise import Exercise
from doppler.training.exercise_record import ExerciseRecord
from doppler.training.guides import damaged, draw_guide, gap, lesson_guides

SIZE = 40
CONFIG = TrainConfig(
    stages=("sim",), policy=PolicyConfig(width=4, rounds=1), sim=ReinforceConfig(), threads=1
)
NONE, LIST, POOL, GAPS = range(4)  # kinds of guides


def make_record(config: TrainConfig = CONFIG) -> ExerciseRecord:
    graph = random_dag(vertices=SIZE, depth=6, bytes_per_flop=2e-6, seed=0)
    return ExerciseRecord(Exercise(graph, read_topology("p100x4"), config))


@pytest.fixture(scope="module")
def record() -> ExerciseRecord:
    return make_record()


@pytest.fixture(scope="module")
def unguided() -> ExerciseRecord:
    """That of a policy that reads no guide."""
    return make_record(replace(CONFIG, policy=PolicyConfig(width=4, rounds=1, features="paper")))


def random_rows(count: int) -> IntArray:
    """(count, n) devices."""
    return np.random.default_rng(0).integers(4, size=(count, SIZE))


def times_of(record: ExerciseRecord, devices: IntArray) -> np.ndarray:
    """(2, n) ends and slack in simulation."""
    times = simulated_times(record.exercise.instance, devices, record.exercise.simulator)
    assert times is not None
    return times[1:]


def kind_of(record: ExerciseRecord, guide: Guide) -> int:
    if not len(guide.devices):
        return NONE
    if guide is record.exercise.instance.guide:
        return LIST
    return GAPS if (guide.devices == UNASSIGNED).any() else POOL


def drawn_kinds(record: ExerciseRecord, config: GuideConfig, count: int) -> list[int]:
    rng = np.random.default_rng(0)
    return [kind_of(record, draw_guide(record, config, rng)) for _ in range(count)]


def test_guides_have_their_shares(record: ExerciseRecord) -> None:
    kinds = drawn_kinds(record, GuideConfig(no_share=0.1, list_share=0.4, pool_share=0.2), 1000)
    shares = np.bincount(kinds, minlength=4) / 1000
    np.testing.assert_allclose(shares, [0.1, 0.4, 0.2, 0.3], atol=0.05)


@pytest.mark.parametrize("kind", [NONE, LIST, POOL])
def test_a_share_may_be_all(record: ExerciseRecord, kind: int) -> None:
    shares = [float(kind == other) for other in (NONE, LIST, POOL)]
    config = GuideConfig(no_share=shares[NONE], list_share=shares[LIST], pool_share=shares[POOL])
    assert set(drawn_kinds(record, config, 20)) == {kind}


def test_guides_of_the_pool_are_of_it_with_their_times_or_have_gaps(record: ExerciseRecord) -> None:
    vertices = record.exercise.instance.vertices
    pool, seen = record.pool.devices[:, vertices], set()
    rng, shares = np.random.default_rng(0), {"no_share": 0.0, "list_share": 0.0}
    for _ in range(30):
        guide = draw_guide(record, GuideConfig(**shares, pool_share=1.0), rng)
        assert guide.devices.tolist()[0] in pool.tolist()
        np.testing.assert_array_equal(guide.times[0], times_of(record, guide.devices[0]))
        seen.add(guide.devices.tobytes())
        gaps = draw_guide(record, GuideConfig(**shares, pool_share=0.0), rng).devices[0]
        says = gaps != UNASSIGNED
        assert any((row[says] == gaps[says]).all() for row in pool)
    assert len(seen) > 1


def test_policies_that_read_no_guide_get_none(unguided: ExerciseRecord) -> None:
    assert set(drawn_kinds(unguided, GuideConfig(), 20)) <= {NONE, LIST}  # that of the instance
    assert len(unguided.exercise.instance.guide.devices) == 0
    rng = np.random.default_rng(0)
    assert lesson_guides(unguided, random_rows(2), GuideConfig(), rng) is NO_GUIDE


def test_without_an_expert_there_is_no_pool() -> None:
    record = make_record(replace(CONFIG, sim=ReinforceConfig(expert=None)))
    config = GuideConfig(no_share=0.0, list_share=0.0, pool_share=0.5)
    assert set(drawn_kinds(record, config, 20)) == {LIST}


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_gaps_are_stretches_or_any(share: float) -> None:
    rng, sizes, stretches = np.random.default_rng(0), [], 0
    for _ in range(200):
        places = np.flatnonzero(gap(SIZE, share, rng))
        sizes.append(len(places))
        stretches += len(places) > 1 and places[-1] - places[0] + 1 == len(places)
    assert np.mean(sizes) == pytest.approx(share * SIZE, rel=0.1)
    assert stretches > 60


def test_times_of_a_damaged_guide_are_not_those_of_the_lesson(
    record: ExerciseRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = []

    def note(instance: object, devices: IntArray, simulator: object) -> np.ndarray:
        simulated.append(devices.copy())
        return np.concatenate([np.zeros((1, SIZE)), times_of(record, devices)])

    monkeypatch.setattr("doppler.training.guides.simulated_times", note)
    rng, lessons = np.random.default_rng(0), random_rows(20)
    is_open, is_wrong = rng.random((2, 20, SIZE)) < 0.4
    guide = damaged(record, lessons, is_open, is_wrong, rng)
    other = np.array(simulated)
    for row, times in zip(other, guide.times, strict=True):
        np.testing.assert_array_equal(times, times_of(record, row))
    assert (guide.devices[is_open] == UNASSIGNED).all()
    assert (guide.devices[~is_open] == other[~is_open]).all()
    told = ~is_open & ~is_wrong
    assert (guide.devices[told] == lessons[told]).all()
    for hidden in (is_open, is_wrong & ~is_open):  # as good as a device of four at random
        assert (other[hidden] == lessons[hidden]).mean() == pytest.approx(0.25, abs=0.07)


def test_what_does_not_fit_has_no_times(record: ExerciseRecord) -> None:
    small = tuple(replace(d, memory_bytes=1.0) for d in record.exercise.topology.devices)
    topology = replace(record.exercise.topology, devices=small)
    full = ExerciseRecord(Exercise(record.exercise.graph, topology, CONFIG))
    nothing = np.zeros((1, SIZE), bool)
    guide = damaged(full, random_rows(1), nothing, nothing, np.random.default_rng(0))
    assert guide.times.tolist() == [[[-1.0] * SIZE, [0.0] * SIZE]]


def test_lessons_have_guides_with_gaps_and_mistakes(record: ExerciseRecord) -> None:
    known, rng = random_rows(60), np.random.default_rng(0)
    lessons = record.exercise.instance.expand(known)
    right = lesson_guides(record, lessons, GuideConfig(wrong_share=0.0), rng).devices
    assert (right[right != UNASSIGNED] == known[right != UNASSIGNED]).all()
    open_share = (right == UNASSIGNED).mean(axis=1)
    assert 0.45 < open_share.mean() < 0.65  # of 0.1 to 1
    assert open_share.std() > 0.2
    wrong = lesson_guides(record, lessons, GuideConfig(wrong_share=1.0), rng).devices
    says = wrong != UNASSIGNED
    assert 0.2 < (wrong[says] != known[says]).mean() < 0.5  # half of 3 of 4
    hidden = lesson_guides(record, lessons, GuideConfig(least_gap=1.0), rng).devices
    assert (hidden == UNASSIGNED).all()
    assert lesson_guides(record, lessons[:0], GuideConfig(), rng) is NO_GUIDE


@pytest.fixture(scope="module")
def forward(record: ExerciseRecord) -> ForwardPass:
    policy = make_policy(CONFIG.policy, 0)
    return policy.on(record.view(policy))


def test_vertices_that_follow_the_guide_of_a_lesson_do_not_count(forward: ForwardPass) -> None:
    known, seeds = random_rows(2), np.arange(2)
    lessons, guide = forward.instance.expand(known), known.copy()
    guide[0, 3], guide[1, 5:] = UNASSIGNED, (known[1, 5:] + 1) % 4
    for by_rule in (False, True):
        found = forward.place_log_probs(
            lessons, Sampling(), seeds, by_rule=by_rule, guide=Guide(guide)
        )
        assert (found < 0).sum(dim=1).tolist() == [1, SIZE - 5]
    without = forward.place_log_probs(lessons, Sampling(), seeds)
    assert (without < 0).all()


def test_a_pass_has_the_guide_of_its_instance_or_another(
    record: ExerciseRecord, forward: ForwardPass
) -> None:
    own, seeds = record.exercise.instance.guide, np.arange(3)
    other = Guide(random_rows(1))
    column = -6  # `guided`, of the device features
    for given, expected in ((None, own.devices), (other, other.devices), (NO_GUIDE, None)):
        guided = forward if given is None else forward.guided_by(given)
        rollouts = guided.play(Sampling(), seeds)
        seen = rollouts.features[..., column]  # (B, n, D)
        if expected is None:
            assert (seen == 0).all()
            continue
        assert (seen.argmax(axis=2) == expected[0][rollouts.order]).all()
        assert (seen.sum(axis=2) == 1).all()
