"""Stage III: REINFORCE on the real system, from few runs (Sec. 5).

An update samples many assignments; the simulator, recalibrated by what was measured so far, picks
a few that differ, and these run, with some plain samples. Both policies learn from the measured
makespans, and PLC imitates the incumbent. What is measured faster than the incumbent must win a
race against it before it takes its place.
"""

from math import isfinite

import numpy as np
from torch import Tensor

from doppler.base.arrays import FloatArray, IntArray
from doppler.mdp.rollout import GREEDY, Sampling
from doppler.placers.search.annealing import starting_points
from doppler.policies.acting import episode_seeds
from doppler.policies.trainable import TrainablePolicy
from doppler.serving.measuring import Bench
from doppler.serving.prediction import digest
from doppler.training.config import RealConfig, TrainConfig
from doppler.training.exercise import Exercise
from doppler.training.reinforce import CLIP, lesson_loss, policy_loss, sampling_at

STAGE = 2  # of seeds
STARTS = 4  # assignments of which one must run
FIRST_SAMPLES = 32  # of the policy, among which the first incumbent may be


def refine(
    policy: TrainablePolicy, exercise: Exercise, config: TrainConfig, share: float, number: int
) -> tuple[Tensor, FloatArray]:
    """The loss of one update, when `share` of the stage is done, and the measured makespans."""
    bench, stage = exercise.bench, config.real
    assert bench is not None
    if bench.incumbent is None:
        begin(exercise, config, proposals(policy, exercise, config))
    bench.warm.clear()  # another graph may have run in between
    bench.predictor.recalibrate()
    exercise.see(bench.predictor.calibrated)
    forward = policy.on(exercise.view(policy))
    sampling = sampling_at(stage.reinforcement, share)
    seeds = episode_seeds(config.seed, STAGE, number, stage.samples + stage.lessons)
    sampled, lots = seeds[: stage.samples], seeds[stage.samples :]
    played = forward.play(sampling, sampled, record=False)
    devices = exercise.instance.expand(played.devices)
    rows = pick(bench, devices, stage)
    challengers = np.concatenate([devices[rows], search(bench, stage.moves, number, config.seed)])
    found = bench.measure(challengers)
    makespans = bench.penalized(found[: len(rows)])
    gain = gains(bench, makespans, exercise.instance.tables.scale_s)[:, None]
    rollouts = forward.recorded(played, rows, sampling, sampled)
    loss = policy_loss(forward.choices(rollouts, sampling), gain, stage.reinforcement)
    challenge(bench, challengers, found)
    exercise.keep_incumbent()
    if stage.lessons and policy.learns_to_place:
        lessons = np.concatenate([exercise.best_devices[None], bench.fastest.devices])
        loss = loss + lesson_loss(forward, sampling, lessons[: stage.lessons], lots)
    return loss, makespans


def begin(exercise: Exercise, config: TrainConfig, proposed: IntArray) -> None:
    """Find the first incumbent; (K, V) are assignments of the policy."""
    bench = exercise.bench
    assert bench is not None
    best, others = starts(exercise, config, proposed)
    bench.begin([*best, *others])
    for rival in best[1:]:
        if digest(rival) not in bench.known:
            bench.challenge(rival)


def proposals(policy: TrainablePolicy, exercise: Exercise, config: TrainConfig) -> IntArray:
    """(K, V) one greedy and some sampled assignments."""
    forward = policy.acting(exercise.view(policy))
    seeds = episode_seeds(config.seed, STAGE + 1, 0, FIRST_SAMPLES)
    warm = Sampling(select_temperature=0.3, place_temperature=0.3)
    played = [
        forward.play(GREEDY, seeds[:1], record=False).devices,
        forward.play(warm, seeds, record=False).devices,
    ]
    return exercise.instance.expand(np.concatenate(played))


