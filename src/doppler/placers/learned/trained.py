"""The placer of a trained policy."""

from doppler.placers.learned.config import NeighbourhoodConfig
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.learned.rivals import LearnedPlacer
from doppler.policies.dual import DualPolicy
from doppler.policies.rivals.base import RivalPolicy
from doppler.policies.trainable import TrainablePolicy

Trained = DopplerPlacer | LearnedPlacer


def placer_of(policy: TrainablePolicy, *, samples: int | None = None) -> Trained:
    """The placer that places by a policy, with `samples` or as many as it usually takes.

    A number of samples is to judge the policy by: without list schedules, and without polishing.
    """
    if isinstance(policy, DualPolicy):
        judging = (
            None if samples is None else NeighbourhoodConfig(list_starts=False, polishing_work=0)
        )
        return DopplerPlacer(policy, samples=samples, search=judging)
    assert isinstance(policy, RivalPolicy)
    return LearnedPlacer(policy) if samples is None else LearnedPlacer(policy, samples=samples)
