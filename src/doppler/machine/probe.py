"""Probe: measures the machine that Doppler runs on, and makes a topology of it."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, cast

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.base.files import to_json
from doppler.base.progress import report
from doppler.base.writing import find_target, write_text
from doppler.engine.backends.base import Backend
from doppler.engine.backends.registry import make_backend
from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine
from doppler.errors import ConfigError, EngineError, OutOfMemoryError
from doppler.graph.graph import Graph
from doppler.graph.signatures import signatures
from doppler.machine.bench import Bench, Sample
from doppler.machine.calibration import TRANSFER, Measured, Refined, calibrate, duration_errors
from doppler.machine.find import HOST, Wanted, find_machine
from doppler.machine.host import HostWatch, measure_host
from doppler.machine.kernels import measure_contention, measure_kernels
from doppler.machine.links import measure_links
from doppler.machine.robust import typical_s
from doppler.machine.validation import PROBED, good_assignments, refine
from doppler.scheduler.choose import DYNAMIC, FIXED, check_mode
from doppler.sim import SimConfig, Simulator
from doppler.topology.io import write_topology
from doppler.topology.topology import Topology
from doppler.trace import Trace

# Shares of the time; what is left is the graph's.
LINKS, KERNELS, CONTENTION = 0.2, 0.2, 0.05
SHARES = (0.25, 0.6, 1.0)  # of the graph's time that is over at the end of each round of runs
FEWEST_ROUNDS = 2  # however short the time
RANDOM = 2  # random assignments in the first round
REPEATS = 5  # times each assignment is run at most
HELD_OUT = 4  # one assignment in four is held out of the fit
FORMAT, VERSION = "doppler-samples", 1
TEXTS, NUMBERS = Sample._fields[:3], Sample._fields[3:]

MakeBackend = Callable[[Topology], Backend]


@dataclass(frozen=True, slots=True)
class ProbeErrors:
    """How far the topology is off what was measured; all are shares."""

    links: dict[str, float]  # by way: throughput of several transfers, root mean square
    roofline: dict[str, float]  # by kind of kernel: seconds, mean
    held_out: dict[str, float]  # by kind of vertex: seconds in runs that were not fitted, mean
    makespans: dict[str, float]  # of the same runs, mean: `before` and `after` refining


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A measured machine."""

    topology: Topology
    samples: tuple[Sample, ...]  # all measurements, as they were taken
    errors: ProbeErrors
    runs: int = 0  # of the graph, those held out included
    measured: tuple[Measured, ...] = ()  # its assignments, those held out last
    failures: tuple[str, ...] = ()  # assignments that did not run, and why


def probe(
    backend: str | MakeBackend = "cpu",
    *,
    partitions: int | None = None,
    links: str = HOST,
    graph: Graph | None = None,
    devices: int | None = None,
    mode: str = DYNAMIC,
    ahead: int = 1,
    seed: int = 0,
    seconds: float = 60.0,
    good: int = PROBED,
) -> ProbeResult:
    """The topology of this machine as the engine finds it, and the samples it is made of.

    On the CPU a device is a core, or an equal share of the cores where `devices` says how many.
    With CUDA it is a GPU, or one of the `partitions` of the first GPU, with transfers by way of
    the host or direct, as `links` says. Copies and kernels are timed alone and together through
    the backend, the host by tiny tasks through the engine.

    A `graph` is then run under diverse assignments, and its kernels and links get the seconds they
    took there. On the topology that gives, placers and a short search find good ones, which are run
    in turn, twice over: what things take where all devices are busy counts most. Each time the
    costs of the host are fitted to the measured makespans. Runs, and the measurements of the host,
    are in that `mode` of the engine, whose makespans the topology then predicts best. All that
    takes about `seconds`; `good` is the number of assignments in each of these two rounds.

    >>> import doppler as dp
    >>> dp.probe("cpu", devices=1, seconds=0.5).topology.num_devices
    1
    """
    if not seconds > 0:
        raise ConfigError(f"seconds is {seconds}, must be positive")
    if good < 1:
        raise ConfigError(f"good is {good}, must be at least 1")
    check_mode(mode)
    name = backend if isinstance(backend, str) else "custom"
    wanted = Wanted(backend=name, devices=devices, partitions=partitions, links=links)
    make = backend if callable(backend) else _maker(backend)
    until, samples = monotonic() + seconds, list[Sample]()
    machine = find_machine(wanted, ahead=ahead)
    first, errors = _measure_parts(machine, make, seconds, samples, shared=partitions is not None)
    watch = HostWatch(make(first))
    with Engine(first, cast("Backend", watch), EngineConfig(mode=mode)) as engine:
        first = replace(first, host=measure_host(engine, samples))
        if graph is None:
            return ProbeResult(_described(first, None, mode), tuple(samples), errors)
        runs = _Runs(engine, graph)
        timed, refined = _probe_graph(runs, watch, first, until, seed, good)
    return _probe_result(runs, timed, refined, errors, samples)


