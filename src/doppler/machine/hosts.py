"""Probe of several hosts: each measures itself, then the links between them are measured.

One process of a group stands for a host, the first leads. Processes on one machine share out its
cores, and stand for hosts of their own.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from doppler.engine.ranks.group import Clock, Group
from doppler.errors import EngineError
from doppler.machine.bench import TIMEOUT_S, Bench, Pair, Sample, Span
from doppler.machine.find import IN_FLIGHT, UNPROVEN_BYTES_PER_S
from doppler.machine.links import LinksFound, measure_links
from doppler.machine.probe import ProbeErrors, ProbeResult, probe
from doppler.topology.topology import Device, Host, Link, Topology

NETWORK = 0.25  # share of the time that is for links between hosts


class _Copies(NamedTuple):
    """What all ranks are asked to do: copies between pairs of ranks, some rounds of each."""

    pairs: tuple[Pair, ...]
    size_bytes: int
    rounds: int


def probe_hosts(group: Group, *, seconds: float = 60.0, **options: Any) -> ProbeResult:
    """The topology of all hosts, the same on every rank; each of them calls this alike.

    `options` are those of `probe`, for each host. Devices are named `host1/cpu0`, and so are
    their addresses, `host1/cpu:0`.
    """
    alike = [rank for rank in range(group.size) if group.hosts[rank] == group.hosts[group.rank]]
    mine: ProbeResult | None = None
    own_s = seconds * (1 - NETWORK) / len(alike)
    for turn in range(group.size):  # those on one machine one after the other
        if turn < len(alike) and alike[turn] == group.rank:
            with _share_of_cores(turn, len(alike)):
                mine = probe(seconds=own_s, **options)
        group.wait_for_all()
    hosts: list[ProbeResult] = group.gather(mine)
    samples: list[Sample] = []
    found: LinksFound | None = None
    if group.rank == 0:
        found = _lead(group, seconds * NETWORK, samples)
    else:
        _follow(group)
    found, samples = group.gather((found, samples))[0]
    assert found is not None
    return _joined(hosts, found, samples)


class HostBench:
    """Times copies between hosts, sent and received as the engine does; for the first rank.

    Clocks of ranks are compared before each measurement; where messages take longer one way than
    the other, half of the difference is missing in the latency of one way, and added to the other.
    """

    def __init__(self, group: Group) -> None:
        self._group, size = group, group.size
        link = Link("network", UNPROVEN_BYTES_PER_S, lanes=IN_FLIGHT)
        route = np.zeros((size, size), np.int64)
        np.fill_diagonal(route, -1)
        devices = tuple(Device(f"host{rank}") for rank in range(size))
        self.topology = Topology("hosts", devices, (link,), route)

    def copies(self, pairs: Sequence[Pair], size_bytes: int, rounds: int) -> list[list[Span]]:
        """For each of some pairs of hosts, its copies one after the other; all pairs at once."""
        asked = _Copies(tuple(pairs), size_bytes, rounds + 1)
        self._group.gather(asked)
        return _copy(self._group, asked)


def _lead(group: Group, seconds: float, samples: list[Sample]) -> LinksFound:
    bench = cast("Bench", HostBench(group))  # of which links need no more
    found = measure_links(bench, seconds, samples)
    group.gather(None)
    return found


def _follow(group: Group) -> None:
    """Take part in whatever the first rank measures."""
    while (asked := group.gather(None)[0]) is not None:
        _copy(group, asked)


def _copy(group: Group, asked: _Copies) -> list[list[Span]]:
    """When the copies of each pair began and ended, but for the first; on every rank."""
    pairs, size, count = asked
    begin_s, end_s = dict[int, float](), dict[int, float]()
    landed: SimpleQueue[int] = SimpleQueue()
    said: list[SimpleQueue[int]] = [SimpleQueue() for _ in pairs]

    def arrived(task: int) -> None:
        end_s[task] = perf_counter()
        group.grant(pairs[task // count][0], task)
        landed.put(task)

    def send(lane: int) -> None:
        """Each when the one before has arrived."""
        value = torch.zeros(size, dtype=torch.uint8)
        for task in range(lane * count, (lane + 1) * count):
            begin_s[task] = perf_counter()
            group.send(value, pairs[lane][1], task).wait()
            _next(said[lane], group)

    coming = [lane for lane, (_, target) in enumerate(pairs) if target == group.rank]
    leaving = [lane for lane, (source, _) in enumerate(pairs) if source == group.rank]
    rooms = {lane: torch.zeros(size, dtype=torch.uint8) for lane in coming}
    tasks = [lane * count + k for lane in coming for k in range(count)]
    clocks = group.clocks()
    group.post(
        {task: (rooms[task // count], pairs[task // count][0]) for task in tasks},
        arrived,
        lambda task: said[task // count].put(task),
    )
    group.wait_for_all()
    with ThreadPoolExecutor(max(len(leaving), 1)) as pool:
        list(pool.map(send, leaving))
    for _ in tasks:
        _next(landed, group)
    found = group.gather((begin_s, end_s))
    began, ended = (_on_one_clock([times[i] for times in found], clocks) for i in (0, 1))
    return [
        [
            Span(began[task], max(ended[task], began[task] + 1e-9))
            for task in range(lane * count + 1, (lane + 1) * count)
        ]
        for lane in range(len(pairs))
    ]


def _on_one_clock(found: Sequence[dict[int, float]], clocks: Sequence[Clock]) -> dict[int, float]:
    return {
        task: at - clock.offset_s
        for times, clock in zip(found, clocks, strict=True)
        for task, at in times.items()
    }


def _next(queue: "SimpleQueue[int]", group: Group) -> None:
    try:
        queue.get(timeout=TIMEOUT_S)
    except Empty:
        group.look_for_silent()
        group.check()
        raise EngineError(f"a copy between hosts did not end within {TIMEOUT_S:g} s") from None


def _joined(hosts: Sequence[ProbeResult], found: LinksFound, samples: list[Sample]) -> ProbeResult:
    """The machine of all hosts."""
    devices: list[Device] = []
    links: list[Link] = []
    blocks, home = [], list[int]()
    for number, result in enumerate(hosts):
        own, name = result.topology, f"host{number}"
        blocks.append(np.where(own.route < 0, -1, own.route + len(links)))
        links += [replace(link, name=f"{name} {link.name}") for link in own.links]
        home += [number] * own.num_devices
        devices += [
            replace(d, name=f"{name}/{d.name}", group=name, address=f"{name}/{d.address}")
            for d in own.devices
        ]
    owner = np.array(home)
    route = found.route[np.ix_(owner, owner)] + len(links)
    for number, block in enumerate(blocks):
        route[np.ix_(owner == number, owner == number)] = block
    taken = [
        sample._replace(device=f"host{number}/{sample.device}")
        for number, result in enumerate(hosts)
        for sample in result.samples
    ]
    topology = Topology(
        name=f"probed-{len(hosts)}-hosts",
        devices=tuple(devices),
        links=(*links, *found.links),
        route=route,
        host=_host([result.topology.host for result in hosts]),
        description=f"{len(hosts)} hosts, over gloo. {hosts[0].topology.description}",
        exec_s=_exec_s([result.topology for result in hosts]),
        contention=_mean([dict(result.topology.contention) for result in hosts]),
    )
    first = hosts[0].errors
    errors = ProbeErrors(
        {f"host0 {way}": off for way, off in first.links.items()} | found.errors,
        *(first.roofline, first.held_out, first.makespans),
    )
    return ProbeResult(
        *(topology, (*taken, *samples), errors),
        runs=sum(result.runs for result in hosts),
        failures=tuple(text for result in hosts for text in result.failures),
    )


def _host(hosts: Sequence[Host]) -> Host:
    """What starts tasks: each host does so by itself, but the simulator has one for all."""
    dispatch, completion = (
        float(np.mean([getattr(host, name) for host in hosts]))
        for name in ("dispatch_s", "completion_s")
    )
    return replace(hosts[0], dispatch_s=dispatch / len(hosts), completion_s=completion)


def _exec_s(hosts: Sequence[Topology]) -> dict[str, tuple[float, ...]]:
    """Of the kernels that all hosts have timed."""
    common = [key for key in hosts[0].exec_s if all(key in host.exec_s for host in hosts)]
    return {key: tuple(s for host in hosts for s in host.exec_s[key]) for key in common}


def _mean(found: Sequence[dict[str, float]]) -> dict[str, float]:
    return {
        key: float(np.mean([each[key] for each in found]))
        for key in found[0]
        if all(key in each for each in found)
    }


@contextmanager
def _share_of_cores(turn: int, count: int) -> Iterator[None]:
    """Leave this process an equal share of the cores, for a while."""
    if count == 1 or not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = sorted(os.sched_getaffinity(0))
    each = max(len(before) // count, 1)
    try:
        os.sched_setaffinity(0, before[turn * each : (turn + 1) * each] or before[-1:])
        yield
    finally:
        os.sched_setaffinity(0, before)
