"""From program to graph: how axes are cut, and what becomes of that."""

from collections.abc import Mapping, Sequence

from doppler.graph.graph import Graph
from doppler.programs.program import Program
from doppler.sharding.lowering import INPUTS, lower
from doppler.sharding.partitioner import METHODS, partition

__all__ = ["INPUTS", "METHODS", "lower", "partition", "shard"]


def shard(
    program: Program,
    parts: int,
    *,
    method: str = "paper",
    partitions: Mapping[str, Sequence[int]] | None = None,
    abstract_costs: bool = False,
    preaggregate: int = 0,
    inputs: str = "resident",
) -> Graph:
    """The graph of a program cut into `parts` pieces; see `partition` and `lower`.

    >>> import doppler as dp
    >>> dp.shard(dp.programs.chainmm(size=64), parts=2).name
    'chainmm'
    """
    cuts = partition(program, parts, method=method, partitions=partitions)
    return lower(
        program, cuts, abstract_costs=abstract_costs, preaggregate=preaggregate, inputs=inputs
    )
