"""Registers the environment `doppler/Assign-v0` with Gymnasium, on import.

>>> import gymnasium, doppler.gym
>>> env = gymnasium.make("doppler/Assign-v0", graph=graph, topology=topology)

Gymnasium (since 1.0) knows no environment before the module that registers it is imported, and
`import doppler` alone does not load Gymnasium. Without the import of this module, a name that
says where to look does: `gymnasium.make("doppler.gym:doppler/Assign-v0", …)`.
"""

from doppler.cost import CostModel
from doppler.errors import MissingExtraError
from doppler.executor import Executor
from doppler.graph.graph import Graph
from doppler.mdp.env import AssignEnv
from doppler.resolve import as_problem
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology

try:
    from gymnasium.envs.registration import register
except ImportError:
    raise MissingExtraError("gymnasium", "the environment", extra="gym") from None

ENV_ID = "doppler/Assign-v0"


def make_env(
    graph: Graph,
    topology: Topology,
    executor: Executor | None = None,
    *,
    cost_model: CostModel | None = None,
) -> AssignEnv:
    """The environment of a graph on a topology; without an executor, makespans are simulated."""
    problem = as_problem(graph, topology, cost_model)
    return AssignEnv(problem, executor or Simulator(problem))


register(id=ENV_ID, entry_point="doppler.gym:make_env")
