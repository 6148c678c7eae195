"""Comparison: what every placer makes of a graph, side by side."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields, replace
from time import perf_counter
from typing import Any

import numpy as np

from doppler.arrays import unbox_fields
from doppler.errors import DopplerError
from doppler.graph.graph import Graph
from doppler.notebook import brief, cut, html_table, number
from doppler.placers.answer import ask
from doppler.placers.base import cores
from doppler.placers.bounds import gap, lower_bounds
from doppler.placers.registry import make_placer
from doppler.placers.search import warm_up
from doppler.progress import report
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

    def __post_init__(self) -> None:
        unbox_fields(self)


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

    def __repr__(self) -> str:
        if self.error:
            return f"<Row {brief(self.placer)}: failed, {cut(self.error, 100)}>"
        makespan_s, seconds = number(self.makespan_s), number(self.seconds)
        return (
            f"<Row {brief(self.placer)}: makespan {makespan_s} s, gap {self.gap:.1%}, "
            f"planned in {seconds} s>"
        )

    def _repr_html_(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        rows = ((n, v if isinstance(v, str) else number(v)) for n, v in values.items())
        return html_table(repr(self), ("", "value"), rows, count=len(values))


def compare(
    graph: Graph, topology: Topology, placers: Sequence[str], config: CompareConfig
) -> Iterator[Row]:
    """A row for each placer as it is done, several at a time, each in a process of its own.

    The processes share out the cores between them, so that all placers have as many, and those
    that search on all cores they may use do not get in each other's way. A placer that fails has
    its error in its row.
    """
    warm_up()  # so that the processes find everything compiled
    bound = lower_bounds(graph, topology).best_s
    context = multiprocessing.get_context("spawn")
    workers = max(1, min(len(placers), len(cores()) or os.cpu_count() or 1))
    started = context.Value("i", 0)
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_take_cores, initargs=(started, workers)
    ) as pool:
        jobs = [pool.submit(_row, graph, topology, name, config, bound) for name in placers]
        try:
            for done, job in enumerate(as_completed(jobs), start=1):
                report("comparing", done, len(jobs))
                yield job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def ranked(rows: Iterable[Row]) -> list[Row]:
    """The rows, the fastest first and failures last, with the best bound that any placer found."""
    rows = sorted(rows, key=lambda r: (bool(r.error), 0.0 if r.error else r.makespan_s, r.placer))
    bound_s = max((row.lower_bound_s for row in rows), default=0.0)
    return [
        replace(
            row,
            lower_bound_s=bound_s,
            gap=row.gap if row.error else gap(row.makespan_s, bound_s),
        )
        for row in rows
    ]


def _take_cores(started: Any, workers: int) -> None:
    """Keep this process to its share of the cores: every `workers`-th."""
    with started.get_lock():
        number = started.value
        started.value += 1
    mine = cores()[number % workers :: workers]
    if mine:
        os.sched_setaffinity(0, mine)


def _row(graph: Graph, topology: Topology, name: str, config: CompareConfig, bound: float) -> Row:
    warm_up()
    began = perf_counter()
    try:
        placer = make_placer(name, budget_s=config.budget_s)
        answer = ask(placer, graph, topology, seed=config.seed)
        took = perf_counter() - began
        assignment, bound = answer.assignment, max(bound, answer.bound_s)
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
