"""Random layered dataflow graphs, with the size of transfers under control."""

import numpy as np

from doppler.errors import ConfigError
from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Graph
from doppler.graph.ops import OpKind


def random_dag(
    *,
    vertices: int = 120,
    depth: int = 12,
    inputs: int = 8,
    flops: float = 60e9,
    bytes_per_flop: float = 2e-3,
    seed: int = 0,
) -> Graph:
    """A layered graph of `vertices` operations on `depth` levels.

    Widths vary; an operation reads one to three results of the level above, or of any level
    above it one time in five. Work is `flops` on average, log-normal; an output has
    `bytes_per_flop` bytes per operation, so that number sets communication to computation.
    """
    if not 1 <= depth <= vertices:
        raise ConfigError(f"depth is {depth}, must be between 1 and the {vertices} vertices")
    if inputs < 1 or flops <= 0 or bytes_per_flop < 0:
        raise ConfigError("inputs and flops must be positive, bytes_per_flop not negative")
    if seed < 0:
        raise ConfigError(f"seed is {seed}, must not be negative")
    rng = np.random.default_rng(seed)
    builder = GraphBuilder(f"random-dag-{vertices}")
    sources = [builder.input(f"x{i}", output_bytes=flops * bytes_per_flop) for i in range(inputs)]
    levels: list[list[int]] = [sources]
    for level, width in enumerate(_widths(rng, vertices, depth)):
        made = []
        for i in range(width):
            work = flops * float(rng.lognormal(-0.125, 0.5))
            size = float(round(work * bytes_per_flop))
            reads = _choose_reads(rng, levels)
            made.append(
                builder.op(
                    f"l{level}.{i}",
                    OpKind.MATMUL if len(reads) > 1 else OpKind.INPUT_ELEMWISE,
                    reads=reads,
                    output_bytes=size,
                    flops=work,
                    touched_bytes=(len(reads) + 1) * size,
                    dtype="float16",
                )
            )
        levels.append(made)
    return builder.build()


def _widths(rng: np.random.Generator, vertices: int, depth: int) -> list[int]:
    """Vertices on each level: at least one, the rest spread at random."""
    extra = rng.multinomial(vertices - depth, rng.dirichlet(np.full(depth, 4.0)))
    return [1 + int(n) for n in extra]


def _choose_reads(rng: np.random.Generator, levels: list[list[int]]) -> list[int]:
    reads = []
    for _ in range(int(rng.integers(1, 4))):
        skip = len(levels) > 1 and rng.random() < 0.2
        level = levels[int(rng.integers(len(levels)))] if skip else levels[-1]
        reads.append(level[int(rng.integers(len(level)))])
    return list(dict.fromkeys(reads))
