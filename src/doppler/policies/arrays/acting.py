"""Episodes by a policy whose networks are plain matrices."""

from dataclasses import replace
from typing import TYPE_CHECKING

from doppler.base.arrays import IntArray
from doppler.mdp.rollout import NOTHING_ASSIGNED, PartialAssignments, Roller, Rollouts, Sampling
from doppler.policies.arrays.config import PolicyConfig

if TYPE_CHECKING:
    from doppler.mdp.kernel import Weights


def play(
    roller: Roller,
    weights: "Weights",
    config: PolicyConfig,
    sampling: Sampling,
    seeds: IntArray,
    *,
    partial: PartialAssignments = NOTHING_ASSIGNED,
    record: bool = True,
) -> Rollouts:
    """One episode per seed, which completes a partial assignment, by a policy's weights.

    Where `config` says that SEL or PLC is not learned, the rule of the critical-path heuristic
    selects or places instead (the ablations of Table 3).
    """
    if not config.select:
        sampling = replace(sampling, select_temperature=0.0)
        weights = weights._replace(score=roller.instance.tables.bottom_s)
    if not config.place:
        sampling = replace(sampling, place_early=True)
    return roller.play(weights, sampling, seeds, partial=partial, record=record)
