"""The paper's workloads on one device against the paper's rows, and how sharding scales.

Run it as `python benchmarks/workloads.py run`; it takes half a minute.
"""

from collections.abc import Iterator
from dataclasses import replace
from time import process_time

import numpy as np
import tables
from tables import Table

from doppler.graph import Graph
from doppler.placers import lower_bounds, place
from doppler.programs.llama import transformer
from doppler.programs.registry import workload
from doppler.reproduce.paper_figures import ONE_GPU, paper
from doppler.sharding import lower, partition, shard
from doppler.sim import SimConfig, simulate
from doppler.topology import Topology, read_topology

# The tables of the paper with its one-GPU rows. Those of V100 conflict: the layer, which contains
# the block, is faster than the block.
TABLES = {"p100x4": "memory-8gb", "v100x8": "eight-gpus"}
LAYERS = (6, 12, 24, 48, 96)


def graph_of(name: str, devices: int) -> Graph:
    """A workload cut as in the paper: 16 parts, or for Llama one part per device."""
    found = workload(name)
    program = found.build()
    assert not isinstance(program, Graph)
    return shard(program, devices if name.startswith("llama") else found.parts)


def compare_one_device(_: object) -> Iterator[Table]:
    """One device, simulated, against the paper's rows."""
    rows = []
    for name, table in TABLES.items():
        topology = read_topology(name)
        for label, (paper_ms, _) in paper(table)[ONE_GPU].items():
            graph = graph_of(label, topology.num_devices)
            # The paper's engine evicts to host memory where ours would run out.
            config = SimConfig(limit_memory=False)
            trace = simulate(graph, topology, place(graph, topology, "single"), config=config)
            ours, bound = trace.makespan_s * 1e3, least_ms(graph, topology)
            cells = [f"{ms:.1f}" for ms in (ours, bound, paper_ms)]
            error = f"{100 * (ours / paper_ms - 1):+.1f} %"
            rows.append([f"`{name}`", f"`{label}`", f"{graph.num_vertices}", *cells, error])
    head = ["topology", "workload", "vertices", "simulated", "bound", "paper", "error"]
    yield Table("one", "One device, simulated, against the paper's one-GPU rows (ms)", head, rows)


def least_ms(graph: Graph, topology: Topology) -> float:
    """Milliseconds that the graph takes at least on the first device alone, however scheduled."""
    first = {signature: seconds[:1] for signature, seconds in topology.exec_s.items()}
    alone = replace(
        topology,
        devices=topology.devices[:1],
        links=(),
        route=np.array([[-1]]),
        exec_s=first,
        host_links=(),
    )
    bounds = lower_bounds(graph, alone)
    return max(bounds.path_s, bounds.work_s, bounds.window_s, bounds.host_s) * 1e3


def scaling(_: object) -> Iterator[Table]:
    """Seconds of CPU to shard transformers of more and more layers."""
    rows = []
    for layers in LAYERS:
        began = process_time()
        program = transformer(layers=layers)
        built = process_time()
        cuts = partition(program, 8)
        cut = process_time()
        graph = lower(program, cuts)
        done = process_time()
        parts = [f"{each:.2f}" for each in (built - began, cut - built, done - cut, done - began)]
        each = f"{1e3 * (done - began) / layers:.1f}"
        rows.append([f"{layers}", f"{graph.num_vertices:,}", *parts, each])
    head = ["layers", "vertices", "build", "partition", "lower", "all", "ms per layer"]
    yield Table("sharding", "Sharding a transformer into 8 parts (s of CPU)", head, rows)


PARTS = {"one": compare_one_device, "sharding": scaling}


def main() -> None:
    tables.main(__doc__, PARTS)


if __name__ == "__main__":
    main()
