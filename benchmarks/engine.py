"""How good is the engine? What its loop costs, what a second core brings, and how it lasts.

Run it as `python benchmarks/engine.py run`, two minutes, on a machine that does nothing else:

- `loop`: the loop alone, against a loop over `concurrent.futures` and against asyncio;
- `cores`: two cores against one;
- `lasting`: 10,000 runs in a row;
- `placers`: placers on the two cores of `cpu2`, measured and predicted;
- `gpu`: what starting a task costs the host on a GPU cut into four, against a bare launch by torch.
"""

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter, process_time

import numpy as np
import tables
import torch
from simulator import Shape, best_s, make_graph
from tables import Table

from doppler.assignment import Assignment
from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine
from doppler.graph import Graph
from doppler.placers import make_placer, place, searches
from doppler.programs import ProgramBuilder, chainmm, ffnn, llama_block, random_inputs
from doppler.scheduler.choose import MODES
from doppler.sharding import shard
from doppler.sim import Simulator
from doppler.tasks import Tasks, enumerate_tasks
from doppler.topology import Device, Host, Link, Topology

SIZES = (100, 1_000, 10_000)  # tasks
PAIRS = 100  # of runs, on one core and on two
SOAK = 10_000  # runs
PLACERS = ("single", "critical-path", "enumerative", "annealing")
SEARCH_S = 3.0


# The loop.


