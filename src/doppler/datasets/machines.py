"""MACHINES: families of machines of 2 to 16 devices, by split; and sealed ones, up to 64."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from doppler.base.arrays import IntArray
from doppler.datasets.chance import about, coin, log_uniform, rounded, whole
from doppler.topology.topology import Device, Host, Link, Topology

MAX_DEVICES = 16  # unless more are asked for
FASTEST = 8.0  # times as fast as the slowest device of a machine, at most
MOST_DEVICES = 64  # of sealed machines
FASTEST_OF_MANY = 16.0  # and how much faster the fastest of them may be
Draw = Callable[[np.random.Generator, int], Topology]  # at most so many devices


@dataclass(frozen=True, slots=True)
class MachineFamily:
    """A family of machines."""

    name: str
    split: str  # `train`, `validation`, `test` or `sealed`
    description: str
    draw: Draw


def _device(rng: np.random.Generator) -> Device:
    """An accelerator of any generation, from a P100 to an H100, at about half of its peak."""
    rate = about(rng, 10e12, 400e12)
    single = rate / float(rng.choice((2, 4, 8)))
    double = single / (32 if coin(rng, 0.2) else 2)
    return Device(
        "",
        {"float16": rate, "float32": single, "float64": double},
        memory_bytes_per_s=rounded(rate * log_uniform(rng, 4e-3, 12e-3)),
        slots=1 if coin(rng, 0.85) else int(rng.integers(2, 5)),
        launch_s=about(rng, 2e-6, 10e-6),
    )


def _slower(device: Device, factor: float, memory_factor: float) -> Device:
    rates = {key: rounded(rate / factor) for key, rate in device.flops_per_s.items()}
    bandwidth = rounded(device.memory_bytes_per_s / memory_factor)
    return replace(device, flops_per_s=rates, memory_bytes_per_s=bandwidth)


def _classes(rng: np.random.Generator, count: int, factors: list[float]) -> list[Device]:
    """Devices of several speeds in random order, at least one of each."""
    base = _device(rng)
    kinds = [base]
    for factor in factors:
        # Memory differs less than arithmetic, and not always as much.
        kinds.append(_slower(base, factor, factor ** float(rng.uniform(0.3, 1.0))))
    numbers = [*range(len(kinds)), *rng.integers(len(kinds), size=count - len(kinds)).tolist()]
    return [kinds[numbers[i]] for i in rng.permutation(count).tolist()]


def _equal(rng: np.random.Generator, count: int) -> list[Device]:
    return [_device(rng)] * count


def _maybe_two(rng: np.random.Generator, count: int) -> list[Device]:
    """Equal devices, or half the time those of two speeds."""
    return _classes(rng, count, [about(rng, 1.5, FASTEST)]) if coin(rng) else _equal(rng, count)


def _host(rng: np.random.Generator) -> Host:
    """Dispatch up to a V100 server's of the paper, completion up to that runtime's; or none."""
    return Host(
        dispatch_s=0.0 if coin(rng, 0.1) else about(rng, 5e-6, 120e-6),
        completion_s=0.0 if coin(rng, 0.1) else about(rng, 10e-6, 1e-3),
        ahead=int(rng.choice((0, 0, 1, 2, 4, 8))),
    )


def _fast(rng: np.random.Generator, device: Device) -> Link:
    """A link like the NVLink of the device's generation."""
    bandwidth = device.flops_per_s["float16"] * log_uniform(rng, 0.5e-3, 2e-3)
    return Link("fast", rounded(bandwidth), about(rng, 3e-6, 15e-6))


def _slow(rng: np.random.Generator, lanes: int = 1, fast: Link | None = None) -> Link:
    """A link like PCIe, or through the host; at most half as fast as the one given."""
    bandwidth = about(rng, 5e9, 50e9)
    if fast is not None:
        bandwidth = min(bandwidth, fast.bandwidth_bytes_per_s / 2)
    return Link("slow", bandwidth, about(rng, 8e-6, 25e-6), lanes)


def _machine(
    rng: np.random.Generator,
    devices: list[Device],
    links: list[Link],
    route: IntArray,
    groups: list[str] | None = None,
) -> Topology:
    groups = groups or [""] * len(devices)
    named = [
        replace(device, name=f"gpu{i}", group=group)
        for i, (device, group) in enumerate(zip(devices, groups, strict=True))
    ]
    return Topology("machine", tuple(named), tuple(links), route, _host(rng))


