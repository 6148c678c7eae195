"""How long `dop view` takes to answer a change, against building the page again.

    python benchmarks/what_if.py [VERTICES]

Prints seconds of wall-clock and of processor time, medians over changes: of the server's part (the
change, the simulation, the bound, the answer as text), which is all but the browser's drawing.
"""

import json
import sys
from time import perf_counter, process_time

import numpy as np

import doppler as dp
from doppler.programs import random_dag
from doppler.report.page import report_html
from doppler.view.what_if import WhatIf

CHANGES = 20


def main(vertices: int) -> None:
    graph = random_dag(vertices=vertices, depth=50, seed=0)
    topology = dp.Topology.uniform(8, flops_per_s=1e13, bandwidth_bytes_per_s=1e11)
    assignment = dp.place(graph, topology, "critical-path")
    what_if = WhatIf(dp.Problem(graph, topology), assignment)
    rng, assigned = np.random.default_rng(0), graph.assigned
    bandwidth = topology.links[0].bandwidth_bytes_per_s

    def move(count: int) -> None:
        chosen = rng.choice(assigned, count, replace=False)
        what_if.move(chosen.tolist(), int(rng.integers(8)))

    changes = {
        "move 1 vertex": lambda: move(1),
        "move 100 vertices": lambda: move(100),
        "speed of a device": lambda: what_if.set_speed(0, float(rng.uniform(0.5, 2))),
        "bandwidth of a link": lambda: what_if.set_bandwidth(
            0, bandwidth * float(rng.uniform(0.5, 2))
        ),
        "undo": what_if.undo,
    }
    print(f"{graph.num_vertices} vertices, {len(what_if.outcome.trace.vertex)} tasks, 8 devices")
    page_s, _ = measure(lambda: report_html({"page": what_if.outcome.trace}, graph=graph), 3)
    print(f"{'the whole page again':22} {1e3 * page_s:7.1f} ms")
    for name, change in changes.items():
        wall_s, cpu_s = measure(lambda change=change: answer(what_if, change), CHANGES)
        ratio = page_s / wall_s
        print(f"{name:22} {1e3 * wall_s:7.1f} ms ({1e3 * cpu_s:.1f} ms of processor), {ratio:.1f}x")


def answer(what_if: WhatIf, change) -> str:
    since = what_if.revision
    change()
    return json.dumps(what_if.update(since))


def measure(work, repeats: int) -> tuple[float, float]:
    times = []
    for _ in range(repeats):
        wall_s, cpu_s = perf_counter(), process_time()
        work()
        times.append((perf_counter() - wall_s, process_time() - cpu_s))
    wall, cpu = np.median(np.array(times), axis=0)
    return float(wall), float(cpu)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
