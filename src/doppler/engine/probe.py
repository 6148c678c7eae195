"""Probe: measures the machine that Doppler runs on, and makes a topology of it."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import numpy as np

from doppler.arrays import IntArray
from doppler.assignment import Assignment
from doppler.engine.backends.base import Backend
from doppler.engine.backends.registry import make_backend
from doppler.engine.calibration import TRANSFER, calibrate, duration_errors
from doppler.engine.engine import Engine
from doppler.engine.probe_bench import Bench, Sample
from doppler.engine.probe_host import measure_host
from doppler.engine.probe_kernels import measure_kernels
from doppler.engine.probe_links import measure_links
from doppler.engine.probe_machine import HOST, Wanted, find_machine
from doppler.errors import ConfigError, EngineError, OutOfMemoryError
from doppler.files import to_json, write_text
from doppler.graph.graph import Graph
from doppler.graph.signatures import signatures
from doppler.progress import report
from doppler.topology.io import write_topology
from doppler.topology.topology import Topology
from doppler.trace import Trace

LINKS, KERNELS = 0.2, 0.25  # shares of the time for them; what is left is the graph's
RANDOM = 6  # random assignments that the graph is run under, beside those that are given
ROUNDS = 5  # times each assignment is run at most
HELD_OUT = 4  # one assignment of so many is left out of the fit, to measure its error
FORMAT, VERSION = "doppler-samples", 1
TEXTS, NUMBERS = Sample._fields[:3], Sample._fields[3:]

MakeAssignments = Callable[[Topology], Sequence[Assignment]]
MakeBackend = Callable[[Topology], Backend]


@dataclass(frozen=True, slots=True)
class ProbeErrors:
    """How far the topology is off what was measured; all are shares."""

    links: dict[str, float]  # by way: throughput of several transfers, root mean square
    roofline: dict[str, float]  # by kind of kernel: seconds, mean
    held_out: dict[str, float]  # by kind of vertex: seconds in runs that were not fitted, mean


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A measured machine."""

    topology: Topology
    samples: tuple[Sample, ...]  # all measurements, as they were taken
    errors: ProbeErrors
    runs: int = 0  # of the graph, those held out included
    failures: tuple[str, ...] = ()  # assignments that did not run, and why


def probe(
    backend: str | MakeBackend = "cpu",
    *,
    partitions: int | None = None,
    links: str = HOST,
    graph: Graph | None = None,
    devices: int | None = None,
    assignments: MakeAssignments | None = None,
    ahead: int = 1,
    seed: int = 0,
    seconds: float = 60.0,
) -> ProbeResult:
    """The topology of this machine as the engine finds it, and the samples it is made of.

    On the CPU a device is a core, or an equal share of the cores where `devices` says how many.
    With CUDA it is a GPU, or one of the `partitions` of the first GPU, with transfers by way of
    the host or direct, as `links` says. Copies and kernels are timed alone and together through
    the backend, the host by tiny tasks through the engine. A `graph` is then run under diverse
    assignments, and under those that `assignments` makes of the first topology; its kernels get
    the seconds they took there. All that takes about so many `seconds`.
    """
    if not seconds > 0:
        raise ConfigError(f"seconds is {seconds}, must be positive")
    name = backend if isinstance(backend, str) else "custom"
    wanted = Wanted(backend=name, devices=devices, partitions=partitions, links=links)
    make = backend if callable(backend) else _maker(backend)
    until, samples = monotonic() + seconds, list[Sample]()
    machine = find_machine(wanted, ahead=ahead)
    first, errors = _measure_parts(machine, make, seconds, samples, shared=partitions is not None)
    with Engine(first, make(first)) as engine:
        first = replace(first, host=measure_host(engine, samples))
        if graph is None:
            return ProbeResult(_described(first, None), tuple(samples), errors)
        chosen = probing_assignments(graph, first, seed)
        chosen += assignments(first) if assignments else []
        traces, failures = _run_all(engine, graph, chosen, until)
    samples += _samples(graph, first, [trace for _, trace in traces])
    held_out = [trace for i, trace in traces if _is_held_out(i, len(chosen))]
    fitted = [trace for i, trace in traces if not _is_held_out(i, len(chosen))]
    topology = calibrate(first, graph, fitted or held_out)
    off = duration_errors(topology, graph, held_out)
    return ProbeResult(
        topology=_described(topology, graph),
        samples=tuple(samples),
        errors=replace(errors, held_out=off),
        runs=len(traces),
        failures=tuple(failures),
    )


