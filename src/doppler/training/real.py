"""Stage III: REINFORCE on the real system, from few runs (Sec. 5).

An update samples many assignments; the simulator, recalibrated by what was measured so far, picks
a few that differ, and these run, with some plain samples. Both policies learn from the measured
makespans, and PLC imitates the incumbent. What is measured faster than the incumbent must win a
race against it before it takes its place. At the end the incumbent and the policy's greedy
assignment must win against the start once more, or the start is the answer.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite

import numpy as np
from torch import Tensor

from doppler.assignment import Assignment, assignment_for
from doppler.base.arrays import FloatArray, IntArray
from doppler.errors import AssignmentError, ConfigError, OutOfMemoryError
from doppler.executor import Executor
from doppler.graph.graph import Graph
from doppler.mdp.rollout import GREEDY, Sampling
from doppler.placers.registry import make_placer
from doppler.placers.search.annealing import starting_points
from doppler.policies.acting import episode_seeds
from doppler.policies.trainable import TrainablePolicy
from doppler.problem import Problem
from doppler.scheduler.choose import DYNAMIC, FIXED
from doppler.serving.incumbent import digest
from doppler.serving.trials import Trials
from doppler.sim.noise import Noise
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology
from doppler.training.config import AUTO, RealConfig, TrainConfig
from doppler.training.exercise_record import ExerciseRecord
from doppler.training.reinforce import CLIP, lesson_loss, policy_loss, sampling_at

STAGE = 2  # of seeds
STARTS = 4  # assignments of which one must run
START = "critical-path"  # the placer of a start where none is given
MARGIN = 0.01  # share by which mode `fixed` must be predicted to be faster
FIRST_SAMPLES = 32  # of the policy, among which the first incumbent may be


def refine(
    policy: TrainablePolicy, record: ExerciseRecord, config: TrainConfig, share: float, number: int
) -> tuple[Tensor, FloatArray]:
    """The loss of one update, when `share` of the stage is done, and the measured makespans."""
    trials, stage, exercise = record.trials, config.real, record.exercise
    assert trials is not None
    if not trials.has_begun:
        begin(record, config, proposals(policy, record, config))
    trials.warm.clear()  # another graph may have run in between
    trials.final_s.clear()  # of a run that is extended
    trials.predictor.recalibrate()
    forward = policy.on(exercise.view(policy, trials.predictor.calibrated))
    sampling = sampling_at(stage, share)
    seeds = episode_seeds(config.seed, STAGE, number, stage.samples + stage.lessons)
    sampled, rest = seeds[: stage.samples], seeds[stage.samples :]
    played = forward.play(sampling, sampled, record=False)
    devices = forward.instance.expand(played.devices)
    rows = pick(trials, devices, stage)
    challengers = np.concatenate([devices[rows], search(trials, stage.moves, number, config.seed)])
    found = trials.measure(challengers)
    makespans = trials.penalized(found[: len(rows)])
    gain = gains(trials, makespans, forward.instance.tables.scale_s)[:, None]
    rollouts = forward.recorded(played, rows, sampling, sampled)
    loss = policy_loss(forward.choices(rollouts, sampling), gain, stage)
    trials.sampled_s.extend(makespans.tolist())
    challenge(trials, challengers, found)
    record.keep_incumbent()
    if stage.lessons and policy.learns_to_place:
        lessons = np.concatenate([record.best_devices[None], trials.fastest.devices])
        loss = loss + lesson_loss(forward, sampling, lessons[: stage.lessons], rest)
    return loss, makespans


def refine_unguarded(
    policy: TrainablePolicy, record: ExerciseRecord, config: TrainConfig, share: float, number: int
) -> tuple[Tensor, FloatArray]:
    """The same as the paper has it: an episode is one run, its makespan the reward, and no more."""
    trials, stage = record.trials, config.real
    assert trials is not None
    if trials.incumbent.first is None and (found := found_before(record)):
        trials.incumbent.first = found[0]
    trials.final_s.clear()  # of a run that is extended
    sampling = sampling_at(stage, share)
    forward = policy.on(record.view(policy))
    rollouts = forward.play(sampling, episode_seeds(config.seed, STAGE, number, stage.batch))
    found_s = trials.play(forward.instance.expand(rollouts.devices))
    makespans = trials.penalized(found_s, record.exercise.bound_s)
    gain = gains(trials, makespans, forward.instance.tables.scale_s)[:, None]
    trials.sampled_s.extend(makespans.tolist())
    record.keep_incumbent()
    return policy_loss(forward.choices(rollouts, sampling), gain, stage), makespans


def conclude(policy: TrainablePolicy, record: ExerciseRecord, config: TrainConfig) -> None:
    """Choose the answer at the end of the stage, by a final race against the start."""
    trials = record.trials
    assert trials is not None
    if not config.real.final_runs or not trials.has_begun:
        return
    own = greedy(policy, record, config)
    trials.final([start.devices for start in record.starts], own.devices)
    record.keep_incumbent()


def greedy(policy: TrainablePolicy, record: ExerciseRecord, config: TrainConfig) -> Assignment:
    """What the policy places by itself, with the costs that were measured, if there are any."""
    exercise = record.exercise
    forward = policy.acting(exercise.view(policy, record.recalibrated()))
    seeds = episode_seeds(config.seed, STAGE + 1, 0, 1)
    (devices,) = forward.instance.expand(forward.play(GREEDY, seeds, record=False).devices)
    return assignment_for(exercise.graph, exercise.topology, devices, placer=policy.kind)


def begin(record: ExerciseRecord, config: TrainConfig, proposed: IntArray) -> None:
    """Find the first incumbent; (K, V) are assignments of the policy."""
    trials = record.trials
    assert trials is not None
    best, others = starts(record, config, proposed)
    trials.begin([*best, *others])
    for challenger in best[1:]:
        if digest(challenger) not in trials.known:
            trials.challenge(challenger)


def proposals(policy: TrainablePolicy, record: ExerciseRecord, config: TrainConfig) -> IntArray:
    """(K, V) one greedy and some sampled assignments."""
    forward = policy.acting(record.view(policy))
    seeds = episode_seeds(config.seed, STAGE + 1, 0, FIRST_SAMPLES)
    warm = Sampling(select_temperature=0.3, place_temperature=0.3)
    played = [
        forward.play(GREEDY, seeds[:1], record=False).devices,
        forward.play(warm, seeds, record=False).devices,
    ]
    return forward.instance.expand(np.concatenate(played))


def starts(
    record: ExerciseRecord, config: TrainConfig, proposed: IntArray
) -> tuple[list[IntArray], list[IntArray]]:
    """(V,) assignments to begin with, the first that runs.

    What earlier stages, or the run that this one started from, found to be the best; and what is
    predicted to be, of the policy's and the heuristics'.
    """
    found = found_before(record)
    trials, exercise = record.trials, record.exercise
    assert trials is not None
    points = np.array(starting_points(exercise.problem, config.seed))
    others = np.concatenate([proposed, points])
    costs = trials.predictor.costs_s(others)
    ranked = [row for row in np.argsort(costs, kind="stable") if isfinite(costs[row])]
    ways = {digest(others[row]): others[row] for row in ranked}
    alone = np.where(exercise.graph.is_input, -1, 0)  # moves nothing: the last resort
    return found, [*list(ways.values())[:STARTS], alone]


def found_before(record: ExerciseRecord) -> list[IntArray]:
    """(V,) the best of earlier stages, and of the run that this one started from."""
    found = [record.best_devices] if isfinite(record.best_s) else []
    return [*found, *(start.devices for start in record.starts)]


def pick(trials: Trials, devices: IntArray, stage: RealConfig) -> IntArray:
    """(B,) rows of (K, V) samples to run: those that are predicted best, then plain ones.

    Of those with the same predicted makespan, which are mostly the same but for the names of
    devices, the first; what ran before comes last.
    """
    costs = trials.predictor.costs_s(devices)
    least = costs.min()
    alike = np.round(costs / least, 9) if isfinite(least) and least > 0 else costs
    first = np.zeros(len(costs), bool)
    first[np.unique(alike, return_index=True)[1]] = True
    old = np.array([digest(row) in trials.known for row in devices])
    ranked = np.lexsort((np.arange(len(costs)), costs, ~first, old))
    best = ranked[: stage.batch - stage.plain].tolist()
    plain = [row for row in range(len(devices)) if row not in best][: stage.plain]
    return np.array([*best, *plain], np.int64)


def search(trials: Trials, moves: int, number: int, seed: int) -> IntArray:
    """(K, V) what is predicted to be faster than the incumbent and never ran, after some moves.

    One search begins at the incumbent, one where it was after the update before, and one at what a
    heuristic makes of the recalibrated costs. That is among them as it is, too, whatever is
    predicted: where the simulator is wrong it may be the better one.
    """
    incumbent = trials.devices
    if not moves:
        return incumbent[None][:0]
    heuristic = trials.predictor.heuristic(number)
    others = [start for start in (trials.searched, heuristic) if start is not None]
    there = np.stack([incumbent, *others])
    found, costs = trials.predictor.improve(there, moves, seed=seed)
    trials.searched = found[int(np.argmin(costs))]
    rows = [*found[costs < trials.predictor.cost_s(incumbent)], *others[-1:]]
    new = {digest(row): row for row in rows if digest(row) not in trials.known}
    return np.array(list(new.values()), np.int64).reshape(-1, found.shape[1])


def gains(trials: Trials, makespans: FloatArray, scale_s: float) -> FloatArray:
    """(B,) how much better than the baseline each run was.

    Against the mean of all runs so far (Sec. 4.1), over the scale of the instance; or against the
    mean of the others in the batch, over its spread, as far as that exceeds the noise: of a batch
    that differs no more than runs of the incumbent do, there is nothing to learn.
    """
    stage, size = trials.config, len(makespans)
    mean_s = float(makespans.mean())
    baseline_s = trials.mean_s if trials.episodes else mean_s
    trials.episodes += size
    trials.mean_s += (mean_s - trials.mean_s) * size / trials.episodes
    if stage.running_mean or size == 1:
        return np.array((baseline_s - makespans) / scale_s)
    spread_s = float(makespans.std(ddof=1)) + 1e-9 * mean_s
    noise = trials.incumbent.spread_s**2 / stage.repeats / spread_s**2
    others_s = (makespans.sum() - makespans) / (size - 1)
    gain: FloatArray = np.clip((others_s - makespans) / spread_s, -CLIP, CLIP)
    return gain * max(0.0, 1.0 - noise)


def challenge(trials: Trials, devices: IntArray, makespans: FloatArray) -> None:
    """Let the fastest of (K, V) assignments race, if it was faster than the incumbent.

    Whoever lost a race before does not race again.
    """
    for row in np.argsort(makespans, kind="stable"):
        if not makespans[row] < trials.incumbent.mean_s:
            return
        if trials.may_challenge(devices[row]):
            trials.challenge(devices[row])
            return


def mode_of(executor: Executor | None, config: RealConfig) -> str:
    """The mode that an executor runs in; what is not known is `dynamic`."""
    own = getattr(getattr(executor, "config", None), "mode", None)
    if own is not None and config.mode not in (AUTO, own):
        raise ConfigError(
            f"real.mode is `{config.mode}`, the executor runs in mode `{own}`",
            hint="leave out real.mode, or make the executor with that mode",
        )
    return own or (DYNAMIC if config.mode == AUTO else config.mode)


def faster_mode(predicted_s: dict[str, float]) -> str:
    """`dynamic`, unless `fixed` is predicted to be faster by more than the margin."""
    return FIXED if predicted_s[FIXED] < predicted_s[DYNAMIC] * (1 - MARGIN) else DYNAMIC


def predicted_by_mode(
    graphs: Sequence[Graph], topology: Topology, starts: Sequence[Assignment], config: TrainConfig
) -> dict[str, float]:
    """The predicted seconds of one run of each graph, by mode, under what it starts from."""
    quiet = replace(config.sim_config, noise=Noise())
    found = {DYNAMIC: 0.0, FIXED: 0.0}
    for graph in graphs:
        problem = Problem(graph, topology)
        fitting = [start for start in starts if fits(start, graph, topology)]
        start = fitting[0] if fitting else make_placer(START).place(problem, seed=config.seed)
        for mode in found:
            try:
                trace = Simulator(problem, replace(quiet, mode=mode)).run(graph, start)
            except OutOfMemoryError:
                found[mode] = inf
            else:
                found[mode] += trace.makespan_s
    return found


def fits(start: Assignment, graph: Graph, topology: Topology) -> bool:
    """Whether an assignment is for this graph on this topology."""
    try:
        start.check(graph, topology)
    except AssignmentError:
        return False
    return start.topology in ("", topology.name)