def _pairwise(count: int, link: Callable[[int, int], Link]) -> tuple[list[Link], IntArray]:
    """A link of its own for every ordered pair of devices."""
    links: list[Link] = []
    route = np.full((count, count), -1, np.int64)
    for a in range(count):
        for b in range(count):
            if a != b:
                route[a, b] = len(links)
                links.append(replace(link(a, b), name=f"{a}-{b}"))
    return links, route


def _shared(count: int) -> IntArray:
    """All pairs on link 0."""
    return np.where(np.eye(count, dtype=np.bool_), -1, 0)


def _even_pairs(rng: np.random.Generator, devices: list[Device]) -> Topology:
    link = _fast(rng, devices[0]) if coin(rng, 0.7) else _slow(rng)
    link = replace(link, lanes=int(rng.choice((1, 1, 1, 2, 0))))
    return _machine(rng, devices, *_pairwise(len(devices), lambda a, b: link))


def equal(rng: np.random.Generator, most: int) -> Topology:
    """Equal devices, equal links between all pairs."""
    return _even_pairs(rng, _equal(rng, whole(rng, 2, most)))


def two_speeds(rng: np.random.Generator, most: int) -> Topology:
    """Devices of two speeds, equal links between all pairs."""
    return _even_pairs(rng, _classes(rng, whole(rng, 2, most), [about(rng, 1.5, FASTEST)]))


def three_speeds(rng: np.random.Generator, most: int) -> Topology:
    """Devices of three speeds, equal links between all pairs."""
    factors = [about(rng, 1.5, 3.0), about(rng, 3.0, FASTEST)]
    return _even_pairs(rng, _classes(rng, whole(rng, 3, most), factors))


def uneven_links(rng: np.random.Generator, most: int) -> Topology:
    """Links of three grades between pairs of devices, as on a server with few NVLinks."""
    count = whole(rng, 3, most)
    devices = _maybe_two(rng, count)
    best = _fast(rng, devices[0])
    grade = rng.choice((1.0, 2.0, 8.0), size=(count, count))

    def link(a: int, b: int) -> Link:
        slower = float(grade[min(a, b), max(a, b)])  # the same both ways
        return replace(best, bandwidth_bytes_per_s=best.bandwidth_bytes_per_s / slower)

    return _machine(rng, devices, *_pairwise(count, link))


def ring(rng: np.random.Generator, most: int) -> Topology:
    """Devices on a ring: bandwidth falls and latency grows with the distance."""
    count = whole(rng, 4, most)
    devices = _equal(rng, count)
    best = _fast(rng, devices[0])

    def link(a: int, b: int) -> Link:
        hops = min((a - b) % count, (b - a) % count)
        return Link("", rounded(best.bandwidth_bytes_per_s / hops), best.latency_s * hops)

    return _machine(rng, devices, *_pairwise(count, link))


