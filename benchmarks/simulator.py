"""How fast is the simulator? Against SimPy, per core, by size, and from a cold start.

Run it with `python benchmarks/simulator.py`; it takes about two minutes.
"""

import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter

import numpy as np
from simpy_model import SimPyModel

from doppler.arrays import IntArray
from doppler.assignment import Assignment, write_assignment
from doppler.graph import Graph, build_graph, write_graph
from doppler.sim import ReferenceSimulator, Simulator
from doppler.topology import load_topology

SEED = 0
BATCH = 20_000  # assignments evaluated at a time
CHECKED = 100  # of them, by SimPy and by the readable simulator
ROUNDS = 5  # timings of which the best counts: the rest is other programs' doing


@dataclass(frozen=True, slots=True)
class Shape:
    """A layered graph to be made up."""

    name: str
    widths: tuple[int, ...]  # vertices on each level
    edges: int


def repeated(*runs: tuple[int, int]) -> tuple[int, ...]:
    """Widths from (width, levels) pairs."""
    return tuple(width for width, levels in runs for _ in range(levels))


CHAIN_MM = Shape("ChainMM", (32, 12, 16, 8, 8), 80)
_LLAMA_TOP = repeated((7, 1), (4, 2), (2, 3), (4, 3), (12, 1), (8, 1), (6, 5), (4, 16), (2, 11))
_LLAMA_END = repeated((8, 2), (4, 3), (2, 11), (1, 2), (4, 2))
LLAMA_LAYER = Shape("Llama layer", _LLAMA_TOP + _LLAMA_END, 284)


def make_graph(shape: Shape, *, explicit_costs: bool) -> Graph:
    """A graph of that shape from the seed; one tensor per vertex.

    Its costs are explicit, for `reference:N`, or flops and bytes, for topologies with speeds.
    """
    rng = np.random.default_rng(SEED)
    size, width = sum(shape.widths), shape.widths[0]
    first = np.cumsum((0, *shape.widths))  # vertex of each level
    level = np.repeat(np.arange(len(shape.widths)), shape.widths)
    below = np.arange(width, size)
    above = rng.integers(first[level[below] - 1], first[level[below]])
    edges = dict.fromkeys(zip(above.tolist(), below.tolist(), strict=True))
    while len(edges) < shape.edges:
        reader = int(rng.integers(width, size))
        edges[int(rng.integers(0, first[level[reader]])), reader] = None
    tensor, reader_of = np.array(sorted(edges)).T
    seconds = {"exec_s": rng.uniform(1, 10, size), "transfer_s": rng.uniform(0.5, 5, size)}
    largest = min(4e7, 2e10 / size)  # bytes of a tensor: memory never runs out
    return build_graph(
        name=shape.name,
        kinds=["matmul"] * size,
        flops=rng.uniform(1e8, 2e10, size),
        touched_bytes=rng.uniform(1e6, 1e8, size),
        tensor_producer=np.arange(size),
        tensor_bytes=np.floor(rng.uniform(0.1, 1, size) * largest),
        edge_tensor=tensor,
        edge_reader=reader_of,
        **(seconds if explicit_costs else {}),
    )


class Case:
    """A graph on a topology, with random assignments."""

    def __init__(self, shape: Shape, topology: str, count: int = BATCH) -> None:
        self.is_reference = topology.startswith("reference")
        self.topology = load_topology(topology)
        self.graph = make_graph(shape, explicit_costs=self.is_reference)
        self.simulator = Simulator(self.topology)
        size = (count, self.graph.num_vertices)
        rng = np.random.default_rng(SEED)
        self.devices: IntArray = rng.integers(0, self.topology.num_devices, size)
        self.name = [shape.name, topology]

    @cache  # noqa: B019  cases live as long as the program
    def batched_s(self, threads: int = 1) -> float:
        """Seconds per evaluation by `Simulator.makespans`."""
        call = lambda: self.simulator.makespans(self.graph, self.devices, threads=threads)  # noqa: E731
        call()  # compiles
        return best_s(call) / len(self.devices)


def best_s(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Seconds of the fastest of several calls."""
    seconds = []
    for _ in range(rounds):
        begin = perf_counter()
        call()
        seconds.append(perf_counter() - begin)
    return min(seconds)


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    columns = list(zip(head, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    print(f"\n{title}\n")
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
