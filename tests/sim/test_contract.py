from doppler.executor import Executor
from doppler.sim import ReferenceSimulator, SimConfig, Simulator
from doppler.testing import ExecutorContract
from doppler.topology import Topology


class TestSimulator(ExecutorContract):
    def executor(self, topology: Topology) -> Executor:
        return Simulator(topology)


class TestReferenceSimulator(ExecutorContract):
    def executor(self, topology: Topology) -> Executor:
        return ReferenceSimulator(topology)


class TestFixedOrder(ExecutorContract):
    work_conserving = False

    def executor(self, topology: Topology) -> Executor:
        return Simulator(topology, SimConfig(mode="fixed"))
