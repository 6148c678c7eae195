"""How fast is the simulator? Against SimPy, per core, by size, and from a cold start.

Run it as `python benchmarks/simulator.py run`; it takes a minute or two.
"""

import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import tables
from tables import Table

from doppler.assignment import Assignment, write_assignment
from doppler.graph import Graph, build_graph, write_graph
from doppler.sim import ReferenceSimulator, Simulator
from doppler.topology import Topology, read_topology

SEED = 0
BATCH = 10_000  # assignments that `makespans` evaluates at a time
CHECKED = 100  # of them, evaluated by SimPy and by the readable simulator too
ROUNDS = 5  # timings of which the best counts: what else runs here only adds to them
SIZES = (100, 1_000, 10_000, 100_000)


@dataclass(frozen=True, slots=True)
class Shape:
    """A layered graph to be made up."""

    name: str
    widths: tuple[int, ...]  # vertices on each level
    edges: int


def load(name: str) -> Topology:
    """A topology whose host starts nothing ahead: the SimPy models do not know that."""
    topology = read_topology(name)
    return replace(topology, host=replace(topology.host, ahead=0))


def spread(*runs: tuple[int, int]) -> tuple[int, ...]:
    """Widths of levels from (width, number of levels)."""
    return tuple(width for width, levels in runs for _ in range(levels))


CHAIN_MM = Shape("ChainMM", (32, 12, 16, 8, 8), 80)
LLAMA_LAYER = Shape(
    "Llama layer",
    spread((7, 1), (4, 2), (2, 3), (4, 3), (12, 1), (8, 1), (6, 5), (4, 16), (2, 11))
    + spread((8, 2), (4, 3), (2, 11), (1, 2), (4, 2)),
    284,
)


def make_graph(shape: Shape, *, explicit: bool) -> Graph:
    """The graph of that shape, from the seed, with one tensor per vertex.

    Its costs are explicit, for `reference:N`, or flops and bytes, for topologies with speeds.
    """
    rng = np.random.default_rng(SEED)
    size, entries = sum(shape.widths), shape.widths[0]
    first = np.cumsum((0, *shape.widths))  # vertex of each level
    level = np.repeat(np.arange(len(shape.widths)), shape.widths)
    below = np.arange(entries, size)
    above = rng.integers(first[level[below] - 1], first[level[below]])
    edges = dict.fromkeys(zip(above.tolist(), below.tolist(), strict=True))
    while len(edges) < shape.edges:
        reader = int(rng.integers(entries, size))
        edges[int(rng.integers(0, first[level[reader]])), reader] = None
    edge_tensor, edge_reader = np.array(sorted(edges)).T
    exec_s, transfer_s = rng.uniform(1, 10, size), rng.uniform(0.5, 5, size)
    largest = min(4e7, 2e10 / size)  # bytes of a tensor, so that memory never runs out
    return build_graph(
        name=shape.name,
        kinds=["matmul"] * size,
        flops=rng.uniform(1e8, 2e10, size),
        touched_bytes=rng.uniform(1e6, 1e8, size),
        tensor_producer=np.arange(size),
        tensor_bytes=np.floor(rng.uniform(0.1, 1, size) * largest),
        edge_tensor=edge_tensor,
        edge_reader=edge_reader,
        exec_s=exec_s if explicit else None,
        transfer_s=transfer_s if explicit else None,
    )


class Case:
    """A graph on a topology, with random assignments."""

    def __init__(self, shape: Shape, topology: str, count: int = BATCH) -> None:
        self.name = (shape.name, topology)
        self.is_reference = topology.startswith("reference:")
        self.topology = load(topology)
        self.graph = make_graph(shape, explicit=self.is_reference)
        self.simulator = Simulator(self.topology)
        self.devices = np.random.default_rng(SEED).integers(
            0, self.topology.num_devices, (count, self.graph.num_vertices)
        )

    def batch_s(self, threads: int = 1, *, repeated: bool = False) -> float:
        """Seconds per evaluation by `Simulator.makespans`, the preparation included.

        `repeated`: of one assignment again and again, whose branches the processor learns.
        """
        rows = np.repeat(self.devices[:1], len(self.devices), axis=0) if repeated else self.devices
        self.simulator.makespans(self.graph, rows, threads=threads)  # compiles
        seconds = best_s(lambda: self.simulator.makespans(self.graph, rows, threads=threads))
        return seconds / len(rows)


def cases() -> list[Case]:
    """Both sizes under both semantics."""
    return [
        Case(shape, topology)
        for shape in (CHAIN_MM, LLAMA_LAYER)
        for topology in ("reference:4", "p100x4")
    ]