def samples_path(path: str | Path) -> Path | None:
    """Where the samples of a probe go: beside its topology; nowhere if that is no regular file."""
    found = find_target(path)
    return None if found.is_stream else Path(path).with_suffix(".samples.json")


def write_probe(result: ProbeResult, path: str | Path, *, force: bool = False) -> Path | None:
    """Write the topology, and beside it `….samples.json`, whose path is returned.

    In the samples, texts are given by their numbers in `names`. Where the topology is written into
    a pipe, a device or the standard output, there are none.
    """
    beside = samples_path(path)
    if beside is not None:
        text = to_json(_samples_document(result))
        write_text(beside, text, kind=FORMAT, force=force)
    write_topology(result.topology, path, force=force)
    return beside


def _samples_document(result: ProbeResult) -> dict[str, Any]:
    names = list(dict.fromkeys(text for each in result.samples for text in each[:3]))
    number = {text: i for i, text in enumerate(names)}
    columns: dict[str, list[float]] = {
        column: [getattr(sample, column) for sample in result.samples] for column in NUMBERS
    }
    for column in TEXTS:
        columns[column] = [number[getattr(sample, column)] for sample in result.samples]
    document = {"format": FORMAT, "version": VERSION, "topology": result.topology.name}
    document |= {"description": result.topology.description, "names": names}
    return {**document, "samples": columns}


