"""AutoConfig: how `auto` shares its budget among its members."""

from dataclasses import dataclass
from math import inf

from doppler.base.arrays import unbox_fields
from doppler.errors import ConfigError
from doppler.problem import Problem

_SHARES = (
    *("list_share", "slow_share", "partition_share", "learned_share", "instant_share"),
    *("turn_share", "search_share", "exact_share", "plans_share", "bound_share"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoConfig:
    """How `auto` shares its budget among its members.

    The paper has no portfolio, so no number is from it. The shares, and the estimates of seconds,
    were chosen by trials on split `train` of the random problems, and `learned_share` and where
    `instant_share` holds after a look at split `validation` (benchmarks/auto_members.py); those
    for short memory after looks at the workloads of docs/results/memory.md.
    """

    # One after the other: list schedulers, the policy, partitioners.
    list_share: float = 0.3  # of the budget, for list schedulers, where a policy follows
    instant_share: float = 0.8  # where none does, or its first sample takes longer than that
    slow_share: float = 0.03  # of the budget, that a heuristic which seldom wins may take
    # Of the budget, in which the policy searches by itself. Chosen on split `validation`,
    # where 0.5 is better than 0.25.
    learned_share: float = 0.5
    # The least number of its first assignments that must fit into that share, as an estimate. Where
    # fewer fit, on large graphs, the policy only has turns. Chosen on split `train`.
    learned_samples: int = 8
    partition_share: float = 0.2  # of the budget: few cuts bring nearly as much as many
    partition_tries: int = 1  # cuts of each kind; three times as many take three times as long

    # Then turns, by what policy and search have brought.
    turn_share: float = 0.05  # of the budget: several turns for each, many moves in each
    least_gain: float = 1e-4  # of a turn, relative; those that bring less are equal
    search_share: float = 0.25  # of the budget, at its end, for search alone if it brought anything

    # Estimates of seconds, on one core.
    learned_vertex_s: float = 1.2e-5  # of the policy's first assignment, by vertex
    learned_pair_s: float = 1e-6  # and by vertex and device
    search_vertex_s: float = 1.2e-5  # of search until its first move, by vertex
    bound_vertex_s: float = 4e-5  # of all lower bounds, by vertex
    bound_share: float = 0.02  # of the budget; where bounds take longer, the quick ones have to do

    exact_vertices: int = 30  # up to which an exact solver often ends in seconds
    exact_share: float = 0.5  # of the time left; the rest is for search
    exact_begin_s: float = 0.15  # what the solver takes before it solves, as an estimate,
    exact_move_s: float = 5e-5  # and by edge and pair of devices: up to minutes on 64 devices
    exact_max_s: float = 3600.0  # however long the budget is

    # Where memory is short.
    plans_share: float = 0.5  # of the time left, for plans of assignments that do not fit
    relaxed: tuple[float, ...] = (inf, 2.0, 1.25) * 2  # times the memory that searches may assume
    relaxed_share: float = 0.5  # of the time left, for all of these searches
    fitting_share: float = 0.5  # of the time left, for what needs no plan, where that is the best
    plans: int = 200  # at most, where evaluations bound the search instead of seconds

    def __post_init__(self) -> None:
        unbox_fields(self)
        for name in _SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, must be between 0 and 1")
        if self.list_share + self.learned_share + self.partition_share > 1 or not self.relaxed:
            raise ConfigError(
                "list_share, learned_share and partition_share must add up to at most 1, and "
                "relaxed must not be empty"
            )
        if self.learned_samples < 0:
            raise ConfigError(f"learned_samples is {self.learned_samples}, must not be negative")
        if not self.turn_share > 0 or self.partition_tries < 1:
            raise ConfigError("turn_share must be positive, partition_tries at least 1")

    def sample_s(self, problem: Problem) -> float:
        """An estimate of how long a policy takes for its first assignment."""
        by_vertex = self.learned_vertex_s + self.learned_pair_s * problem.topology.num_devices
        return len(problem.graph.assigned) * by_vertex

    def begins_with_policy(self, problem: Problem, seconds: float) -> bool:
        """Whether the policy searches by itself first, for its share of the budget."""
        return self.learned_samples * self.sample_s(problem) <= self.learned_share * seconds

    def search_s(self, problem: Problem) -> float:
        """An estimate of how long search takes until its first move."""
        return len(problem.graph.assigned) * self.search_vertex_s

    def exact_s(self, problem: Problem) -> float:
        """An estimate of how long an exact solver takes until it begins to solve."""
        moves = len(problem.edges.tensor) * problem.topology.num_devices**2
        return self.exact_begin_s + moves * self.exact_move_s

    def has_time_for_bounds(self, problem: Problem, seconds: float) -> bool:
        """Whether all lower bounds take a small share of the time only."""
        return len(problem.graph.assigned) * self.bound_vertex_s <= self.bound_share * seconds
