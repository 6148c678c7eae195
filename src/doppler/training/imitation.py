"""Stage I: imitation of the critical-path heuristic (Sec. 5)."""

from torch import Tensor

from doppler.base.arrays import FloatArray
from doppler.mdp.rollout import Sampling
from doppler.policies.acting import episode_seeds
from doppler.policies.trainable import TrainablePolicy
from doppler.training.config import TrainConfig
from doppler.training.exercise_record import ExerciseRecord


def imitate(
    policy: TrainablePolicy, record: ExerciseRecord, config: TrainConfig, share: float, number: int
) -> tuple[Tensor, FloatArray]:
    """The loss of one update, and the makespans of its episodes.

    The policy itself plays; at every state it visits, the teacher says what it would have done.
    """
    forward = policy.on(record.view(policy))
    seeds = episode_seeds(config.seed, 0, number, config.imitation.batch)
    rollouts = forward.play(Sampling(), seeds)
    makespans = record.measure(rollouts, number)
    return forward.select_rule_loss(rollouts) + forward.place_rule_loss(rollouts), makespans
