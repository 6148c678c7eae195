"""OnlineConfig: what exploring may cost, and how serving tells faults and changes apart."""

from dataclasses import dataclass, field

from doppler.base.arrays import unbox_fields
from doppler.errors import ConfigError
from doppler.machine.drift import DriftConfig
from doppler.serving.race import check_race


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineConfig:
    """How much is explored while requests are served, and when a challenger has won.

    >>> import doppler as dp
    >>> dp.OnlineConfig(explore=0.05).explore
    0.05
    """

    explore: float = 0.1  # share of the requests, at most, that challengers serve
    # Challengers' requests that may be saved up for later; in any n requests they then serve at
    # most explore * n + burst. As many as a whole race, so that a change is answered at once.
    burst: int = 17
    slowdown: float = 0.02  # share of the time of all requests that exploring may add to it
    # How much slower than the incumbent a challenger may be predicted to be, as a share; at least
    # the recent error of predictions.
    tolerance: float = 0.02
    far_off: float = 0.2  # error of predictions from which heuristics are heard whatever they say
    confidence: float = 0.95  # with which a challenger must be faster to become the incumbent
    max_runs: int = 16  # requests of one challenger until it has won or lost
    settle: int = 1  # the first requests of a challenger, which do not count
    probation: int = 64  # requests after a promotion in which the old incumbent may come back
    drop: float = 2.0  # times the incumbent's mean: a challenger that once takes longer has lost
    hopeless: float = 5.0  # standard deviations above that mean: the same, once it has settled
    grace_s: float = 0.01  # beyond that, before a run is stopped: a stall of the host is no hang
    warm_up: int = 10  # requests before the first challenger
    propose_in_serve: bool = True  # look for challengers in `serve`, or only in `propose()`
    pause: int = 16  # requests between such searches; doubled as long as they find nothing
    longest_pause: int = 128  # requests; `pause` while predictions are far off
    samples: int = 64  # of the policy, from which challengers are taken
    moves: int = 2000  # of each search on the simulator for challengers
    queue: int = 4  # challengers that wait
    half_life: int = 200  # requests after which half of a failure is forgiven
    forget: int = 500  # requests after which one that lost a race may race again
    stale: int = 100  # requests without a sign of a device that changed: it may be as it was
    drift: DriftConfig = field(default_factory=DriftConfig)  # of the incumbent's own runs
    learn_every: int = 16  # requests of challengers between steps of the policy; 0: no steps
    lr: float = 5e-4
    save_every: int = 100  # requests
    seed: int = 0

    def __post_init__(self) -> None:
        unbox_fields(self)
        if not 0 <= self.explore <= 1:
            raise ConfigError(f"explore is {self.explore}, must be between 0 and 1")
        for name in ("slowdown", "tolerance", "far_off", "grace_s", "lr"):
            if not (value := getattr(self, name)) >= 0:
                raise ConfigError(f"{name} is {value}, must not be negative")
        for name in ("settle", "warm_up", "samples", "moves", "learn_every", "probation", "seed"):
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"{name} is {value}, must not be negative")
        positive = ("burst", "pause", "longest_pause", "queue", "save_every")
        for name in (*positive, "half_life", "forget", "stale"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value}, must be at least 1")
        if not self.drop > 1:
            raise ConfigError(f"drop is {self.drop}, must be above 1")
        if not self.hopeless > 0:
            raise ConfigError(f"hopeless is {self.hopeless}, must be positive")
        check_race(self.confidence, self.max_runs)
