"""The stages of the learned baselines: imitation, REINFORCE, and REINFORCE on the real system."""

import numpy as np
import torch
from torch import Tensor

from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.mdp.features import NUM_FEATURES, early
from doppler.mdp.rollout import GREEDY, Rollouts, Sampling
from doppler.policies.acting import episode_seeds
from doppler.policies.rivals.base import BaselinePolicy, Sampled, View
from doppler.policies.rivals.placeto import PlacetoPolicy
from doppler.training.config import ReinforceConfig, TrainConfig
from doppler.training.exercise import Exercise
from doppler.training.gradients.losses import tensor
from doppler.training.imitation import miss
from doppler.training.real import FIRST_SAMPLES, begin, challenge, gains, pick, search
from doppler.training.reinforce import CLIP, advantages, sampling_at

SMALLEST = 1e-9  # spread of a batch, as a share of the makespan, below which all is the same


def imitate_rule(
    policy: BaselinePolicy, exercise: Exercise, config: TrainConfig, share: float, number: int
) -> tuple[Tensor, FloatArray]:
    """The loss of one update of Stage I, and the makespans of its episodes.

    The policy plays; at every state it visits, the critical-path rule says which devices would do:
    those on which the vertex at hand can start first.
    """
    view, generator = exercise.view(policy), seeded(config.seed, 0, number)
    taken = policy.act(view, config.imitation.batch, Sampling(), generator)
    devices = view.devices(taken)
    makespans = exercise.measure(rollouts(view, devices), number)
    early = early_devices(exercise, view, devices)[:, view.first]
    return miss(policy.log_probs(view, taken), tensor(taken, early)), makespans


def reinforce_baseline(
    policy: BaselinePolicy, exercise: Exercise, config: TrainConfig, share: float, number: int
) -> tuple[Tensor, FloatArray]:
    """The loss of one update of Stage II, and its episodes' makespans."""
    stage, view = config.sim, exercise.view(policy)
    sampling, generator = sampling_at(stage, share), seeded(config.seed, 1, number)
    sampled = policy.sample(view, stage.batch, sampling, generator)
    makespans = exercise.measure(rollouts(view, view.devices(sampled.taken)), number)
    gain = advantages(exercise, makespans, stage)[:, None]
    if isinstance(policy, PlacetoPolicy) and policy.config.form == "improve":
        gain = improvements(exercise, view, sampled.taken, stage, number)
    return choice_loss(sampled, gain, stage), makespans


def refine_baseline(
    policy: BaselinePolicy, exercise: Exercise, config: TrainConfig, share: float, number: int
) -> tuple[Tensor, FloatArray]:
    """The loss of one update of Stage III, and the measured makespans: as `refine`, no lessons."""
    bench, stage = exercise.bench, config.real
    assert bench is not None
    if bench.incumbent is None:
        begin(exercise, config, proposals(policy, exercise, config))
    bench.warm.clear()
    bench.predictor.recalibrate()
    exercise.see(bench.predictor.calibrated)
    view, sampling = exercise.view(policy), sampling_at(stage.reinforcement, share)
    taken = policy.act(view, stage.samples, sampling, seeded(config.seed, 2, number))
    devices = exercise.instance.expand(view.devices(taken))
    rows = pick(bench, devices, stage)
    rivals = np.concatenate([devices[rows], search(bench, stage.moves, number, config.seed)])
    found = bench.measure(rivals)
    makespans = bench.penalized(found[: len(rows)])
    gain = gains(bench, makespans, exercise.instance.tables.scale_s)
    challenge(bench, rivals, found)
    exercise.keep_incumbent()
    sampled = policy.judge(view, taken[tensor(taken, rows)], sampling)
    return choice_loss(sampled, gain[:, None], stage.reinforcement), makespans


def choice_loss(sampled: Sampled, gain: FloatArray, stage: ReinforceConfig) -> Tensor:
    """REINFORCE's loss per step, less the entropy; gains are (B, 1), or (B, T) for each step."""
    weight = tensor(sampled.log_probs, gain).float()
    loss = -stage.reinforce * (weight * sampled.log_probs).mean()
    return loss - stage.entropy * sampled.entropies.mean()


def improvements(
    exercise: Exercise, view: View, taken: Tensor, stage: ReinforceConfig, number: int
) -> FloatArray:
    """(B, T) how much better than others at the same step an episode got from each step on.

    The reward of a step is by how much it shortens the makespan, so what follows from it is the
    makespan before the step less the one at the end (Addanki et al. 2019).
    """
    count, steps = taken.shape
    before = np.arange(steps) < np.arange(steps + 1)[:, None]  # (T + 1, T) who moved by then
    states = np.where(before[None], taken.cpu().numpy()[:, None], 0)  # all on the first device
    every = exercise.instance.expand(states[..., view.step]).reshape(count * (steps + 1), -1)
    found = exercise.makespans(every, number).reshape(count, steps + 1)
    best = int(np.argmin(found))
    exercise.consider(every[best])
    left = found[:, :-1] - found[:, -1:]
    if stage.running_mean and count == 1:
        return np.array(left / exercise.instance.tables.scale_s)
    spread_s = left.std(axis=0) + SMALLEST * found.mean()
    gain: FloatArray = np.clip((left - left.mean(axis=0)) / spread_s, -CLIP, CLIP)
    return gain


def early_devices(exercise: Exercise, view: View, devices: IntArray) -> BoolArray:
    """(B, n, D) bool: on which devices each vertex, in order, could start first.

    All that comes before it is where (B, n) devices say.
    """
    from doppler.mdp.kernel import Weights

    n = len(view.order)
    score = np.empty(n)
    score[view.order] = -np.arange(n, dtype=np.float64)  # the order of the policy
    nothing = np.zeros((n, 2), np.float32)
    weights = Weights(
        score=score,
        vertex=nothing,
        placed=nothing.copy(),
        feature=np.zeros((NUM_FEATURES, 2), np.float32),
        hidden=np.zeros((2, 1), np.float32),
        hidden_bias=np.zeros(1, np.float32),
        out=np.zeros(1, np.float32),
        crowded=np.zeros(1, np.float32),
    )
    by_rule = Sampling(select_temperature=0.0, place_early=True)
    seeds = np.zeros(len(devices), np.int64)
    played = exercise.actor.roller.play(weights, by_rule, seeds, forced=devices)
    return early(played.features)


def rollouts(view: View, devices: IntArray) -> Rollouts:
    """(B, n) devices as episodes in the order of the policy."""
    order = np.broadcast_to(view.order, devices.shape)
    return Rollouts(order, devices, np.zeros((0, 0, 0, 0), np.float32), np.zeros((0, 0), np.int64))


def proposals(policy: BaselinePolicy, exercise: Exercise, config: TrainConfig) -> IntArray:
    """(K, V) one greedy and some sampled assignments."""
    view, generator = exercise.view(policy), seeded(config.seed, 3, 0)
    taken = [policy.act(view, 1, GREEDY, generator)]
    taken.append(policy.act(view, FIRST_SAMPLES, Sampling(), generator))
    return exercise.instance.expand(view.devices(torch.cat(taken)))


def seeded(seed: int, stage: int, number: int) -> torch.Generator:
    """What is drawn from in one update: no two of a run are the same."""
    return torch.Generator().manual_seed(int(episode_seeds(seed, stage, number, 1)[0]))
