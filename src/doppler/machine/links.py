"""What transfers cost alone and at the same time, and which links explain it."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from time import monotonic
from typing import NamedTuple

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.progress import report
from doppler.machine.bench import Bench, Pair, Sample, Span
from doppler.machine.find import IN_FLIGHT
from doppler.machine.fitting import fit_link
from doppler.machine.robust import Samples, typical_s
from doppler.topology.topology import Link, Topology

SIZES = tuple(64 * 1024 * 4**i for i in range(7))  # 64 KB to 256 MB
LONGEST_S = 0.25  # of a single copy: larger ones are left out
ENOUGH_S, ENOUGH_TOGETHER_S = 0.03, 0.1  # of copies of one size; of a pattern
SAME_SPEED = 0.25  # share by which bandwidths of equal pairs may differ from the median
MAX_PAIRS = 56  # that are measured alone: all of 8 devices
ENOUGH_PAIRS = 6  # where all share one link
AT_A_TIME = (2, 3, 4, 6, IN_FLIGHT)  # copies under way in patterns
MEMORY_SHARE = 1 / 16  # of a device, for one buffer

SHARINGS: dict[str, Callable[[Pair], Hashable]] = {  # pairs with the same key share a link
    "pair": lambda pair: pair,
    "source": lambda pair: pair[0],
    "target": lambda pair: pair[1],
    "all": lambda pair: 0,
}
HOST_SHARINGS: dict[str, Callable[[Pair], Hashable]] = {  # the same where one of a pair is the host
    "device": min,  # the host is behind the last device
    "all": lambda pair: 0,
}


class Throughput(NamedTuple):
    """The total throughput of simultaneous copies between pairs of devices."""

    pairs: tuple[Pair, ...]  # one copy at a time for each
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Sharing:
    """Which pairs share a link, and how many transfers it takes at a time."""

    by: str  # a name from SHARINGS, or HOST_SHARINGS
    lanes: int
    bytes_per_s: float  # of each transfer
    error: float  # root mean square of measured / modelled - 1


@dataclass(frozen=True, slots=True)
class LinksFound:
    """The links of a machine, as measured."""

    links: tuple[Link, ...]
    route: IntArray  # (D, D)
    host_links: tuple[int, ...]  # (D,)
    errors: dict[str, float]  # of each way's model of throughput, relative


def measure_links(
    bench: Bench, seconds: float, samples: list[Sample], *, shared: bool = False
) -> LinksFound:
    """The links that best explain the durations of single and of simultaneous copies.

    Copies between the host's memory and a device take one link both ways, as in a topology.
    `shared` says that all pairs share one link for sure, and all devices one to the host.
    """
    topology, until = bench.topology, monotonic() + seconds
    links: list[Link] = []
    host, errors = topology.num_devices, {}
    route = np.full((host + 1, host + 1), -1)
    for way, link in enumerate(topology.links):
        pairs = _pairs(topology, way)
        if not pairs:
            continue
        sharings = HOST_SHARINGS if host in pairs[0] else SHARINGS
        if shared or host == 1:
            sharings = {"all": SHARINGS["all"]}
        left_s = (until - monotonic()) / (topology.num_links - way)
        some = _spread(pairs, ENOUGH_PAIRS if shared else MAX_PAIRS)
        lone = _alone(bench, some, left_s / 2, samples)
        fits = {pair: fit_link(link, _relative(by_size)) for pair, by_size in lone.items()}
        speed = relative_speeds(fits)
        probe_bytes = _pattern_bytes(lone)
        left_s = (until - monotonic()) / (topology.num_links - way)
        seen = _together(bench, pairs, probe_bytes, left_s, samples)
        sharing = fit_sharing(seen, speed, sharings)
        errors[link.name] = sharing.error
        for key, served in _served(pairs, sharings[sharing.by]).items():
            name = link.name if sharing.by == "all" else f"{link.name} {_label(topology, key)}"
            fitted = _fitted(link, fits, served, sharing, speed, probe_bytes)
            for a, b in served:
                route[a, b] = len(links)
            links.append(replace(fitted, name=name, lanes=sharing.lanes))
    return LinksFound(tuple(links), route[:host, :host], tuple(route[host, :host].tolist()), errors)


def _pairs(topology: Topology, way: int) -> list[Pair]:
    """The pairs of places that a link joins."""
    host = topology.num_devices
    joined = [d for d, link in enumerate(topology.host_links) if link == way]
    if joined:
        return [pair for d in joined for pair in ((host, d), (d, host))]
    return [(a, b) for a, b in np.argwhere(topology.route == way).tolist()]


def fit_sharing(
    seen: Sequence[Throughput],
    speed: Mapping[Pair, float],
    sharings: Mapping[str, Callable[[Pair], Hashable]] = SHARINGS,
) -> Sharing:
    """The model of links that comes closest to measured throughputs.

    A link has a number of lanes, and each carries one transfer at full speed. Of models that are
    equally good, the one with the fewest lanes, then the one with the most links.
    """
    lanes_seen = max(max(Counter(each.pairs).values()) for each in seen)
    if "all" in sharings:
        lanes_seen = max(lanes_seen, *(len(each.pairs) for each in seen))
    found = []
    for lanes in range(1, min(lanes_seen, IN_FLIGHT) + 1):
        for by, key in sharings.items():
            flow = [_flow(each.pairs, key, lanes, speed) for each in seen]
            ratio = [log(e.bytes_per_s / f) for e, f in zip(seen, flow, strict=True)]
            rate = exp(float(np.mean(ratio)))
            off = [e.bytes_per_s / (f * rate) - 1 for e, f in zip(seen, flow, strict=True)]
            found.append(Sharing(by, lanes, rate, float(np.sqrt(np.mean(np.square(off))))))
    best = min(each.error for each in found)
    return next(each for each in found if each.error <= 1.05 * best + 0.005)


def _flow(
    pairs: Sequence[Pair], by: Callable[[Pair], Hashable], lanes: int, speed: Mapping[Pair, float]
) -> float:
    """Lanes in use, each counted by the speed of its pairs relative to others."""
    total = 0.0
    for served in _served(pairs, by).values():
        mean = sum(speed.get(pair, 1.0) for pair in served) / len(served)
        total += min(len(served), lanes) * mean
    return total


def _served(pairs: Sequence[Pair], by: Callable[[Pair], Hashable]) -> dict[Hashable, list[Pair]]:
    """The pairs that each link serves."""
    served: dict[Hashable, list[Pair]] = {}
    for pair in pairs:
        served.setdefault(by(pair), []).append(pair)
    return served


def relative_speeds(fits: Mapping[Pair, Link]) -> dict[Pair, float]:
    """How fast each measured pair is against the median; 1 for all where they hardly differ."""
    rates = {pair: link.bandwidth_bytes_per_s for pair, link in fits.items()}
    middle = float(np.median(list(rates.values())))
    if all(abs(rate / middle - 1) <= SAME_SPEED for rate in rates.values()):
        return {}
    return {pair: rate / middle for pair, rate in rates.items()}


def _fitted(
    link: Link,
    fits: Mapping[Pair, Link],
    served: Sequence[Pair],
    sharing: Sharing,
    speed: Mapping[Pair, float],
    probe_bytes: int,
) -> Link:
    """The latency of single copies, and the bandwidth that explains simultaneous ones."""
    alike = not speed  # then every pair says something about all
    known = [fits[pair] for pair in (fits if alike else served) if pair in fits]
    known = known or list(fits.values())
    latency = float(np.median([each.latency_s for each in known]))
    rate = sharing.bytes_per_s * float(np.mean([speed.get(pair, 1.0) for pair in served]))
    took = probe_bytes / rate
    latency = min(latency, took / 2)
    return replace(link, latency_s=latency, bandwidth_bytes_per_s=probe_bytes / (took - latency))


def _alone(
    bench: Bench, pairs: Sequence[Pair], seconds: float, samples: list[Sample]
) -> dict[Pair, dict[float, FloatArray]]:
    """Seconds of copies by size, for each pair, with nothing else under way.

    Of the two smallest sizes at least, however short the time; of each size for all pairs or none.
    """
    until = monotonic() + seconds
    found: dict[Pair, dict[float, FloatArray]] = {pair: {} for pair in pairs}
    room = min(d.memory_bytes for d in bench.topology.devices) * MEMORY_SHARE
    slowest = 0.0
    for number, size in enumerate(SIZES):
        report("measuring links", number, len(SIZES))
        predicted = 4 * slowest * len(pairs) * _rounds(4 * slowest, ENOUGH_S)
        late = monotonic() + predicted > until
        if number >= 2 and (late or size > room or 4 * slowest > LONGEST_S):
            break
        for pair in pairs:
            (done,) = bench.copies([pair], size, _rounds(4 * slowest, ENOUGH_S))
            found[pair][size] = np.array([each.end_s - each.begin_s for each in done])
            where = _label(bench.topology, pair)
            samples += [Sample("copy", "alone", where, size, s) for s in found[pair][size].tolist()]
        slowest = max(typical_s(by_size[size]) for by_size in found.values())
    report("measuring links", len(SIZES), len(SIZES))
    return found


def _together(
    bench: Bench, pairs: Sequence[Pair], size: int, seconds: float, samples: list[Sample]
) -> list[Throughput]:
    """What copies reach in patterns of several at the same time; alone and two at least."""
    until, seen = monotonic() + seconds, list[Throughput]()
    all_patterns = patterns(pairs)
    if bench.topology.num_devices in pairs[0]:
        all_patterns += [(f"any, {n}", [*pairs[:n]]) for n in AT_A_TIME if 2 < n <= len(pairs)]
    took = 0.0
    for number, (name, chosen) in enumerate(all_patterns):
        report("measuring simultaneous copies", number, len(all_patterns))
        if len(seen) >= 2 and monotonic() > until:
            break
        done = bench.copies(chosen, size, _rounds(took * len(chosen), ENOUGH_TOGETHER_S))
        took = took or typical_s([each.end_s - each.begin_s for each in done[0]])
        rate = throughput(done, size)
        seen.append(Throughput(tuple(chosen), rate))
        samples.append(
            Sample("copies", name, f"{len(chosen)} pairs", size, size * len(chosen) / rate)
        )
    report("measuring simultaneous copies", len(all_patterns), len(all_patterns))
    return seen


def patterns(pairs: Sequence[Pair]) -> list[tuple[str, list[Pair]]]:
    """Copies to make at the same time: over one pair, from or to one device, and far apart.

    The most informative come first.
    """
    a, b = pairs[0]
    apart = _apart(pairs)
    leaving = [pair for pair in pairs if pair[0] == a]
    coming = [pair for pair in pairs if pair[1] == b]
    found: list[tuple[str, list[Pair]]] = [("alone", [pairs[0]])]
    for n in AT_A_TIME:
        candidates = [("apart", apart[:n]), ("same pair", [pairs[0]] * n if n <= 4 else [])]
        candidates += [("same source", leaving[:n]), ("same target", coming[:n])]
        found += [(f"{name}, {n}", some) for name, some in candidates if len(some) == n]
    return found


def _apart(pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs no two of which have the same source or the same target; first those without any."""
    chosen: list[Pair] = []
    for without_any in (True, False):
        for a, b in pairs:
            ends = {end for pair in chosen for end in pair}
            same = any(a == c or b == d for c, d in chosen)
            if not same and not (without_any and {a, b} & ends):
                chosen.append((a, b))
    return chosen


