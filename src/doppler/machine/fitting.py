"""Links fitted to samples of the seconds that transfers took."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from doppler.machine.robust import Samples, least_absolute_line, typical_s, weighted_median
from doppler.topology.topology import Link

STRAIGHT = 0.01  # share that transfers may be off a line of their bytes


def fit_link(link: Link, samples: Mapping[float, Samples]) -> Link:
    """A link whose `latency + bytes / bandwidth` comes closest to samples of seconds by bytes.

    In the sum of absolute errors, since it is seconds that a link is busy. With one size only, the
    latency stays what it was, if it can.
    """
    size = np.array(list(samples), np.float64)
    took = np.maximum([typical_s(*samples[s]) for s in samples], 1e-9)
    count = np.array([samples[s].weight.sum() for s in samples])
    if size.max() == 0:
        return replace(link, latency_s=float(np.average(took, weights=count)))
    if size.max() < 1.5 * size.min():
        latency = min(link.latency_s, float(took.min()) / 2)
        slope = float(np.average((took - latency) / size, weights=count))
        return replace(link, latency_s=latency, bandwidth_bytes_per_s=1.0 / slope)
    latency, slope = least_absolute_line(size, took, count)
    if latency < 0:
        moved = size > 0
        latency, slope = 0.0, weighted_median((took / size.clip(1))[moved], (count * size)[moved])
    slope = max(slope, 1e-16)
    return replace(link, latency_s=latency, bandwidth_bytes_per_s=1.0 / slope)


def tabulate_link(
    link: Link, samples: Mapping[float, Samples]
) -> tuple[Link, tuple[tuple[float, float], ...]]:
    """A link that no sample of seconds by bytes is faster than, and what they take beyond it.

    Transfers in chunks take no straight line of their bytes. Where they do, the link is that line
    and there is nothing beyond it.
    """
    fitted = fit_link(link, samples)
    size = np.array(sorted(samples), np.float64)
    took = np.maximum([typical_s(*samples[s]) for s in size.tolist()], 1e-9)
    slope = 1.0 / fitted.bandwidth_bytes_per_s
    if np.allclose(fitted.latency_s + slope * size, took, rtol=STRAIGHT):
        return fitted, ()
    slope = min(slope, float((took[size > 0] / size[size > 0]).min()))
    beyond = took - slope * size
    latency = max(float(beyond.min()), 0.0)
    table = zip(size.tolist(), np.maximum(beyond - latency, 0.0).tolist(), strict=True)
    return replace(link, latency_s=latency, bandwidth_bytes_per_s=1.0 / slope), tuple(table)


def transfer_s(link: Link, size: float) -> float:
    """The seconds of a transfer of that many bytes."""
    return link.latency_s + size / link.bandwidth_bytes_per_s


def slowed(link: Link, ratio: float) -> Link:
    """A link whose transfers take `ratio` times as long."""
    return replace(
        link,
        latency_s=link.latency_s * ratio,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / ratio,
    )
