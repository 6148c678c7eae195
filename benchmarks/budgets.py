"""Budgets: how long placers take when they are given half a second, on up to 64 devices.

Run it as `python benchmarks/budgets.py`; it takes some minutes. Kernels are compiled, and libraries
loaded, before. `wall` counts against the budget; on a busy machine `cpu` says how much of it was
the placer's own.
"""

from time import perf_counter, process_time

from doppler.errors import MissingExtraError
from doppler.placers.registry import make_placer
from doppler.placers.solution import solution_of
from doppler.placers.warm_up import warm_up
from doppler.problem import Problem
from doppler.programs import random_dag
from doppler.topology import Topology

BUDGET_S, SLACK_S = 0.5, 0.5
SIZES = ((1_000, 8), (1_000, 64), (10_000, 8), (10_000, 64))
PLACERS = ("auto", "annealing", "genetic", "metis", "hypergraph")


def problem_of(vertices: int, devices: int) -> Problem:
    """A random graph on devices that are alike."""
    speeds = {"flops_per_s": 1e13, "memory_bytes_per_s": 5e11, "bandwidth_bytes_per_s": 1e10}
    topology = Topology.uniform(devices, **speeds)
    return Problem(random_dag(vertices=vertices, depth=max(4, vertices // 50), seed=0), topology)


def seconds_of(name: str, problem: Problem, budget_s: float) -> tuple[float, float] | None:
    """Seconds on the wall and of the processor; None where a library is not installed."""
    wall, cpu = perf_counter(), process_time()
    try:
        solution_of(make_placer(name), problem, seed=0, budget_s=budget_s)
    except MissingExtraError:
        return None
    return perf_counter() - wall, process_time() - cpu


def main() -> None:
    warm_up()
    for name in PLACERS:
        seconds_of(name, problem_of(100, 4), BUDGET_S)
    print(
        f"Seconds for a budget of {BUDGET_S} s; * where it is exceeded by more than {SLACK_S} s\n"
    )
    print(f"  {'vertices':>8}{'devices':>9}  {'placer':<12}{'wall':>8}{'cpu':>8}")
    for vertices, devices in SIZES:
        problem = problem_of(vertices, devices)
        for name in PLACERS:
            if (found := seconds_of(name, problem, BUDGET_S)) is None:
                continue
            wall, cpu = found
            late = "*" if wall > BUDGET_S + SLACK_S else ""
            print(f"  {vertices:>8}{devices:>9}  {name:<12}{wall:>8.2f}{cpu:>8.2f} {late}")


if __name__ == "__main__":
    main()