def throughput(done: Sequence[Sequence[Span]], size: int) -> float:
    """Bytes per second of copies of that size while every pair had one under way.

    That is until the first pair has made its last copy. Pauses of all count for nothing.
    """
    since, until = max(lane[0].begin_s for lane in done), min(lane[-1].end_s for lane in done)
    if until <= since:  # they never were under way all at once
        since, until = done[0][0].begin_s, max(lane[-1].end_s for lane in done)
    moved, busy_s, reach = 0.0, 0.0, since
    for begin, end in sorted((each.begin_s, each.end_s) for lane in done for each in lane):
        first, last = max(begin, since), min(end, until)
        moved += size * max(last - first, 0.0) / max(end - begin, 1e-12)
        busy_s += max(last - max(first, reach), 0.0)
        reach = max(reach, last)
    return max(moved, 1.0) / max(busy_s, 1e-9)


def _relative(by_size: Mapping[float, FloatArray]) -> dict[float, Samples]:
    """Samples that count so that errors do as a share: who knows which sizes will be moved."""
    return {
        size: Samples(took, np.full(len(took), 1 / max(typical_s(took), 1e-9)))
        for size, took in by_size.items()
    }


def _rounds(took_s: float, enough_s: float) -> int:
    """How often to repeat a measurement of that duration."""
    return int(np.clip(enough_s / max(took_s, 1e-9), 3, 20))


def _pattern_bytes(lone: Mapping[Pair, Mapping[float, FloatArray]]) -> int:
    """The smallest size whose copies take two milliseconds, or the largest there was."""
    by_size = next(iter(lone.values()))
    long = [size for size, took in by_size.items() if typical_s(took) >= 2e-3]
    return int(min(long, default=max(by_size)))


def _spread(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """At most `count` of the pairs, evenly spaced."""
    return (
        [pairs[i * len(pairs) // count] for i in range(count)] if len(pairs) > count else [*pairs]
    )


def _label(topology: Topology, key: Hashable) -> str:
    """`a→b` for a pair, the name for a device."""
    names = [*(device.name for device in topology.devices), "host"]
    if isinstance(key, tuple):
        return f"{names[key[0]]}→{names[key[1]]}"
    assert isinstance(key, int)
    return names[key]
