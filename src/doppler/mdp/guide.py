"""Guide: an assignment that a policy compares its choices with, and when its vertices end."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from doppler.base.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    from doppler.mdp.instance import Tables

UNASSIGNED = -1  # instead of a device: there is none
NO_DEVICES, NO_TIMES = np.zeros((0, 0), np.int64), np.zeros((0, 2, 0))


class Guide(NamedTuple):
    """Assignments of n vertices to compare with: G of them, one for each episode or one for all.

    Without rows there is no guide; without times its features are 0.
    """

    devices: IntArray = NO_DEVICES  # (G, n), UNASSIGNED where it says nothing of a vertex
    # (G, 2, n) when vertices end in simulation, and their slack; -1 and 0 where that is not known
    times: FloatArray = NO_TIMES

    def rows(self, rows: slice) -> "Guide":
        """Those of some of the episodes."""
        devices = self.devices[rows] if len(self.devices) > 1 else self.devices
        return Guide(devices, self.times[rows] if len(self.times) > 1 else self.times)

    def contiguous(self) -> "Guide":
        """The same, as kernels take it."""
        return Guide(np.ascontiguousarray(self.devices), np.ascontiguousarray(self.times))


NO_GUIDE = Guide()


def slack_s(
    tables: "Tables", devices: IntArray, begin_s: FloatArray, end_s: FloatArray
) -> FloatArray:
    """(n,) how much later each vertex could end without anything that waits for it ending later.

    What waits are its readers, for as long as its tensors take to them over links of their own,
    and the vertex that begins next on its device. `mdp.guide_kernel` is the compiled twin.
    """
    latest_s = np.full(len(devices), end_s.max(initial=0.0))
    waiting: dict[int, tuple[float, int]] = {}  # by device: the vertex that begins next there
    order = np.lexsort((np.arange(len(devices)), begin_s))
    for v in reversed(order.tolist()):
        d = int(devices[v])
        for e in range(tables.edge_ptr[v], tables.edge_ptr[v + 1]):
            reader = int(tables.edge_reader[e])
            to = int(devices[reader])
            wait_s = tables.hop_s
            if to != d:
                move_s = tables.edge_bytes[e] * tables.s_per_byte[d, to]
                wait_s += tables.edge_fixed_s[e] + tables.latency_s[d, to] + move_s + tables.hop_s
            begin = latest_s[reader] - tables.exec_s[reader, to]
            latest_s[v] = min(latest_s[v], begin - wait_s)
        if d in waiting and waiting[d][0] >= end_s[v]:
            after = waiting[d][1]
            latest_s[v] = min(latest_s[v], latest_s[after] - tables.exec_s[after, d])
        waiting[d] = (float(begin_s[v]), v)
    slack: FloatArray = np.maximum(latest_s - end_s, 0.0)
    return slack
