"""Faults: whom failures are held against, and for how long.

Pure: no clock, no engine. Time is the number of requests.
"""

from collections.abc import Mapping
from typing import Any

REQUEST, ASSIGNMENT, MACHINE = "request", "assignment", "machine"
CAUSES = (REQUEST, ASSIGNMENT, MACHINE)
FORGIVEN = 0.5  # blame up to which an assignment may be tried: one failure, a half-life ago
GUILTY = 2.5  # blame from which an incumbent is replaced: three failures, not far apart
VINDICATED = 0.97  # what a run that succeeds leaves of it: under random faults, hardly anything
GONE = 0.01  # blame that is no longer remembered


class Faults:
    """Failures by cause, and the blame of assignments, which halves every `half_life` requests."""

    def __init__(self, half_life: int) -> None:
        self.half_life = half_life
        self.counts = dict.fromkeys(CAUSES, 0)
        self._blame: dict[str, tuple[float, int]] = {}  # by digest: how much, and as of when

    def count(self, cause: str) -> None:
        """A failure of this cause, which nobody is blamed for."""
        self.counts[cause] += 1

    def accuse(self, key: str, now: int) -> None:
        """An assignment failed where another did not."""
        self.counts[ASSIGNMENT] += 1
        self._blame = {k: v for k, v in self._blame.items() if self.blame(k, now) > GONE}
        self._blame[key] = self.blame(key, now) + 1.0, now

    def vindicate(self, key: str, now: int) -> None:
        """An assignment ran."""
        if key in self._blame:
            self._blame[key] = VINDICATED * self.blame(key, now), now

    def blame(self, key: str, now: int) -> float:
        """What is left of an assignment's failures."""
        amount, then = self._blame.get(key, (0.0, now))
        return float(amount * 0.5 ** ((now - then) / self.half_life))

    def is_forgiven(self, key: str, now: int) -> bool:
        """Whether an assignment may be tried."""
        return self.blame(key, now) <= FORGIVEN

    def is_guilty(self, key: str, now: int) -> bool:
        """Whether an incumbent fails too often to be kept."""
        return self.blame(key, now) >= GUILTY

    def state(self) -> dict[str, Any]:
        """All that changes, as JSON values."""
        return {"counts": self.counts, "blame": {k: list(v) for k, v in self._blame.items()}}

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Resume where `state` was taken."""
        self.counts = {cause: int(values["counts"][cause]) for cause in CAUSES}
        blame = values["blame"].items()
        self._blame = {key: (float(amount), int(then)) for key, (amount, then) in blame}
