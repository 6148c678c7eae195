"""Exploration: whether the incumbent or a challenger serves the next request.

Pure: no clock, no engine. `OnlinePlacer` drives it with requests, tests with numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from doppler.base.arrays import IntArray, unbox_fields
from doppler.errors import ConfigError
from doppler.serving.incumbent import PROMOTED, Incumbent, digest
from doppler.serving.race import check_race

RECENT = 64  # requests that the incumbent's mean is taken over
NUMBERS = ("requests", "explored", "failures", "served_s", "extra_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineConfig:
    """How much is explored while requests are served, and when a challenger has won.

    >>> import doppler as dp
    >>> dp.OnlineConfig(explore=0.05).explore
    0.05
    """

    explore: float = 0.1  # share of the requests, at most, that challengers serve
    slowdown: float = 0.02  # share of the time of all requests that exploring may add to it
    # How much slower than the incumbent a challenger may be predicted to be, as a share; at least
    # the recent error of predictions.
    tolerance: float = 0.02
    confidence: float = 0.95  # with which a challenger must be faster to become the incumbent
    max_runs: int = 16  # requests of one challenger until it has won or lost
    settle: int = 1  # the first requests of a challenger, which do not count
    drop: float = 2.0  # times the incumbent's mean: a challenger that once takes longer has lost
    warm_up: int = 10  # requests before the first challenger
    propose_in_serve: bool = True  # look for challengers in `serve`, or only in `propose()`
    pause: int = 16  # requests between such searches; doubled as long as they find nothing
    samples: int = 64  # of the policy, from which challengers are taken
    moves: int = 2000  # of each search on the simulator for challengers
    queue: int = 4  # challengers that wait
    learn_every: int = 16  # requests of challengers between steps of the policy; 0: no steps
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
        check_race(self.confidence, self.max_runs)


@dataclass(frozen=True, slots=True)
class OnlineStatus:
    """How an `OnlinePlacer` is doing."""

    exploring: bool
    requests: int
    explored: int  # of these, those that challengers served, or failed to
    failures: int  # of challengers
    promoted: int  # challengers that became the incumbent
    dropped: int  # challengers that did not
    incumbent_s: float  # mean makespan of its latest requests
    spread_s: float  # and their standard deviation
    gain: float  # how much less that is than the first incumbent's mean, as a share
    extra: float  # what exploring has added to the time of all requests, as a share
    challenger_s: float | None  # mean makespan of the challenger, if one races
    waiting: int  # challengers
    sim_error: float | None  # mean relative error of the recalibrated simulator


class Exploration:
    """Gives some requests to challengers, as far as the config allows, the others to the incumbent.

    `next_challenger` says who serves; `served`, `tried` or `failed` report the outcome.
    """

    def __init__(self, config: OnlineConfig, start: IntArray) -> None:
        self.config = config
        self.incumbent = Incumbent(
            confidence=config.confidence,
            max_runs=config.max_runs,
            window=RECENT,
            settle=config.settle,
            drop=config.drop,
        )
        self.incumbent.install(start, [])
        self.queue: list[IntArray] = []  # (V,) challengers that wait
        self.requests = self.explored = self.failures = 0
        self.served_s = 0.0  # of all requests
        self.extra_s = 0.0  # how much longer challengers took than the incumbent would have

    @property
    def devices(self) -> IntArray:
        """(V,) of the incumbent."""
        assert self.incumbent.devices is not None
        return self.incumbent.devices

    @property
    def dropped(self) -> int:
        """Challengers that lost or failed."""
        return sum(fate != PROMOTED for fate in self.incumbent.fates.values())

    @property
    def is_idle(self) -> bool:
        """Whether no challenger races or waits."""
        return self.incumbent.race is None and not self.queue

    def next_challenger(self) -> IntArray | None:
        """(V,) the challenger that may serve the next request; None: the incumbent is to."""
        config, incumbent = self.config, self.incumbent
        if self.requests < config.warm_up or not incumbent.recent_s:
            return None
        if self.explored + 1 > config.explore * (self.requests + 1):
            return None
        if self.extra_s > config.slowdown * self.served_s:
            return None
        if incumbent.race is None and self.queue:
            incumbent.challenge(self.queue.pop(0))
        race = incumbent.race
        if race is None or len(race.challenger_s) > len(race.incumbent_s):
            return None
        return incumbent.challenger

    def served(self, makespan_s: float) -> None:
        """The incumbent served a request."""
        self.requests += 1
        self.served_s += makespan_s
        self.incumbent.ran(makespan_s)

    def tried(self, makespan_s: float) -> None:
        """The challenger served a request."""
        self.requests += 1
        self.explored += 1
        self.served_s += makespan_s
        self.extra_s += makespan_s - self.incumbent.mean_s
        self.incumbent.ran(makespan_s, challenger=True)

    def failed(self, lost_s: float) -> None:
        """The challenger failed after that time; the request is still to be served."""
        self.explored += 1
        self.failures += 1
        self.extra_s += lost_s
        self.incumbent.failed()

    def fall_back(self) -> bool:
        """Whether the incumbent, which failed, could be replaced by the first one."""
        fell = self.incumbent.fall_back()
        self.failures += fell
        return fell

    def propose(self, challengers: Sequence[IntArray]) -> int:
        """Let those (V,) challengers wait that are new; how many there are."""
        busy = [self.devices, *self.queue]
        if self.incumbent.challenger is not None:
            busy.append(self.incumbent.challenger)
        known = {*self.incumbent.fates, *(digest(row) for row in busy)}
        new = {digest(row): row for row in challengers if digest(row) not in known}
        room = self.config.queue - len(self.queue)
        self.queue += list(new.values())[:room]
        return len(new)

    def state(self) -> dict[str, Any]:
        """All that changes, as JSON values."""
        numbers = {name: getattr(self, name) for name in NUMBERS}
        return self.incumbent.state() | numbers | {"queue": [row.tolist() for row in self.queue]}

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Resume where `state` was taken."""
        self.incumbent.load_state(values)
        for name in NUMBERS:
            setattr(self, name, type(getattr(self, name))(values[name]))
        self.queue = [np.array(row) for row in values["queue"]]

    def status(self, *, exploring: bool, sim_error: float | None) -> OnlineStatus:
        """Counts and means so far."""
        incumbent, race = self.incumbent, self.incumbent.race
        measured = race is not None and race.challenger_s
        return OnlineStatus(
            exploring=exploring,
            requests=self.requests,
            explored=self.explored,
            failures=self.failures,
            promoted=incumbent.promoted,
            dropped=self.dropped,
            incumbent_s=incumbent.mean_s if incumbent.recent_s else 0.0,
            spread_s=incumbent.spread_s,
            gain=1.0 - 1.0 / incumbent.speedup if incumbent.speedup else 0.0,
            extra=self.extra_s / self.served_s if self.served_s else 0.0,
            challenger_s=float(np.mean(measured)) if measured else None,
            waiting=len(self.queue),
            sim_error=sim_error,
        )
