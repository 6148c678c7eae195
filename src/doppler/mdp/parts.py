"""Parts of a machine: the same graph on some of its devices."""

from dataclasses import replace

import numpy as np
from scipy.sparse.csgraph import connected_components

from doppler.base.arrays import FloatArray, IntArray, frozen
from doppler.cost import Costs, GivenCosts
from doppler.problem import Problem


def nested_parts(problem: Problem) -> list[IntArray]:
    """All devices, then the best half of them, of these the best half, and so on down to one.

    Parts grow from the fastest device by the one that is best to have next: quick at the mean
    vertex, and at moving the mean tensor from and to those that are there already.
    """
    count, assigned = problem.topology.num_devices, problem.graph.assigned
    exec_s = problem.costs.exec_s[assigned].sum(axis=0) / max(len(assigned), 1)
    move_s = _mean_move_s(problem)
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


def islands(problem: Problem) -> list[IntArray]:
    """Some of the devices, two or more, that are closer to each other than to the rest.

    The largest come first, of as large ones the closest: those that hang together by links on
    which the mean tensor takes no longer than some time.
    """
    move_s = _mean_move_s(problem)
    move_s = np.minimum(move_s, move_s.T)
    found: dict[bytes, IntArray] = {}
    for limit_s in np.unique(move_s[~np.eye(len(move_s), dtype=bool)]):
        count, label = connected_components(move_s <= limit_s, directed=False)
        for island in (np.flatnonzero(label == number) for number in range(count)):
            if 1 < len(island) < len(move_s):
                found.setdefault(island.tobytes(), island)
    return sorted(found.values(), key=len, reverse=True)


def _mean_move_s(problem: Problem) -> FloatArray:
    """(D, D) seconds to move the mean tensor."""
    tensor = problem.edges.tensor
    edges = max(len(tensor), 1)
    fixed_s = problem.costs.fixed_s[tensor].sum() / edges + problem.latency_s
    bytes_ = problem.graph.tensor_bytes[tensor].sum() / edges
    move_s: FloatArray = fixed_s + bytes_ * problem.s_per_byte
    return move_s


def on_part(problem: Problem, devices: IntArray) -> Problem:
    """The same graph, at the same costs, on some of the devices, which count from 0.

    So do the links, of which those remain that the devices use.
    """
    topology, costs, kept = problem.topology, problem.costs, devices.tolist()
    route = topology.route[np.ix_(devices, devices)]
    host_links = [topology.host_links[d] for d in kept] if topology.has_host_links else []
    links = np.unique([*route[route >= 0], *host_links]).astype(np.int64)
    part = replace(
        topology,
        devices=tuple(topology.devices[d] for d in kept),
        links=tuple(topology.links[i] for i in links.tolist()),
        route=np.where(route < 0, -1, np.searchsorted(links, route)),
        exec_s={key: tuple(row[d] for d in kept) for key, row in topology.exec_s.items()},
        host_links=tuple(np.searchsorted(links, host_links).tolist()),
    )
    given = Costs(
        exec_s=frozen(costs.exec_s[:, devices]),
        fixed_s=costs.fixed_s,
        latency_s=costs.latency_s[links],
        s_per_byte=costs.s_per_byte[links],
    )
    return Problem(problem.graph, part, GivenCosts(given))
