"""The paper's workloads on one device against the paper's rows, and how sharding scales.

Run it as `python benchmarks/workloads.py`; it takes half a minute.
"""

from dataclasses import replace
from time import perf_counter

import numpy as np

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


def compare_one_device() -> None:
    print("\nOne device, simulated, against the paper's one-GPU rows (ms)\n")
    print("  topology  workload       vertices  simulated   bound   paper")
    for name, table in TABLES.items():
        topology = read_topology(name)
        for label, (paper_ms, _) in paper(table)[ONE_GPU].items():
            graph = graph_of(label, topology.num_devices)
            # The paper's engine evicts to host memory where ours would run out.
            config = SimConfig(limit_memory=False)
            trace = simulate(graph, topology, place(graph, topology, "single"), config=config)
            ours, bound = trace.makespan_s * 1e3, least_ms(graph, topology)
            print(
                f"  {name:<10}{label:<14}{graph.num_vertices:>9}{ours:>11.1f}{bound:>8.1f}"
                f"{paper_ms:>8.1f}"
                f"{100 * (ours / paper_ms - 1):>+8.1f}%"
            )


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


def show_scaling() -> None:
    print("\nSharding a transformer into 8 parts (s)\n")
    print("  layers  vertices   build  partition   lower  ms/layer")
    for layers in LAYERS:
        began = perf_counter()
        program = transformer(layers=layers)
        built = perf_counter()
        cuts = partition(program, 8)
        cut = perf_counter()
        graph = lower(program, cuts)
        done = perf_counter()
        print(
            f"  {layers:>6}{graph.num_vertices:>10}{built - began:>8.2f}{cut - built:>11.2f}"
            f"{done - cut:>8.2f}{1e3 * (done - began) / layers:>10.1f}"
        )


if __name__ == "__main__":
    compare_one_device()
    show_scaling()
