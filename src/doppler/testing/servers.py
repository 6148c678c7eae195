"""VirtualServer: a machine in virtual time that changes, fails and hangs as it is told."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.engine.execution import Execution
from doppler.errors import DeadlineError, EngineError, GraphError
from doppler.graph.graph import Graph
from doppler.sim.config import SimConfig
from doppler.sim.noise import Noise
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology

HANG = "hang"
TIMEOUT_S = 60.0  # after which a run without a deadline is given up, as an engine does

Fault = Exception | str | None  # what goes wrong in a run: an error, a hang, or nothing


class VirtualServer:
    """Serves requests of an `OnlinePlacer` by simulating them: minutes of load in a second.

    A request is valid unless its inputs have the key `bad`. `fault` says what goes wrong in a run
    of (V,) devices; `truth` is the machine as it is, and may be replaced between requests.

    >>> import doppler as dp
    >>> from doppler.testing import VirtualServer
    >>> graph = dp.shard(dp.programs.chainmm(size=64), parts=2)
    >>> server = VirtualServer("p100x4")
    >>> server.execute(graph, dp.place(graph, "p100x4", "heft")).mean_s == server.clock()
    True
    """

    def __init__(
        self,
        topology: Topology | str,
        noise: Noise | None = None,
        *,
        fault: Callable[[IntArray], Fault] = lambda devices: None,
        seed: int = 0,
    ) -> None:
        self.topology = Topology.preset(topology) if isinstance(topology, str) else topology
        self.fault, self._config = fault, SimConfig(noise=noise or Noise())
        self._seed = seed * 1_000_003
        self._simulators: dict[int, tuple[Topology, Simulator]] = {}  # by identity
        self.truth = self.topology
        self.now_s, self.runs = 0.0, 0

    def clock(self) -> float:
        """Virtual seconds since the server was made."""
        return self.now_s

    def check_inputs(self, graph: Graph, inputs: Mapping[str, Any] | None) -> None:
        """Raise where a request is no valid one."""
        if inputs is not None and "bad" in inputs:
            raise GraphError("input `x` is float32 (3,), expected float32 (4,)")

    def execute(
        self,
        graph: Graph,
        assignment: Assignment,
        inputs: Mapping[str, Any] | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Execution:
        """What a run on the machine as it is gives; its result is the sum of the request."""
        self.runs += 1
        fault = self.fault(assignment.devices)
        if isinstance(fault, Exception):
            raise fault
        limit_s = TIMEOUT_S if deadline_s is None else deadline_s
        trace = self._simulator().run(graph, assignment, self._seed + self.runs)
        if fault == HANG or trace.makespan_s > limit_s:
            self.now_s += limit_s
            error = EngineError if deadline_s is None else DeadlineError
            raise error(f"the run did not end within {limit_s:g} s")
        self.now_s += trace.makespan_s
        peak = np.zeros(self.topology.num_devices, np.int64)
        return Execution(trace, np.array([trace.makespan_s]), peak, {"sum": np.float64(0.0)})

    def _simulator(self) -> Simulator:
        key = id(self.truth)
        if key not in self._simulators:
            self._simulators[key] = self.truth, Simulator(self.truth, self._config)
        return self._simulators[key][1]
