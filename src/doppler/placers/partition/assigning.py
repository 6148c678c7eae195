"""Partitioning: from balanced parts with little between them to an assignment.

A partitioner cuts the graph into parts of given weights so that little crosses between them; it
knows nothing of time. So several cuts are made, of more or less balance and into more or fewer
parts; the parts of each are laid onto the devices so that the links carry them well; and the
best in simulation is kept.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray
from doppler.base.progress import track
from doppler.errors import ConfigError
from doppler.graph.graph import Graph
from doppler.placers.base import Placer, assign, checked_budget
from doppler.problem import Problem
from doppler.sim.simulator import Simulator

log = logging.getLogger(__name__)

IMBALANCES = (0.03, 0.1, 0.3)  # by how much a part may exceed its share
TOTAL = 2**26  # what the weights add up to; partitioners compute in 32 bits
LONGER = 2.0  # times as long as any before it that the next cut may take: it has twice the parts
MAX_SWAPS = 5000  # of two parts' devices that are tried for one cut


@dataclass(frozen=True, slots=True, eq=False)
class Weighted:
    """A graph as a partitioner sees it: A vertices to assign, what they weigh, what they share."""

    vertex_weight: IntArray  # (A,) mean exec seconds, scaled
    tensor_weight: IntArray  # (N,) mean transfer seconds, scaled, at least 1
    tensor: IntArray  # (P,) of each pin: the tensor, in [0, N) …
    vertex: IntArray  # (P,) … and a vertex that makes or reads it, in [0, A); makers first


# (A,) parts from the graph, the (K,) shares of the parts, the imbalance and a seed.
Cut = Callable[[Weighted, FloatArray, float, int], IntArray]


def place_parts(
    placer: Placer,
    problem: Problem,
    cut: Cut,
    *,
    tries: int,
    seed: int,
    budget_s: float | None,
    pin_s: float = 0.0,
    warns: bool = True,
) -> Assignment:
    """The best assignment, in simulation, of those made from `tries` cuts of each kind.

    With a budget, cuts into few parts come first, and none is begun that would last too long, as
    those before it tell; the first cut takes about `pin_s` seconds for each pin. Where there is no
    time for any, everything is on one device, of which it `warns`.
    """
    began = monotonic()
    until = inf if budget_s is None else began + checked_budget(budget_s)
    graph, topology = problem.graph, problem.topology
    assigned, rng = graph.assigned, np.random.default_rng(seed)
    devices = np.full(graph.num_vertices, -1)
    if not len(assigned):
        return assign(placer, problem, devices)
    weighted, speed = weigh(problem), device_speeds(problem)
    fastest = np.argsort(-speed, kind="stable")
    largest = min(topology.num_devices, len(assigned))
    counts = [largest >> n for n in range(largest.bit_length())]
    kinds = [
        (k, imbalance) for k in counts for imbalance in IMBALANCES if k > 1 for _ in range(tries)
    ]
    simulator, longest = Simulator(problem), 0.0
    found = [np.where(graph.is_input, -1, fastest[0])]
    made_s = [float(simulator.makespans(graph, found[0][None])[0])]
    next_s = pin_s * len(weighted.tensor)
    for k, imbalance in track(kinds if budget_s is None else kinds[::-1], placer.name):
        started = monotonic()
        if started + next_s > until:
            break
        share = speed[fastest[:k]] / speed[fastest[:k]].sum()
        devices[assigned] = cut(weighted, share, imbalance, int(rng.integers(2**31)))
        found.append(lay_out(problem, devices, fastest))
        made_s.append(float(simulator.makespans(graph, found[-1][None])[0]))
        longest = max(longest, monotonic() - started)
        next_s = LONGER * longest
    if len(found) == 1 and kinds and warns:
        log.warning("placer `%s` has no time for a cut in %s s", placer.name, budget_s)
    equal = [
        devices for devices, cost_s in zip(found, made_s, strict=True) if cost_s == min(made_s)
    ]
    return assign(placer, problem, min(equal, key=np.ndarray.tolist))


def check_tries(tries: int) -> int:
    """The number, if it is one of tries."""
    if tries < 1:
        raise ConfigError(f"tries is {tries}, must be at least 1")
    return tries


def weigh(problem: Problem) -> Weighted:
    """Vertices weighted by mean exec seconds, tensors by mean transfer seconds.

    Tensors of inputs are ready everywhere and bind nothing; nor do tensors that nobody reads.
    """
    graph = problem.graph
    number = np.cumsum(~graph.is_input) - 1
    kept = np.flatnonzero(problem.is_produced & (np.diff(graph.reader_ptr) > 0))
    new = np.full(graph.num_tensors, -1)
    new[kept] = np.arange(len(kept))
    edges = new[graph.edge_tensor] >= 0
    tensor = np.concatenate([np.arange(len(kept)), new[graph.edge_tensor[edges]]])
    vertex = np.concatenate([graph.tensor_producer[kept], graph.edge_reader[edges]])
    return Weighted(
        vertex_weight=_whole(problem.mean_exec_s[graph.assigned]),
        tensor_weight=np.maximum(_whole(problem.mean_transfer_s[kept]), 1),
        tensor=tensor,
        vertex=number[vertex],
    )


def _whole(weights: FloatArray) -> IntArray:
    """The weights as whole numbers that add up to about TOTAL; all alike where all are 0."""
    total = weights.sum()
    if total == 0:
        weights, total = np.ones(len(weights)), max(len(weights), 1)
    whole: IntArray = np.rint(weights / total * TOTAL).astype(np.int64)
    return whole


def device_speeds(problem: Problem) -> FloatArray:
    """(D,) how much of the graph each device does per second, relative to the fastest."""
    total_s, slots = problem.costs.exec_s.sum(axis=0), problem.slots.astype(np.float64)
    if total_s.max() == 0:
        return slots
    speed = slots / np.maximum(total_s, total_s.max() * 1e-3)
    relative: FloatArray = speed / speed.max()
    return relative


def lay_out(problem: Problem, parts: IntArray, devices: IntArray) -> IntArray:
    """(V,) a device for each vertex: part i starts on `devices[i]`, then parts trade places.

    Two parts trade as long as that lowers the estimate: the longest work of a device plus the
    seconds of all transfers, shared by all devices.
    """
    from doppler.placers.partition.kernel import trade

    graph, costs, size = problem.graph, problem.costs, problem.topology.num_devices
    assigned = graph.assigned
    load = np.zeros((size, size))  # part × device
    np.add.at(load, parts[assigned], costs.exec_s[assigned] / problem.slots)
    source, target, tensor = _traffic(graph, parts, size)
    moves, moved, fixed = np.zeros((3, size, size))
    np.add.at(moves, (source, target), 1.0)
    np.add.at(moved, (source, target), graph.tensor_bytes[tensor])
    np.add.at(fixed, (source, target), costs.fixed_s[tensor])
    on = np.array(devices)
    # Copies: arrays that cannot be written to would be compiled for once more.
    latency, slope = problem.latency_s.copy(), problem.s_per_byte.copy()
    trade(on, load, fixed, moves, moved, latency, slope, MAX_SWAPS)
    return np.where(graph.is_input, -1, on[parts])


def _traffic(graph: Graph, parts: IntArray, size: int) -> tuple[IntArray, IntArray, IntArray]:
    """Source part, target part and tensor of every transfer: one per tensor and target."""
    producer = graph.tensor_producer[graph.edge_tensor]
    target = parts[graph.edge_reader]
    remote = ~graph.is_input[producer] & (parts[producer] != target)
    pairs = np.unique(graph.edge_tensor[remote] * size + target[remote])
    tensor = pairs // size
    return parts[graph.tensor_producer[tensor]], pairs % size, tensor
