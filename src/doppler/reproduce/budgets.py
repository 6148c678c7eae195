"""Budgets: how much training, search and measuring a reproduction of the paper takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from doppler.errors import UnknownNameError

EXECUTORS = ("sim", "cpu", "cuda")
SEC_6_1 = {"chainmm": 4000, "ffnn": 4000, "llama-block": 8000, "llama-layer": 8000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """How much of everything; the defaults are the paper's, where it says."""

    name: str = "full"
    episodes: Mapping[str, int] = field(default_factory=lambda: dict(SEC_6_1))  # of Stage II
    imitation: int = 2048  # episodes of Stage I
    main_seeds: int = 3  # of every learned row of Table 2
    seeds: int = 2  # of every other learned row: hours for a third one
    more_seeds: int = 5  # App. G.2
    samples: int = 128  # plain samples of a policy
    shots: tuple[int, ...] = (2000, 4000)  # episodes on the target of a transfer (Table 4)
    machine_shots: int = 2000  # App. J
    real: int = 2000  # executions of Stage III
    step_episodes: int = 960  # with message passing at every step: the paper's best is at 963
    sizes: tuple[int, ...] = (100, 200, 500, 1_000, 2_000, 5_000)  # vertices
    search_s: float = 10.0  # of placers that search
    draws: int = 10  # runs that a makespan is the mean of (Sec. 6.1)
    noise: float = 0.05  # sigma of execs and transfers in those runs, in the simulator
    probe_s: float = 30.0  # of a machine that is measured
    assignments: int = 100  # that the simulator is validated by
    # Of what is measured on a real machine alone.
    recipe: str = "paper"  # preset of training; `default` has batches, and no expert here
    train_s: Mapping[str, float] = field(default_factory=dict)  # instead of episodes
    real_s: float | None = None  # of Stage III at most
    measure_s: float | None = None  # of all runs of a table's column at most
    small: bool = False  # graphs of which a run takes about 50 ms
    good: int = 16  # assignments in each round of a probe


QUICK = Budgets(
    name="quick",
    episodes={"chainmm": 400, "ffnn": 400, "llama-block": 300, "llama-layer": 300},
    imitation=256,
    main_seeds=2,
    more_seeds=5,
    shots=(100, 200),
    machine_shots=200,
    real=200,
    step_episodes=32,
    sizes=(100, 200, 500, 1_000),
    search_s=3.0,
    probe_s=6.0,
    assignments=24,
)


MINUTES = replace(  # a real machine with 16 cores, in seven minutes
    QUICK,
    name="minutes",
    imitation=512,
    real=40,
    draws=4,
    recipe="default",
    train_s={"chainmm": 20.0, "ffnn": 20.0, "llama-block": 40.0, "llama-layer": 40.0},
    real_s=7.0,
    measure_s=15.0,
    search_s=8.0,
    probe_s=5.0,
    assignments=16,
    small=True,
    good=8,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is asked for: how much, and what runs assignments."""

    budgets: Budgets = field(default_factory=Budgets)
    executor: str = "sim"

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise UnknownNameError("executor", self.executor, EXECUTORS)

    @property
    def is_simulated(self) -> bool:
        """Whether assignments run in virtual time."""
        return self.executor == "sim"


def settings_of(*, quick: bool, executor: str) -> Settings:
    """The settings that the command line names.

    >>> settings_of(quick=True, executor="sim").budgets.seeds
    2
    """
    return replace(Settings(executor=executor), budgets=QUICK if quick else Budgets())
