"""Machines whose devices have little memory: cores or parts of a GPU, with a link to the host."""

from dataclasses import replace

import numpy as np

import doppler as dp
from doppler.programs.program_builder import ProgramBuilder
from doppler.topology import Link

LOADS, LOAD_BYTES, RUNS = 8, 64 << 20, 15  # copies that are timed, the size of each, how often


def machine(
    devices: int, backend: str, *, flops_per_s: float = 1e11, host_bytes_per_s: float = 5e9
) -> dp.Topology:
    """Equal devices of unlimited memory that share one link to the host; on a GPU, parts of it."""
    topology = dp.Topology.uniform(devices, flops_per_s=flops_per_s, bandwidth_bytes_per_s=1e10)
    if backend == "cuda":
        where = ["cuda:0"] if devices == 1 else [f"cuda:0/{i}of{devices}" for i in range(devices)]
        parts = zip(topology.devices, where, strict=True)
        topology = replace(topology, devices=tuple(replace(d, address=a) for d, a in parts))
    return with_host_link(topology, host_bytes_per_s)


def with_host_link(topology: dp.Topology, bytes_per_s: float) -> dp.Topology:
    """The machine with one link to the host that all its devices share."""
    links = topology.links[: int(topology.route.max(initial=-1)) + 1]  # those to the host are last
    shared = (len(links),) * topology.num_devices
    return replace(topology, links=(*links, Link("host memory", bytes_per_s)), host_links=shared)


def with_memory(topology: dp.Topology, sizes: list[float]) -> dp.Topology:
    """The machine with these sizes of memory, in bytes, one for each device."""
    pairs = zip(topology.devices, sizes, strict=True)
    return replace(topology, devices=tuple(replace(d, memory_bytes=m) for d, m in pairs))


def host_bytes_per_s(topology: dp.Topology, backend: str, *, load_bytes: int = LOAD_BYTES) -> float:
    """What the link to the host carries when inputs arrive one after the other, as measured.

    The fastest of several runs of the engine, each from the first begin to the last end.
    """
    builder = ProgramBuilder("loads", dtype="float32")
    total = builder.input("x0", (load_bytes // 4,))[:1]
    for i in range(1, LOADS):
        total = total + builder.input(f"x{i}", (load_bytes // 4,))[:1]
    graph = dp.shard(builder.build(total), parts=1, inputs="marked")
    found = []
    with dp.Engine(topology, backend) as engine:
        assignment = dp.Assignment(np.where(graph.is_input, -1, 0))
        engine.load(graph, {f"x{i}": np.zeros(load_bytes // 4, np.float32) for i in range(LOADS)})
        for _ in range(RUNS + 1):
            trace = engine.run(graph, assignment)
            loads = trace.is_transfer
            found.append(float(trace.end_s[loads].max() - trace.begin_s[loads].min()))
    return LOADS * load_bytes / min(found[1:])
