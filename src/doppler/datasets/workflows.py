"""Shapes of workflows, sparse products and data-parallel training, for the sealed problems only."""

from itertools import product
from math import isqrt

import numpy as np

from doppler.datasets.chance import coin, log_uniform, whole
from doppler.datasets.sketch import Sketch


def mosaic(rng: np.random.Generator, count: int) -> Sketch:
    """Images that are projected, compared with neighbours, corrected by one fit, and added up."""
    sketch = Sketch()
    images = max(4, int(count / 4.6))
    columns = max(2, isqrt(images))
    at = [(i // columns, i % columns) for i in range(images)]
    projected = {cell: sketch.task("project", work=3.0) for cell in at}
    near = [(a, (a[0] + i, a[1] + j)) for a in at for i, j in ((0, 1), (1, 0))]
    compared = [
        sketch.task("compare", [projected[a], projected[b]], size=0.3)
        for a, b in near
        if b in projected
    ]
    fit = sketch.task("fit", compared, role="reduce", size=0.1)
    corrected = [sketch.task("correct", [projected[cell], fit]) for cell in at]
    tiles = [corrected[i : i + columns] for i in range(0, images, columns)]
    added = [sketch.task("add", tile, role="reduce", work=2.0) for tile in tiles]
    sketch.task("shrink", added, role="reduce")
    return sketch


def sequencing(rng: np.random.Generator, count: int) -> Sketch:
    """Lanes, each split into many chains of three steps of unequal work, merged twice."""
    sketch = Sketch()
    lanes = whole(rng, 1, max(1, count // 40))
    chains = max(2, ((count - 2) // lanes - 2) // 3)
    merged = []
    for lane in range(lanes):
        split = sketch.task("split", role="", scatters=True)
        ends = []
        for _ in range(chains):
            step = sketch.task(f"filter{lane}", [split])
            step = sketch.task(f"convert{lane}", [step], work=0.3)
            ends.append(sketch.task(f"map{lane}", [step], work=5.0, size=0.5))
        merged.append(sketch.task("merge", ends, role="reduce"))
    sketch.task("density", [sketch.task("merge all", merged, role="reduce")])
    return sketch


def stragglers(rng: np.random.Generator, count: int) -> Sketch:
    """Stages × items in which few tasks take 5 to 50 times as long; maybe a stage keeps a state."""
    sketch = Sketch()
    stages = whole(rng, 3, max(3, isqrt(count)))
    items, keeps = max(2, count // stages), coin(rng)
    share, times = float(rng.uniform(0.01, 0.05)), log_uniform(rng, 5.0, 50.0)
    done: dict[tuple[int, int], int] = {}
    for i, s in product(range(items), range(stages)):
        before = [(s - 1, i)] + ([(s, i - 1)] if keeps else [])
        work = times if coin(rng, share) else 1.0
        done[s, i] = sketch.task(f"stage{s}", [done[c] for c in before if c in done], work=work)
    return sketch


def block_sparse(rng: np.random.Generator, count: int) -> Sketch:
    """A chain of products of block-sparse matrices; the terms of a block are added in a tree."""
    sketch = Sketch()
    density, factors = float(rng.uniform(0.15, 0.6)), int(rng.integers(2, 5))
    side = max(3, round((count / (2 * (factors - 1) * density**1.5)) ** (1 / 3)))
    blocks = {(i, j): sketch.task("load", work=0.1) for i, j in _some(rng, side, density)}
    for number in range(1, factors):
        right = {(i, j): sketch.task("load", work=0.1) for i, j in _some(rng, side, density)}
        made: dict[tuple[int, int], int] = {}
        for i, j in product(range(side), repeat=2):
            terms = [
                sketch.task(f"product{number}", [blocks[i, k], right[k, j]], work=2.0)
                for k in range(side)
                if (i, k) in blocks and (k, j) in right
            ]
            if terms:
                made[i, j] = _added(sketch, terms, f"sum{number}")
        blocks = made or blocks
        if len(sketch) > 0.75 * count:
            break
    return _first(sketch, count)


def data_parallel(rng: np.random.Generator, count: int) -> Sketch:
    """Replicas go forward and back through layers; gradients of a layer are added in a tree."""
    sketch = Sketch()
    replicas = whole(rng, 2, max(2, min(64, count // 12)))
    layers = max(2, count // (3 * replicas + 1))
    forward: dict[tuple[int, int], int] = {}
    for layer, r in product(range(layers), range(replicas)):
        before = [forward[r, layer - 1]] if layer else []
        forward[r, layer] = sketch.task(f"forward{layer}", before)
    backward: dict[tuple[int, int], int] = {}
    for layer in reversed(range(layers)):
        for r in range(replicas):
            after = [backward[r, layer + 1]] if layer + 1 < layers else []
            reads = [forward[r, layer], *after]
            backward[r, layer] = sketch.task(f"backward{layer}", reads, work=2.0)
        gradients = [backward[r, layer] for r in range(replicas)]
        sketch.task(f"update{layer}", [_added(sketch, gradients, f"gradient{layer}")], work=0.3)
    return _first(sketch, count)


def _some(rng: np.random.Generator, side: int, density: float) -> list[tuple[int, int]]:
    """Blocks that are not zero, those of the diagonal among them."""
    chosen = rng.random((side, side)) < density
    return [(i, j) for i, j in product(range(side), repeat=2) if chosen[i, j] or i == j]


def _added(sketch: Sketch, terms: list[int], stage: str) -> int:
    """The sum of what tasks make, two at a time."""
    while len(terms) > 1:
        pairs = [terms[i : i + 2] for i in range(0, len(terms), 2)]
        terms = [
            sketch.task(stage, pair, role="reduce", work=0.2) if len(pair) > 1 else pair[0]
            for pair in pairs
        ]
    return terms[0]


def _first(sketch: Sketch, count: int) -> Sketch:
    """The first tasks of a sketch, whose order is one in which they could run."""
    columns = (sketch.reads, sketch.stages, sketch.roles, sketch.work, sketch.size, sketch.scatters)
    return Sketch(*(column[:count] for column in columns))  # type: ignore[arg-type]
