"""Watch: whether, where and since when runs of the incumbent take other times than they did.

Pure: traces in, changes out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from doppler.base.arrays import FloatArray
from doppler.graph.graph import Graph
from doppler.machine.drift import Cusum, DriftConfig
from doppler.topology.topology import Topology
from doppler.trace import Trace

DEVICE, LINK, KIND, WHOLE = "device", "link", "kind", "makespan"
KEPT = 64  # runs of an assignment that its levels are learned from again


@dataclass(frozen=True, slots=True)
class Change:
    """What has changed about the machine."""

    runs: int  # of the incumbent since the change, as far as is known
    ratios: dict[tuple[str, str], float]  # seconds after over before, by kind of place and name


class Watch:
    """Channels of the seconds on every device, on every link and of every kind of vertex.

    All runs are of one assignment, so each channel is compared with itself.
    """

    def __init__(self, graph: Graph, topology: Topology, config: DriftConfig) -> None:
        self._config = config
        self._kinds = sorted({graph.kinds[v] for v in graph.assigned.tolist()})
        number = {kind: i for i, kind in enumerate(self._kinds)}
        self._kind = np.array([number.get(kind, 0) for kind in graph.kinds], np.int64)  # (V,)
        self._sizes = (topology.num_devices, topology.num_links, len(self._kinds))
        self.channels: list[tuple[str, str]] = [
            *((DEVICE, device.name) for device in topology.devices),
            *((LINK, link.name) for link in topology.links),
            *((KIND, kind) for kind in self._kinds),
            (WHOLE, ""),
        ]
        self.begin([])

    def begin(self, rows: Sequence[FloatArray]) -> None:
        """Watch another assignment, of which (C,) rows are known."""
        self._rows, self._cusum = list(rows)[-KEPT:], Cusum(len(self.channels), self._config)
        for row in self._rows:
            self._cusum.add(row)

    def values(self, trace: Trace) -> FloatArray:
        """(C,) logarithms of the seconds of each channel; NaN where nothing was done."""
        took, moves = trace.end_s - trace.begin_s, trace.is_transfer
        devices, links, kinds = self._sizes
        execs = took[~moves]
        parts = [
            np.bincount(trace.device[~moves], execs, devices),
            np.bincount(trace.link[moves], took[moves], links),
            np.bincount(self._kind[trace.vertex[~moves]], execs, kinds),
            np.array([trace.makespan_s]),
        ]
        seconds: FloatArray = np.concatenate([np.asarray(part, np.float64) for part in parts])
        found: FloatArray = np.log(np.where(seconds > 0, seconds, np.nan))
        return found

    def add(self, row: FloatArray) -> Change | None:
        """Take the (C,) values of a run; a change, once it is certain."""
        self._rows = [*self._rows, row][-KEPT:]
        if not self._cusum.add(row):
            return None
        runs = self._cusum.step - self._cusum.since + 1
        size = self._cusum.changes()
        ratios = {self.channels[i]: float(np.exp(size[i])) for i in np.flatnonzero(size)}
        self.begin(self._rows[-runs:])
        return Change(runs, ratios)