def best_s(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Seconds of the fastest of several calls."""
    seconds = []
    for _ in range(rounds):
        begin = perf_counter()
        call()
        seconds.append(perf_counter() - begin)
    return min(seconds)


def alternatives(case: Case) -> list[Callable[[], list[float]]]:
    """The makespans of the first assignments by SimPy, two ways, and by `ReferenceSimulator`."""
    from simpy_model import SimPyModel  # other benchmarks use this file where SimPy is not

    model = SimPyModel(case.graph, case.topology)
    readable = ReferenceSimulator(case.topology)
    rows = case.devices[:CHECKED].tolist()
    assignments = [Assignment(devices) for devices in case.devices[:CHECKED]]
    return [
        lambda: [model.makespan(devices) for devices in rows],
        lambda: [model.makespan(devices, counting=True) for devices in rows],
        lambda: [readable.run(case.graph, a).makespan_s for a in assignments],
    ]


def against_simpy(_: object) -> Iterator[Table]:
    """Time SimPy, `ReferenceSimulator` and `Simulator` on the same assignments."""
    times, differences = [], []
    for case in cases():
        runs = alternatives(case)
        expected = case.simulator.makespans(case.graph, case.devices[:CHECKED])
        errors = [float(np.abs(np.array(run()) / expected - 1).max()) for run in runs]
        if errors[-1] > 0 or (case.is_reference and max(errors) > 0):
            raise SystemExit(f"{case.name}: makespans differ by {errors}")
        differences.append([*case.name, *(f"{error:.2%}" if error else "0" for error in errors)])
        slow, fast = [best_s(run, rounds=3) / CHECKED for run in runs], case.batch_s()
        cells = [f"{seconds * 1e6:,.0f} ({seconds / fast:,.0f}×)" for seconds in slow]
        times.append([*case.name, *cells, f"{fast * 1e6:.1f}"])
    names = ["SimPy, events", "SimPy, counters", "ReferenceSimulator"]
    yield Table(
        "simpy",
        "µs per evaluation of a random assignment on one core, and multiples of `Simulator`'s",
        ["graph", "semantics", *names, "`Simulator`"],
        times,
    )
    yield Table(
        "differences",
        f"Largest difference from `Simulator`'s makespans of {CHECKED} assignments",
        ["graph", "semantics", *names],
        differences,
    )


def per_core(_: object) -> Iterator[Table]:
    """Evaluations per second, on one thread and on two."""
    rows, reference = [], {}
    for case in cases():
        one, two, same = case.batch_s(), case.batch_s(threads=2), case.batch_s(repeated=True)
        if case.is_reference:
            reference[case.name[0]] = one
        ratio = one / reference[case.name[0]]
        rows.append([*case.name, f"{1 / one:,.0f}", f"{ratio:.1f}×"])
        rows[-1] += [f"{1 / two:,.0f}", f"{one / two:.2f}×", f"{1e6 * same:.1f}"]
    yield Table(
        "threads",
        f"Evaluations per second, in batches of {BATCH:,}",
        [
            *("graph", "semantics", "one thread", "time / reference"),
            *("two threads", "speed-up", "one repeated, µs"),
        ],
        rows,
    )


def scaling(_: object) -> Iterator[Table]:
    """Time one run, and the memory it takes, as graphs grow deep or wide."""
    rows = []
    for name, width_of in (("32 wide", lambda _: 32), ("10 deep", lambda size: size // 10)):
        for topology in ("reference:8", "v100x8"):
            for size in SIZES:
                width = width_of(size)
                widths = (*spread((width, size // width)), *filter(None, [size % width]))
                case = Case(Shape(name, widths, int(1.3 * size)), topology, count=1)
                seconds, work = case.batch_s(), size + case.graph.num_edges
                peak = peak_bytes(case)
                row = [
                    *case.name,
                    f"{size:,}",
                    f"{seconds * 1e3:.2f}",
                    f"{seconds / work * 1e6:.3f}",
                ]
                rows.append([*row, f"{peak / 1e6:.2f}", f"{peak / work:,.0f}"])
    yield Table(
        "sizes",
        "One call of `makespans` with one assignment, 1.3 edges per vertex, 8 devices",
        ["graph", "semantics", "vertices", "ms", "µs / (V+E)", "peak MB", "bytes / (V+E)"],
        rows,
    )


def peak_bytes(case: Case) -> int:
    """Most memory that a fresh simulator holds at once, the graph itself left out."""
    tracemalloc.start()
    Simulator(case.topology).makespans(case.graph, case.devices, threads=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def start_up(_: object) -> Iterator[Table]:
    """Time the command line in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        graph, assignment = f"{folder}/graph.json", f"{folder}/assignment.json"
        case = Case(CHAIN_MM, "reference:4", count=1)
        write_graph(case.graph, graph)
        write_assignment(Assignment(case.devices[0]), assignment)
        simulate = ["simulate", graph, assignment, "--topology", "reference:4", "--json"]
        try:
            run_doppler(["--help"], folder)  # writes the byte code
            rows = [["--help", "", f"{best_s(lambda: run_doppler(['--help'], folder)):.2f}"]]
            empty = best_s(lambda: run_doppler(simulate, folder), rounds=1)
            later = best_s(lambda: run_doppler(simulate, folder))
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"`python -m doppler` failed: {error.stderr}") from error
    rows.append(["simulate", "first, compiles", f"{empty:.2f}"])
    rows.append(["simulate", "later, from the cache", f"{later:.2f}"])
    yield Table("start", "Start-up: seconds of a process", ["`python -m doppler`", "", "s"], rows)


def run_doppler(arguments: list[str], cache: str) -> None:
    """Run the command line with a numba cache of its own."""
    subprocess.run(
        [sys.executable, "-m", "doppler", *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(Path(cache) / "numba")},
    )


PARTS = {"simpy": against_simpy, "threads": per_core, "sizes": scaling, "start": start_up}


def main() -> None:
    tables.main(__doc__, PARTS)


if __name__ == "__main__":
    main()
