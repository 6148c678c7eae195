"""Problems of the paper, placers on them, and how long their assignments take."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np

from doppler.assignment import assignment_for
from doppler.base.arrays import IntArray
from doppler.errors import DopplerError
from doppler.graph.graph import Graph
from doppler.graph.io import graph_to_json
from doppler.placers.base import searches
from doppler.placers.registry import make_placer
from doppler.problem import Problem
from doppler.programs.program_builder import ProgramBuilder
from doppler.programs.registry import workload
from doppler.reproduce.jobs import Result, Workshop
from doppler.sharding import shard
from doppler.sim import Noise, SimConfig, Simulator
from doppler.topology.io import topology_to_json
from doppler.topology.presets import read_topology
from doppler.trace import Trace

CHAIN = "three-matrix-chain"  # of Fig. 1
CHAIN_SIZE, CHAIN_PARTS = 10_000, 8
ON_ONE = "one-gpu"  # instead of a placer: all on the first device


@cache
def graph_of(name: str, devices: int) -> Graph:
    """A workload cut as in the paper: Llama into one part per device."""
    if name == CHAIN:
        builder = ProgramBuilder(CHAIN, dtype="float16")
        x, y, z = (builder.input(each, (CHAIN_SIZE, CHAIN_SIZE), weight=True) for each in "XYZ")
        return shard(builder.build(((x @ y).named("XY") @ z).named("XYZ")), parts=CHAIN_PARTS)
    found = workload(name)
    program = found.build()
    assert not isinstance(program, Graph)
    return shard(program, devices if name.startswith("llama") else found.parts)


@cache
def problem_of(machine: str, graph: str) -> Problem:
    """A workload of the paper on one of its machines.

    >>> problem_of("p100x4", "chainmm").graph.num_vertices
    112
    """
    topology = read_topology(machine)
    return Problem(graph_of(graph, topology.num_devices), topology)


@cache
def _digest(machine: str, graph: str) -> str:
    problem = problem_of(machine, graph)
    text = graph_to_json(problem.graph) + topology_to_json(problem.topology)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of(parameters: Mapping[str, Any]) -> str:
    """A digest of the graph and the machine that parameters name, if they do."""
    if not {"machine", "graph"} <= parameters.keys():
        return ""
    return _digest(parameters["machine"], parameters["graph"])


def place(parameters: Result, shop: Workshop) -> Result:
    """What a placer makes of a problem, and how long that takes, without noise and with it."""
    problem = problem_of(parameters["machine"], parameters["graph"])
    name, began = parameters["placer"], perf_counter()
    graph = problem.graph
    try:
        if name == ON_ONE:  # the paper's engine evicts where ours would run out of memory
            devices = np.where(graph.is_input, -1, 0)
        else:
            placer = make_placer(name)
            budget_s = parameters["search_s"] if searches(placer) else None
            devices = placer.place(problem, seed=parameters["seed"], budget_s=budget_s).devices
    except DopplerError as error:
        return {"failed": error.message}
    took = perf_counter() - began
    limited = name != ON_ONE
    return {"seconds": took, **measured(problem, devices, parameters, limit_memory=limited)}


def measured(
    problem: Problem, devices: IntArray, parameters: Result, *, limit_memory: bool = True
) -> Result:
    """Milliseconds of an assignment, without noise and in several draws of it."""
    row, sigma = devices[None], parameters["noise"]
    exact = Simulator(problem, SimConfig(limit_memory=limit_memory))
    config = SimConfig(limit_memory=limit_memory, noise=Noise(sigma, sigma))
    noisy, draws = Simulator(problem, config), range(parameters["draws"])
    graph = problem.graph
    return {
        "ms": float(exact.makespans(graph, row)[0]) * 1e3,
        "noisy_ms": [float(noisy.makespans(graph, row, seed=s)[0]) * 1e3 for s in draws],
        "devices": devices.tolist(),
    }


def trace_of(problem: Problem, devices: Sequence[int]) -> Trace:
    """The simulated run of an assignment."""
    assignment = assignment_for(problem.graph, problem.topology, np.array(devices))
    return Simulator(problem).run(problem.graph, assignment)


def with_barriers(parameters: Result, shop: Workshop) -> Result:
    """The same assignment with a barrier after every level, and without."""
    problem = problem_of(parameters["machine"], parameters["graph"])
    devices = make_placer(parameters["placer"]).place(problem).devices[None]
    found = {}
    for key, synchronous in (("ms", False), ("barriers_ms", True)):
        simulator = Simulator(problem, SimConfig(synchronous=synchronous, limit_memory=False))
        found[key] = float(simulator.makespans(problem.graph, devices)[0]) * 1e3
    return found