def probing_assignments(graph: Graph, topology: Topology, seed: int = 0) -> list[Assignment]:
    """Assignments under which all devices run all kinds of kernels, with little and much to move.

    Round-robin, random ones that load the devices evenly or not, the topological order cut into
    as many pieces as there are devices, and one device alone.
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
        found.append(("single", np.zeros(graph.num_vertices, np.int64)))
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
        contention = measure_contention(bench, devices, seconds * CONTENTION, samples)
        found = measure_links(bench, seconds * LINKS, samples, shared=shared)
    topology = replace(
        machine,
        devices=devices,
        links=found.links,
        route=found.route,
        host_links=found.host_links,
        contention=contention,
    )
    return topology, ProbeErrors(found.errors, roofline, {}, {})


def _probe_graph(
    runs: "_Runs", watch: HostWatch, first: Topology, until: float, seed: int, good: int
) -> tuple[Topology, Refined]:
    """The topology as timed in rounds of runs of the graph, and what refining made of it."""
    graph, began = runs.graph, monotonic()
    chosen = runs.in_mode(probing_assignments(graph, first, seed), first)
    timed, refined = first, Refined(first, inf, inf)
    host = replace(first.host, completion_s=0.0)  # it is for calibration to find
    for number, share in enumerate(SHARES):
        if number >= FEWEST_ROUNDS and monotonic() > until:
            break
        if number:
            found = good_assignments(graph, refined.topology, seed, good)
            chosen = runs.in_mode(found, refined.topology)
        watch.reset()
        runs.run(chosen, began + share * (until - began))
        if runs.mode == DYNAMIC:  # else it is ahead of the devices, and what it waits for is theirs
            host = replace(host, dispatch_s=watch.dispatch_s or host.dispatch_s)
        fitted = runs.traces(held_out=False) or runs.traces(held_out=True)
        timed = calibrate(replace(first, host=host), graph, fitted)
        measured = [runs.measured(held_out=h) for h in (False, True)]
        refined = refine(graph, timed, *measured, mode=runs.mode)
    return timed, refined


def _probe_result(
    runs: "_Runs", timed: Topology, refined: Refined, errors: ProbeErrors, samples: list[Sample]
) -> ProbeResult:
    """What runs of a graph added to the measurements of the parts."""
    fitted, held_out = (runs.traces(held_out=h) for h in (False, True))
    return ProbeResult(
        topology=_described(refined.topology, runs.graph, runs.mode),
        samples=(*samples, *_samples(runs.graph, timed, [*fitted, *held_out])),
        errors=replace(
            errors,
            held_out=duration_errors(timed, runs.graph, held_out or fitted),
            makespans={"before": refined.before, "after": refined.after},
        ),
        runs=sum(len(found) for found in runs.found.values()),
        measured=tuple(runs.measured(held_out=False) + runs.measured(held_out=True)),
        failures=tuple(runs.failures.values()),
    )


class _Runs:
    """The runs of a graph under many assignments."""

    def __init__(self, engine: Engine, graph: Graph) -> None:
        self._engine, self.graph, self.mode = engine, graph, engine.config.mode
        self.found: dict[Assignment, list[Trace]] = {}
        self.failures: dict[Assignment, str] = {}
        self._held_out: set[Assignment] = set()

    def in_mode(self, chosen: Sequence[Assignment], topology: Topology) -> list[Assignment]:
        """Assignments as they will run: in fixed mode each with its order on that topology."""
        if self.mode != FIXED:
            return list(chosen)
        simulator = Simulator(topology, SimConfig(mode=FIXED))
        return [replace(one, schedule=simulator.schedule(self.graph, one)) for one in chosen]

    def run(self, chosen: Sequence[Assignment], until: float) -> None:
        """Run those that are new; an error if there are runs of none.

        Each twice however long that takes, then again while there is time. The first run is
        warm-up: of launches, caches and memory.
        """
        tried = {*self.found, *self.failures}
        new = [one for one in dict.fromkeys(chosen) if one not in tried]
        self._held_out |= {one for i, one in enumerate(new) if _is_held_out(i, len(new))}
        if not new:
            return
        total = len(new) * (REPEATS + 1)
        for step in range(total):
            report("running the graph", step, total)
            if step >= 2 * len(new) and monotonic() > until:
                break
            one = new[step % len(new)]
            if one in self.failures:
                continue
            try:
                trace = self._engine.run(self.graph, one)
            except (OutOfMemoryError, EngineError) as error:
                self.failures[one] = f"{one.placer}: {error.message}"
                self.found.pop(one, None)
                if not self.found and len(self.failures) == len(tried) + len(new):
                    raise
                continue
            if step >= len(new):
                self.found.setdefault(one, []).append(trace)
        report("running the graph", total, total)

    def traces(self, *, held_out: bool) -> list[Trace]:
        """Of the runs to fit, or of those held out."""
        return [trace for one in self._some(held_out) for trace in self.found[one]]

    def measured(self, *, held_out: bool) -> list[Measured]:
        """Mean makespans of the same."""
        return [
            Measured(one, typical_s([trace.makespan_s for trace in self.found[one]]))
            for one in self._some(held_out)
        ]

    def _some(self, held_out: bool) -> list[Assignment]:
        return [one for one in self.found if (one in self._held_out) == held_out]


def _is_held_out(number: int, count: int) -> bool:
    return count > 1 and number % HELD_OUT == min(HELD_OUT, count) - 1


def _samples(graph: Graph, topology: Topology, traces: Sequence[Trace]) -> list[Sample]:
    """The tasks of runs as samples."""
    names, texts = [*(d.name for d in topology.devices), "host"], signatures(graph)
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


def _described(topology: Topology, graph: Graph | None, mode: str) -> Topology:
    kernels = f" Kernels of graph `{graph.name}` as they ran in it, mode {mode}." if graph else ""
    text = f"Measured by `dop probe`: {topology.description}{kernels}"
    return replace(topology, description=text)