def _island_sizes(rng: np.random.Generator, most: int) -> tuple[int, int]:
    """Islands, and devices of each."""
    size = int(rng.choice((2, 2, 3, 4, 4, 8)))
    return int(rng.integers(2, 1 + max(2, most // size))), size


def islands(rng: np.random.Generator, most: int) -> Topology:
    """Groups of equal devices: fast links inside, slow ones across, for each pair or each group."""
    number, size = _island_sizes(rng, most)
    count = number * size
    devices = _equal(rng, count)
    fast = _fast(rng, devices[0])
    slow, per_pair = _slow(rng, int(rng.integers(1, 3)), fast), coin(rng)
    links, route = _pairwise(count, lambda a, b: fast if a // size == b // size else slow)
    if not per_pair:
        shared = {(a // size, b // size): int(route[a, b]) for a, b in np.ndindex(count, count)}
        for a, b in np.ndindex(count, count):
            if a // size != b // size:
                route[a, b] = shared[a // size, b // size]
        links, route = _used(links, route)
    groups = [f"island{i // size}" for i in range(count)]
    return _machine(rng, devices, links, route, groups)


def _used(links: list[Link], route: IntArray) -> tuple[list[Link], IntArray]:
    """The links that some pair uses, renumbered."""
    used = np.unique(route[route >= 0])
    number = np.full(len(links) + 1, -1, np.int64)  # the last one stays -1, for the diagonal
    number[used] = np.arange(len(used))
    return [links[i] for i in used.tolist()], number[route]


def unequal_islands(rng: np.random.Generator, most: int) -> Topology:
    """Two islands of unequal speed; whatever leaves one shares a slow link of few lanes."""
    size, other = whole(rng, 1, most // 2), whole(rng, 2, most // 2)
    count, base, factor = size + other, _device(rng), about(rng, 1.5, FASTEST)
    devices = [base] * size + [_slower(base, factor, factor**0.5)] * other
    fast = _fast(rng, base)
    slow = _slow(rng, int(rng.integers(1, 3)), fast)
    links, route = _pairwise(count, lambda a, b: fast)
    inside = np.arange(count) < size
    route[inside[:, None] != inside[None, :]] = len(links)
    links, route = _used([*links, slow], route)
    return _machine(rng, devices, links, route, ["near" if i else "far" for i in inside.tolist()])


def host_bounce(rng: np.random.Generator, most: int) -> Topology:
    """All transfers through the host: one slow link that two to four share at a time."""
    devices = _maybe_two(rng, whole(rng, 2, most))
    link = _slow(rng, lanes=int(rng.integers(2, 5)))
    return _machine(rng, devices, [link], _shared(len(devices)))


def shared_bus(rng: np.random.Generator, most: int) -> Topology:
    """All transfers on one bus, one at a time."""
    devices = _maybe_two(rng, whole(rng, 2, most))
    link = _fast(rng, devices[0]) if coin(rng) else _slow(rng)
    return _machine(rng, devices, [replace(link, name="bus")], _shared(len(devices)))


def switch(rng: np.random.Generator, most: int) -> Topology:
    """Up to 64 devices, often of many speeds, each with a port of its own on one switch."""
    devices = _many_speeds(rng, whole(rng, 2, most))
    port = _fast(rng, devices[0]) if coin(rng) else _slow(rng)
    count = len(devices)
    route = np.where(np.eye(count, dtype=np.bool_), -1, np.arange(count)[:, None])
    return _machine(rng, devices, [replace(port, name=f"port{i}") for i in range(count)], route)


def cluster(rng: np.random.Generator, most: int) -> Topology:
    """Hosts of equal devices with fast ports; what leaves a host shares its slow uplink."""
    return _hosts(rng, most, alike=True)


def uneven_cluster(rng: np.random.Generator, most: int) -> Topology:
    """The same with hosts of several generations."""
    return _hosts(rng, most, alike=False)


def _many_speeds(rng: np.random.Generator, count: int) -> list[Device]:
    """Equal devices, or half the time of any speeds within a factor of 16."""
    base = _device(rng)
    if coin(rng):
        return [base] * count
    factors = [about(rng, 1.0, FASTEST_OF_MANY) for _ in range(count)]
    return [_slower(base, factor, factor**0.7) for factor in factors]


def _hosts(rng: np.random.Generator, most: int, *, alike: bool) -> Topology:
    size = int(rng.choice((2, 4, 4, 8)))
    number = whole(rng, 2, most // size)
    base = _device(rng)
    kinds = [base if alike else _slower(base, f, f**0.7) for f in _factors(rng, number)]
    devices = [kind for kind in kinds for _ in range(size)]
    count, host = number * size, np.arange(number * size) // size
    fast = _fast(rng, base)
    slow = _slow(rng, int(rng.integers(1, 5)), fast)
    links = [replace(fast, name=f"port{i}") for i in range(count)]
    links += [replace(slow, name=f"uplink{i}") for i in range(number)]
    inside = host[:, None] == host[None, :]
    route = np.where(inside, np.arange(count)[:, None], count + host[:, None])
    np.fill_diagonal(route, -1)
    return _machine(rng, devices, links, route, [f"host{i}" for i in host.tolist()])


def _factors(rng: np.random.Generator, number: int) -> list[float]:
    """How much slower each host is than the fastest: one of three, the first not at all."""
    kinds = [1.0, about(rng, 1.5, 4.0), about(rng, 4.0, FASTEST_OF_MANY)]
    return [1.0, *(kinds[i] for i in rng.integers(3, size=number - 1).tolist())]


def _row(name: str, split: str, draw: Draw) -> MachineFamily:
    return MachineFamily(name, split, (draw.__doc__ or "").strip().splitlines()[0], draw)


MACHINES = {
    machine.name: machine
    for machine in (
        _row("equal", "train", equal),
        _row("two-speeds", "train", two_speeds),
        _row("islands", "train", islands),
        _row("uneven-links", "train", uneven_links),
        _row("host-bounce", "train", host_bounce),
        _row("ring", "validation", ring),
        _row("unequal-islands", "validation", unequal_islands),
        _row("shared-bus", "test", shared_bus),
        _row("three-speeds", "test", three_speeds),
    )
}
# Not among the others: adding to them would change what every seed draws.
SEALED_MACHINES = {
    machine.name: machine
    for machine in (
        _row("switch", "sealed", switch),
        _row("cluster", "sealed", cluster),
        _row("uneven-cluster", "sealed", uneven_cluster),
    )
}
