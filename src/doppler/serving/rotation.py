"""Rotation: which assignment serves the next request, and who is the incumbent.

Pure: no clock, no engine. `OnlinePlacer` drives it with requests, tests with numbers.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from doppler.base.arrays import IntArray, unbox_fields
from doppler.errors import ConfigError
from doppler.serving.confidence import BETTER, Race, check_race
from doppler.serving.prediction import digest

RECENT = 64  # requests that the incumbent's mean is taken over
FAILED, LOST, PROMOTED = "failed", "lost", "promoted"  # what became of a candidate
NUMBERS = ("requests", "explored", "failures", "promoted", "served_s", "extra_s", "unsettled")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineConfig:
    """How much is explored while requests are served, and when a candidate has won."""

    explore: float = 0.1  # share of the requests, at most, that candidates serve
    slowdown: float = 0.02  # share of the time of all requests that exploring may add to it
    # Candidates are predicted to take at most so much more than the incumbent, as a share; or as
    # much as predictions have been off.
    tolerance: float = 0.02
    confidence: float = 0.95  # with which a candidate must be faster to become the incumbent
    most: int = 16  # requests of one candidate until it has won or lost
    settle: int = 1  # the first requests of a candidate, which do not count
    drop: float = 2.0  # a candidate that once takes so many times the incumbent's mean has lost
    warm_up: int = 10  # requests before the first candidate
    think: bool = True  # about candidates within `serve`, if there are none; or only by `think()`
    pause: int = 16  # requests between such thoughts; doubled as long as nothing comes of them
    samples: int = 64  # of the policy, from which candidates are taken
    moves: int = 2000  # of each search on the simulator for candidates
    queue: int = 4  # candidates that wait
    learn_every: int = 16  # requests of candidates between steps of the policy; 0: there are none
    lr: float = 5e-4
    save_every: int = 100  # requests
    seed: int = 0

    def __post_init__(self) -> None:
        unbox_fields(self)
        if not 0 <= self.explore <= 1:
            raise ConfigError(f"explore is {self.explore}, must be between 0 and 1")
        for name in ("slowdown", "tolerance", "lr"):
            if not (value := getattr(self, name)) >= 0:
                raise ConfigError(f"{name} is {value}, must not be negative")
        for name in ("settle", "warm_up", "samples", "moves", "learn_every", "seed"):
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"{name} is {value}, must not be negative")
        for name in ("pause", "queue", "save_every"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value}, must be at least 1")
        if not self.drop > 1:
            raise ConfigError(f"drop is {self.drop}, must be above 1")
        check_race(self.confidence, self.most)


@dataclass(frozen=True, slots=True)
class OnlineStatus:
    """How an `OnlinePlacer` is doing."""

    exploring: bool
    requests: int
    explored: int  # of these, those that candidates served, or failed to
    failures: int  # of candidates
    promoted: int  # candidates that became the incumbent
    dropped: int  # candidates that did not
    incumbent_s: float  # mean makespan of its latest requests
    spread_s: float  # and their standard deviation
    gain: float  # how much less that is than the first incumbent's mean, as a share
    extra: float  # what exploring has added to the time of all requests, as a share
    candidate_s: float | None  # mean makespan of the candidate, if one races
    waiting: int  # candidates
    sim_error: float | None  # mean relative error of the recalibrated simulator


class Rotation:
    """The incumbent serves; at times a candidate does, and races against it across requests."""

    def __init__(self, config: OnlineConfig, start: IntArray) -> None:
        self.config = config
        self.incumbent = self.first = start  # (V,)
        self.recent_s: deque[float] = deque(maxlen=RECENT)  # of the incumbent
        self.first_s = 0.0  # the first incumbent's mean, when it was replaced
        self.queue: list[IntArray] = []  # of candidates
        self.candidate: IntArray | None = None  # (V,) in a race
        self.race: Race | None = None
        self.unsettled = 0  # requests of the candidate that do not count yet
        self.requests = self.explored = self.failures = self.promoted = 0
        self.served_s = 0.0  # of all requests
        self.extra_s = 0.0  # how much longer candidates took than the incumbent would have
        self.seen: dict[str, str] = {}  # what became of candidates, by digest

    @property
    def incumbent_s(self) -> float:
        """The incumbent's mean."""
        return float(np.mean(self.recent_s)) if self.recent_s else 0.0

    @property
    def spread_s(self) -> float:
        """Standard deviation of the incumbent's makespans."""
        return float(np.std(self.recent_s, ddof=1)) if len(self.recent_s) > 1 else 0.0

    @property
    def dropped(self) -> int:
        """Candidates that lost or failed."""
        return sum(fate != PROMOTED for fate in self.seen.values())

    @property
    def gain(self) -> float:
        """How much less the incumbent takes than the first one did, as a share."""
        if not self.first_s or not self.recent_s:
            return 0.0
        return 1.0 - self.incumbent_s / self.first_s

    def next_candidate(self) -> IntArray | None:
        """(V,) the candidate that may serve the next request; None: the incumbent is to."""
        config = self.config
        if self.requests < config.warm_up or not self.recent_s:
            return None
        if self.explored + 1 > config.explore * (self.requests + 1):
            return None
        if self.extra_s > config.slowdown * self.served_s:
            return None
        if self.race is None and self.queue:
            self.candidate = self.queue.pop(0)
            self.race = Race(confidence=config.confidence, most=config.most)
            self.unsettled = config.settle
        if self.race is None or len(self.race.challenger_s) > len(self.race.incumbent_s):
            return None
        return self.candidate

    def served(self, makespan_s: float) -> None:
        """The incumbent served a request."""
        self.requests += 1
        self.served_s += makespan_s
        self.recent_s.append(makespan_s)
        if self.race is not None:
            self.race.add(makespan_s, challenger=False)
            self._judge()

    def tried(self, makespan_s: float) -> None:
        """The candidate served a request."""
        assert self.race is not None
        self.requests += 1
        self.explored += 1
        self.served_s += makespan_s
        self.extra_s += makespan_s - self.incumbent_s
        if makespan_s > self.config.drop * self.incumbent_s:
            self._end(LOST)
        elif self.unsettled:
            self.unsettled -= 1
        else:
            self.race.add(makespan_s, challenger=True)
            self._judge()

    def failed(self, lost_s: float) -> None:
        """The candidate failed, after so long; the request is still to be served."""
        self.explored += 1
        self.failures += 1
        self.extra_s += lost_s
        self._end(FAILED)

    def fall_back(self) -> bool:
        """Make the first incumbent the incumbent again, if it is not; after the present failed."""
        if np.array_equal(self.incumbent, self.first):
            return False
        self.seen[digest(self.incumbent)] = FAILED
        self.failures += 1
        self.incumbent, self.first_s = self.first, 0.0
        self.recent_s.clear()
        self.race = self.candidate = None
        return True

    def propose(self, candidates: Sequence[IntArray]) -> int:
        """Let those (V,) candidates wait that are new; how many there are."""
        known = {digest(self.incumbent), *self.seen, *(digest(row) for row in self.queue)}
        if self.candidate is not None:
            known.add(digest(self.candidate))
        new = {digest(row): row for row in candidates if digest(row) not in known}
        room = self.config.queue - len(self.queue)
        self.queue += list(new.values())[:room]
        return len(new)

    def _judge(self) -> None:
        assert self.race is not None
        if self.race.verdict == BETTER:
            if np.array_equal(self.incumbent, self.first):
                self.first_s = self.incumbent_s
            assert self.candidate is not None
            self.incumbent = self.candidate
            self.recent_s.clear()
            self.recent_s.extend(self.race.challenger_s)
            self.promoted += 1
            self._end(PROMOTED)
        elif self.race.verdict is not None:
            self._end(LOST)

    def _end(self, fate: str) -> None:
        assert self.candidate is not None
        self.seen[digest(self.candidate)] = fate
        self.candidate = self.race = None

    def state(self) -> dict[str, Any]:
        """All that changes, as JSON values."""
        rows = {"incumbent": self.incumbent, "first": self.first, "candidate": self.candidate}
        return {
            **{name: getattr(self, name) for name in NUMBERS},
            **{name: None if row is None else row.tolist() for name, row in rows.items()},
            "race": None if self.race is None else asdict(self.race),
            "queue": [row.tolist() for row in self.queue],
            "recent_s": list(self.recent_s),
            "first_s": self.first_s,
            "seen": self.seen,
        }

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        for name in (*NUMBERS, "first_s"):
            setattr(self, name, type(getattr(self, name))(values[name]))
        self.incumbent, self.first = (np.array(values[key]) for key in ("incumbent", "first"))
        self.candidate = None if values["candidate"] is None else np.array(values["candidate"])
        self.race = None if values["race"] is None else Race(**values["race"])
        self.queue = [np.array(row) for row in values["queue"]]
        self.recent_s.extend(float(x) for x in values["recent_s"])
        self.seen = dict(values["seen"])
