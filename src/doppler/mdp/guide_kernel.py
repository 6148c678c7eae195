"""The compiled twin of `mdp.guide.slack_s`."""

from typing import Any

import numpy as np

from doppler.base.arrays import FloatArray, IntArray
from doppler.base.jit import by_reference, njit
from doppler.mdp.instance import Tables

by_reference(Tables)
compiled: Any = njit(cache=True, nogil=True, no_cfunc_wrapper=True)


@compiled
def fill_slack(
    t: Tables, devices: IntArray, order: IntArray, begin_s: FloatArray, end_s: FloatArray, out: Any
) -> None:
    """Fill in (n,) the slack of each vertex; `order` is (n,) by when they begin."""
    n, num_devices = t.exec_s.shape
    latest_s, after = 0.0, np.full(num_devices, -1)
    for v in range(n):
        latest_s = max(latest_s, end_s[v])
    for v in range(n):
        out[v] = latest_s
    for i in range(n - 1, -1, -1):
        v = order[i]
        d = devices[v]
        for e in range(t.edge_ptr[v], t.edge_ptr[v + 1]):
            reader = t.edge_reader[e]
            to = devices[reader]
            wait_s = t.hop_s
            if to != d:
                moving_s = t.edge_bytes[e] * t.s_per_byte[d, to]
                wait_s += t.edge_fixed_s[e] + t.latency_s[d, to] + moving_s + t.hop_s
            out[v] = min(out[v], out[reader] - t.exec_s[reader, to] - wait_s)
        other = after[d]
        if other >= 0 and begin_s[other] >= end_s[v]:
            out[v] = min(out[v], out[other] - t.exec_s[other, d])
        after[d] = v
    for v in range(n):
        out[v] = max(out[v] - end_s[v], 0.0)
