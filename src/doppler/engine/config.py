"""EngineConfig: how the engine schedules, and when it gives up."""

from dataclasses import dataclass

from doppler.base.arrays import unbox_fields
from doppler.errors import ConfigError, UnknownNameError
from doppler.scheduler.choose import DYNAMIC, FIFO, FIXED, check_mode, check_strategy

GLOO, NCCL = "gloo", "nccl"
TRANSPORTS = {
    GLOO: "tensors go through the memory of the hosts, in any mode",
    NCCL: "tensors go from GPU to GPU, in fixed mode, with one GPU for each process",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine schedules, and when it gives up.

    >>> import doppler as dp
    >>> dp.EngineConfig(strategy="critical-path").synchronous
    False
    """

    strategy: str = FIFO  # ChooseTask: a name from `dop list strategies`
    mode: str = DYNAMIC  # or `fixed`: in the order of a schedule, made by `strategy` if need be
    synchronous: bool = False  # a barrier after every level
    limit_memory: bool = True  # buffers share memory where a device has too little
    timeout_s: float = 60.0  # without any task ending, before a run is given up
    depth: int = 256  # tasks under way at a time in fixed mode; a run is stopped that much later
    capture: bool = False  # untimed runs in fixed mode as one CUDA graph, on that backend
    # Results in fixed mode, where one CPU device does all: by the calling thread, without timeout.
    inline: bool = False
    # CUDA, where another core is free: ask for ends without a pause for so long, then with naps.
    spin_s: float = 2e-3
    # Between processes on GPUs: `gloo`, through the hosts' memory; `nccl`, from GPU to GPU.
    transport: str = GLOO

    def __post_init__(self) -> None:
        unbox_fields(self)
        check_strategy(self.strategy)
        check_mode(self.mode)
        if self.mode == FIXED and self.synchronous:
            raise ConfigError("a run in fixed order has no barriers: synchronous must be false")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}, must be positive")
        if self.capture and self.mode != FIXED:
            raise ConfigError("only a run in fixed order can be captured: mode must be `fixed`")
        if self.transport not in TRANSPORTS:
            raise UnknownNameError("transport", self.transport, TRANSPORTS)
        if self.transport == NCCL and self.mode != FIXED:
            raise ConfigError(
                "NCCL takes sends and receives in one order of all processes, which only a "
                "schedule gives: mode must be `fixed`",
                hint="add `--mode fixed`, or leave out the transport: gloo runs in any mode",
            )
        if self.inline and self.mode != FIXED:
            raise ConfigError("only a run in fixed order can be inline: mode must be `fixed`")
        if not self.spin_s >= 0:
            raise ConfigError(f"spin_s is {self.spin_s}, must not be negative")
        if self.depth < 1:
            raise ConfigError(f"depth is {self.depth}, must be at least 1")
