"""Suites for placers and executors from anywhere, and a server in virtual time."""

from doppler.testing.executors import ExecutorContract, check_trace
from doppler.testing.placers import PlacerContract
from doppler.testing.servers import VirtualServer

__all__ = ["ExecutorContract", "PlacerContract", "VirtualServer", "check_trace"]
