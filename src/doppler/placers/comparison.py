"""Comparison: what every placer makes of a graph, side by side."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from doppler.errors import DopplerError
from doppler.graph.graph import Graph
from doppler.placers.bounds import gap, lower_bounds
from doppler.placers.registry import make_placer
from doppler.placers.search import warm_up
from doppler.sim.config import SimConfig
from doppler.sim.noise import Noise
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareConfig:
    """How placers are compared."""

    seeds: int = 10  # draws of the noise
    noise: Noise = field(default_factory=lambda: Noise(exec_sigma=0.05, transfer_sigma=0.05))
    budget_s: float = 10.0  # for placers that take one
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """What one placer came to."""

    placer: str
    makespan_s: float  # without noise
    mean_s: float  # over the draws of the noise
    std_s: float
    lower_bound_s: float
    gap: float
    utilization: float
    bytes_moved: float
    seconds: float  # it planned
    error: str = ""  # why there is no result


def compare(
    graph: Graph, topology: Topology, placers: Sequence[str], config: CompareConfig
) -> Iterator[Row]:
    """A row for each placer as it is done, several at a time, each in a process of its own.

    A placer that fails has its error in its row.
    """
    warm_up()  # so that the processes find everything compiled
    bound = lower_bounds(graph, topology).best_s
    context = multiprocessing.get_context("spawn")
    workers = max(1, min(len(placers), os.cpu_count() or 1))
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        jobs = [pool.submit(_row, graph, topology, name, config, bound) for name in placers]
        try:
            for job in as_completed(jobs):
                yield job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _row(graph: Graph, topology: Topology, name: str, config: CompareConfig, bound: float) -> Row:
    warm_up()
    began = perf_counter()
    try:
        placer = make_placer(name, budget_s=config.budget_s)
        assignment = placer.place(graph, topology, seed=config.seed)
        took = perf_counter() - began
        trace = Simulator(topology).run(graph, assignment)
        noisy = Simulator(topology, SimConfig(noise=config.noise))
        seeds = range(config.seed, config.seed + config.seeds)
        draws = np.array([noisy.makespans(graph, [assignment], seed=s)[0] for s in seeds])
    except DopplerError as error:
        nothing = (float("nan"),) * 3
        took = perf_counter() - began
        return Row(name, *nothing, bound, *(float("nan"),) * 3, took, error.message)
    return Row(
        placer=name,
        makespan_s=trace.makespan_s,
        mean_s=float(draws.mean()),
        std_s=float(draws.std()),
        lower_bound_s=bound,
        gap=gap(trace.makespan_s, bound),
        utilization=float(trace.utilization().mean()),
        bytes_moved=trace.bytes_moved,
        seconds=took,
    )