def write_probe(result: ProbeResult, path: str | Path) -> Path:
    """Write the topology, and beside it `….samples.json`, whose path is returned.

    In the samples, texts are given by their numbers in `names`.
    """
    path = Path(path)
    beside = path.with_suffix(".samples.json")
    names = list(dict.fromkeys(text for each in result.samples for text in each[:3]))
    number = {text: i for i, text in enumerate(names)}
    columns: dict[str, list[float]] = {
        column: [getattr(sample, column) for sample in result.samples] for column in NUMBERS
    }
    for column in TEXTS:
        columns[column] = [number[getattr(sample, column)] for sample in result.samples]
    document = {"format": FORMAT, "version": VERSION, "topology": result.topology.name}
    document |= {"description": result.topology.description, "names": names}
    write_text(beside, to_json({**document, "samples": columns}))
    write_topology(result.topology, path)
    return beside


def probing_assignments(graph: Graph, topology: Topology, seed: int = 0) -> list[Assignment]:
    """Assignments under which all devices run all kinds of kernels, with little and much to move.

    Round-robin, random ones that load the devices evenly or not, the topological order cut into
    as many pieces as there are devices, and each device alone.
    """
    count, rng = topology.num_devices, np.random.default_rng(seed)
    order = graph.topological_order[~graph.is_input[graph.topological_order]]
    dealt, pieces = np.zeros((2, graph.num_vertices), np.int64)
    dealt[order] = np.arange(len(order)) % count
    pieces[order] = np.arange(len(order)) * count // max(len(order), 1)
    found: list[tuple[str, IntArray]] = [("round-robin", dealt), ("pieces", pieces)]
    if count > 1:
        for i in range(RANDOM):
            load = rng.dirichlet(np.full(count, 4.0)) if i % 2 else np.full(count, 1 / count)
            found.append(("random", rng.choice(count, graph.num_vertices, p=load)))
        for device in range(min(count, 2)):  # devices that are alike need not all be tried
            found.append(("single", np.full(graph.num_vertices, device)))
    return [Assignment(np.where(graph.is_input, -1, d), placer=placer) for placer, d in found]


def _maker(backend: str) -> MakeBackend:
    return lambda topology: make_backend(backend, topology)


def _measure_parts(
    machine: Topology, make: MakeBackend, seconds: float, samples: list[Sample], *, shared: bool
) -> tuple[Topology, ProbeErrors]:
    """The topology that copies and kernels outside of any graph show."""
    with closing(make(machine)) as backend:
        bench = Bench(backend, machine)
        devices, roofline = measure_kernels(bench, seconds * KERNELS, samples)
        found = measure_links(bench, seconds * LINKS, samples, shared=shared)
    topology = replace(machine, devices=devices, links=found.links, route=found.route)
    return topology, ProbeErrors(found.errors, roofline, {})


def _run_all(
    engine: Engine, graph: Graph, chosen: Sequence[Assignment], until: float
) -> tuple[list[tuple[int, Trace]], list[str]]:
    """Traces with the number of their assignment, and why others failed.

    Every assignment once however long that takes, then again while there is time. The first runs
    are warm-up: of launches, caches and memory.
    """
    traces: list[tuple[int, Trace]] = []
    failures: dict[int, str] = {}
    total = len(chosen) * (ROUNDS + 1)
    for step in range(total):
        report("running the graph", step, total)
        number = step % len(chosen)
        if step >= 2 * len(chosen) and monotonic() > until:
            break
        if number in failures:
            continue
        try:
            trace = engine.run(graph, chosen[number])
        except (OutOfMemoryError, EngineError) as error:
            failures[number] = f"{chosen[number].placer}: {error.message}"
            if len(failures) == len(chosen):
                raise
            continue
        if step >= len(chosen):
            traces.append((number, trace))
    report("running the graph", total, total)
    return traces, list(failures.values())


def _is_held_out(number: int, count: int) -> bool:
    return count > 1 and number % HELD_OUT == min(HELD_OUT, count) - 1


def _samples(graph: Graph, topology: Topology, traces: Sequence[Trace]) -> list[Sample]:
    """The tasks of runs as samples."""
    names, texts = [d.name for d in topology.devices], signatures(graph)
    found = []
    for trace in traces:
        seconds = (trace.end_s - trace.begin_s).tolist()
        for row, took in enumerate(seconds):
            vertex, device = int(trace.vertex[row]), names[trace.device[row]]
            if trace.tensor[row] >= 0:
                where = f"{names[trace.source[row]]}→{device}"
                what = topology.links[trace.link[row]].name
                found.append(Sample(TRANSFER, what, where, float(trace.moved_bytes[row]), took))
            else:
                touched = float(graph.touched_bytes[vertex])
                found.append(Sample("exec", texts[vertex], device, touched, took))
    return found


def _described(topology: Topology, graph: Graph | None) -> Topology:
    kernels = f" Kernels of graph `{graph.name}` as they ran in it." if graph else ""
    text = f"Measured by `dop probe`: {topology.description}{kernels}"
    return replace(topology, description=text)
