"""Compiled sums over the candidates of every step, and their gradient, in n log n.

SEL's scores stay the same throughout an episode, so all that changes from step to step is who takes
part: the vertex selected at step t does from step `since[t]` to t. Such an interval is the union of
a few nodes of a binary tree over the steps: node 1 is the root, 2i and 2i + 1 are below i, and
n + t is step t. A vertex is added to the nodes that make up its interval, and a step sums the nodes
from itself to the root; for the gradient it is the other way round. Nothing is ever subtracted, and
every node scales its sums by its own largest term, so no spread of scores is too wide.
"""

from typing import NamedTuple

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import compiled, inlined


class Tree(NamedTuple):
    """Working memory: what each node knows."""

    scale: FloatArray  # (2n,) logarithm of what the sums are scaled by
    mass: FloatArray  # (2n,)
    moment: FloatArray  # (2n,)


def make_tree(steps: int) -> Tree:
    """Working memory for episodes of `steps` steps."""
    return Tree(*(np.zeros(2 * steps) for _ in range(3)))


@compiled
def log_sums(
    values: FloatArray, since: IntArray, tree: Tree, log_sum: FloatArray, mean: FloatArray
) -> None:
    """Fill in (B, n) log-sum-exps and softmax means of the values of those who take part."""
    size = values.shape[1]
    for b in range(len(values)):
        for i in range(2 * size):
            tree.scale[i], tree.mass[i], tree.moment[i] = -np.inf, 0.0, 0.0
        for step in range(size):
            value, low, high = values[b, step], size + since[b, step], size + step + 1
            while low < high:
                if low & 1:
                    add(tree, low, value, 1.0, value)
                    low += 1
                if high & 1:
                    high -= 1
                    add(tree, high, value, 1.0, value)
                low, high = low >> 1, high >> 1
        for i in range(2, 2 * size):  # from above to below
            above = i >> 1
            if tree.mass[above] > 0.0:
                add(tree, i, tree.scale[above], tree.mass[above], tree.moment[above])
        for step in range(size):
            i = size + step
            log_sum[b, step] = tree.scale[i] + np.log(tree.mass[i])
            mean[b, step] = tree.moment[i] / tree.mass[i]


@inlined
def add(tree: Tree, i: int, scale: float, mass: float, moment: float) -> None:
    """Add mass and moment, times the exponential of their scale, to a node."""
    if scale > tree.scale[i]:
        ratio = np.exp(tree.scale[i] - scale)
        tree.mass[i] = tree.mass[i] * ratio + mass
        tree.moment[i] = tree.moment[i] * ratio + moment
        tree.scale[i] = scale
    else:
        ratio = np.exp(scale - tree.scale[i])
        tree.mass[i] += mass * ratio
        tree.moment[i] += moment * ratio


@compiled
def log_sums_gradient(
    values: FloatArray,
    since: IntArray,
    log_sum: FloatArray,
    mean: FloatArray,
    by_log_sum: FloatArray,
    by_mean: FloatArray,
    tree: Tree,
    gradient: FloatArray,
) -> None:
    """Fill in the (B, n) gradient by the values from those by log-sum-exps and means.

    With p the probability of a vertex at a step, it is the sum of p * (by_log_sum + by_mean *
    (1 + value - mean)) over the steps at which the vertex takes part.
    """
    size = values.shape[1]
    for b in range(len(values)):
        for step in range(size):
            i = size + step
            tree.scale[i] = -log_sum[b, step]
            tree.mass[i] = by_log_sum[b, step] + by_mean[b, step] * (1.0 - mean[b, step])
            tree.moment[i] = by_mean[b, step]
        for i in range(size - 1, 0, -1):  # from below to above
            tree.scale[i], tree.mass[i], tree.moment[i] = -np.inf, 0.0, 0.0
            for below in (2 * i, 2 * i + 1):
                add(tree, i, tree.scale[below], tree.mass[below], tree.moment[below])
        for step in range(size):
            value, low, high = values[b, step], size + since[b, step], size + step + 1
            found = 0.0
            while low < high:
                if low & 1:
                    found += share(tree, low, value)
                    low += 1
                if high & 1:
                    high -= 1
                    found += share(tree, high, value)
                low, high = low >> 1, high >> 1
            gradient[b, step] = found


@inlined
def share(tree: Tree, i: int, value: float) -> float:
    """The part of the gradient that a vertex has from the steps of a node."""
    return np.exp(value + tree.scale[i]) * (tree.mass[i] + tree.moment[i] * value)
