"""Noise: the distribution P of Alg. 1: how far real durations stray from the modelled ones."""

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from doppler.base.arrays import LARGEST, RANGE, SMALLEST, FloatArray, unbox_fields
from doppler.errors import ConfigError
from doppler.problem import Problem
from doppler.scheduler.list_scheduling import task_seconds
from doppler.tasks import Tasks


@dataclass(frozen=True, slots=True)
class Noise:
    """Random factors on durations, all with mean 1 and drawn from one seed.

    Each exec and each transfer gets its own log-normal factor; every device one more, for the
    whole run, on its execs. `slowdown` is a fixed factor per device, such as a known straggler.

    >>> import doppler as dp
    >>> dp.Noise(exec_sigma=0.1).is_random
    True
    """

    exec_sigma: float = 0.0  # standard deviation of the log of an exec's factor
    transfer_sigma: float = 0.0
    device_sigma: float = 0.0
    slowdown: tuple[float, ...] = ()  # one factor per device, or empty

    def __post_init__(self) -> None:
        unbox_fields(self)
        for name in ("exec_sigma", "transfer_sigma", "device_sigma"):
            value = getattr(self, name)
            if not (isfinite(value) and 0 <= value <= 10):
                raise ConfigError(f"noise.{name} is {value}, must be between 0 and 10")
        for value in self.slowdown:
            if not SMALLEST <= value <= LARGEST:
                wanted = RANGE if 0 < value < inf else "> 0"
                raise ConfigError(f"noise.slowdown has {value}, must be {wanted}")

    @property
    def is_random(self) -> bool:
        """Whether the seed matters."""
        return self.exec_sigma > 0 or self.transfer_sigma > 0 or self.device_sigma > 0


@dataclass(frozen=True, slots=True)
class NoiseDraw:
    """One draw of the noise: exec seconds with it, and factors for the transfers."""

    exec_s: FloatArray  # (V, D)
    transfer_factor: FloatArray  # (T, D) by tensor and device, or (0, 0) where all are 1

    def task_seconds(self, problem: Problem, tasks: Tasks) -> FloatArray:
        """(V + K,) seconds of each task; 0 for inputs."""
        seconds = task_seconds(problem, tasks, self.exec_s)
        if self.transfer_factor.size:
            to_host = tasks.target == self.transfer_factor.shape[1]
            device = np.where(to_host, tasks.source, tasks.target)
            seconds[tasks.num_vertices :] *= self.transfer_factor[tasks.tensor, device]
        return seconds


def draw(noise: Noise, problem: Problem, seed: int) -> NoiseDraw:
    """Durations for one run."""
    graph, topology, size = problem.graph, problem.topology, problem.topology.num_devices
    if noise.slowdown and len(noise.slowdown) != size:
        raise ConfigError(
            f"noise.slowdown has {len(noise.slowdown)} factors, "
            f"topology `{topology.name}` has {size} devices"
        )
    exec_s, factor = problem.costs.exec_s, np.zeros((0, 0))
    if noise.slowdown:
        exec_s = exec_s * np.array(noise.slowdown)
    rng = np.random.default_rng([seed, 0])
    if noise.device_sigma > 0:
        exec_s = exec_s * _lognormal(rng, noise.device_sigma, (size,))
    if noise.exec_sigma > 0:
        exec_s = exec_s * _lognormal(rng, noise.exec_sigma, (graph.num_vertices, 1))
    if noise.transfer_sigma > 0:
        factor = _lognormal(rng, noise.transfer_sigma, (graph.num_tensors, size))
    return NoiseDraw(exec_s, factor)


def _lognormal(rng: np.random.Generator, sigma: float, shape: tuple[int, ...]) -> FloatArray:
    return rng.lognormal(-0.5 * sigma * sigma, sigma, shape)
