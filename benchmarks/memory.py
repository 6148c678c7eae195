"""Memory plans: how tight places are, how long planning takes, how well weights are streamed.

Run it as `python benchmarks/memory.py`; it takes about a minute. Seconds are those of the
processor. `peak` is the memory that the places of all tensors take, against the most bytes that are
in use at the same time, which no layout can go below.
"""

from dataclasses import replace
from math import inf
from time import process_time

import numpy as np

from doppler.assignment import Assignment
from doppler.datasets import problems
from doppler.graph import Graph, GraphBuilder
from doppler.memory_plan import MemoryPlan
from doppler.placers import bounds_of, make_placer, place, solve
from doppler.placers.planned_search import planned
from doppler.problem import Problem
from doppler.programs.llama import transformer
from doppler.programs.registry import workload
from doppler.scheduler.list_scheduling import list_schedule
from doppler.scheduler.packing import PackingConfig, Spans, live_bound, pack
from doppler.scheduler.places import copies_of, memory_places, memory_sizes, span
from doppler.scheduler.planning import plan_memory
from doppler.sharding import shard
from doppler.sim import Simulator
from doppler.tasks import enumerate_tasks
from doppler.topology import Topology, read_topology

WORKLOADS = ("chainmm", "ffnn", "llama-block", "llama-layer")
DRAWN = 100
ENOUGH = 1.05  # of the bound: what packing aims at
LAYERS = 51  # of a transformer of about 10,000 vertices
GB = 1e9


def layouts() -> None:
    print("\nPeak of the places against the bytes in use, by device\n")
    print("  graphs            devices   within 1 %   within 5 %   worst")
    for name in WORKLOADS:
        found = workload(name)
        program, topology = found.build(), read_topology("p100x4")
        graph = program if isinstance(program, Graph) else shard(program, found.parts)
        _row(name, _ratios(Problem(graph, topology)))
    for seed in range(2):
        ratios: list[float] = []
        for drawn in problems("all", DRAWN, seed):
            ratios += _ratios(Problem(drawn.graph, drawn.topology))
        _row(f"{DRAWN} {'others' if seed else 'drawn'}", ratios)


def _row(name: str, ratios: list[float]) -> None:
    close, near = (sum(ratio <= most for ratio in ratios) for most in (1.01, ENOUGH))
    print(f"  {name:<16}{len(ratios):>9}{close:>13}{near:>13}{max(ratios):>8.3f}")


def _ratios(problem: Problem) -> list[float]:
    """Of each device in use: the memory of its places over the bound, for heft's assignment."""
    devices = tuple(replace(d, memory_bytes=inf) for d in problem.topology.devices)
    roomy = Problem(problem.graph, replace(problem.topology, devices=devices))
    assignment = place(roomy.graph, roomy.topology, "heft")
    found = []
    for spans in _spans(roomy, assignment):
        if bound := live_bound(spans):
            packing = pack(spans, ENOUGH * bound, PackingConfig(repairs=20_000, steps=10**10))
            found.append(packing.top / bound)
    return found


def _spans(problem: Problem, assignment: Assignment) -> list[Spans]:
    """When each tensor and its temporaries are in memory, by device, without moves."""
    graph, topology = problem.graph, problem.topology
    tasks = enumerate_tasks(graph, topology, assignment.devices)
    order = list_schedule(problem, assignment, limit_memory=False).tasks
    at = np.zeros(graph.num_vertices + tasks.num_transfers + 1, np.int64)
    at[order] = np.arange(len(order))
    position = at.tolist()
    sizes, temporaries = memory_sizes(graph)
    columns: list[list[tuple[int, int, int]]] = [[] for _ in topology.devices]
    for copy in copies_of(graph, tasks, MemoryPlan([], [], [], [0], [], [], [])):
        columns[copy.device].append((*span(copy, position, len(order)), sizes[copy.tensor]))
    for v in graph.assigned.tolist():
        columns[int(tasks.devices[v])].append((position[v], position[v], temporaries[v]))
    return [Spans(*np.array(rows, np.int64).reshape(-1, 3).T.copy()) for rows in columns]


def planning() -> None:
    graph = shard(transformer(layers=LAYERS), 4)
    print(f"\nPlanning for {graph.num_vertices} vertices on 4 devices, after heft\n")
    print("  memory   evicted   loaded   planned in   peak / live   makespan / unlimited")
    roomy = _machine(4, inf)
    problem = Problem(graph, roomy)
    assignment = place(graph, roomy, "heft")
    order = list_schedule(problem, assignment, limit_memory=False).tasks
    without_s = Simulator(problem).run(graph, assignment).makespan_s
    for memory in (16, 8, 6, 4, 3):
        tight = Problem(graph, _machine(4, memory * GB))
        _ = tight.costs
        began = process_time()
        found = plan_memory(tight, Assignment(assignment.devices), order=order)
        took = process_time() - began
        assert found.memory is not None
        places = memory_places(graph, tight.topology, found)
        out, back = found.memory.moved_bytes(graph)
        ratio = max(top / live for top, live in zip(places.top, places.live, strict=True))
        makespan_s = Simulator(tight).run(graph, found).makespan_s
        print(
            f"  {memory:>3} GB{out / GB:>8.1f} GB{back / GB:>6.1f} GB{took:>11.2f} s{ratio:>14.2f}"
            f"{makespan_s / without_s:>23.2f}"
        )


def _machine(devices: int, memory_bytes: float) -> Topology:
    return Topology.uniform(
        devices,
        flops_per_s=10e12,
        memory_bytes_per_s=700e9,
        bandwidth_bytes_per_s=20e9,
        memory_bytes=memory_bytes,
        host_bandwidth_bytes_per_s=10e9,
    )


def streaming() -> None:
    print(
        "\nA chain of 64 matmuls with weights of 1 GB on devices of 2.5 GB: weights are streamed\n"
    )
    print("  devices   compute / link   placer   makespan   max(compute, links)   ratio")
    for devices in (1, 4):
        for share in (0.5, 1.0, 2.0):
            topology = _machine(devices, 2.5 * GB)
            graph = chain(64, GB, share)
            problem = Problem(graph, topology)
            for name in ("single", "m-etf", "auto"):
                budget = 5.0 if name == "auto" else None
                found = solve(make_placer(name), problem, budget_s=budget).assignment
                if found.memory is None:
                    found = planned(problem, found)[0]
                assert found.memory is not None
                trace = Simulator(problem).run(graph, found)
                work_s = float(problem.costs.exec_s[:, 0].sum())
                moved = sum(found.memory.moved_bytes(graph))
                links = len(np.unique(found.memory.device))
                least_s = max(work_s, moved / 10e9 / links, bounds_of(problem).best_s)
                print(
                    f"  {devices:>7}{share:>17}{name:>9}{trace.makespan_s:>9.2f} s"
                    f"{least_s:>20.2f} s{trace.makespan_s / least_s:>8.3f}"
                )


def chain(count: int, size: float, share: float) -> Graph:
    """Matmuls one after the other, each `share` as long as its weight takes from the host."""
    builder = GraphBuilder("chain")
    last = builder.input("x", output_bytes=1e7, kind="streamed")
    for i in range(count):
        weight = builder.input(f"w{i}", output_bytes=size, kind="resident")
        flops = share * size / 10e9 * 10e12
        last = builder.op(
            f"v{i}", "matmul", reads=[last, weight], output_bytes=1e7, flops=flops, touched_bytes=0
        )
    return builder.build()


if __name__ == "__main__":
    layouts()
    planning()
    streaming()
