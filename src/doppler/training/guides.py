"""Guides of training: the assignments that a policy compares with while it learns."""

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.mdp.guide import NO_GUIDE, UNASSIGNED, Guide
from doppler.placers.lists.guides import simulated_times
from doppler.training.config import GuideConfig
from doppler.training.exercise_record import ExerciseRecord


def draw_guide(record: ExerciseRecord, config: GuideConfig, rng: np.random.Generator) -> Guide:
    """The guide of an update's episodes; none where the policy reads none.

    Mostly the list schedule that it has when it places, or none. Otherwise one of the expert's
    best, or that with gaps: so it learns to improve good assignments, and to repair parts of them.
    """
    instance, kind = record.exercise.instance, rng.random()
    if kind < config.no_share:
        return NO_GUIDE
    size = len(record.pool.costs_s) if record.exercise.expert is not None else 0
    kind -= config.no_share + config.list_share
    if not len(instance.guide.devices) or not size or kind < 0:
        return instance.guide
    known: IntArray = record.pool.devices[rng.integers(size), instance.vertices]
    nowhere = np.zeros(len(known), bool)
    is_open = nowhere if kind < config.pool_share else gap(len(known), rng.random(), rng)
    return damaged(record, known[None], is_open[None], nowhere[None], rng)


def lesson_guides(
    record: ExerciseRecord, lessons: IntArray, config: GuideConfig, rng: np.random.Generator
) -> Guide:
    """The guides of (L, V) lessons: each is the lesson itself but for gaps, and for some vertices
    that are elsewhere. None where the policy reads none.
    """
    instance = record.exercise.instance
    if not len(instance.guide.devices) or not len(lessons):
        return NO_GUIDE
    known = lessons[:, instance.vertices]
    shares = rng.uniform(config.least_gap, 1.0, len(known))
    is_open = np.stack([gap(known.shape[1], share, rng) for share in shares])
    is_wrong = rng.random(known.shape) < config.wrong_share * rng.random((len(known), 1))
    return damaged(record, known, is_open, is_wrong, rng)


def damaged(
    record: ExerciseRecord,
    known: IntArray,
    is_open: BoolArray,
    is_wrong: BoolArray,
    rng: np.random.Generator,
) -> Guide:
    """(L, n) assignments as guides that say nothing of some vertices, and are wrong of others.

    Their times are those of assignments in which all of these vertices are elsewhere: times of the
    right ones would give away where to place them.
    """
    elsewhere = rng.permuted(known, axis=1)
    other = np.where(is_open | is_wrong, elsewhere, known)
    times = np.stack([_times(record, row) for row in other])
    return Guide(np.where(is_open, UNASSIGNED, other), times)


def _times(record: ExerciseRecord, devices: IntArray) -> FloatArray:
    """(2, n) ends and slack in simulation; -1 and 0 where that does not fit in memory."""
    exercise = record.exercise
    found = simulated_times(exercise.instance, devices, exercise.simulator)
    if found is not None:
        return found[1:]
    return np.stack([np.full(len(devices), -1.0), np.zeros(len(devices))])


def gap(size: int, share: float, rng: np.random.Generator) -> BoolArray:
    """(n,) whether a vertex is in a gap of that share: a stretch of their order, or any."""
    if rng.random() < 0.5:
        return rng.random(size) < share
    length = int(np.ceil(share * size))
    first = int(rng.integers(size - length + 1))
    places = np.arange(size)
    return (places >= first) & (places < first + length)
