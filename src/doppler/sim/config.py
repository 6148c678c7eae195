"""SimConfig: how the simulated runtime schedules and how its durations vary."""

from dataclasses import dataclass, field

from doppler.arrays import FloatArray
from doppler.assignment import Assignment
from doppler.cost import CostModel, Costs, DefaultCostModel
from doppler.graph.graph import Graph
from doppler.scheduler.choose import (
    FIFO,
    ORDER,
    RANDOM,
    STATIC,
    check_strategy,
    order_priorities,
    random_priorities,
)
from doppler.sim.noise import Noise
from doppler.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """Options of a simulation; the defaults are those of the paper's runtime."""

    strategy: str = FIFO  # ChooseTask: a name from `dop list strategies`
    noise: Noise = field(default_factory=Noise)
    synchronous: bool = False  # a barrier after every level (the systems of Table 1)
    limit_memory: bool = True  # tasks wait for device memory
    cost_model: CostModel = field(default_factory=DefaultCostModel)

    def __post_init__(self) -> None:
        check_strategy(self.strategy)


def priorities(
    config: SimConfig,
    graph: Graph,
    topology: Topology,
    costs: Costs,
    assignment: Assignment,
    seed: int,
) -> FloatArray | None:
    """(V,) the strategy's priorities, lower first, or None for first in, first out."""
    if config.strategy == FIFO:
        return None
    if config.strategy == RANDOM:
        return random_priorities(graph, seed)
    if config.strategy == ORDER:
        return order_priorities(graph, assignment)
    return STATIC[config.strategy](graph, costs, topology)
