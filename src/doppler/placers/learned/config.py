"""Settings of the large-neighbourhood search of placer `doppler`."""

from dataclasses import dataclass
from typing import NamedTuple

from doppler.base.arrays import unbox_fields
from doppler.errors import ConfigError
from doppler.placers.base import cores
from doppler.placers.search.annealing import SearchConfig

_POSITIVE = (
    *("max_pairs", "min_samples", "max_samples", "min_samples_per_thread", "initial_batch"),
    *("max_populations", "samples_per_population", "elites", "batch_pairs", "min_batch"),
    *("max_batch", "max_batches", "frontier", "max_tries", "polished", "polishing_least"),
)
_SHARES = (
    *(
        "initial_share",
        "max_initial_share",
        "max_destroyed",
        "near_probability",
        "used_probability",
        "grouped_share",
    ),
    "polishing_share",
)


class OperatorSettings(NamedTuple):
    """What the compiled destroy and repair operators take of a `NeighbourhoodConfig`."""

    random_share: float  # probability that a destroyed vertex, or group, is repaired at random
    near_probability: float
    used_probability: float
    frontier: int
    max_tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourhoodConfig:
    """How placer `doppler` searches: samples, populations, destroy and repair operators.

    The paper has no such search, so no number is from it. `max_samples` was raised after a
    measurement on the zero-shot problems (docs/results/zero-shot.md). The others were chosen by
    trials on splits `train` and `validation` of the random problems and on the paper's six graphs,
    those of threads and batches by their time.
    """

    # Samples: assignments that are made and simulated. Their cost is counted in pairs of a vertex
    # and a device.
    max_pairs: int = 16_000_000  # in all samples: half a second on two cores
    vertex_pairs: int = 8  # that a vertex costs besides its devices, mostly for its simulation
    min_samples: int = 32  # however large the problem
    max_samples: int = 24576  # however small
    temperatures: tuple[float, ...] = (0.1, 0.3, 1.0, 2.0)  # of the policy, in turn
    min_samples_per_thread: int = 4  # fewer take longer to hand over than to make

    # Initial samples, which the policy makes from empty assignments.
    list_starts: bool = True  # whether search begins from the list schedules that guide the policy
    initial_share: float = 1 / 32  # of all samples
    min_initial: int = 48
    max_initial_share: float = 0.25  # of all samples, that `min_initial` may take with list starts
    initial_batch: int = 8  # samples of one kind
    max_islands: int = 4  # groups of close devices that samples are restricted to

    # Populations, which do not mix.
    max_populations: int = 4  # at the start; the worse half is dropped at each stage
    samples_per_population: int = 1024  # below, one more does not pay
    elites: int = 4  # best assignments that a population keeps

    # Batches of neighbours, which share one population, temperature and share of random repair.
    batch_pairs: int = 200_000
    min_batch: int = 8  # neighbours
    max_batch: int = 64
    max_batches: int = 192  # larger batches where there would be more

    # Destroy operators.
    max_destroyed: float = 0.3  # share of the vertices
    destroyed_power: float = 3.0  # the share is `max_destroyed` * U^3, U uniform: mostly small
    frontier: int = 4  # first vertices of the queue, any of which a neighbourhood may grow from
    max_tries: int = 8  # until a neighbour differs from its parent

    # Repair operators.
    random_shares: tuple[float, ...] = (0.0, 0.5, 1.0)  # repaired at random, not by the policy
    near_probability: float = 0.75  # that random repair takes the device of a neighbouring vertex
    used_probability: float = 0.5  # if not, that it takes one by how many vertices are there

    # Polishing: local moves, annealed, from the best of all populations.
    polished: int = 2  # assignments, each by a chain; with a budget in seconds, one by each core
    polishing_work: int = 16_000_000  # vertices and edges in all simulations, without a budget
    polishing_least: int = 64  # that a simulation counts as at least: a short one has a cost too
    polishing_share: float = 0.5  # of a budget in seconds, at least; it lasts until the budget ends
    hot: float = 1e-3  # temperature at the beginning, as a share of the makespan
    cold: float = 1e-5  # and at the end
    candidates: int = 8  # of a move, as in `SearchConfig`

    # Groups of vertices that are destroyed and repaired as one.
    grouped_share: float = 0.3  # of the batches
    min_group_work: float = 1 / 16  # of a device's mean work: limits of the largest group's,
    max_group_work: float = 2.0  # drawn with a uniform logarithm
    group_noise: float = 0.5  # standard deviation, of the logarithm of an edge's transfer seconds

    def __post_init__(self) -> None:
        unbox_fields(self)
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be at least 1")
        if not self.temperatures or not self.random_shares:
            raise ConfigError("temperatures and random_shares must not be empty")
        shares = {name: getattr(self, name) for name in _SHARES}
        for name, share in [*shares.items(), *(("random_shares", x) for x in self.random_shares)]:
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} is {share}, must be between 0 and 1")
        if not 0 < self.cold <= self.hot or min(self.polishing_work, self.candidates) < 0:
            raise ConfigError(
                "cold must be positive and at most hot, polishing_work and candidates not negative"
            )
        if not 0 < self.min_group_work <= self.max_group_work:
            raise ConfigError("min_group_work must be positive, and at most max_group_work")

    def num_samples(self, pairs: int) -> int:
        """How many samples of this many pairs of a vertex and a device are worth their time."""
        return min(max(self.max_pairs // max(pairs, 1), self.min_samples), self.max_samples)

    def num_initial(self, samples: int, *, reads_guide: bool) -> int:
        """How many of the samples begin from nothing."""
        fewest = min(self.min_initial, samples)
        if self.list_starts and reads_guide:  # there is something better to begin from
            fewest = min(fewest, int(self.max_initial_share * samples))
        return max(int(self.initial_share * samples), fewest)

    def batch_size(self, pairs: int, samples: int) -> int:
        """How many of these samples are made at a time."""
        size = min(max(self.batch_pairs // max(pairs, 1), self.min_batch), self.max_batch)
        return max(size, -(-samples // self.max_batches))

    def polishing(self, size: int, left_s: float | None) -> SearchConfig:
        """How to polish that many vertices and edges: for what is left of a budget, if any."""
        chains = self.polished if left_s is None else max(len(cores()), self.polished)
        evaluations = max(self.polishing_work // max(size, self.polishing_least), chains)
        return SearchConfig(
            seconds=1.0 if left_s is None else left_s,
            evaluations=evaluations if left_s is None else None,
            chains=chains,
            hot=self.hot,
            cold=self.cold,
            candidates=self.candidates,
        )

    def operators(self, random_share: float) -> OperatorSettings:
        """What the operators take, where this share is repaired at random."""
        return OperatorSettings(
            float(random_share),
            float(self.near_probability),
            float(self.used_probability),
            int(self.frontier),
            int(self.max_tries),
        )
