"""Batches: in which order assignments are made, and how each of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from doppler.mdp.rollout import GREEDY, Sampling
from doppler.placers.learned.config import NeighbourhoodConfig
from doppler.policies.arrays.config import PolicyConfig


class BatchKind(Enum):
    """What a batch of assignments is made from."""

    GREEDY = "greedy"  # empty assignments: the policy's best choices
    INITIAL = "initial"  # empty assignments: samples of the policy
    NEIGHBOUR = "neighbour"  # elites of a population, destroyed in part


@dataclass(frozen=True, slots=True)
class Batch:
    """Assignments that are made in the same way."""

    kind: BatchKind
    sampling: Sampling
    policy: PolicyConfig  # says whether policy or rule selects, and which of them places
    count: int
    part: int = 0  # of the machine, for the greedy; others are on the part of their population
    population: int = 0  # modulo the number of populations that are left
    populations: int = 1  # to keep before this batch
    random_share: float = 0.0  # of a neighbour's destroyed vertices that are repaired at random
    keeps_order: bool = True  # a neighbour has its parent's order; else the policy selects anew
    stays: bool = True  # on the part of the population, not on the whole machine


def batches(
    config: NeighbourhoodConfig, policy: PolicyConfig, samples: int, pairs: int, num_parts: int
) -> Iterator[Batch]:
    """A greedy assignment on each part (without samples, on the whole), then `samples`."""
    populations = min(max(samples // config.samples_per_population, 1), config.max_populations)
    for part in range(num_parts if samples else 1):
        yield Batch(BatchKind.GREEDY, GREEDY, policy, 1, part)
    initial = config.num_initial(samples, reads_guide=policy.reads_guide)
    yield from _initial(config, policy, initial, populations)
    size = config.batch_size(pairs, samples)
    yield from _neighbours(config, policy, _split(samples - initial, size), populations)


def _initial(
    config: NeighbourhoodConfig, policy: PolicyConfig, samples: int, populations: int
) -> Iterator[Batch]:
    """Initial samples of the populations in turn.

    In two thirds of them the critical-path rule selects, or places.
    """
    rule_selects = replace(policy, select=False) if policy.place else policy
    rule_places = replace(policy, place=False) if policy.select else policy
    policies = (rule_selects, policy, rule_places)
    for number, count in enumerate(_split(samples, config.initial_batch)):
        turn = number // populations
        sampling = _sampling(config, turn // len(policies))
        yield Batch(
            *(BatchKind.INITIAL, sampling, policies[turn % len(policies)], count),
            population=number,
            populations=populations,
        )


def _neighbours(
    config: NeighbourhoodConfig, policy: PolicyConfig, counts: list[int], populations: int
) -> Iterator[Batch]:
    """Neighbours of elites; the worse half of the populations is dropped at each stage."""
    stages, shares = populations.bit_length(), config.random_shares
    for turn, count in enumerate(counts):
        yield Batch(
            *(BatchKind.NEIGHBOUR, _sampling(config, turn // len(shares)), policy, count),
            population=turn,
            populations=max(populations >> (turn * stages // len(counts)), 1),
            # Where the rule places, only the policy's order is new.
            random_share=shares[turn % len(shares)] if policy.place else 0.0,
            keeps_order=policy.place,
            stays=turn // len(shares) % 2 == 0,
        )


def _split(total: int, size: int) -> list[int]:
    """`total` in batches of one size but for the last."""
    return [min(size, total - at) for at in range(0, total, size)]


def _sampling(config: NeighbourhoodConfig, turn: int) -> Sampling:
    """Sampling at the temperature whose turn it is."""
    t = config.temperatures[turn % len(config.temperatures)]
    return Sampling(select_temperature=t, place_temperature=t)
