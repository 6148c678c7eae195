"""Kernels compiled, or loaded from the cache, before a budget begins: so none pays for it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from subprocess import DEVNULL, Popen, TimeoutExpired

import numpy as np

from doppler.base.compiling import is_cached, preparing
from doppler.placers.base import cores, pair

PATIENCE_S = 300.0  # for the second process


@cache
def warm_up() -> None:
    """Prepare all that placers need.

    Where nothing is cached, a second process compiles what the policy needs, while this one
    compiles the rest.
    """
    with _compiling_policy_elsewhere():
        warm_up_search()
    warm_up_policy()


@cache
def warm_up_search() -> None:
    """Prepare the simulator, the heuristics and search."""
    from doppler.graph.fast_levels import depths
    from doppler.placers.search.annealing import SearchConfig, search, starting_points
    from doppler.sim.simulator import Simulator

    problem = pair()
    depths(problem.graph, large=0)  # a graph this small would not take the kernel
    one = np.zeros((1, problem.graph.num_vertices), np.int64)
    Simulator(problem).makespans(problem.graph, one)
    starts = starting_points(problem, 0)
    search(problem, starts, SearchConfig(evaluations=len(starts) + 2, chains=1))


@cache
def warm_up_fixed() -> None:
    """Prepare the simulator in mode `fixed`."""
    from doppler.sim.config import SimConfig
    from doppler.sim.simulator import Simulator

    problem = pair()
    one = np.zeros((1, problem.graph.num_vertices), np.int64)
    Simulator(problem, SimConfig(mode="fixed")).makespans(problem.graph, one)


@cache
def warm_up_plans() -> None:
    """Prepare memory plans and the simulator for them."""
    from doppler.assignment import Assignment
    from doppler.problem import Problem
    from doppler.scheduler.planning import plan_memory
    from doppler.sim.simulator import Simulator
    from doppler.topology.topology import Topology

    graph = pair().graph
    small = Topology.uniform(1, memory_bytes=2, host_bandwidth_bytes_per_s=1.0)
    problem = Problem(graph, small)
    found = plan_memory(problem, Assignment(np.zeros(graph.num_vertices, np.int64)))
    Simulator(problem).makespans(graph, [found])


@cache
def warm_up_policy() -> None:
    """Prepare what a policy places with; it serves policies of every shape."""
    from doppler.placers.learned.doppler import place_pair

    place_pair()


@contextmanager
def _compiling_policy_elsewhere() -> Iterator[None]:
    """Let a second process fill the cache with the policy's kernels; at the end, it has ended.

    Nothing depends on it: what it does not compile is compiled here.
    """
    from doppler.mdp.kernel import roll_out

    process = None if is_cached(roll_out) or len(cores()) < 2 else _start()
    if process is None:
        yield
        return
    try:
        yield
        with preparing():
            process.wait(PATIENCE_S)
    except TimeoutExpired:
        pass
    finally:  # also on Ctrl-C
        process.kill()
        process.wait()


def _start() -> "Popen[bytes] | None":
    """A process that compiles the policy's kernels; None where no process can be started."""
    code = f"from {__name__} import warm_up_policy; warm_up_policy()"
    path = os.pathsep.join(folder for folder in sys.path if folder)
    try:
        return Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path},
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
    except (OSError, ValueError):
        return None
