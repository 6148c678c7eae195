"""FAMILIES: families of graphs, by split and by what they are related to; and sealed ones."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from doppler.datasets import shapes, workflows
from doppler.datasets.chance import whole
from doppler.datasets.sketch import Sketch, price
from doppler.datasets.workloads import draw_cholesky, draw_workload
from doppler.graph.graph import Graph
from doppler.programs.registry import workload
from doppler.topology.topology import Topology

SMALLEST, LARGEST = 30, 20_000  # vertices
TRIES = 50  # to draw a shape that is not too small
Shape = Callable[[np.random.Generator, int], Sketch]


@dataclass(frozen=True, slots=True)
class Family:
    """A family of graphs, drawn by `draw(rng, topology, min_vertices, max_vertices)`."""

    name: str
    group: str  # of close relatives, which are held out together
    split: str  # `train`, `validation`, `test` or `sealed`: that of its group
    description: str
    draw: Callable[[np.random.Generator, Topology, int, int], Graph]
    smallest: int = SMALLEST  # vertices that it comes with, from
    largest: int = LARGEST  # and to
    is_workload: bool = False  # of the registry, at its own ratio of communication


def _of_shape(
    shape: Shape, rng: np.random.Generator, topology: Topology, min_vertices: int, max_vertices: int
) -> Graph:
    """A graph of that shape; one of its vertices at least is an input."""
    best = shape(rng, whole(rng, min_vertices, max_vertices) - 1)
    for _ in range(TRIES):  # shapes come in steps
        if len(best) + 1 >= min_vertices:
            break
        best = max(best, shape(rng, whole(rng, min_vertices, max_vertices) - 1), key=len)
    return price(best, rng, topology, max_vertices)


def _shape(group: str, split: str, shape: Shape) -> Family:
    name = shape.__name__.replace("_", "-")
    description = (shape.__doc__ or "").strip().splitlines()[0]
    return Family(name, group, split, description, partial(_of_shape, shape))


def _workload(group: str, split: str, name: str, smallest: int, largest: int = LARGEST) -> Family:
    draw = draw_cholesky if name == "cholesky" else partial(draw_workload, name)
    description = workload(name).description
    return Family(name, group, split, description, draw, smallest, largest, is_workload=True)


FAMILIES = {
    family.name: family
    for family in (
        _workload("chainmm", "train", "chainmm", 36, 162),
        _workload("feed-forward", "train", "ffnn", 54, 244),
        _workload("feed-forward", "train", "mlp", 30),
        _workload("transformer", "train", "attention", 50, 372),
        _workload("transformer", "train", "llama-block", 135, 1001),
        _workload("transformer", "train", "llama-layer", 170, 1259),
        _workload("transformer", "train", "transformer", 135),
        _shape("layered", "train", shapes.layered),
        _shape("trees", "train", shapes.in_tree),
        _shape("trees", "train", shapes.out_tree),
        _shape("series-parallel", "train", shapes.fork_join),
        _shape("series-parallel", "train", shapes.series_parallel),
        _shape("pipeline", "train", shapes.pipeline),
        _workload("factorisation", "validation", "cholesky", 30, 952),
        _shape("factorisation", "validation", shapes.tiled_cholesky),
        _shape("factorisation", "validation", shapes.elimination),
        _shape("map-reduce", "validation", shapes.map_reduce),
        _workload("experts", "test", "moe-layer", 73),
        _shape("experts", "test", shapes.experts),
        _shape("fft", "test", shapes.fft),
        _shape("grids", "test", shapes.stencil),
        _shape("grids", "test", shapes.wavefront),
    )
}
# Not among the others: adding to them would change what every seed draws.
SEALED_FAMILIES = {
    family.name: family
    for family in (
        _shape("workflows", "sealed", workflows.mosaic),
        _shape("workflows", "sealed", workflows.sequencing),
        _shape("stragglers", "sealed", workflows.stragglers),
        _shape("sparse", "sealed", workflows.block_sparse),
        _shape("replicas", "sealed", workflows.data_parallel),
    )
}