def layered(tasks: int) -> tuple[Graph, Assignment, Topology]:
    """A graph of about `tasks` tasks, assigned at random on four devices."""
    vertices = tasks // 2
    width = max(4, int(vertices**0.5))
    shape = Shape("layered", (width,) * (vertices // width), int(1.3 * vertices))
    graph, topology = make_graph(shape, explicit=False), Topology.preset("p100x4")
    devices = np.random.default_rng(0).integers(topology.num_devices, size=graph.num_vertices)
    return graph, Assignment(devices), topology


class Plain:
    """What tasks wait for, and where they run: all that another loop needs to know."""

    def __init__(self, graph: Graph, tasks: Tasks, topology: Topology) -> None:
        size = graph.num_vertices
        self.count = size + tasks.num_transfers
        self.resource = [*tasks.devices.tolist(), *(topology.num_devices + tasks.link).tolist()]
        self.num_resources = topology.num_devices + topology.num_links
        self.inputs: list[list[int]] = [[] for _ in range(self.count)]
        arrives = {
            (int(tensor), int(target)): size + k
            for k, (tensor, target) in enumerate(zip(tasks.tensor, tasks.target, strict=True))
        }
        producer = graph.tensor_producer.tolist()
        for k, tensor in enumerate(tasks.tensor.tolist()):
            self.inputs[size + k].append(producer[tensor])
        for tensor, reader in zip(
            graph.edge_tensor.tolist(), graph.edge_reader.tolist(), strict=True
        ):
            here = tensor, int(tasks.devices[reader])
            self.inputs[reader].append(arrives.get(here, producer[tensor]))
        self.readers: list[list[int]] = [[] for _ in range(self.count)]
        for task, inputs in enumerate(self.inputs):
            for each in inputs:
                self.readers[each].append(task)


def nothing(task: int) -> int:
    return task


def by_futures(plain: Plain, pools: list[ThreadPoolExecutor]) -> None:
    """A dependency loop over one `ThreadPoolExecutor` of one thread per device and link."""
    missing = [len(inputs) for inputs in plain.inputs]
    done: SimpleQueue = SimpleQueue()

    def submit(task: int) -> None:
        pools[plain.resource[task]].submit(nothing, task).add_done_callback(done.put)

    for task in range(plain.count):
        if not missing[task]:
            submit(task)
    for _ in range(plain.count):
        for reader in plain.readers[done.get().result()]:
            missing[reader] -= 1
            if not missing[reader]:
                submit(reader)


async def by_asyncio(plain: Plain) -> None:
    """A coroutine for every task: it awaits its inputs, then a lock of its device or link."""
    locks = [asyncio.Lock() for _ in range(plain.num_resources)]
    loop = asyncio.get_running_loop()
    ended = [loop.create_future() for _ in range(plain.count)]

    async def run(task: int) -> None:
        for each in plain.inputs[task]:
            await ended[each]
        async with locks[plain.resource[task]]:
            nothing(task)
        ended[task].set_result(None)

    async with asyncio.TaskGroup() as group:
        for task in range(plain.count):
            group.create_task(run(task))


def cpu_s(call: Callable[[], object], rounds: int = 7) -> float:
    """CPU seconds of the cheapest of several calls, in all threads of the process."""
    seconds = []
    for _ in range(rounds):
        begin = process_time()
        call()
        seconds.append(process_time() - begin)
    return min(seconds)


def loop(_: object) -> Iterator[Table]:
    """Time tasks that do nothing."""
    rows = []
    for size in SIZES:
        graph, assignment, topology = layered(size)
        tasks = enumerate_tasks(graph, topology, assignment.devices)
        plain = Plain(graph, tasks, topology)
        pools = [ThreadPoolExecutor(1) for _ in range(plain.num_resources)]
        engines = [Engine(topology, "null", EngineConfig(mode=mode)) for mode in MODES]
        calls: list[Callable[[], object]] = [
            *(partial(engine.makespans, graph, assignment) for engine in engines),
            partial(engines[0].run, graph, assignment),
            partial(by_futures, plain, pools),
            lambda plain=plain: asyncio.run(by_asyncio(plain)),
        ]
        seconds = [cpu_s(call) / plain.count for call in calls]
        for pool in pools:
            pool.shutdown()
        ours, others = seconds[0], seconds[1:]
        cells = [f"{each * 1e6:.1f} ({each / ours:.1f}×)" for each in others]
        rows.append(["p100x4", f"{plain.count:,}", f"{ours * 1e6:.1f}", *cells])
    yield Table(
        "loop",
        "µs of CPU per task that does nothing, and multiples of the first",
        ["topology", "tasks", *MODES, "with a trace", "`ThreadPoolExecutor`", "asyncio"],
        rows,
        "The engine's include setting up a run; the others support neither strategies nor traces.",
    )


# Two cores.


def chains(size: int, *, count: int = 4, length: int = 2) -> Graph:
    """Chains of products of square matrices, that have nothing to do with each other."""
    b = ProgramBuilder("chains")
    weights = b.input("w", (size, size))
    ends = []
    for i in range(count):
        x = b.input(f"x{i}", (size, size))
        for _ in range(length):
            x = x @ weights
        ends.append(x)
    return shard(b.build(*ends), 1)


def on(graph: Graph, count: int) -> Assignment:
    """Whole chains on the devices in turn."""
    weak = {}  # chain of each vertex, by the chain of what it reads
    device = np.full(graph.num_vertices, -1)
    for v in graph.topological_order.tolist():
        if graph.is_input[v]:
            name = graph.meta_ops[v]
            weak[v] = int(name[1:]) if name[1:] else -1
            continue
        reads = graph.read_tensor[graph.read_ptr[v] : graph.read_ptr[v + 1]]
        weak[v] = max(weak[int(graph.tensor_producer[t])] for t in reads)
        device[v] = weak[v] % count
    return Assignment(device)


def product_s(size: int) -> float:
    """Seconds of one product on one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    x = torch.rand(size, size)
    seconds = best_s(lambda: x @ x, rounds=50)
    torch.set_num_threads(before)
    return seconds


def two_cores(_: object) -> Iterator[Table]:
    """Time one device against two, one run after the other, so that both see the same machine."""
    size = 512
    while product_s(size) < 5e-3:
        size += 64
    graph, topology = chains(size), Topology.preset("cpu2")
    one, two = on(graph, 1), on(graph, 2)
    took = []
    with Engine(topology, "cpu") as engine:
        for n in range(PAIRS + 2):
            pair = [engine.run(graph, each).makespan_s for each in (one, two)]
            took += [pair] * (n >= 2)
    seconds = np.array(took)
    work = graph.kinds.count("matmul") * product_s(size)
    rows = [
        ["one device", "median", f"{np.median(seconds[:, 0]) * 1e3:.1f}", ""],
        ["two devices", "median", f"{np.median(seconds[:, 1]) * 1e3:.1f}"],
        ["", "best", f"{seconds[:, 1].min() * 1e3:.1f}"],
        ["plain torch", "one thread, best", f"{work * 1e3:.1f}", ""],
    ]
    rows[1].append(f"{np.median(seconds[:, 0] / seconds[:, 1]):.2f}×")
    rows[2].append(f"{seconds[:, 0].min() / seconds[:, 1].min():.2f}×")
    yield Table(
        "cores",
        f"Two cores: 4 chains of 2 products of {size} × {size} float32 "
        f"({product_s(size) * 1e3:.1f} ms each), {PAIRS} pairs of runs",
        ["", "", "ms", "one / two"],
        rows,
    )


# Lasting.


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(_: object) -> Iterator[Table]:
    """Run a small graph again and again."""
    program = chainmm(size=64, dtype="float32")
    graph, topology = shard(program, 4), Topology.preset("cpu2")
    rng = np.random.default_rng(0)
    rows = []
    with Engine(topology, "cpu") as engine:
        engine.load(graph, random_inputs(program))
        begin = perf_counter()
        for n in range(SOAK + 1):
            if n in (SOAK // 10, SOAK // 4, SOAK // 2, SOAK):
                gc.collect()
                row = [f"{n:,}", f"{resident_bytes() / 1e6:.1f}", str(threading.active_count())]
                rows.append([*row, f"{len(gc.get_objects()):,}", f"{perf_counter() - begin:.1f}"])
            devices = rng.integers(2, size=graph.num_vertices)
            engine.run(graph, Assignment(np.where(graph.is_input, -1, devices)))
    yield Table(
        "lasting",
        f"Runs of a graph of {len(graph.assigned)} vertices under random assignments",
        ["runs", "resident MB", "threads", "objects", "s"],
        rows,
    )


# Placers.


def placers(_: object) -> Iterator[Table]:
    """Measure placers on two cores beside what the simulator says."""
    topology = Topology.preset("cpu2")
    simulator = Simulator(topology)
    programs = [
        chainmm(size=1024, dtype="float32"),
        ffnn(batch=2048, features=64, hidden=2048, classes=64, dtype="float32"),
        llama_block(sequence=256, heads=8, head_dim=64, hidden=1408, dtype="float32"),
    ]
    rows = []
    with Engine(topology, "cpu") as engine:
        for program in programs:
            graph = shard(program, 4)
            assignments = [
                place(graph, topology, placer, budget_s=SEARCH_S if searches(placer) else None)
                for placer in map(make_placer, PLACERS)
            ]
            results = [
                engine.execute(graph, each, random_inputs(program), repeats=10, warm_up=2)
                for each in assignments
            ]
            for name, assignment, result in zip(PLACERS, assignments, results, strict=True):
                predicted = simulator.run(graph, assignment).makespan_s
                row = [graph.name, name, f"{result.mean_s * 1e3:.1f} ± {result.spread_s * 1e3:.1f}"]
                row += [f"{result.makespans_s.min() * 1e3:.1f}", f"{predicted * 1e3:.1f}"]
                row.append(f"{results[0].mean_s / result.mean_s:.2f}×")
                rows.append([*row, f"{result.trace.bytes_moved / 1e6:.1f}"])
    yield Table(
        "placers",
        "Placers on `cpu2`: milliseconds of 10 runs, measured and predicted (its speeds are round "
        "numbers)",
        ["graph", "placer", "mean ± spread", "best", "predicted", "over single", "MB moved"],
        rows,
    )


# A GPU.


def bare_launch_s(count: int = 2000) -> float:
    """Seconds of the host for one small product, launched by torch alone."""
    x = torch.rand(64, 64, device="cuda")
    out = torch.empty_like(x)
    seconds = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = perf_counter()
        for _ in range(count // 5):
            torch.mm(x, x, out=out)
        seconds.append((perf_counter() - begin) / (count // 5))
    torch.cuda.synchronize()
    return min(seconds)


def gpu_host(_: object) -> Iterator[Table]:
    """Time what the host spends per task on a GPU cut into four devices, if there is one."""
    if not torch.cuda.is_available():
        return
    speeds = {"float16": 1e13, "float32": 1e13, "float64": 1e13}
    devices = tuple(Device(f"part{i}", speeds, 1e12, address=f"cuda:0/{i}of4") for i in range(4))
    link = Link("host", 2e10, latency_s=5e-5, lanes=2, via="host")
    route = np.where(np.eye(4, dtype=bool), -1, 0)
    topology = Topology("a GPU in four", devices, (link,), route, Host(ahead=1))
    graph = shard(llama_block(dtype="float32"), 4)
    assignment = place(graph, topology, "heft")
    rows = []
    for mode in MODES:
        with Engine(topology, "cuda", EngineConfig(mode=mode)) as engine:
            took = engine.makespans(graph, assignment, repeats=20, warm_up=3)
            backend = engine.backend
            tasks = len(engine.run(graph, assignment).vertex)
            engine.makespans(graph, assignment)
            busy_s = (backend.now_s() - backend.idle_s) / tasks
            bare_s = bare_launch_s()
            row = [mode, f"{tasks}", f"{busy_s * 1e6:.1f}", f"{bare_s * 1e6:.1f}"]
            spread = f"{took.mean() * 1e3:.1f} ± {took.std() * 1e3:.1f}"
            rows.append([*row, f"{busy_s / bare_s:.1f}×", spread])
    yield Table(
        "gpu",
        "µs of the host per task of a Llama block on a GPU in four, all but waiting, and of one "
        "bare launch by torch",
        ["mode", "tasks", "engine", "bare launch", "ratio", "makespan ms"],
        rows,
    )


PARTS = {
    "loop": loop,
    "cores": two_cores,
    "lasting": soak,
    "placers": placers,
    "gpu": gpu_host,
}


def main() -> None:
    tables.main(__doc__, PARTS)


if __name__ == "__main__":
    main()
