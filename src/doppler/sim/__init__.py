"""The work-conserving simulator: readable, compiled, and the configuration of both."""

from doppler.sim.config import SimConfig
from doppler.sim.noise import Noise
from doppler.sim.reference import ReferenceSimulator
from doppler.sim.simulator import Simulator, simulate

__all__ = ["Noise", "ReferenceSimulator", "SimConfig", "Simulator", "simulate"]
