"""Traces and graphs to make reports of."""

from functools import cache

import numpy as np

import doppler as dp
from doppler.graph import build_graph
from doppler.programs import random_dag
from doppler.trace import Trace
from doppler.trace.trace import TraceDevice, TraceLink

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "\"'&<b>bold</b>",
    "\x1b[2J\u202ertl\u2066",
    "\ud800",
    "${alert(1)}{{7*7}}",
    "\u2028\u2029]]>-->",
    "x" * 5000,
)


def hostile(names=HOSTILE):
    """A graph, a topology and a trace in which every name is an attack."""
    size = len(names)
    graph = build_graph(
        name=HOSTILE[0],
        kinds=[f"{name}k" for name in names],
        vertex_names=list(names),
        meta_ops=[f"{name}m" for name in names],
        exec_s=[1.0] * size,
        tensor_producer=list(range(size)),
        tensor_bytes=[1.0] * size,
        transfer_s=[1.0] * size,
        edge_tensor=list(range(size - 1)),
        edge_reader=list(range(1, size)),
    )
    devices = (dp.Device(HOSTILE[0], group=HOSTILE[1]), dp.Device(HOSTILE[1], group=HOSTILE[2]))
    links = (dp.Link(HOSTILE[0]), dp.Link(HOSTILE[1]))
    topology = dp.Topology(HOSTILE[1], devices, links, [[-1, 0], [1, -1]])
    assignment = dp.Assignment([v % 2 for v in range(size)], placer=HOSTILE[0])
    return graph, topology, dp.simulate(graph, topology, assignment)


@cache
def example():
    """A graph, its machine, two assignments, and traces: one of each, and a noisy one."""
    graph = dp.shard(dp.programs.llama_block(), parts=4)
    topology = dp.Topology.preset("p100x4")
    assignments = {
        name: dp.place(graph, topology, name) for name in ("critical-path", "round-robin")
    }
    traces = {name: dp.simulate(graph, topology, one) for name, one in assignments.items()}
    noisy = dp.Simulator(topology, dp.SimConfig(noise=dp.Noise(0.3, 0.3)))
    traces["measured"] = noisy.run(graph, assignments["critical-path"], 0)
    return graph, topology, assignments, traces


@cache
def planned():
    """A graph that does not fit, and its trace: tensors move to the host and back."""
    graph = dp.shard(dp.programs.chainmm(size=1000), parts=4)
    topology = dp.Topology.uniform(
        2,
        flops_per_s=10e12,
        bandwidth_bytes_per_s=12e9,
        host_bandwidth_bytes_per_s=12e9,
        memory_bytes=4e6,
    )
    assignment = dp.place(graph, topology, "m-etf")
    return graph, topology, dp.simulate(graph, topology, assignment)


@cache
def large(vertices: int, depth: int):
    """A random graph and its trace on eight devices."""
    graph = random_dag(vertices=vertices, depth=depth, seed=0)
    topology = dp.Topology.uniform(8, flops_per_s=1e13, bandwidth_bytes_per_s=1e11)
    return graph, dp.simulate(graph, topology, dp.place(graph, topology, "round-robin"))


@cache
def drawn(vertices: int, seed: int = 0):
    """A trace of many tasks that no simulation took long to make, and whose times are noise."""
    rng, devices, code = np.random.default_rng(seed), 8, 12
    execs, moves = np.arange(vertices), rng.integers(0, vertices, vertices)
    noise = rng.bytes(code * vertices // 2).hex()
    vertex, is_move = (
        np.concatenate([execs, moves]),
        np.repeat([False, True], [vertices, len(moves)]),
    )
    size, device = len(vertex), rng.integers(0, devices, len(vertex))
    begin_s = np.sort(rng.random(size))
    return Trace(
        graph="drawn",
        topology="drawn",
        placer="",
        vertex_names=tuple(f"{v}/{noise[code * v : code * (v + 1)]}" for v in range(vertices)),
        vertex_kinds=("matmul",) * vertices,
        devices=tuple(TraceDevice(f"gpu{d}", "", 1) for d in range(devices)),
        links=tuple(TraceLink(f"link{d}", 1) for d in range(devices)),
        local_bytes=0.0,
        vertex=vertex,
        tensor=np.where(is_move, vertex, -1),
        source=np.where(is_move, (device + 1) % devices, -1),
        device=device,
        link=np.where(is_move, device, -1),
        moved_bytes=np.where(is_move, rng.integers(1, 10**9, size), 0).astype(float),
        ready_s=begin_s * rng.random(size),
        begin_s=begin_s,
        end_s=begin_s + rng.random(size) / size,
        after=np.maximum(np.arange(size) - rng.integers(1, size, size), -1),
    )
