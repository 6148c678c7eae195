"""Evidence: durations of kernels and transfers on a machine that may change."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from doppler.machine.drift import Cusum, DriftConfig
from doppler.machine.robust import STALL

KEPT = 512  # newest samples kept of each kernel on each device and of each size on each link
# Assignments differ in how much their kernels slow each other down: no change of a machine.
DRIFT = DriftConfig(allowance=0.15, threshold=0.75)


class Timed(NamedTuple):
    """What was timed: a kernel on a device, or a transfer of some bytes over a link."""

    signature: str  # "" for a transfer
    place: int  # the device, or the link
    size: float  # bytes moved


class Duration(NamedTuple):
    """A duration, and what it was measured in."""

    seconds: float
    assignment: int
    trace: int


class Evidence:
    """The newest durations of every kernel on every device, and of every size on every link.

    Each device and each link is watched: once its tasks take longer, or shorter, than they did,
    trace after trace, what was measured there before is forgotten.
    """

    def __init__(self, num_devices: int, num_links: int, config: DriftConfig = DRIFT) -> None:
        self._num_devices, self._width, self._config = num_devices, num_devices + num_links, config
        self.samples: dict[Timed, deque[Duration]] = {}
        self._levels: dict[Timed, tuple[float, int]] = {}  # mean without stalls, and of how many
        self._traces = self._before = 0  # all, and those before the last change
        self._cusum = Cusum(self._width, config, centred=True)

    def add(self, rows: Sequence[tuple[Timed, float]], assignment: int) -> None:
        """Take in what the tasks of a trace took."""
        number, self._traces = self._traces, self._traces + 1
        took, expected = np.zeros(self._width), np.zeros(self._width)
        for source, seconds in rows:
            if source in self._levels:
                took[self._channel(source)] += seconds
                expected[self._channel(source)] += self._levels[source][0]
        for source, seconds in rows:
            samples = self.samples.setdefault(source, deque(maxlen=KEPT))
            samples.append(Duration(seconds, assignment, number))
            self._average(source, seconds)
        known = (took > 0) & (expected > 0)
        ratio = np.where(known, took, np.nan) / np.where(known, expected, 1.0)
        if self._cusum.add(np.log(ratio)):
            self._forget()

    def _channel(self, source: Timed) -> int:
        return source.place if source.signature else self._num_devices + source.place

    def _average(self, source: Timed, seconds: float) -> None:
        mean, count = self._levels.get(source, (seconds, 0))
        mean += (min(seconds, STALL * mean) - mean) / (count + 1)
        self._levels[source] = mean, count + 1

    def _forget(self) -> None:
        """Drop what was measured before a change, where there is one."""
        changed, since = self._cusum.changes() != 0.0, self._before + self._cusum.since - 1
        self._before, self._cusum = self._traces, Cusum(self._width, self._config, centred=True)
        for source in [each for each in self.samples if changed[self._channel(each)]]:
            new = [sample for sample in self.samples.pop(source) if sample.trace >= since]
            del self._levels[source]
            if new:
                self.samples[source] = deque(new, KEPT)
            for sample in new:
                self._average(source, sample.seconds)
