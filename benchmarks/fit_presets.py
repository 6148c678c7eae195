"""Fit the presets `p100x4` and `v100x8` to the rows of the paper's tables.

    python benchmarks/fit_presets.py run               # the presets as they are: seconds
    python benchmarks/fit_presets.py run held-out      # six minutes of CPU
    python benchmarks/fit_presets.py run fit --machines v100x8  # fitted again: two minutes

Five constants of each machine are fitted: FLOP/s in float16, bytes/s of memory, seconds until the
host sees a completion, seconds of a dispatch, and bytes/s of the links between devices (those of
different kinds by one factor). They shall give the paper's milliseconds on one GPU and under
EnumerativeOptimizer, in the least squares of logarithms; and no lower bound may be above any
makespan that the paper measured on that machine, which is a hard limit. The starting values are
those of the first fit (`p100x4-first-fit`, `v100x8-first-fit`).

In `held-out` the rows of one graph at a time are predicted from the other three. The critical path
is fitted in neither form: its errors are those of a prediction.
"""

import argparse
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import tables
from scipy.optimize import minimize
from tables import Table

from doppler.graph import Graph
from doppler.placers import bounds_of, make_placer
from doppler.problem import Problem
from doppler.programs.registry import workload
from doppler.reproduce.paper_figures import FOUR, ONE_GPU, least_measured, paper
from doppler.sharding import shard
from doppler.sim import SimConfig, Simulator
from doppler.topology import Topology
from doppler.topology.io import topology_from_document

# Of each machine: the tables of the paper with one GPU, EnumOpt and critical path.
TABLES = {"p100x4": ("memory-8gb", "placement"), "v100x8": ("eight-gpus", "eight-gpus")}
CONSTANTS = ("FLOP/s", "memory B/s", "completion s", "dispatch s", "link factor")
STARTS, EVALUATIONS = 8, 250  # of a fit; where a graph is held out, HELD_OUT_STARTS
HELD_OUT_STARTS = 3
SPREAD, STEP = 0.5, 0.3  # of logarithms: of the starts, and of the first steps from them
PENALTY = 10.0  # per unit of log by which a bound is above what was measured
DIGITS = 3  # of the constants in the end


@cache
def graph_of(name: str, devices: int) -> Graph:
    """A workload cut as in the paper: Llama into one part per device."""
    found = workload(name)
    return shard(found.build(), devices if name.startswith("llama") else found.parts)


@cache
def document(machine: str) -> dict[str, Any]:
    text = (files("doppler.topology") / "data" / f"{machine}.toml").read_text("utf-8")
    return tomllib.loads(text)


def constants(machine: str) -> np.ndarray:
    """The five constants of a preset; its links count as they are."""
    found = document(machine)
    device, host = found["devices"][0], found["host"]
    rates = device["flops_per_s"]["float16"], device["memory_bytes_per_s"]
    return np.array([*rates, host["completion_s"], host["dispatch_s"], 1.0])


def with_constants(machine: str, values: Sequence[float]) -> Topology:
    """A preset with other constants."""
    changed = deepcopy(document(machine))
    flops, memory, completion, dispatch, factor = map(float, values)
    changed["host"] |= {"completion_s": completion, "dispatch_s": dispatch}
    for device in changed["devices"]:
        device["flops_per_s"]["float16"], device["memory_bytes_per_s"] = flops, memory
    for link in changed["links"]:
        if "pairs" in link:
            link["bandwidth_bytes_per_s"] *= factor
    return topology_from_document(changed, machine)


def simulated(topology: Topology, name: str, placer: str, *, barriers: bool = False) -> float:
    """Milliseconds of a graph under a placer; memory is not limited, as the paper's engine evicts.

    `single` takes the first device, as all are alike.
    """
    problem = Problem(graph_of(name, topology.num_devices), topology)
    if placer == "single":
        devices = np.where(problem.graph.is_input, -1, 0)
    else:
        devices = make_placer(placer).place(problem).devices
    simulator = Simulator(problem, SimConfig(limit_memory=False, synchronous=barriers))
    return float(simulator.makespans(problem.graph, devices[None])[0]) * 1e3


def bound(topology: Topology, name: str) -> float:
    return bounds_of(Problem(graph_of(name, topology.num_devices), topology)).best_s * 1e3


def targets(machine: str, name: str) -> dict[str, float]:
    """What is fitted: the paper's ms of one GPU and of EnumOpt, by placer."""
    one, placed = (paper(table) for table in TABLES[machine])
    return {"single": one[ONE_GPU][name].mean, "enumerative": placed["enumerative"][name].mean}


def errors(topology: Topology, machine: str, names: Iterable[str]) -> np.ndarray:
    """Logarithms of ours over the paper's, of all that is fitted."""
    return np.array(
        [
            np.log(simulated(topology, name, placer) / ms)
            for name in names
            for placer, ms in targets(machine, name).items()
        ]
    )


