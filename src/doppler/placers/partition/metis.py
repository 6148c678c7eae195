"""METIS: balanced parts of an undirected graph with light edges between them."""

from functools import lru_cache
from typing import Any

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import BoolArray, FloatArray, IntArray
from doppler.errors import MissingExtraError
from doppler.placers.base import Shown
from doppler.placers.partition.assigning import Weighted, check_tries, place_parts
from doppler.problem import Problem


class MetisPlacer(Shown):
    """Parts of equal work with little to move between them, by METIS.

    Karypis & Kumar (1998). An edge joins the maker and each reader of a tensor, so a tensor with
    many readers counts many times, though it is moved once; placer `hypergraph` counts transfers.
    """

    name = "metis"

    def __init__(self, tries: int = 3, *, warns: bool = True) -> None:
        """`tries` cuts of each kind; `warns` where a budget leaves no time for any."""
        self.tries, self.warns = check_tries(tries), warns

    def place(
        self, problem: Problem, *, seed: int = 0, budget_s: float | None = None
    ) -> Assignment:
        """The best in simulation of several cuts, their parts laid onto the devices."""
        try:
            import pymetis  # noqa: F401
        except ImportError:
            raise MissingExtraError("pymetis", "placer `metis`", extra="solvers") from None
        return place_parts(
            *(self, problem, cut_graph),
            tries=self.tries,
            seed=seed,
            budget_s=budget_s,
            warns=self.warns,
        )


def cut_graph(weighted: Weighted, share: FloatArray, imbalance: float, seed: int) -> IntArray:
    """(A,) a part for each vertex, by recursive bisection; part k has about `share[k]` of the work.

    The recursion is done here: where METIS recurses on a part without vertices, it prints.
    """
    size = len(weighted.vertex_weight)
    edges = _joined(weighted)
    parts = np.zeros(size, np.int64)
    todo = [(np.arange(size), 0, len(share))]
    while todo:
        vertices, low, high = todo.pop()
        if high - low == 1 or len(vertices) < 2:
            parts[vertices] = low
            continue
        middle = (low + high + 1) // 2
        first = share[low:middle].sum() / share[low:high].sum()
        inside = edges if len(vertices) == size else edges[vertices][:, vertices]
        weight = weighted.vertex_weight[vertices]
        right = _bisect(inside, weight, float(first), imbalance, seed)
        todo += [(vertices[~right], low, middle), (vertices[right], middle, high)]
    return parts


@lru_cache(maxsize=1)
def _joined(weighted: Weighted) -> Any:
    """(A, A) the weight of all tensors that join two vertices; all cuts of a graph share it."""
    from scipy.sparse import coo_array

    size = len(weighted.vertex_weight)
    makers = weighted.vertex[: len(weighted.tensor_weight)]
    source, target = makers[weighted.tensor], weighted.vertex
    others = source != target
    weight = weighted.tensor_weight[weighted.tensor[others]]
    edges = coo_array((weight, (source[others], target[others])), shape=(size, size)).tocsr()
    return (edges + edges.T).tocsr()


def _bisect(edges: Any, weight: IntArray, first: float, imbalance: float, seed: int) -> BoolArray:
    """Whether each vertex is in the second of two parts; the first has the share `first`."""
    import pymetis

    adjacency = edges.sorted_indices()
    result = pymetis.part_graph(
        2,
        pymetis.CSRAdjacency(adjacency.indptr.astype(np.int64), adjacency.indices.astype(np.int64)),
        vweights=weight,
        eweights=adjacency.data.astype(np.int64),
        tpwgts=[first, 1.0 - first],
        options=pymetis.Options(seed=seed, ufactor=round(1000 * imbalance)),
        recursive=True,
    )
    second: BoolArray = np.asarray(result.vertex_part) == 1
    return second
