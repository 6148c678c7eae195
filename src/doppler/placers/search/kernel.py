"""The inner loop of search: moves on one assignment, each simulated, accepted or undone."""

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import compiled, inlined
from doppler.placers.search.judge_kernel import Judge, choose_move, learn_rate, look
from doppler.placers.search.moves_kernel import (
    LEAST,
    PRICE,
    SECONDS,
    SHARE,
    STEP,
    Chain,
    Neighbourhood,
    propose,
    take_back,
)
from doppler.sim.kernel import run_batch
from doppler.sim.memory_kernel import lent_share, priced_s
from doppler.sim.state_kernel import Arrays, Scratch

ANY = 1e299  # a limit that no cost exceeds, under which simulations note what bounds need
INFEASIBLE = 1e290  # the least cost of what runs out of memory; any other is less
MOST_PRICE = 1e6  # of lent memory: at that price nothing is worth it


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
    if len(j.counts) > 0:
        evaluate(p, c, priority, s, quantile, ANY)
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
        limit -= np.log(1.0 - np.random.random()) * temperature * min(c.cost[0], c.cost[1])
    seconds, share = evaluate(p, c, priority, s, quantile, limit)
    cost = priced_s(seconds, share, c.lent[PRICE])
    if chosen >= 0:
        learn_rate(j, chosen, cost < c.cost[0])
    if cost > limit:
        take_back(c, count)
    else:
        c.cost[0], c.lent[SECONDS], c.lent[SHARE] = cost, seconds, share
        if rank(seconds, share) < c.cost[1]:
            c.cost[1] = rank(seconds, share)
            copy(c.devices, c.best)
        if len(j.counts) > 0:
            look(p, c, s, j)
    if p.limit_memory:
        set_price(c)
    return chosen, cost


@inlined
def set_price(c: Chain) -> None:
    """Let lent memory cost more where a chain was lent some, and less where it was not.

    So a chain is in turn among what runs and among what nearly does.
    """
    if c.lent[SHARE] > 0.0:
        c.lent[PRICE] = min(c.lent[PRICE] * c.pricing[STEP], MOST_PRICE)
    else:
        c.lent[PRICE] = max(c.lent[PRICE] / c.pricing[STEP], c.pricing[LEAST])
    c.cost[0] = priced_s(c.lent[SECONDS], c.lent[SHARE], c.lent[PRICE])


@inlined
def rank(seconds: float, share: float) -> float:
    """What the best is chosen by: what runs is better than what has to be lent memory."""
    return seconds if share == 0.0 else INFEASIBLE * (1.0 + share)


@compiled
def settle(p: Arrays, c: Chain, priority: FloatArray, s: Scratch, quantile: float) -> None:
    """Simulate where a chain is, and make that the best that it has seen."""
    seconds, share = evaluate(p, c, priority, s, quantile, np.inf)
    c.lent[SECONDS], c.lent[SHARE] = seconds, share
    c.cost[0] = priced_s(seconds, share, c.lent[PRICE])
    c.cost[1] = rank(seconds, share)
    copy(c.devices, c.best)


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
            seconds, share = evaluate(p, c, priority, s, -1.0, c.cost[1])
            if rank(seconds, share) <= c.cost[1]:
                c.cost[1] = rank(seconds, share)
            else:
                c.devices[0, v] = device
    settle(p, c, priority, s, -1.0)


@inlined
def copy(source: IntArray, target: IntArray) -> None:
    """Copy (1, V) devices."""
    for v in range(source.shape[1]):
        target[0, v] = source[0, v]


@inlined
def evaluate(
    p: Arrays, c: Chain, priority: FloatArray, s: Scratch, quantile: float, limit: float
) -> tuple[float, float]:
    """The makespan of where a chain is, and the share of the memory that has to be lent for it.

    The makespan is the mean over the draws, or a quantile, the share is the mean. If the makespan
    with the price of that share is above `limit`, both may be any that are not more and above it.
    """
    draws, total_share = len(p.exec_s), 0.0
    for draw in range(draws):
        most = limit if draws == 1 else np.inf
        run_batch(p, draw, c.devices, priority, s, c.makespan, most, c.lent[PRICE])
        c.costs[draw] = c.makespan[0]
        total_share += lent_share(p, s)
    if draws == 1:
        return c.costs[0], total_share
    if quantile < 0.0:
        total = 0.0
        for draw in range(draws):
            total += c.costs[draw]
        return total / draws, total_share / draws
    sort(c.costs)
    return c.costs[min(int(quantile * draws), draws - 1)], total_share / draws


@inlined
def sort(values: FloatArray) -> None:
    """Sort a few values in place."""
    for i in range(1, len(values)):
        value, j = values[i], i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value
