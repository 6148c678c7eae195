"""Comparison: what every placer makes of a graph, side by side."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from doppler.base.arrays import unbox_fields
from doppler.base.compiling import clock
from doppler.base.notebook import brief, cut, html_table, number
from doppler.base.progress import report, track
from doppler.cost import CostModel
from doppler.errors import ConfigError, DopplerError, WrongTypeError
from doppler.graph.graph import Graph
from doppler.placers.base import Placer, checked_budget, cores, searches
from doppler.placers.bounds.lower import bounds_of, gap
from doppler.placers.modes import solve_in_mode
from doppler.placers.own import check_placer
from doppler.placers.registry import make_placer, placer_names
from doppler.placers.warm_up import warm_up_fixed, warm_up_search
from doppler.problem import Problem
from doppler.resolve import as_problem
from doppler.scheduler.choose import DYNAMIC, FIXED, check_mode
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
    mode: str = DYNAMIC

    def __post_init__(self) -> None:
        unbox_fields(self)
        if self.seeds < 1:
            raise ConfigError(f"seeds is {self.seeds}, must be at least 1")
        checked_budget(self.budget_s)
        check_mode(self.mode)


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """The result of one placer.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> [row.placer for row in dp.compare(graph, "cpu2", ["single", "heft"], seeds=1)]
    ['single', 'heft']
    """

    placer: str
    makespan_s: float  # without noise
    mean_s: float  # over the draws of the noise
    std_s: float
    lower_bound_s: float
    gap: float
    utilization: float
    bytes_moved: float
    seconds: float  # it planned, without compiling or loading kernels
    error: str = ""  # why there is no result

    def __repr__(self) -> str:
        if self.error:
            return f"<ComparisonRow {brief(self.placer)}: failed, {cut(self.error, 100)}>"
        makespan_s, seconds = number(self.makespan_s), number(self.seconds)
        return (
            f"<ComparisonRow {brief(self.placer)}: makespan {makespan_s} s, gap {self.gap:.1%}, "
            f"planned in {seconds} s>"
        )

    def _repr_html_(self) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        rows = ((n, v if isinstance(v, str) else number(v)) for n, v in values.items())
        return html_table(repr(self), ("", "value"), rows, count=len(values))


def compare(
    graph: Graph | str | Path,
    topology: Topology | str | Path,
    placers: Sequence[str | Placer] | None = None,
    *,
    budget_s: float = 10.0,
    seeds: int = 10,
    seed: int = 0,
    cost_model: CostModel | None = None,
    mode: str = DYNAMIC,
) -> list[ComparisonRow]:
    """A row for each placer, the fastest first and failures last.

    Graph and topology may be given as the paths of their files, and the topology as the name of a
    preset. Placers are given by name or as objects; all that come with the package if left out.
    They run in this process, one after the other, each on all cores. `budget_s` is for those
    that search; `seeds` is the number of draws of the noise. `cost_model` prices the graph,
    instead of the default one. `mode` is that of the runs: `dynamic` or `fixed`.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> rows = dp.compare(graph, "p100x4", ["heft", "round-robin"], seeds=2)
    >>> rows[0].makespan_s <= rows[1].makespan_s
    True
    """
    problem = as_problem(graph, topology, cost_model)
    if placers is not None and (isinstance(placers, str) or not isinstance(placers, Sequence)):
        raise WrongTypeError("placers", placers, "a list of names and placers")
    config = CompareConfig(seeds=seeds, budget_s=budget_s, seed=seed, mode=mode)
    chosen = placer_names() if placers is None else list(placers)
    for placer in chosen:
        if isinstance(placer, str):
            make_placer(placer)
        else:
            check_placer(placer)
    bound = bounds_of(problem, mode).best_s
    return ranked([_row(problem, placer, config, bound) for placer in track(chosen, "comparing")])


def compare_in_processes(
    problem: Problem, placers: Sequence[str], config: CompareConfig
) -> Iterator[ComparisonRow]:
    """A row for each placer as it is done, several at a time, each in a process of its own.

    The processes share out the cores between them, so that all placers have as many, and those
    that search on all cores they may use do not get in each other's way. A placer that fails has
    its error in its row.
    """
    warm_up_search()  # so that the processes find everything compiled
    if config.mode == FIXED:
        warm_up_fixed()
    bound = bounds_of(problem, config.mode).best_s
    context = multiprocessing.get_context("spawn")
    workers = max(1, min(len(placers), len(cores()) or os.cpu_count() or 1))
    started = context.Value("i", 0)
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_take_cores, initargs=(started, workers)
    ) as pool:
        jobs = [pool.submit(_row, problem, name, config, bound) for name in placers]
        try:
            for done, job in enumerate(as_completed(jobs), start=1):
                report("comparing", done, len(jobs))
                yield job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def ranked(rows: Iterable[ComparisonRow]) -> list[ComparisonRow]:
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


def _row(
    problem: Problem, placer: str | Placer, config: CompareConfig, bound: float
) -> ComparisonRow:
    warm_up_search()
    name = placer if isinstance(placer, str) else placer.name
    began = clock()
    try:
        if isinstance(placer, str):
            placer = make_placer(placer)
        budget_s = config.budget_s if searches(placer) else None
        solution = solve_in_mode(placer, problem, config.mode, seed=config.seed, budget_s=budget_s)
        took = clock() - began
        assignment, bound = solution.assignment, max(bound, solution.bound_s)
        graph = problem.graph
        trace = Simulator(problem, SimConfig(mode=config.mode)).run(graph, assignment)
        noisy = Simulator(problem, SimConfig(noise=config.noise, mode=config.mode))
        seeds = range(config.seed, config.seed + config.seeds)
        draws = np.array([noisy.makespans(graph, [assignment], seed=s)[0] for s in seeds])
    except DopplerError as error:
        nothing = (float("nan"),) * 3
        took = clock() - began
        return ComparisonRow(name, *nothing, bound, *(float("nan"),) * 3, took, error.message)
    return ComparisonRow(
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
