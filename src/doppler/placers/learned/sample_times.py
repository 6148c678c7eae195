"""SampleTimes: how long samples of a policy take, and how many of them end in time."""

from doppler.placers.learned.batches import Batch, BatchKind
from doppler.placers.learned.policy_repair import PolicyRepair


class SampleTimes:
    """How long a sample of each kind takes, as those before it tell; the first takes no time."""

    def __init__(self) -> None:
        self._sample_s, self._noted = dict.fromkeys(BatchKind, 0.0), set[BatchKind]()

    def sample_s(self, kind: BatchKind) -> float:
        """What one of that kind takes."""
        return self._sample_s[kind]

    def note(self, kind: BatchKind, took_s: float) -> None:
        """Expect that from now on; samples of later kinds take no longer than those before.

        Of those on parts of the machine, which are quicker, the longest counts.
        """
        if kind is not BatchKind.NEIGHBOUR and kind in self._noted:
            took_s = max(took_s, self._sample_s[kind])
        self._noted.add(kind)
        kinds = list(BatchKind)
        for each in kinds[kinds.index(kind) :]:
            self._sample_s[each] = took_s

    def count(self, batch: Batch, part: PolicyRepair, seconds: float) -> int:
        """As many samples of a batch as end in time; one at least."""
        sample_s = self._sample_s[batch.kind]
        for count in range(batch.count, 1, -1):
            if sample_s * count / part.shares(count) <= seconds:
                return count
        return 1
