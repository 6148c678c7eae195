"""Where the time goes: along the critical chain, and on each device over time."""

from typing import NamedTuple

import numpy as np

from doppler.base.arrays import FloatArray
from doppler.trace import Trace


class ChainTime(NamedTuple):
    """Seconds of the critical chain; they add up to the makespan."""

    compute_s: float  # execs, while nothing on the chain was ready
    transfer_s: float  # transfers, likewise
    device_s: float  # the next task was ready, but its device was busy
    link_s: float  # the next transfer was ready, but its link was busy
    host_s: float  # nothing on the chain ran: dispatch, completion, memory


def chain_time(trace: Trace) -> ChainTime:
    """Seconds that the critical chain spent on each cause, from 0 to the makespan."""
    spent = dict.fromkeys(ChainTime._fields, 0.0)
    chain, moves = trace.critical_chain(), trace.is_transfer
    for i, step in enumerate(chain):
        following = chain[i + 1] if i + 1 < len(chain) else None
        begin_s, end_s = float(trace.begin_s[step.row]), float(trace.end_s[step.row])
        queued_s = 0.0
        if following is not None and following.waited_for in ("device", "link"):
            queued_s = end_s - max(begin_s, float(trace.ready_s[following.row]))
            spent[f"{following.waited_for}_s"] += queued_s
        own = "transfer_s" if moves[step.row] else "compute_s"
        spent[own] += end_s - begin_s - queued_s
        spent["host_s"] += step.wait_s
    return ChainTime(**spent)


def utilization_over_time(trace: Trace, bins: int) -> FloatArray:
    """(D, bins) share of each device's slots that execs fill in each part of the makespan."""
    share = np.zeros((len(trace.devices), bins))
    if trace.makespan_s == 0:
        return share
    edges = np.linspace(0.0, trace.makespan_s, bins + 1)
    for d, device in enumerate(trace.devices):
        rows = (trace.device == d) & ~trace.is_transfer
        share[d] = np.diff(_work_until(edges, trace.begin_s[rows], trace.end_s[rows]))
        share[d] /= device.slots * trace.makespan_s / bins
    return np.clip(share, 0.0, 1.0)


def _work_until(times: FloatArray, begin: FloatArray, end: FloatArray) -> FloatArray:
    """Seconds of work of all intervals that are done by each time."""
    moment = np.concatenate([begin, end])
    order = np.argsort(moment, kind="stable")
    moment = moment[order]
    running = np.cumsum(np.repeat([1, -1], len(begin))[order])
    if not len(moment):
        return np.zeros(len(times))
    done = np.concatenate([[0.0], np.cumsum(np.diff(moment) * running[:-1])])
    return np.asarray(np.interp(times, moment, done))


def most_over_time(time_s: FloatArray, values: FloatArray, edges: FloatArray) -> FloatArray:
    """(bins,) the most of a step function, `values[i]` from `time_s[i]` on, between the edges."""
    if not len(time_s):
        return np.zeros(len(edges) - 1)
    at_edges = np.searchsorted(time_s, edges[:-1], side="right") - 1
    most = np.where(at_edges >= 0, values[np.maximum(at_edges, 0)], 0.0)
    bins = np.clip(np.searchsorted(edges, time_s, side="right") - 1, 0, len(edges) - 2)
    np.maximum.at(most, bins, values)
    return np.asarray(most, np.float64)
