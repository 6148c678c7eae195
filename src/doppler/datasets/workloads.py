"""The workloads of the registry at drawn sizes, cut into 2 to 16 parts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from doppler.cost import dtype_class
from doppler.datasets.chance import coin, whole
from doppler.datasets.sketch import DTYPES, SPREAD_S, TOTAL_S
from doppler.errors import ConfigError
from doppler.graph.graph import Graph
from doppler.programs.cholesky import cholesky
from doppler.programs.program import Program
from doppler.programs.registry import workload
from doppler.sharding import shard
from doppler.sharding.flops import exec_cost, item_bytes
from doppler.topology.topology import Topology

PARTS = {"paper": (2, 4, 8, 16), "even": (2, 3, 4, 6, 8, 12, 16)}
PAPER = 0.7  # share of the problems that are cut by that method
Sizes = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkloadSizes:
    """How the sizes of a workload are drawn."""

    scaled: str  # the size that is a power of two, or three times one, to make the work fit
    exponents: tuple[int, int]  # of that, from and to
    others: Callable[[np.random.Generator], Sizes]  # all sizes but that and the depth
    depth: str = ""  # the size that grows the graph, if there is one
    shallowest: int = 1


def _power(rng: np.random.Generator, low: int, high: int) -> int:
    return 1 << int(rng.integers(low, high + 1))


def _ffnn(rng: np.random.Generator) -> Sizes:
    sizes: Sizes = {"features": _power(rng, 5, 10), "hidden": _power(rng, 10, 16)}
    return sizes | {"classes": _power(rng, 4, 10), "bias": coin(rng)}


def _attention(rng: np.random.Generator) -> Sizes:
    heads, batch = _power(rng, 3, 5), (1, 1, 2, 4)[int(rng.integers(4))]
    return {"heads": heads, "head_dim": _power(rng, 6, 7), "batch": batch}


def _block(rng: np.random.Generator) -> Sizes:
    sizes = _attention(rng)
    return sizes | {"hidden": sizes["heads"] * sizes["head_dim"] * int(rng.integers(2, 5))}


def _layer(rng: np.random.Generator) -> Sizes:
    return _block(rng) | {"vocabulary": 768 * int(rng.integers(8, 64))}


def _moe(rng: np.random.Generator) -> Sizes:
    width = _power(rng, 9, 12)
    return {"width": width, "hidden": width * int(rng.integers(1, 5)), "top_k": 1 + coin(rng)}


RECIPES = {
    "attention": WorkloadSizes("sequence", (7, 13), _attention),
    "chainmm": WorkloadSizes("size", (8, 15), lambda rng: {}),
    "ffnn": WorkloadSizes("batch", (8, 17), _ffnn),
    "llama-block": WorkloadSizes("sequence", (7, 13), _block),
    "llama-layer": WorkloadSizes("sequence", (7, 13), _layer),
    "mlp": WorkloadSizes("batch", (7, 16), lambda rng: {"width": 3 * _power(rng, 8, 12)}, "layers"),
    "moe-layer": WorkloadSizes("tokens", (7, 14), _moe, "experts", shallowest=2),
    "transformer": WorkloadSizes("sequence", (7, 13), _block, "layers"),
}


def draw_workload(
    name: str, rng: np.random.Generator, topology: Topology, min_vertices: int, max_vertices: int
) -> Graph:
    """The graph of a workload with up to `max_vertices` vertices, and `min_vertices` if it can.

    Dtype, sizes, method and parts are drawn; the depth follows from the number of vertices, and
    one size from the work: between 1 ms when spread over the devices and 1 s on the average one.
    """
    recipe, goal = RECIPES[name], whole(rng, min_vertices, max_vertices)
    dtype = DTYPES[int(rng.choice(3, p=(0.6, 0.35, 0.05)))]
    scales = _Scales(name, recipe, recipe.others(rng) | {"dtype": dtype}, topology)
    best: Graph | None = None
    for method, parts in _ways_to_cut(rng):
        three = 3 if parts % 3 == 0 or coin(rng, 0.25) else 1
        graph = _Cut(scales, method, parts, three).graph(rng, goal, max_vertices)
        if graph.num_vertices > max_vertices:
            continue
        if graph.num_vertices >= min_vertices:
            return graph
        best = max(best or graph, graph, key=lambda one: one.num_vertices)
    if best is None:
        raise ConfigError(f"`{name}` does not come with as few as {max_vertices} vertices")
    return best


def _ways_to_cut(rng: np.random.Generator) -> Iterator[tuple[str, int]]:
    """Methods and parts in random order, each once."""
    left = {method: list(rng.permutation(parts)) for method, parts in PARTS.items()}
    while any(left.values()):
        method = "paper" if coin(rng, PAPER) else "even"
        if left[method]:
            yield method, int(left[method].pop())


class _Scales:
    """A workload of drawn sizes, at any scale and depth, and the seconds of its work."""

    def __init__(self, name: str, recipe: WorkloadSizes, sizes: Sizes, topology: Topology) -> None:
        self.name, self.recipe, self.sizes, self.topology = name, recipe, sizes, topology
        self._work_s: dict[int, list[tuple[float, float]]] = {}

    def program(self, three: int, exponent: int, depth: int) -> Program:
        """The program of `three` × 2^`exponent` rows or so."""
        sizes = self.sizes | {self.recipe.scaled: three << exponent}
        if self.recipe.depth:
            sizes[self.recipe.depth] = depth
        program = workload(self.name).build(**sizes)
        assert isinstance(program, Program)
        return program

    def draw_exponent(self, rng: np.random.Generator, three: int, depth: int) -> int:
        """A scale whose work takes about the right time, or comes nearest."""
        low, high = self.recipe.exponents
        first = self.recipe.shallowest
        if three not in self._work_s:  # of the shallowest, and what a step of depth adds
            self._work_s[three] = [
                (one, work_s(self.program(three, e, first + 1), self.topology) - one)
                for e in range(low, high + 1)
                for one in [work_s(self.program(three, e, first), self.topology)]
            ]
        totals_s = [one + (depth - first) * more for one, more in self._work_s[three]]
        return low + _pick(rng, totals_s, self.topology)


@dataclass(frozen=True, slots=True)
class _Cut:
    """A workload that is to be cut in one way, whatever its scale and depth."""

    scales: _Scales
    method: str
    parts: int
    three: int

    def graph(self, rng: np.random.Generator, goal: int, max_vertices: int) -> Graph:
        """The graph nearest to `goal` vertices from below, as far as depth can make it."""
        recipe = self.scales.recipe
        depth, middle = recipe.shallowest, sum(recipe.exponents) // 2
        if recipe.depth:
            graph = self._shard(middle, depth)
            if graph.num_vertices > max_vertices:
                return graph
            step = self._shard(middle, depth + 1).num_vertices - graph.num_vertices
            depth += max(0, (goal - graph.num_vertices) // step)
        while True:
            graph = self._shard(self.scales.draw_exponent(rng, self.three, depth), depth)
            if graph.num_vertices <= max_vertices or depth == recipe.shallowest:
                return graph
            depth -= 1

    def _shard(self, exponent: int, depth: int) -> Graph:
        program = self.scales.program(self.three, exponent, depth)
        return shard(program, self.parts, method=self.method, inputs="everywhere")


def _pick(rng: np.random.Generator, totals_s: list[float], topology: Topology) -> int:
    """One of the entries that are within bounds, or else the nearest; they ascend."""
    least_s = topology.num_devices * SPREAD_S
    fitting = [i for i, total in enumerate(totals_s) if least_s <= total <= TOTAL_S]
    if fitting:
        return fitting[int(rng.integers(len(fitting)))]
    return 0 if totals_s[0] > TOTAL_S else len(totals_s) - 1


def work_s(program: Program, topology: Topology) -> float:
    """Seconds of a program that is not cut, averaged over the devices, without launches."""
    total_s = 0.0
    for op in program.ops:
        read = sum(program.ops[r.op].size * item_bytes(program.ops[r.op].dtype) for r in op.reads)
        flops, touched = exec_cost(op, op.join, read)
        total_s += _roofline_s(topology, op.dtype, flops, touched)
    return total_s


def _roofline_s(topology: Topology, dtype: str, flops: float, touched: float) -> float:
    """Seconds of an exec, averaged over the devices, without launch."""
    key, total_s = dtype_class(dtype), 0.0
    for device in topology.devices:
        total_s += max(flops / device.flops_per_s[key], touched / device.memory_bytes_per_s)
    return total_s / topology.num_devices


def draw_cholesky(
    rng: np.random.Generator, topology: Topology, min_vertices: int, max_vertices: int
) -> Graph:
    """The registry's `cholesky` in 2 to 16 × as many tiles, with float32 or float64."""
    fitting = [p for p in range(2, 17) if min_vertices <= _cholesky_vertices(p) <= max_vertices]
    fitting = fitting or [max(p for p in range(2, 17) if _cholesky_vertices(p) <= max_vertices)]
    parts = fitting[int(rng.integers(len(fitting)))]
    dtype = "float64" if coin(rng, 0.25) else "float32"
    tiles = [1 << e for e in range(6, 13)]
    totals = [_roofline_s(topology, dtype, (n * parts) ** 3 / 3, 0.0) for n in tiles]
    return cholesky(size=tiles[_pick(rng, totals, topology)] * parts, parts=parts, dtype=dtype)


def _cholesky_vertices(parts: int) -> int:
    return parts * (parts + 1) // 2 + parts**2 + parts * (parts - 1) * (parts - 2) // 6
