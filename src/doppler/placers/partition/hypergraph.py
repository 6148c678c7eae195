"""Hypergraph: balanced parts with few copies of tensors between them, by Mt-KaHyPar."""

from functools import cache
from typing import Any

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray, csr, rows
from doppler.errors import MissingExtraError
from doppler.placers.base import Shown
from doppler.placers.partition.assigning import Weighted, check_tries, place_parts
from doppler.problem import Problem

PIN_S = 3e-5  # of a cut in two, on one core of a server


class HypergraphPlacer(Shown):
    """Parts of equal work with few copies of tensors between them, by Mt-KaHyPar.

    Gottesbüren et al. (2024). A net joins the maker of a tensor with all its readers; one that
    touches n parts counts n - 1 times, exactly the transfers it causes.
    """

    name = "hypergraph"

    def __init__(self, tries: int = 1) -> None:  # cuts that repeat are slow
        self.tries = check_tries(tries)

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The best in simulation of several cuts, their parts laid onto the devices."""
        try:
            import mtkahypar  # noqa: F401
        except ImportError:
            raise MissingExtraError("mtkahypar", "placer `hypergraph`", extra="solvers") from None
        return place_parts(
            *(self, problem, cut_hypergraph),
            tries=self.tries,
            seed=seed,
            budget_s=budget_s,
            pin_s=PIN_S,
        )


def cut_hypergraph(weighted: Weighted, share: FloatArray, imbalance: float, seed: int) -> IntArray:
    """(A,) a part for each vertex; part k has at most `share[k] * (1 + imbalance)` of the work."""
    import mtkahypar

    size, num_nets = len(weighted.vertex_weight), len(weighted.tensor_weight)
    # Only its deterministic presets repeat, even on one thread. To them the seed means nothing,
    # the order of the vertices does.
    label = np.random.default_rng(seed).permutation(size)
    weight = np.zeros(size, np.int64)
    weight[label] = weighted.vertex_weight
    nets = rows(*csr(weighted.tensor, label[weighted.vertex], num_nets))
    library = _library()
    mtkahypar.set_seed(seed)
    context = library.context_from_preset(mtkahypar.PresetType.DETERMINISTIC_QUALITY)
    context.set_partitioning_parameters(len(share), imbalance, mtkahypar.Objective.KM1)
    max_weight = np.ceil(share * weight.sum() * (1 + imbalance)).astype(np.int64)
    context.set_individual_target_block_weights(max_weight.tolist())
    hypergraph = library.create_hypergraph(
        context, size, num_nets, nets, weight.tolist(), weighted.tensor_weight.tolist()
    )
    parts = np.array(hypergraph.partition(context).get_partition(), np.int64)
    return parts[label]


@cache
def _library() -> Any:
    """Mt-KaHyPar, which can be set up once in a process; on one thread, as more are pinned."""
    import mtkahypar

    return mtkahypar.initialize(1, False)
