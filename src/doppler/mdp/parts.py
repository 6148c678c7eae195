"""Parts of a machine: the same graph on the best few of its devices."""

from dataclasses import replace

import numpy as np

from doppler.arrays import IntArray, frozen
from doppler.mdp.instance import Instance, make_instance


def nested_parts(instance: Instance) -> list[IntArray]:
    """All devices, then the best half of them, of these the best half, and so on down to one.

    Parts grow from the fastest device by the one that is best to have next: quick at the mean
    vertex, and at moving the mean tensor from and to those that are there already.
    """
    tables, count = instance.tables, instance.num_devices
    exec_s = tables.exec_s.sum(axis=0) / max(len(tables.exec_s), 1)
    edges = max(len(tables.edge_bytes), 1)
    move_s = tables.edge_fixed_s.sum() / edges + tables.latency_s
    move_s = move_s + tables.edge_bytes.sum() / edges * tables.s_per_byte
    chosen = [int(np.argmin(exec_s))]
    while len(chosen) < count:
        away_s = (move_s[chosen].sum(axis=0) + move_s[:, chosen].sum(axis=1)) / (2 * len(chosen))
        cost_s = exec_s + away_s
        cost_s[chosen] = np.inf
        chosen.append(int(np.argmin(cost_s)))
    parts = [np.arange(count)]
    while len(parts[-1]) > 1:
        parts.append(np.array(sorted(chosen[: (len(parts[-1]) + 1) // 2])))
    return parts


def on_part(instance: Instance, devices: IntArray) -> Instance:
    """The instance of the same graph on some of the devices, which then count from 0."""
    graph, topology, kept = instance.graph, instance.topology, devices.tolist()
    if graph.exec_s is not None and graph.exec_s.shape[1] > 1:
        graph = replace(graph, exec_s=frozen(graph.exec_s[:, kept]))
    part = replace(
        topology,
        devices=tuple(topology.devices[d] for d in kept),
        route=topology.route[np.ix_(kept, kept)],
        exec_s={key: tuple(row[d] for d in kept) for key, row in topology.exec_s.items()},
    )
    return make_instance(graph, part)