def excess(topology: Topology, machine: str, names: Iterable[str]) -> float:
    """By how much bounds are above what was measured, in logarithms."""
    over = [np.log(bound(topology, name) / least_measured(machine, name)) for name in names]
    return float(np.maximum(over, 0).sum())


def fit(machine: str, names: Sequence[str] = FOUR, starts: int = STARTS) -> np.ndarray:
    """The constants that fit these graphs best, in a few digits."""
    first = f"{machine}-first-fit"
    start = constants(first)

    def loss(logs: np.ndarray) -> float:
        topology = with_constants(first, start * np.exp(logs))
        rms = np.sqrt(np.mean(errors(topology, machine, names) ** 2))
        return float(rms + PENALTY * excess(topology, machine, names))

    found = []
    for seed in range(starts):
        at = np.random.default_rng(seed).normal(0, SPREAD, len(start)) if seed else 0 * start
        simplex = np.vstack([at, at + STEP * np.eye(len(start))])
        options = {"maxfev": EVALUATIONS, "initial_simplex": simplex, "fatol": 1e-5}
        found.append(minimize(loss, at, method="Nelder-Mead", options=options))
    best = min(found, key=lambda result: result.fun)
    return rounded(machine, start * np.exp(best.x), names)


def rounded(machine: str, values: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """In a few digits; rates up and seconds down, so that bounds stay below what was measured."""
    digits = DIGITS - 1 - np.floor(np.log10(values)).astype(int)
    scaled = values * 10.0**digits
    return np.where([1, 1, 0, 0, 1], np.ceil(scaled), np.floor(scaled)) / 10.0**digits


def table_of(machine: str, topology: Topology, name: str) -> Table:
    """Ours and the paper's in all rows, with bounds."""
    heads = ("one GPU", "paper", "EnumOpt", "paper", "bound", "least measured")
    heads += ("critical path", "`:blind`", "paper")
    path, rows = paper(TABLES[machine][1])["critical-path"], []
    for graph in FOUR:
        cells = []
        for placer, ms in targets(machine, graph).items():
            ours = simulated(topology, graph, placer)
            cells += [f"{ours:.1f} ({100 * (ours / ms - 1):+.0f} %)", f"{ms:.1f}"]
        cells += [f"{bound(topology, graph):.1f}", f"{least_measured(machine, graph):.1f}"]
        cells += [
            f"{simulated(topology, graph, placer):.1f}"
            for placer in ("critical-path", "critical-path:blind")
        ]
        rows.append([f"`{graph}`", *cells, f"{path[graph].mean:.1f}"])
    rms = np.sqrt(np.mean(errors(topology, machine, FOUR) ** 2))
    over = [n for n in FOUR if bound(topology, n) > least_measured(machine, n)]
    said = f"above what was measured on {', '.join(over)}" if over else "below all measured rows"
    note = f"Rms error of one GPU and EnumOpt: {100 * rms:.1f} %; bounds are {said}."
    return Table(name, f"`{name}` (ms)", ["graph", *heads], rows, note)


def presets(args: argparse.Namespace) -> Iterator[Table]:
    """The presets as they are, and the first fit."""
    for machine in args.machines:
        for name in (machine, f"{machine}-first-fit"):
            yield table_of(machine, with_constants(name, constants(name)), name)


def fitted(args: argparse.Namespace) -> Iterator[Table]:
    """The machines fitted again."""
    for machine in args.machines:
        values = fit(machine)
        rows = [[name, f"{value:g}"] for name, value in zip(CONSTANTS, values, strict=True)]
        yield Table(f"{machine} constants", f"`{machine}`, fitted", ["constant", ""], rows)
        topology = with_constants(f"{machine}-first-fit", values)
        yield table_of(machine, topology, f"{machine} fitted")


def held_out(args: argparse.Namespace) -> Iterator[Table]:
    """Of each graph, the errors of its rows when the constants are fitted to the other three."""
    for machine in args.machines:
        rows = []
        for name in FOUR:
            others = [other for other in FOUR if other != name]
            topology = with_constants(f"{machine}-first-fit", fit(machine, others, HELD_OUT_STARTS))
            off = [f"{100 * (np.exp(e) - 1):+.0f} %" for e in errors(topology, machine, [name])]
            limit = least_measured(machine, name)
            rows.append([f"`{name}`", *off, f"{bound(topology, name):.1f}", f"{limit:.1f}"])
        yield Table(
            f"{machine} held out",
            f"Held out on `{machine}`: each graph predicted from the other three (ms)",
            ["graph", "one GPU", "EnumOpt", "bound", "least measured"],
            rows,
        )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--machines", nargs="+", choices=TABLES, default=list(TABLES))


PARTS = {"presets": presets, "held-out": held_out, "fit": fitted}


def main() -> None:
    tables.main(__doc__, PARTS, options)


if __name__ == "__main__":
    main()
