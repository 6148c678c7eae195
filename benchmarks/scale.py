"""What grows how with the number of hosts: simulated, up to 1,024 devices on 128 hosts.

    python benchmarks/scale.py [--hosts 1 2 4 … 128] [--per-device 16] [--placer heft]

Every host has eight devices, and as many vertices come with each device, in a graph of ever the
same depth. Hosts are joined as those of `cpu2-hosts4`, by one connection each, and a tensor that
crosses costs what was measured between two processes (`python benchmarks/ranks.py`). Each host
starts its own tasks, so that the simulator's one host has that many times less to do.

Printed are, for each number of hosts: the simulated makespan and the utilization; tensors that
cross, and the most that one host receives; connections of each process, and as many threads; the
time of the messages by which clocks are compared; and the seconds to place, to simulate, and
to cut out the part of one process.
"""

import argparse
from time import perf_counter

import numpy as np

import doppler as dp
from doppler.engine.ranks.own_part import part_of
from doppler.tasks import enumerate_tasks, task_table
from doppler.topology.topology import Device, Host, Link, Topology

DEVICES, DEPTH = 8, 8  # of a host; of the graph
# Measured between two processes of one machine, and of the preset `cpu2`.
CROSSING_S = 63e-6 + 100e-6  # of a short tensor: gloo's way, and the engine at most
DISPATCH_S, COMPLETION_S = 20e-6, 20e-6
NETWORK_BYTES_PER_S = 1.1e9
PINGS = 8  # to compare a clock


def cluster(hosts: int) -> Topology:
    """Hosts of eight devices, each with one connection to all others."""
    count = hosts * DEVICES
    home = np.arange(count) // DEVICES
    route = np.where(home[:, None] == home[None], home[:, None], hosts + home[:, None])
    np.fill_diagonal(route, -1)
    memory = [Link(f"memory {h}", 5e9, 5e-6, lanes=DEVICES) for h in range(hosts)]
    network = [Link(f"network {h}", NETWORK_BYTES_PER_S, CROSSING_S) for h in range(hosts)]
    rates = dict.fromkeys(("float16", "float32", "float64"), 40e9)
    return Topology(
        name=f"hosts{hosts}",
        devices=tuple(
            Device(f"host{h}/core{d}", flops_per_s=rates, memory_bytes_per_s=8e9, group=f"host{h}")
            for h in range(hosts)
            for d in range(DEVICES)
        ),
        links=(*memory, *network) if hosts > 1 else tuple(memory),
        route=route,
        host=Host(dispatch_s=DISPATCH_S / hosts, completion_s=COMPLETION_S),
    )


def row(hosts: int, per_device: int, placer: str) -> str:
    """One line of the table."""
    topology = cluster(hosts)
    count = topology.num_devices
    graph = dp.programs.random_dag(vertices=per_device * count, depth=DEPTH, seed=0)
    began = perf_counter()
    assignment = dp.place(graph, topology, placer, seed=0)
    placed = perf_counter()
    trace = dp.simulate(graph, topology, assignment)
    simulated = perf_counter()
    tasks = enumerate_tasks(graph, topology, assignment.devices)
    table = task_table(graph, topology, tasks)
    part_of(tasks, table, None, topology, [d // DEVICES for d in range(count)], 0)
    cut = perf_counter()
    moved = trace.is_transfer
    target, source = trace.device[moved] // DEVICES, trace.source[moved] // DEVICES
    crosses = source != target
    most = int(np.bincount(target[crosses], minlength=hosts).max()) if crosses.any() else 0
    clocks_s = (hosts - 1) * PINGS * 2 * CROSSING_S
    cells = [
        f"{hosts}",
        f"{count:,}",
        f"{graph.num_vertices:,}",
        f"{trace.makespan_s:.1f} s",
        f"{trace.utilization().mean():.0%}",
        f"{int(crosses.sum()):,}",
        f"{most:,}",
        f"{hosts - 1}",
        f"{clocks_s * 1e3:.1f} ms",
        f"{placed - began:.2f} s",
        f"{simulated - placed:.2f} s",
        f"{cut - simulated:.2f} s",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--per-device", type=int, default=16)
    parser.add_argument("--placer", default="heft")
    args = parser.parse_args()
    columns = "hosts|devices|vertices|makespan|utilization|tensors that cross|most to one host"
    columns += "|connections|comparing clocks|to place|to simulate|to cut a part"
    print("| " + " | ".join(columns.split("|")) + " |")
    print("|" + "---|" * (columns.count("|") + 1))
    row(1, args.per_device, args.placer)  # compiled
    for hosts in args.hosts:
        print(row(hosts, args.per_device, args.placer), flush=True)


if __name__ == "__main__":
    main()
