"""Exploration: which assignment serves the next request, and the next if that fails.

Pure: no clock, no engine. `OnlinePlacer` drives it with requests, tests with numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from doppler.base.arrays import IntArray
from doppler.serving.config import OnlineConfig
from doppler.serving.faults import MACHINE, REQUEST, Faults
from doppler.serving.incumbent import FAILED, LOST, Incumbent, digest

ROUNDING = 1e-9
FORMER = 8  # assignments of before that are kept
RECENT = 64  # requests that the incumbent's mean is taken over
NUMBERS = ("requests", "explored", "failures", "late", "lost", "streak", "changes")
ROWS = ("queue", "former")
AMOUNTS = ("served_s", "extra_s", "tokens")
CHALLENGER, INCUMBENT, RETRY, FALLBACK = "challenger", "incumbent", "retry", "fallback"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Who is to serve a request."""

    devices: IntArray  # (V,)
    role: str  # `challenger`, `incumbent`, `retry` of the incumbent, or `fallback`
    deadline_s: float = inf  # for the whole run


class Exploration:
    """Gives some requests to challengers, as far as the config allows, the others to the incumbent.

    `next` says who serves; `ran`, or `failed`, reports the outcome, and `failed` says who tries the
    same request next: after a challenger the incumbent, then the incumbent once more, then another
    assignment that is known to run. Which of them fail says whose fault it is:

    - all of them: the request's, or the machine's where the request before failed as well;
    - a challenger, and not the incumbent: the challenger's;
    - the incumbent once: the machine's; twice in a row, and not the fallback: the incumbent's. It
      is replaced if that happens three times before it is forgiven.
    """

    def __init__(
        self, config: OnlineConfig, start: IntArray, refuges: Sequence[IntArray] = ()
    ) -> None:
        """`refuges` (V,) may serve where the incumbent and those before it fail."""
        self.config, self.refuges = config, list(refuges)
        self.incumbent = Incumbent(
            confidence=config.confidence,
            max_runs=config.max_runs,
            window=RECENT,
            settle=config.settle,
            drop=config.drop,
            probation=config.probation,
            forget=config.forget,
            hopeless=config.hopeless,
        )
        self.incumbent.install(start, [])
        self.faults = Faults(config.half_life)
        self.queue: list[IntArray] = []  # (V,) challengers that wait
        self.requests = 0  # that were served
        self.explored = 0  # of these, those that challengers served, or failed to
        self.failures = self.late = 0  # attempts that failed, or ran out of time
        self.lost = 0  # requests that nobody could serve
        self.streak = 0  # of these, the latest in a row
        self.changes = 0  # of the machine
        self.served_s = 0.0  # of all requests
        self.extra_s = 0.0  # how much longer exploring has made them
        self.tokens = 0.0  # requests that challengers may serve now
        self.former: list[IntArray] = []  # (V,) incumbents of before, and challengers that failed
        self._attempts: list[Attempt] = []  # at the request under way
        self._suspects: list[IntArray] = []  # (V,) challengers that failed it

    @property
    def devices(self) -> IntArray:
        """(V,) of the incumbent."""
        assert self.incumbent.devices is not None
        return self.incumbent.devices

    @property
    def is_idle(self) -> bool:
        """Whether no challenger races or waits."""
        return self.incumbent.race is None and not self.queue

    def next(self, *, exploring: bool = True) -> Attempt:
        """Who is to serve the next request."""
        attempt = self._challenger() if exploring else None
        self._attempts, self._suspects = [attempt or Attempt(self.devices, INCUMBENT)], []
        return self._attempts[0]

    def ran(self, makespan_s: float) -> None:
        """The latest attempt served the request."""
        attempt, incumbent = self._attempts[-1], self.devices
        self._blame(self._attempts[:-1])
        self.requests += 1
        self.streak = 0
        self.served_s += makespan_s
        self.tokens = min(self.tokens + self.config.explore, self.config.burst)
        if attempt.role == CHALLENGER:
            self.explored += 1
            self.tokens -= 1.0
            self.extra_s += makespan_s - self.incumbent.mean_s
            self.incumbent.ran(makespan_s, challenger=True)
        elif attempt.role != FALLBACK:
            self.faults.vindicate(digest(incumbent), self.requests)
            self.incumbent.ran(makespan_s)
        elif self.faults.is_guilty(digest(self.devices), self.requests):
            self.incumbent.fall_back(attempt.devices)
        if self.devices is not incumbent:
            self._remember(incumbent)
            self.queue.clear()  # they were found from where the old one was
        self._attempts = []

    def failed(self, lost_s: float, *, late: bool = False) -> Attempt | None:
        """The latest attempt failed after that time, or was `late`; who tries next.

        None: nobody is left, and the request fails.
        """
        attempt = self._attempts[-1]
        self.failures += not late
        self.late += late
        if attempt.role == CHALLENGER:
            self.explored += 1
            self.tokens -= 1.0
            self.extra_s += lost_s
            self.incumbent.failed(LOST if late else FAILED)
            if not late:
                self._suspects.append(attempt.devices)
            following = Attempt(self.devices, INCUMBENT)
        elif attempt.role == INCUMBENT:
            following = Attempt(self.devices, RETRY)
        elif attempt.role == RETRY and (others := self._others()):
            following = Attempt(others[self.streak % len(others)], FALLBACK)
        else:
            self.lost += 1
            self.streak += 1
            self.faults.count(REQUEST if self.streak == 1 else MACHINE)
            self._attempts = []
            return None
        self._attempts.append(following)
        return following

    def rejected(self) -> None:
        """A request was no valid one; nothing ran."""
        self.faults.count(REQUEST)

    def machine_changed(self, kept: int) -> None:
        """Forget what was measured before the last `kept` runs of the incumbent."""
        self.changes += 1
        challenger = self.incumbent.machine_changed(kept)
        if challenger is not None:
            self.queue.insert(0, challenger)

    def propose(self, challengers: Sequence[IntArray]) -> int:
        """Let those (V,) challengers wait that may be tried; how many there are."""
        busy = [self.devices, *self.queue]
        if self.incumbent.challenger is not None:
            busy.append(self.incumbent.challenger)
        known = {digest(row) for row in busy}
        new = {
            key: row
            for row in challengers
            if (key := digest(row)) not in known
            and not self.incumbent.knows(row)
            and self.faults.is_forgiven(key, self.requests)
        }
        room = self.config.queue - len(self.queue)
        self.queue += list(new.values())[:room]
        return len(new)

    def state(self) -> dict[str, Any]:
        """All that changes, as JSON values."""
        numbers = {name: getattr(self, name) for name in (*NUMBERS, *AMOUNTS)}
        rows = {name: [row.tolist() for row in getattr(self, name)] for name in ROWS}
        return self.incumbent.state() | numbers | rows | {"faults": self.faults.state()}

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Resume where `state` was taken."""
        self.incumbent.load_state(values)
        self.faults.load_state(values["faults"])
        for name in NUMBERS:
            setattr(self, name, int(values[name]))
        for name in AMOUNTS:
            setattr(self, name, float(values[name]))
        self.queue, self.former = ([np.array(row) for row in values[name]] for name in ROWS)

    def _challenger(self) -> Attempt | None:
        """The challenger, if it may serve the next request."""
        config, incumbent = self.config, self.incumbent
        if self.requests < config.warm_up or not incumbent.recent_s:
            return None
        share = config.explore * (self.requests + 1)
        if self.explored + 1 > share or self.tokens + config.explore < 1.0 - ROUNDING:
            return None
        if self.extra_s > config.slowdown * self.served_s:
            return None
        if incumbent.race is None and self.queue:
            incumbent.challenge(self.queue.pop(0))
        race = incumbent.race
        if race is None or len(race.challenger_s) > len(race.incumbent_s):
            return None
        assert incumbent.challenger is not None
        deadline_s = config.drop * incumbent.mean_s + config.grace_s
        return Attempt(incumbent.challenger, CHALLENGER, deadline_s)

    def _others(self) -> list[IntArray]:
        """(V,) assignments that may serve where the incumbent fails, those blamed least first."""
        before = [self.incumbent.previous, self.incumbent.first, *self.refuges]
        rows = {digest(row): row for row in before if row is not None}
        rows.pop(digest(self.devices), None)
        return sorted(rows.values(), key=lambda row: self.faults.blame(digest(row), self.requests))

    def _blame(self, failed: Sequence[Attempt]) -> None:
        """Hold attempts that failed against whom they are the fault of; the next one ran."""
        roles = [attempt.role for attempt in failed]
        for devices in self._suspects:
            self.faults.accuse(digest(devices), self.requests)
            self._remember(devices)
        if RETRY in roles:
            self.faults.accuse(digest(self.devices), self.requests)
        elif INCUMBENT in roles:
            self.faults.count(MACHINE)

    def _remember(self, devices: IntArray) -> None:
        """Keep (V,) devices to be tried again when that is due."""
        rows = [row for row in self.former if not np.array_equal(row, devices)]
        self.former = [*rows, devices][-FORMER:]
