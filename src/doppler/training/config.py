"""TrainConfig: how a policy is trained."""

from dataclasses import dataclass, field, replace

from doppler.base.arrays import unbox_fields
from doppler.engine.backends.registry import BACKENDS
from doppler.errors import ConfigError, UnknownNameError
from doppler.policies.arrays.config import PolicyConfig
from doppler.policies.configs import AnyConfig, RivalConfig
from doppler.scheduler.choose import FIFO, MODES, ORDER, check_strategy
from doppler.serving.race import check_race
from doppler.sim.config import SimConfig
from doppler.sim.noise import Noise

STAGES = ("imitation", "sim", "real")
FROM_NOTHING, FROM_A_POLICY = ("imitation", "sim"), ("sim",)  # stages, where none are named
MESSAGES = ("episode", "step")
AUTO = "auto"  # the mode that is predicted to be faster
DRAWS = 4  # of the noise, over which assignments are compared
YEAR_S = 365 * 86400.0  # the longest training


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationConfig:
    """Stage I: imitate the critical-path heuristic (Sec. 5)."""

    episodes: int = 2048  # per graph
    batch: int = 32
    lr: tuple[float, float] = (2e-3, 2e-3)  # at the beginning and the end, linear between

    def __post_init__(self) -> None:
        unbox_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertConfig:
    """Expert iteration: a short search improves samples, and PLC imitates the result."""

    samples: int = 2  # the best of a batch, which are improved
    elites: int = 1  # members of the pool that are improved as well
    lessons: int = 8  # that PLC imitates in an update: half are those, half are of the pool
    pool: int = 8  # best assignments kept per graph
    moves: int = 1000  # of the search, per assignment
    first_moves: int = 0  # of the search from heuristics that the pool begins with
    hot: float = 3e-3  # temperature of the search, as a share of the makespan
    cold: float = 1e-5
    until: float = 1.0  # share of the stage after which REINFORCE is alone

    def __post_init__(self) -> None:
        unbox_fields(self)
        for name in ("samples", "elites", "lessons", "moves", "first_moves"):
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"sim.expert.{name} is {value}, must not be negative")
        if self.pool < 1:
            raise ConfigError(f"sim.expert.pool is {self.pool}, must be at least 1")
        if not 0 < self.cold <= self.hot:
            raise ConfigError(f"sim.expert: cold is {self.cold}, must be above 0, and at most hot")
        if not 0 <= self.until <= 1:
            raise ConfigError(f"sim.expert.until is {self.until}, must be between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideConfig:
    """What a policy that reads a guide is trained with (the paper has none)."""

    # Shares of the updates. The rest has assignments of the pool with gaps.
    no_share: float = 0.1  # without a guide
    list_share: float = 0.5  # with the list schedule that it has when it places
    pool_share: float = 0.2  # with assignments of the pool
    least_gap: float = 0.1  # share of the vertices that a lesson's guide leaves open, at least
    wrong_share: float = 0.3  # of the vertices that it has elsewhere, at most

    def __post_init__(self) -> None:
        unbox_fields(self)
        for name in ("no_share", "list_share", "pool_share", "least_gap", "wrong_share"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ConfigError(f"sim.guide.{name} is {value}, must be between 0 and 1")
        if self.no_share + self.list_share + self.pool_share > 1:
            raise ConfigError("sim.guide: no_share, list_share and pool_share add up to above 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceConfig:
    """Stage II: reinforce on the simulator (Sec. 5)."""

    episodes: int = 16384  # per graph
    batch: int = 32
    lr: tuple[float, float] = (2e-3, 1e-4)
    temperature: tuple[float, float] = (1.0, 0.3)  # of sampled actions; 0: the best
    epsilon: tuple[float, float] = (0.0, 0.0)  # probability of a random action
    alike: bool = True  # devices that PLC cannot tell apart are one choice: see `Sampling`
    entropy: float = 1e-3  # weight of the entropy
    reinforce: float = 20.0  # weight of REINFORCE; lessons have 1
    anchor: float = 0.1  # weight of SEL's imitation of the critical path
    running_mean: bool = False  # the baseline: of all episodes so far, or of the batch
    expert: ExpertConfig | None = field(default_factory=ExpertConfig)
    guide: GuideConfig = field(default_factory=GuideConfig)
    messages: str = "episode"  # are passed once per episode (Sec. 4.3), or per `step` (App. G.3)

    def __post_init__(self) -> None:
        unbox_fields(self)
        _check_sampling(self, "sim")
        if self.messages not in MESSAGES:
            raise UnknownNameError("way to pass messages", self.messages, MESSAGES)
        if self.messages == "step" and self.expert is not None:
            raise ConfigError(
                "there is no expert where messages are passed per step",
                hint="set `expert` to false, or `messages` to `episode`",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RealConfig:
    """Stage III: reinforce on the real system (Sec. 5), where runs are expensive.

    The policy samples, the simulator picks which samples to run, and both learn from the
    results. Where it is not `guarded`, an episode is one run, and nothing else runs (preset
    `paper`).
    """

    guarded: bool = True  # races protect an incumbent

    episodes: int = 512  # assignments of the policy that are run, per graph
    batch: int = 8
    samples: int = 64  # from which the simulator, recalibrated as traces come, picks a batch
    plain: int = 2  # of a batch: those that are not picked, to explore
    moves: int = 2000  # of a search on that simulator from the incumbent: it is run as well
    lr: tuple[float, float] = (2e-3, 1e-4)
    temperature: tuple[float, float] = (0.5, 0.2)
    epsilon: tuple[float, float] = (0.0, 0.0)
    alike: bool = True
    entropy: float = 1e-3
    reinforce: float = 0.5
    lessons: int = 16  # assignments that PLC imitates: the incumbent, and the fastest measured
    running_mean: bool = False  # the baseline: of all runs so far, or of the batch
    warm_up: int = 1  # the first runs of an assignment in an update, which do not count
    repeats: int = 1  # runs of an assignment that do
    max_runs: int = 16  # of a challenger, and of the incumbent, until one of them has won
    confidence: float = 0.95  # with which a challenger must be faster to become the incumbent
    final_runs: int = 10  # of the start, the best and the policy's own, at the end; 0: none
    backend: str = "cpu"  # of the engine, where no other executor is given
    mode: str = AUTO  # of that engine; `auto`: dynamic, unless fixed is predicted to be faster
    timeout_s: float = 60.0  # of that engine

    def __post_init__(self) -> None:
        unbox_fields(self)
        _check_sampling(self, "real")
        if not 0 <= self.plain <= self.batch <= self.samples:
            raise ConfigError("real: plain must be at most batch, and batch at most samples")
        for name in ("plain", "moves", "lessons", "warm_up"):
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"real.{name} is {value}, must not be negative")
        if self.repeats < 1:
            raise ConfigError(f"real.repeats is {self.repeats}, must be at least 1")
        if self.final_runs < 0 or self.final_runs == 1:
            raise ConfigError(f"real.final_runs is {self.final_runs}, must be 0 or at least 2")
        others = self.samples - self.batch + self.moves + self.lessons + self.warm_up
        if not self.guarded and (others or self.repeats > 1):
            raise ConfigError(
                "real: without guards, episodes are all that runs: samples must be batch, "
                "moves, lessons and warm_up 0, repeats 1",
                hint="begin with preset `paper`",
            )
        if self.mode not in (AUTO, *MODES):
            raise UnknownNameError("mode", self.mode, (AUTO, *MODES))
        if self.backend not in BACKENDS:
            raise UnknownNameError("backend", self.backend, BACKENDS)
        if not self.timeout_s > 0:
            raise ConfigError(f"real.timeout_s is {self.timeout_s}, must be positive")
        check_race(self.confidence, self.max_runs)


AnyReinforceConfig = ReinforceConfig | RealConfig  # REINFORCE reads the same values of both


def _check_sampling(stage: AnyReinforceConfig, name: str) -> None:
    """Raise unless actions can be sampled so."""
    if not min(stage.temperature) >= 0:
        raise ConfigError(f"{name}.temperature is {stage.temperature}, must not be negative")
    if not 0 <= min(stage.epsilon) <= max(stage.epsilon) <= 1:
        raise ConfigError(f"{name}.epsilon is {stage.epsilon}, must be between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything about a training run but its graphs and topologies.

    >>> import doppler as dp
    >>> dp.TrainConfig(stages=("sim",), seconds=60).seed
    0
    """

    preset: str = "default"  # where the other values came from
    # Empty: `sim`, and `imitation` before it where training starts from nothing.
    stages: tuple[str, ...] = ()
    policy: AnyConfig = field(default_factory=PolicyConfig)  # of one of the `kinds`
    imitation: ImitationConfig = field(default_factory=ImitationConfig)
    sim: ReinforceConfig = field(default_factory=ReinforceConfig)
    real: RealConfig = field(default_factory=RealConfig)
    variants: int = 0  # copies of every graph with other costs, to train on as well
    variation: float = 0.4  # sigma of the logarithm of the factors on those costs
    noise: Noise = field(default_factory=Noise)
    strategy: str = FIFO
    limit_memory: bool = True
    clip: float = 1.0  # largest norm of a gradient
    problems_per_step: int = 1  # graphs on topologies that one step of the optimizer learns from
    seconds: float | None = None  # for all stages; the last then has as many episodes as fit
    seed: int = 0
    threads: int | None = None  # of rollouts, simulation and search; one per core if None
    device: str = "cpu"  # of the networks, as torch names it

    def __post_init__(self) -> None:
        unbox_fields(self)
        for name in self.stages:
            if name not in STAGES:
                raise UnknownNameError("stage", name, STAGES)
        self._check_rival()
        if self.seconds is not None:
            check_seconds(self.seconds)
        if self.problems_per_step < 1:
            raise ConfigError(f"problems_per_step is {self.problems_per_step}, must be at least 1")
        if self.variants < 0 or not self.variation >= 0:
            raise ConfigError("variants and variation must not be negative")
        if not self.clip > 0:
            raise ConfigError(f"clip is {self.clip}, must be positive")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}, must be between 0 and 2^63")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads is {self.threads}, must be at least 1")
        if check_strategy(self.strategy) == ORDER:
            raise ConfigError("strategy `order` has no place in training: search has no order")
        for name in STAGES:
            stage = getattr(self, name)
            if stage.episodes < 0 or stage.batch < 1:
                raise ConfigError(f"{name}: episodes must not be negative, batch at least 1")
            if not 0 <= min(stage.lr) <= max(stage.lr) < 1:
                raise ConfigError(f"{name}: lr is {stage.lr}, must be between 0 and 1")

    def _check_rival(self) -> None:
        """Raise if a rival shall do what only the dual policy can."""
        kind = self.policy.kind
        if not isinstance(self.policy, RivalConfig):
            return
        hint = f'begin with the settings for it: preset("default", "{kind}")'
        if self.sim.expert is not None or self.sim.messages != "episode":
            raise ConfigError(f"policy `{kind}` has no `sim.expert` or `sim.messages`", hint=hint)
        if "real" in self.stages and self.real.lessons:
            raise ConfigError(f"policy `{kind}` takes no lessons in stage `real`", hint=hint)

    def with_stages(self, *, from_nothing: bool) -> "TrainConfig":
        """The same, with the stages named that are usual for what training starts from."""
        usual = FROM_NOTHING if from_nothing else FROM_A_POLICY
        return self if self.stages else replace(self, stages=usual)

    @property
    def has_expert(self) -> bool:
        """Whether Stage II has an expert. It teaches placing, so that must be learned."""
        learned = isinstance(self.policy, RivalConfig) or self.policy.place
        return self.sim.expert is not None and "sim" in self.stages and learned

    @property
    def sim_config(self) -> SimConfig:
        """How assignments are simulated."""
        return SimConfig(strategy=self.strategy, noise=self.noise, limit_memory=self.limit_memory)

    @property
    def draws(self) -> int:
        """Draws of the noise over which assignments are compared."""
        return DRAWS if self.noise.is_random else 1


def check_seconds(seconds: float) -> None:
    """Raise unless that is a valid training time."""
    if not 0 < seconds <= YEAR_S:
        raise ConfigError(
            f"seconds is {seconds}, must be positive and at most {YEAR_S:.0f}, a year",
            hint="as in --seconds 300, or `seconds = 300` in a config file",
        )


def check_extension(seconds: float | None, episodes: int | None) -> None:
    """Raise unless a run can be extended by that."""
    if seconds is not None and episodes is not None:
        raise ConfigError("a run is extended by seconds or by episodes", hint="leave one out")
    if seconds is not None:
        check_seconds(seconds)
    if episodes is not None and episodes < 1:
        raise ConfigError(
            f"a run cannot be extended by {episodes} episodes", hint="as in --episodes 1000"
        )
