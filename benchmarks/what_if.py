"""How long `dop view` takes to answer a change, against building the page again.

    python benchmarks/what_if.py run [--vertices N]

Measured are milliseconds of wall-clock and of processor time, medians over changes: of the server's
part (the change, the simulation, the bound, the answer as text), which is all but the browser's
drawing.
"""

import argparse
import json
from collections.abc import Iterator
from time import perf_counter, process_time

import numpy as np
import tables
from tables import Table

import doppler as dp
from doppler.programs import random_dag
from doppler.report.page import report_html
from doppler.view.what_if import WhatIf

CHANGES = 20


def changes_of(args: argparse.Namespace) -> Iterator[Table]:
    """What the server takes for each kind of change."""
    graph = random_dag(vertices=args.vertices, depth=50, seed=0)
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
    page_s, _ = measure(lambda: report_html({"page": what_if.outcome.trace}, graph=graph), 3)
    rows = [["the whole page again", f"{1e3 * page_s:.1f}", "", ""]]
    for name, change in changes.items():
        wall_s, cpu_s = measure(lambda change=change: answer(what_if, change), CHANGES)
        rows.append([name, f"{1e3 * wall_s:.1f}", f"{1e3 * cpu_s:.1f}", f"{page_s / wall_s:.1f}×"])
    tasks = len(what_if.outcome.trace.vertex)
    yield Table(
        "changes",
        f"{graph.num_vertices:,} vertices, {tasks:,} tasks, 8 devices",
        ["", "ms", "ms of processor", "faster than the page"],
        rows,
    )


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


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vertices", type=int, default=2000)


def main() -> None:
    tables.main(__doc__, {"changes": changes_of}, options)


if __name__ == "__main__":
    main()
