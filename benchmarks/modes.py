"""Mode `dynamic` against mode `fixed`, in virtual time, where devices share one link to the host.

    python benchmarks/modes.py [SECONDS] [WORKLOAD …]

For each workload on 4 and 8 devices: the makespan of the assignment that `auto` finds for mode
`dynamic` in that time; that of the same assignment in mode `fixed`; that of an assignment found
for mode `fixed` in four fifths of the time; and that after a search over orders in the rest. The
last columns are the standard deviation of the makespan, in percent, over 20 draws of 1 % of noise,
of the first and of the last.
"""

import sys
from dataclasses import replace

import numpy as np

from doppler import Assignment, Device, Host, Link, Noise, Problem, SimConfig, Simulator, Topology
from doppler.placers import bounds_of, make_placer
from doppler.placers.modes import FixedConfig, solve_in_mode
from doppler.placers.search.orders import OrderConfig, improve_order
from doppler.programs.registry import WORKLOADS
from doppler.sharding import shard

DRAWS = 20
NOISE = Noise(exec_sigma=0.01, transfer_sigma=0.01)
LLAMA = ("llama-block", "llama-layer")  # cut into as many parts as there are devices


def box(devices: int) -> Topology:
    """Equal devices behind one link with two lanes, and a host that takes its time."""
    route = np.zeros((devices, devices), np.int64)
    np.fill_diagonal(route, -1)
    rates = dict.fromkeys(("float16", "float32", "float64"), 12.5e12)
    return Topology(
        f"box{devices}",
        tuple(Device(f"gpu{i}", rates, 1.15e12) for i in range(devices)),
        (Link("host", 40e9, latency_s=50e-6, lanes=2),),
        route,
        Host(dispatch_s=1e-4, completion_s=1.5e-4, ahead=1),
    )


def problem_of(workload: str, devices: int) -> Problem:
    """A workload, cut as in the paper, on a box."""
    found = WORKLOADS[workload]
    graph = shard(found.build(), parts=devices if workload in LLAMA else found.parts)
    return Problem(graph, box(devices))


def spread(problem: Problem, assignment: Assignment, mode: str) -> float:
    """Standard deviation of the makespan over draws of the noise, as a share of the mean."""
    simulator = Simulator(problem, SimConfig(noise=NOISE, mode=mode))
    runs = [simulator.makespans(problem.graph, [assignment], seed=s)[0] for s in range(DRAWS)]
    return float(np.std(runs) / np.mean(runs))


def row(workload: str, devices: int, seconds: float) -> list[str]:
    """The cells of a workload."""
    problem, auto = problem_of(workload, devices), make_placer("auto")
    graph, fixed = problem.graph, Simulator(problem, SimConfig(mode="fixed"))
    dynamic = solve_in_mode(auto, problem, budget_s=seconds).assignment
    share = FixedConfig().share
    quick = FixedConfig(share=1e-3)
    hostless = solve_in_mode(
        auto, problem, "fixed", budget_s=(1 - share) * seconds, config=quick
    ).assignment
    orders = OrderConfig(seconds=share * seconds)
    ordered = replace(hostless, schedule=improve_order(problem, hostless, orders).schedule)
    first_s = float(Simulator(problem).makespans(graph, [dynamic])[0])
    made = [first_s, *fixed.makespans(graph, [dynamic, hostless, ordered]).tolist()]
    bound_s = bounds_of(problem, "fixed").best_s
    spreads = spread(problem, dynamic, "dynamic"), spread(problem, ordered, "fixed")
    return [
        f"{workload} on {devices}",
        str(len(ordered.schedule.tasks if ordered.schedule else [])),
        *(f"{1e3 * s:.2f}" for s in made),
        f"{first_s / made[-1]:.2f}",
        f"{1e3 * bound_s:.2f}",
        *(f"{100 * s:.2f}" for s in spreads),
    ]


def main() -> None:
    """Print the table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    workloads = sys.argv[2:] or ["chainmm", "ffnn", *LLAMA]
    columns = "workload|tasks|dynamic ms|same, fixed|for fixed|after orders|ratio|bound"
    print("|", " | ".join([*columns.split("|"), "dynamic ± %", "fixed ± %"]), "|")
    print("|---" * 10 + "|")
    for workload in workloads:
        for devices in (4, 8):
            print("|", " | ".join(row(workload, devices, seconds)), "|", flush=True)


if __name__ == "__main__":
    main()
