"""Shapes of task graphs that the field compares schedulers on, each of at most `count` tasks."""

from itertools import product
from math import isqrt, log2

import numpy as np

from doppler.datasets.chance import coin, whole
from doppler.datasets.sketch import Sketch


def layered(rng: np.random.Generator, count: int) -> Sketch:
    """Levels of random widths; a task reads some of the level above, or of any above it."""
    sketch = Sketch()
    depth = min(max(3, round(isqrt(count) * float(rng.lognormal(0, 0.4)))), count // 2)
    extra = rng.multinomial(count - depth, rng.dirichlet(np.full(depth, 3.0))).tolist()
    max_reads, skips = int(rng.integers(2, 5)), float(rng.uniform(0, 0.4))
    levels: list[list[int]] = []
    for number, more in enumerate(extra):
        reads: list[list[int]] = [[] for _ in range(1 + more)]
        for own in reads if levels else ():
            for _ in range(int(rng.integers(1, max_reads + 1))):
                above = levels[int(rng.integers(len(levels)))] if coin(rng, skips) else levels[-1]
                own.append(above[int(rng.integers(len(above)))])
        read = {task for own in reads for task in own}
        for task in levels[-1] if levels else ():  # every task but the last ones is read
            if task not in read:
                reads[int(rng.integers(len(reads)))].append(task)
        levels.append([sketch.task(f"level{number}", own) for own in reads])
    return sketch


def fork_join(rng: np.random.Generator, count: int) -> Sketch:
    """Rounds of a fork, branches of one length, and a join that the next round waits for."""
    sketch = Sketch()
    widest, longest = whole(rng, 3, max(3, count // 3)), int(rng.integers(1, 5))
    scatters = coin(rng)
    last: list[int] = []
    number = 0
    while count - len(sketch) >= 4:
        room = count - len(sketch) - 2
        length = int(rng.integers(1, 1 + min(longest, room)))
        width = min(max(2, round(widest * float(rng.uniform(0.5, 1)))), room // length)
        fork = sketch.task(f"fork{number}", last, role="", scatters=scatters)
        branches = [fork] * width
        for step in range(length):
            stage = f"branch{number}at{step}"
            branches = [sketch.task(stage, [before]) for before in branches]
        last = [sketch.task(f"join{number}", branches, role="reduce")]
        number += 1
    return sketch


def in_tree(rng: np.random.Generator, count: int) -> Sketch:
    """Leaves that are combined, a few at a time, into one root: a reduction."""
    sketch = Sketch()
    arity = int(rng.integers(2, 5))
    leaves = max(2, int((count - 1 - log2(count)) * (arity - 1) / arity))
    level = [sketch.task("leaf") for _ in range(leaves)]
    number = 0
    while len(level) > 1:
        groups = [level[i : i + arity] for i in range(0, len(level), arity)]
        level = [sketch.task(f"combine{number}", group, role="reduce") for group in groups]
        number += 1
    return sketch


def out_tree(rng: np.random.Generator, count: int) -> Sketch:
    """A root that spreads to a few readers, these to a few more: a broadcast or a division."""
    sketch = Sketch()
    arity, scatters = int(rng.integers(2, 6)), coin(rng)
    level, number = [sketch.task("root", role="", scatters=scatters)], 0
    while len(sketch) < count:
        made = []
        for parent in level:
            for _ in range(min(int(rng.integers(2, arity + 1)), count - len(sketch))):
                made.append(sketch.task(f"spread{number}", [parent], scatters=scatters))
        level, number = made, number + 1
    return sketch


def series_parallel(rng: np.random.Generator, count: int) -> Sketch:
    """Parts one after the other or side by side between a fork and a join, again and again."""
    sketch = Sketch()

    def add(tasks: int, before: list[int], stage: str) -> int:
        """Add `tasks` tasks that begin after one task; returns the one they end with."""
        if tasks < 5:
            for _ in range(tasks):
                before = [sketch.task(stage, before)]
            return before[0]
        if coin(rng, 0.4):
            first = round(tasks * float(rng.uniform(0.3, 0.7)))
            return add(tasks - first, [add(first, before, f"{stage}a")], f"{stage}b")
        width = min(int(rng.integers(2, 9)), tasks - 2)
        fork = sketch.task(f"{stage}fork", before, role="")
        shares = [(tasks - 2 + i) // width for i in range(width)]
        ends = [add(share, [fork], f"{stage}p") for share in shares]
        return sketch.task(f"{stage}join", ends, role="reduce")

    add(count, [], "s")
    return sketch


def fft(rng: np.random.Generator, count: int) -> Sketch:
    """Butterflies: rows of 2^k tasks, each reads two of the row above; maybe several transforms."""
    sketch = Sketch()
    exponent = int(rng.integers(2, 1 + max(2, int(log2(max(4, count // 4))))))
    width = 1 << exponent
    above = [sketch.task("row0") for _ in range(width)]
    for row in range(1, count // width):
        stride = 1 << ((row - 1) % exponent)
        above = [sketch.task(f"row{row}", (above[i], above[i ^ stride])) for i in range(width)]
    return sketch


def tiled_cholesky(rng: np.random.Generator, count: int) -> Sketch:
    """The first tasks of a right-looking Cholesky factorisation of a matrix of tiles."""
    sketch = Sketch()
    least = next(p for p in range(3, count + 3) if p * p + p * (p - 1) * (p - 2) // 6 >= count)
    tiles = int(rng.integers(least, 1 + least + least // 2))
    tile: dict[tuple[int, int], int] = {}

    def task(stage: str, at: tuple[int, int], others: list[tuple[int, int]], work: float) -> None:
        if len(sketch) < count:
            reads = [tile[one] for one in (at, *others) if one in tile]
            tile[at] = sketch.task(stage, reads, work=work)

    for k in range(tiles):
        task(f"potrf{k}", (k, k), [], 1 / 3)
        for i in range(k + 1, tiles):
            task(f"trsm{k}", (i, k), [(k, k)], 1.0)
        for i, j in product(range(k + 1, tiles), repeat=2):
            if j <= i:
                others = [(i, k)] if i == j else [(i, k), (j, k)]
                task(f"update{k}", (i, j), others, 1.0 if i == j else 2.0)
        if len(sketch) >= count:
            break
    return sketch


def elimination(rng: np.random.Generator, count: int) -> Sketch:
    """The first tasks of Gaussian elimination, by columns or by tiles."""
    sketch = Sketch()
    tiled = coin(rng)
    least = max(3, round((3 * count) ** (1 / 3)) if tiled else isqrt(2 * count) + 1)
    side = int(rng.integers(least, 1 + least + least // 2))
    block: dict[tuple[int, int], int] = {}

    def task(stage: str, at: tuple[int, int], others: list[tuple[int, int]], work: float) -> None:
        if len(sketch) < count:
            reads = [block[one] for one in (at, *others) if one in block]
            block[at] = sketch.task(stage, reads, work=work)

    for k in range(side):
        left = 1.0 if tiled else 1 - k / side  # columns shrink
        task(f"pivot{k}", (0 if not tiled else k, k), [], left * 2 / 3)
        if not tiled:
            for j in range(k + 1, side):
                task(f"update{k}", (0, j), [(0, k)], left)
            continue
        for i in range(k + 1, side):
            task(f"row{k}", (k, i), [(k, k)], 1.0)
            task(f"column{k}", (i, k), [(k, k)], 1.0)
        for i, j in product(range(k + 1, side), repeat=2):
            task(f"update{k}", (i, j), [(i, k), (k, j)], 2.0)
    return sketch


def stencil(rng: np.random.Generator, count: int) -> Sketch:
    """A grid of one or two dimensions over time: a cell reads its neighbours of the step before."""
    sketch = Sketch()
    steps = whole(rng, 3, max(3, count // 6))
    cells = count // steps
    rows = int(rng.integers(2, 1 + isqrt(cells))) if coin(rng) and cells >= 9 else 1
    columns, reach, around = cells // rows, int(rng.integers(1, 3)), coin(rng)
    near = range(-reach, reach + 1)
    cross = [(0, d) for d in near] + ([(d, 0) for d in near if d] if rows > 1 else [])
    grid: dict[tuple[int, int], int] = {}
    for step in range(steps):
        before, grid = grid, {}
        for i, j in product(range(rows), range(columns)):
            at = [(i + a, j + b) for a, b in cross]
            if around:
                at = [(a % rows, b % columns) for a, b in at]
            grid[i, j] = sketch.task(f"step{step}", [before[c] for c in at if c in before])
    return sketch


def wavefront(rng: np.random.Generator, count: int) -> Sketch:
    """A sweep over a rectangle: a cell reads those above and to its left, maybe also across."""
    sketch = Sketch()
    rows = whole(rng, 3, max(3, isqrt(count)))
    columns, across = count // rows, coin(rng)
    grid: dict[tuple[int, int], int] = {}
    cells = sorted(product(range(rows), range(columns)), key=sum)
    for i, j in cells:
        at = [(i - 1, j), (i, j - 1)] + ([(i - 1, j - 1)] if across else [])
        grid[i, j] = sketch.task(f"front{i + j}", [grid[c] for c in at if c in grid])
    return sketch


def pipeline(rng: np.random.Generator, count: int) -> Sketch:
    """Stages × microbatches, forward and backward, and an update of each stage at the end.

    Half the time what a stage computes with is a large tensor that all of its tasks read.
    """
    sketch = Sketch()
    stages = whole(rng, 2, min(32, max(2, count // 8)))
    weighty = coin(rng)
    batches = max(1, (count // stages - 1 - weighty) // 2)
    work, size = rng.lognormal(0, 0.3, stages).tolist(), rng.lognormal(0, 0.3, stages).tolist()
    weights: list[list[int]] = [[] for _ in range(stages)]
    if weighty:
        weights = [
            [sketch.task(f"weights{s}", role="", work=0.1, size=4 * size[s])] for s in range(stages)
        ]
    forward: dict[tuple[int, int], int] = {}
    for b, s in product(range(batches), range(stages)):
        before = [forward[s - 1, b]] if s else []
        reads = before + weights[s]
        forward[s, b] = sketch.task(f"forward{s}", reads, work=work[s], size=size[s])
    backward: dict[tuple[int, int], int] = {}
    for b, s in product(range(batches), reversed(range(stages))):
        reads = [forward[s, b]] + ([backward[s + 1, b]] if s < stages - 1 else []) + weights[s]
        backward[s, b] = sketch.task(f"backward{s}", reads, work=2 * work[s], size=size[s])
    for s in range(stages):
        reads = [backward[s, b] for b in range(batches)]
        sketch.task(f"update{s}", reads, role="reduce", work=0.1, size=size[s])
    return sketch


def experts(rng: np.random.Generator, count: int) -> Sketch:
    """Layers in which blocks of tokens go to some of many experts, uneven in load, and return."""
    sketch = Sketch()
    layers = whole(rng, 1, max(1, count // 30))
    number = whole(rng, 2, max(2, count // layers // 3))
    blocks = max(2, (count // layers - number) // 2)
    top = int(rng.integers(1, 1 + min(4, number)))
    taste = rng.dirichlet(np.full(number, 2.0))
    last: list[list[int]] = [[] for _ in range(blocks)]
    for layer in range(layers):
        routers = [sketch.task(f"route{layer}", r, scatters=True, work=0.3) for r in last]
        chosen = [sorted(rng.choice(number, top, False, taste).tolist()) for _ in routers]
        made: dict[int, int] = {}
        for expert in range(number):
            sent = [r for r, picks in zip(routers, chosen, strict=True) if expert in picks]
            if sent:
                load = float(len(sent))
                stage = f"expert{layer}"
                made[expert] = sketch.task(stage, sent, work=load, size=load, scatters=True)
        for i, picks in enumerate(chosen):
            back = [routers[i], *(made[expert] for expert in picks)]
            last[i] = [sketch.task(f"combine{layer}", back, role="reduce", work=0.3)]
    return sketch


def map_reduce(rng: np.random.Generator, count: int) -> Sketch:
    """Rounds of maps and of reduces that read every map; maybe split before, collected after."""
    sketch = Sketch()
    widest = min(64, max(3, count // 3))
    maps, reduces = whole(rng, 3, widest), whole(rng, 2, widest)
    closed, scatters = coin(rng), coin(rng, 0.7)
    last = [sketch.task("split", role="", scatters=True)] if closed else []
    rounds = max(1, (count - 2 * closed) // (maps + reduces))
    for number in range(rounds):
        # The reduces of a round feed the maps of the next in turn.
        feeds = [[last[i % len(last)]] if last else [] for i in range(maps)]
        for i in range(maps, len(last)):
            feeds[i % maps].append(last[i])
        mapped = [sketch.task(f"map{number}", feed, scatters=scatters) for feed in feeds]
        last = [sketch.task(f"reduce{number}", mapped, role="reduce") for _ in range(reduces)]
    if closed:
        sketch.task("collect", last, role="reduce")
    return sketch