def starts(
    exercise: Exercise, config: TrainConfig, proposed: IntArray
) -> tuple[list[IntArray], list[IntArray]]:
    """(V,) assignments to begin with, the first that runs.

    What earlier stages, or the run that this one goes on from, found to be the best; and what is
    predicted to be, of the policy's and the heuristics'.
    """
    found = [start.devices for start in exercise.starts]
    if isfinite(exercise.best_s):
        found.insert(0, exercise.best_devices)
    bench = exercise.bench
    assert bench is not None
    points = np.array(starting_points(exercise.graph, exercise.topology, config.seed))
    others = np.concatenate([proposed, points])
    costs = bench.predictor.costs_s(others)
    ranked = [row for row in np.argsort(costs, kind="stable") if isfinite(costs[row])]
    ways = {digest(others[row]): others[row] for row in ranked}
    alone = np.where(exercise.graph.is_input, -1, 0)  # moves nothing: the last resort
    return found, [*list(ways.values())[:STARTS], alone]


def pick(bench: Bench, devices: IntArray, stage: RealConfig) -> IntArray:
    """(B,) rows of (K, V) samples to run: those that are predicted best, then plain ones.

    Of those with the same predicted makespan, which are mostly the same but for the names of
    devices, the first; what ran before comes last.
    """
    costs = bench.predictor.costs_s(devices)
    least = costs.min()
    alike = np.round(costs / least, 9) if isfinite(least) and least > 0 else costs
    first = np.zeros(len(costs), bool)
    first[np.unique(alike, return_index=True)[1]] = True
    old = np.array([digest(row) in bench.known for row in devices])
    ranked = np.lexsort((np.arange(len(costs)), costs, ~first, old))
    best = ranked[: stage.batch - stage.plain].tolist()
    plain = [row for row in range(len(devices)) if row not in best][: stage.plain]
    return np.array([*best, *plain], np.int64)


def search(bench: Bench, moves: int, number: int, seed: int) -> IntArray:
    """(K, V) what is predicted to be faster than the incumbent and never ran, after some moves.

    One search begins at the incumbent, one where it was after the update before, and one at what a
    heuristic makes of the recalibrated costs. That is among them as it is, too, whatever is
    predicted: where the simulator is wrong it may be the better one.
    """
    assert bench.incumbent is not None
    if not moves:
        return bench.incumbent[None][:0]
    heuristic = bench.predictor.heuristic(number)
    others = [start for start in (bench.wanderer, heuristic) if start is not None]
    there = np.stack([bench.incumbent, *others])
    found, costs = bench.predictor.improve(there, moves, seed=seed)
    bench.wanderer = found[int(np.argmin(costs))]
    rows = [*found[costs < bench.predictor.cost_s(bench.incumbent)], *others[-1:]]
    new = {digest(row): row for row in rows if digest(row) not in bench.known}
    return np.array(list(new.values()), np.int64).reshape(-1, found.shape[1])


def gains(bench: Bench, makespans: FloatArray, scale_s: float) -> FloatArray:
    """(B,) how much better than the baseline each run was.

    Against the mean of all runs so far (Sec. 4.1), over the scale of the instance; or against the
    mean of the others in the batch, over its spread, as far as that exceeds the noise: of a batch
    that differs no more than runs of the incumbent do, there is nothing to learn.
    """
    stage, size = bench.config, len(makespans)
    mean_s = float(makespans.mean())
    baseline_s = bench.mean_s if bench.episodes else mean_s
    bench.episodes += size
    bench.mean_s += (mean_s - bench.mean_s) * size / bench.episodes
    if stage.running_mean or size == 1:
        return np.array((baseline_s - makespans) / scale_s)
    spread_s = float(makespans.std(ddof=1)) + 1e-9 * mean_s
    noise = bench.spread_s**2 / stage.repeats / spread_s**2
    others_s = (makespans.sum() - makespans) / (size - 1)
    gain: FloatArray = np.clip((others_s - makespans) / spread_s, -CLIP, CLIP)
    return gain * max(0.0, 1.0 - noise)


def challenge(bench: Bench, devices: IntArray, makespans: FloatArray) -> None:
    """Let the fastest of (K, V) assignments race, if it was faster than the incumbent.

    Whoever lost a race before does not race again.
    """
    assert bench.incumbent is not None
    barred = {*bench.beaten, digest(bench.incumbent)}
    for row in np.argsort(makespans, kind="stable"):
        if not makespans[row] < bench.incumbent_s:
            return
        if digest(devices[row]) not in barred:
            bench.challenge(devices[row])
            return
