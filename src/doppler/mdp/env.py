"""AssignEnv: the decision process of Sec. 4.1 for any library that speaks Gymnasium."""

from typing import Any

import numpy as np

from doppler.assignment import Assignment
from doppler.errors import GraphError, MissingExtraError, OutOfMemoryError
from doppler.executor import Executor
from doppler.mdp.episode import Episode
from doppler.mdp.features import NUM_FEATURES
from doppler.mdp.instance import VERTEX_FEATURES, make_instance
from doppler.problem import Problem

try:
    import gymnasium
    from gymnasium import spaces
except ImportError:
    raise MissingExtraError("gymnasium", "the environment", extra="gym") from None

LARGE = float(np.finfo(np.float32).max)  # the checker asks for finite bounds
INVALID_REWARD = -1.0  # about what all the rest of a good episode costs


class AssignEnv(gymnasium.Env[dict[str, Any], Any]):
    """A graph to be assigned to a topology, one vertex per step.

    The n assigned vertices count in their order, D devices likewise. An observation has

    - `vertex_features`: (n, 5) float32, the columns of `VERTEX_FEATURES`
    - `edges`: (2, m) int64, the producer and the reader of each edge
    - `edge_features`: (m, 1) float32, mean transfer seconds over the instance's scale
    - `candidates`: (n,) int8, 1 for vertices that can be placed now
    - `devices`: (n,) int64, of the vertices that are placed, else -1
    - `device_features`: (n, D, 30) float32, the columns of `DEVICE_FEATURES` for every candidate
      as it would find each device, else 0

    The first three never change. An action is (vertex, device), and `info["action_mask"]` its
    mask: `env.action_space.sample(info["action_mask"])` is a valid one.

    The reward is 0 until all vertices are placed, which ends the episode. Then it is minus the
    makespan over the mean work per device (the scale of all features): -1 is perfectly parallel,
    -D about one device doing everything. If memory never suffices it is -2 D, and
    `info["makespan_s"]`, there at the end only, is infinite.

    An action whose vertex is no candidate changes nothing and is rewarded with -1; the episode
    goes on, so an agent without the mask wants a limit: `gymnasium.make(…, max_episode_steps=)`.
    One outside of the action space raises `gymnasium.error.InvalidAction`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012, as Gymnasium has it

    def __init__(self, problem: Problem, executor: Executor) -> None:
        self.instance = make_instance(problem)
        self.executor = executor
        n, d = self.instance.num_vertices, self.instance.num_devices
        m = self.instance.edges.shape[1]
        if n == 0:
            raise GraphError(
                f"graph `{problem.graph.name}` has no vertices to place: all are inputs"
            )
        self.observation_space = spaces.Dict(
            {
                "vertex_features": _not_negative(n, len(VERTEX_FEATURES)),
                "edges": spaces.Box(0, n - 1, (2, m), np.int64),
                "edge_features": _not_negative(m, 1),
                "candidates": spaces.MultiBinary(n),
                "devices": spaces.Box(-1, d - 1, (n,), np.int64),
                "device_features": _not_negative(n, d, NUM_FEATURES),
            }
        )
        self.action_space = spaces.MultiDiscrete([n, d])
        self.episode = Episode(self.instance)
        self._seed = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The first observation and info of a new episode; `options` has none to offer.

        The seed matters to executors whose makespans vary.
        """
        super().reset(seed=seed)
        self._seed = int(self.np_random.integers(2**31))
        self.episode = Episode(self.instance)
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """(observation, reward, terminated, truncated, info) after placing a vertex."""
        vertex, device = self._checked(action)
        if self.episode.done:
            raise gymnasium.error.ResetNeeded("all vertices are placed: call reset() first")
        if vertex not in self.episode.candidates:
            return self._observe(), INVALID_REWARD, False, False, self._info()
        self.episode.place(vertex, device)
        if not self.episode.done:
            return self._observe(), 0.0, False, False, self._info()
        makespan_s = self._makespan_s()
        info = self._info() | {"makespan_s": makespan_s}
        return self._observe(), self._reward(makespan_s), True, False, info

    def assignment(self) -> Assignment:
        """The assignment of the episode that has ended."""
        return self.instance.assignment(self.episode.devices, np.array(self.episode.order), "env")

    def _checked(self, action: Any) -> tuple[int, int]:
        values = np.asarray(action)
        if values.dtype.kind not in "iu" or not self.action_space.contains(values.astype(np.int64)):
            n, d = self.instance.num_vertices, self.instance.num_devices
            raise gymnasium.error.InvalidAction(
                f"action {action!r} is not (vertex, device) with vertex < {n}, device < {d}"
            )
        return int(values[0]), int(values[1])

    def _makespan_s(self) -> float:
        try:
            trace = self.executor.run(self.instance.graph, self.assignment(), self._seed)
        except OutOfMemoryError:
            return float("inf")
        return trace.makespan_s

    def _reward(self, makespan_s: float) -> float:
        worst = 2.0 * self.instance.num_devices
        return -makespan_s / self.instance.tables.scale_s if makespan_s < np.inf else -worst

    def _candidates(self) -> np.ndarray[Any, np.dtype[np.int8]]:
        mask = np.zeros(self.instance.num_vertices, np.int8)
        mask[self.episode.candidates] = 1
        return mask

    def _observe(self) -> dict[str, Any]:
        """The observation; all arrays are new, for agents that keep them."""
        instance, episode = self.instance, self.episode
        shape = (instance.num_vertices, instance.num_devices, NUM_FEATURES)
        device_features = np.zeros(shape, np.float32)
        for vertex in episode.candidates:
            device_features[vertex] = episode.device_features(vertex)
        return {
            "vertex_features": instance.vertex_features.copy(),
            "edges": instance.edges.copy(),
            "edge_features": instance.edge_features.copy(),
            "candidates": self._candidates(),
            "devices": episode.devices.copy(),
            "device_features": device_features,
        }

    def _info(self) -> dict[str, Any]:
        every_device = np.ones(self.instance.num_devices, np.int8)
        return {"action_mask": (self._candidates(), every_device)}


def _not_negative(*shape: int) -> spaces.Box:
    return spaces.Box(0.0, LARGE, shape, np.float32)
