"""Sketch: tasks and what they read, before they have names, flops and bytes; and its price."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from doppler.base.arrays import BoolArray, FloatArray
from doppler.datasets.chance import coin, log_uniform, rounded
from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Graph
from doppler.graph.ops import OpKind
from doppler.problem import Problem
from doppler.topology.topology import Topology

RATIOS = (0.1, 10.0)  # transfer over exec seconds, see `communication_ratio`
# All execs on the average device, at most, and moving every tensor once, unless that makes execs
# too short.
TOTAL_S = 1.0
EACH_S = 30e-6  # an exec on the average device, on average, at least
SPREAD_S = 1e-3  # all execs, spread over the devices, at least
DTYPES = ("float16", "float32", "float64")
DIGITS = 6  # of flops and bytes
LESSER = 0.05  # share of an exec that the other side of the roofline would take


@dataclass(slots=True)
class Sketch:
    """Tasks in an order in which they could run."""

    reads: list[list[int]] = field(default_factory=list)  # tasks that each reads from
    stages: list[str] = field(default_factory=list)  # alike tasks, which become a meta-op
    roles: list[str] = field(default_factory=list)
    work: list[float] = field(default_factory=list)  # relative to other tasks
    size: list[float] = field(default_factory=list)  # of all that it makes, relative
    scatters: list[bool] = field(default_factory=list)  # a part for each reader, not one for all

    def __len__(self) -> int:
        return len(self.reads)

    def task(
        self,
        stage: str,
        reads: Iterable[int] = (),
        *,
        role: str = "shard",
        work: float = 1.0,
        size: float = 1.0,
        scatters: bool = False,
    ) -> int:
        """Add a task that reads what earlier tasks make; returns its number."""
        self.reads.append(list(dict.fromkeys(reads)))
        self.stages.append(stage)
        self.roles.append(role)
        self.work.append(work)
        self.size.append(size)
        self.scatters.append(scatters)
        return len(self.reads) - 1


def communication_ratio(graph: Graph, topology: Topology) -> float:
    """Mean seconds of a transfer over mean seconds of an exec.

    Above: the tensors that vertices make and others read, each averaged over the ordered pairs of
    devices, latency included. Below: the vertices that have work, each averaged over the devices,
    launch included. Nothing waits for anything.
    """
    problem = Problem(graph, topology)
    moved = (np.diff(graph.reader_ptr) > 0) & problem.is_produced
    exec_s = problem.mean_exec_s[graph.assigned]
    working = exec_s[exec_s > 0]
    if not moved.any() or not len(working):
        return 0.0
    return float(problem.mean_transfer_s[moved].mean() / working.mean())


def with_ratio(graph: Graph, topology: Topology, ratio: float) -> Topology:
    """The topology with links as fast as that ratio of communication to computation needs.

    Latencies stay, unless they alone were more than half of a transfer.

    >>> import doppler as dp
    >>> graph, topology = dp.shard(dp.programs.chainmm(size=64), 2), dp.Topology.preset("p100x4")
    >>> round(communication_ratio(graph, with_ratio(graph, topology, 4.0)), 1)
    4.0
    """
    instant = [replace(link, latency_s=0.0) for link in topology.links]
    bytes_part = communication_ratio(graph, replace(topology, links=tuple(instant)))
    if not bytes_part:
        return topology
    latency_part = communication_ratio(graph, topology) - bytes_part
    shorter = min(1.0, ratio / 2 / latency_part) if latency_part > 0 else 1.0
    slower = (ratio - shorter * latency_part) / bytes_part
    links = [
        replace(
            link,
            bandwidth_bytes_per_s=rounded(link.bandwidth_bytes_per_s / slower),
            latency_s=rounded(link.latency_s * shorter),
        )
        for link in topology.links
    ]
    return replace(topology, links=tuple(links))


def price(sketch: Sketch, rng: np.random.Generator, topology: Topology, max_vertices: int) -> Graph:
    """The graph of a sketch, with flops and bytes for a ratio that is drawn from `RATIOS`.

    It has up to `max_vertices` vertices, if the sketch has fewer tasks. What a vertex touches does
    not depend on what it reads, so that every ratio can be had on every machine.
    """
    count, devices = len(sketch), topology.num_devices
    latency_s, s_per_byte = _mean_link(topology)
    ratio = log_uniform(rng, *RATIOS)
    # Transfers take at least twice the latency, so that their bytes matter.
    low = max(devices * SPREAD_S, count * EACH_S, count * 2 * latency_s / ratio)
    exec_s = log_uniform(rng, low, max(TOTAL_S / max(1.0, ratio), low)) / count
    dtype = DTYPES[int(rng.choice(3, p=(0.5, 0.4, 0.1)))]
    flops, touched, by_memory = _exec_costs(sketch, rng, topology, dtype, exec_s)
    columns: dict[str, Any] = {"flops": flops, "touched_bytes": touched, "by_memory": by_memory}
    made = _tensors(sketch, _uneven(sketch, rng, sketch.size))
    sizes = np.array([one for parts in made for one in parts])
    read = np.array([bool(r) for r in _readers(sketch)]).repeat([len(parts) for parts in made])
    scale = (ratio * exec_s - latency_s) / (sizes[read].mean() * s_per_byte)
    columns["made"] = [[_whole(one * scale) for one in parts] for parts in made]
    entries = sum(not reads for reads in sketch.reads)
    apart = coin(rng) and count + entries <= max_vertices
    return _build(sketch, columns, dtype, inputs=entries if apart else 1)


def _mean_link(topology: Topology) -> tuple[float, float]:
    """Latency, and seconds of a byte, averaged over the ordered pairs of devices."""
    links = [topology.links[i] for i in topology.route[topology.route >= 0].tolist()]
    slopes = [1 / link.bandwidth_bytes_per_s for link in links]
    return sum(link.latency_s for link in links) / len(links), sum(slopes) / len(links)


def _uneven(sketch: Sketch, rng: np.random.Generator, weights: list[float]) -> FloatArray:
    """(n,) the weights times log-normal factors, of their stages and half the time of their own."""
    number = {stage: i for i, stage in enumerate(dict.fromkeys(sketch.stages))}
    which = np.array([number[stage] for stage in sketch.stages], np.int64)
    of_stage = rng.uniform(0, 1.0) * rng.standard_normal(len(number))
    own = (rng.uniform(0, 0.7) if coin(rng) else 0.0) * rng.standard_normal(len(sketch))
    factors: FloatArray = np.array(weights) * np.exp(of_stage[which] + own)
    return factors


def _exec_costs(
    sketch: Sketch, rng: np.random.Generator, topology: Topology, dtype: str, exec_s: float
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """(n,) flops, (n,) touched bytes, and (n,) whether the bytes are what takes the time.

    The mean over tasks and devices is `exec_s`; stages differ in what takes the time.
    """
    work = _uneven(sketch, rng, sketch.work)
    launch_s = sum(d.launch_s for d in topology.devices) / topology.num_devices
    seconds = work / work.mean() * (exec_s - launch_s)
    share = rng.uniform(0, 0.6)
    stages = {stage: coin(rng, share) for stage in dict.fromkeys(sketch.stages)}
    by_memory = np.array([stages[stage] for stage in sketch.stages])
    s_per_flop = sum(1 / d.flops_per_s[dtype] for d in topology.devices) / topology.num_devices
    s_per_byte = sum(1 / d.memory_bytes_per_s for d in topology.devices) / topology.num_devices
    flops = np.where(by_memory, LESSER, 1.0) * seconds / s_per_flop
    touched = np.where(by_memory, 1.0, LESSER) * seconds / s_per_byte
    return np.array(list(map(_whole, flops))), np.array(list(map(_whole, touched))), by_memory


def _whole(value: float) -> float:
    """The nearest whole number of at most `DIGITS` digits and zeros, at least 1."""
    return float(max(1, round(rounded(value, DIGITS))))


def _readers(sketch: Sketch) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in sketch.reads]
    for task, reads in enumerate(sketch.reads):
        for source in reads:
            readers[source].append(task)
    return readers


def _tensors(sketch: Sketch, size: FloatArray) -> list[list[float]]:
    """Sizes of what each task makes: one tensor, or one for each reader."""
    made = []
    for whole, readers, scatters in zip(
        size.tolist(), _readers(sketch), sketch.scatters, strict=True
    ):
        parts = len(readers) if scatters and readers else 1
        made.append([whole / parts] * parts)
    return made


def _build(sketch: Sketch, columns: dict[str, Any], dtype: str, *, inputs: int) -> Graph:
    """The graph; tasks that read nothing read an input, each its own or all the same."""
    builder = GraphBuilder("sketch")
    input_bytes = columns["made"][0][0]
    sources = [builder.input(f"x{i}", output_bytes=input_bytes) for i in range(inputs)]
    left: list[list[int]] = []  # tensors of each task that readers have still to take
    counts: dict[str, int] = {}
    entries = 0
    for task, reads in enumerate(sketch.reads):
        stage = sketch.stages[task]
        counts[stage] = counts.get(stage, 0) + 1
        by_memory = bool(columns["by_memory"][task])
        vertex = builder.vertex(
            f"{stage}.{counts[stage] - 1}",
            _kind(sketch.roles[task], len(reads), by_memory),
            flops=float(columns["flops"][task]),
            touched_bytes=float(columns["touched_bytes"][task]),
            meta_op=stage,
            role=sketch.roles[task],
            dtype=dtype,
        )
        for source in reads:
            parts = left[source]
            builder.edge(parts.pop(0) if len(parts) > 1 else parts[0], vertex)
        if not reads:
            builder.edge(sources[min(entries, inputs - 1)], vertex)
            entries += 1
        left.append([builder.tensor(vertex, one) for one in columns["made"][task]])
    return builder.build()


def _kind(role: str, reads: int, by_memory: bool) -> OpKind:
    if role == "reduce":
        return OpKind.FORMATION
    if not by_memory:
        return OpKind.MATMUL
    return OpKind.STRAIGHT_ELEMWISE if reads > 1 else OpKind.INPUT_ELEMWISE
