"""The inner loop of search: moves on one assignment, each simulated, accepted or undone."""

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import compiled, inlined
from doppler.placers.search.judge_kernel import Judge, choose_move, learn_rate, look
from doppler.placers.search.moves_kernel import Chain, Neighbourhood, propose, take_back
from doppler.sim.kernel import UNFINISHED, Arrays, Scratch, run_batch

ANY = 1e299  # a limit that no cost exceeds, under which simulations note what bounds need
INFEASIBLE = 1e290  # for each task that never starts for lack of memory: any other cost is less


@compiled
def improve(
    p: Arrays,
    n: Neighbourhood,
    c: Chain,
    j: Judge,
    priority: FloatArray,
    s: Scratch,
    seed: int,
    steps: int,
    hot: float,
    cold: float,
    quantile: float,
) -> None:
    """Try `steps` moves, at a temperature that falls from `hot` to `cold` (shares of the cost)."""
    np.random.seed(seed)
    begin(p, c, j, priority, s, quantile)
    for step in range(steps):
        temperature = hot * (cold / hot) ** (step / steps) if hot > 0.0 else 0.0
        try_move(p, n, c, j, priority, s, temperature, quantile)


@compiled
def observe(
    p: Arrays,
    n: Neighbourhood,
    c: Chain,
    j: Judge,
    priority: FloatArray,
    s: Scratch,
    seed: int,
    temperature: float,
    features: FloatArray,
    gains: FloatArray,
) -> int:
    """Try (M,) moves, and fill in (M, F) features and (M,) what each made the cost shorter by.

    Relative to the cost, 0 for those that did not. The number of moves that could be judged.
    """
    np.random.seed(seed)
    begin(p, c, j, priority, s, -1.0)
    seen = 0
    for _ in range(len(gains)):
        before = c.cost[0]
        chosen, cost = try_move(p, n, c, j, priority, s, temperature, -1.0)
        if chosen >= 0:
            for i in range(features.shape[1]):
                features[seen, i] = j.features[chosen, i]
            gains[seen] = max(1.0 - cost / before, 0.0)
            seen += 1
    return seen


@inlined
def begin(p: Arrays, c: Chain, j: Judge, priority: FloatArray, s: Scratch, quantile: float) -> None:
    """Look at the assignment of a chain, so that moves can be judged."""
    j.makespan_s[0] = 0.0
    if len(j.counts) > 0 and evaluate(p, c, priority, s, quantile, ANY) < INFEASIBLE:
        look(p, c, s, j)


@inlined
def try_move(
    p: Arrays,
    n: Neighbourhood,
    c: Chain,
    j: Judge,
    priority: FloatArray,
    s: Scratch,
    temperature: float,
    quantile: float,
) -> tuple[int, float]:
    """Make a move, simulate it, and keep it or take it back: which candidate, and its cost.

    -1 where the move was not judged, as nothing is known of an assignment that does not run.
    """
    chosen = -1
    if j.makespan_s[0] > 0.0:
        count, chosen = choose_move(p, n, c, j, temperature)
    else:
        count, _ = propose(n, c, len(p.memory_bytes))
    if count == 0:
        return -1, c.cost[0]
    # Metropolis' rule; the random number comes first, so a simulation can stop at this cost.
    limit = c.cost[0]
    if temperature > 0.0:
        limit -= np.log(1.0 - np.random.random()) * temperature * c.cost[1]
    cost = evaluate(p, c, priority, s, quantile, limit)
    if chosen >= 0:
        learn_rate(j, chosen, cost < c.cost[0])
    if cost > limit:
        take_back(c, count)
        return chosen, cost
    c.cost[0] = cost
    if cost < c.cost[1]:
        c.cost[1] = cost
        copy(c.devices, c.best)
    if len(j.counts) > 0 and cost < INFEASIBLE:
        look(p, c, s, j)
    return chosen, cost


@compiled
def undo(
    p: Arrays, n: Neighbourhood, c: Chain, priority: FloatArray, s: Scratch, home: IntArray
) -> None:
    """Go to the best seen, then move vertices back to (V,) `home` where that costs nothing."""
    copy(c.best, c.devices)
    for v in n.movable:
        device = c.devices[0, v]
        if device != home[v]:
            c.devices[0, v] = home[v]
            cost = evaluate(p, c, priority, s, -1.0, c.cost[1])
            if cost <= c.cost[1]:
                c.cost[1] = cost
            else:
                c.devices[0, v] = device
    copy(c.devices, c.best)
    c.cost[0] = c.cost[1]


@inlined
def copy(source: IntArray, target: IntArray) -> None:
    """Copy (1, V) devices."""
    for v in range(source.shape[1]):
        target[0, v] = source[0, v]


@inlined
def evaluate(
    p: Arrays, c: Chain, priority: FloatArray, s: Scratch, quantile: float, limit: float
) -> float:
    """The cost of where a chain is: its makespan, or the mean or a quantile over the draws.

    If that is above `limit` it may be any number above it that is not more. Where it runs out of
    memory, the fewer tasks are left the better: so search finds its way.
    """
    draws = len(p.exec_s)
    for draw in range(draws):
        run_batch(p, draw, c.devices, priority, s, c.makespan, limit if draws == 1 else np.inf)
        c.costs[draw] = c.makespan[0]
        if c.costs[draw] == np.inf:
            c.costs[draw] = INFEASIBLE * s.counters[UNFINISHED]
    if draws == 1:
        return c.costs[0]
    if quantile < 0.0:
        total = 0.0
        for draw in range(draws):
            total += c.costs[draw]
        return total / draws
    sort(c.costs)
    return c.costs[min(int(quantile * draws), draws - 1)]


@inlined
def sort(values: FloatArray) -> None:
    """Sort a few values in place."""
    for i in range(1, len(values)):
        value, j = values[i], i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value
