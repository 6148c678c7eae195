"""SimConfig: how the simulated runtime schedules and how its durations vary."""

from dataclasses import dataclass, field

from doppler.base.arrays import unbox_fields
from doppler.errors import ConfigError
from doppler.scheduler.choose import DYNAMIC, FIFO, FIXED, check_mode, check_strategy
from doppler.sim.noise import Noise


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """Options of a simulation; the defaults are those of the paper's runtime.

    >>> import doppler as dp
    >>> dp.SimConfig(strategy="critical-path").limit_memory
    True
    """

    strategy: str = FIFO  # ChooseTask: a name from `dop list strategies`
    noise: Noise = field(default_factory=Noise)
    synchronous: bool = False  # a barrier after every level
    limit_memory: bool = True  # tasks wait for device memory
    mode: str = DYNAMIC  # or "fixed": all tasks are started ahead, in the order of a schedule

    def __post_init__(self) -> None:
        unbox_fields(self)
        check_strategy(self.strategy)
        check_mode(self.mode)
        if self.mode == FIXED and self.synchronous:
            raise ConfigError(
                "mode `fixed` has no barriers: `synchronous` must be false",
                hint="simulate barriers in mode `dynamic`",
            )
