"""OnlinePlacer: gets faster while it serves requests (Sec. 5, Stage III in production)."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import RLock
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.engine.execution import Execution
from doppler.errors import DopplerError
from doppler.graph.graph import Graph
from doppler.placers.warm_up import warm_up_search
from doppler.policies.checkpoint import load_any, save_policy
from doppler.policies.trainable import TrainablePolicy
from doppler.problem import Problem
from doppler.serving.exploration import Exploration, OnlineConfig, OnlineStatus
from doppler.serving.prediction import Predictor
from doppler.serving.proposer import Proposer
from doppler.serving.state_file import read_state, write_state
from doppler.sim.config import SimConfig
from doppler.topology.topology import Topology
from doppler.training.trained import Trained, placer_of

PLACER = "online"
LOOK_EVERY = 16  # requests of the incumbent between traces that costs are taken from
MAX_TOLERANCE = 1.0  # however far off the simulator is
LONGEST_PAUSE = 64  # times the config's, between searches that found nothing

log = logging.getLogger(__name__)


class Server(Protocol):
    """What runs requests: an Engine."""

    topology: Topology

    def execute(
        self, graph: Graph, assignment: Assignment, inputs: Mapping[str, Any] | None = None
    ) -> Execution:
        """The results for these inputs, and how long they took."""
        ...


class OnlinePlacer:
    """Serves requests by the incumbent, and looks for better assignments on the way.

    A bounded share of the requests goes to challengers, proposed by a policy's samples and by
    searches on the simulator, which is recalibrated by what is measured. One becomes the incumbent
    when a race across requests says that it is faster; it is dropped when it is not, or fails.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64, dtype="float32"), parts=2)
    >>> start = dp.place(graph, "cpu2", "single")
    >>> with dp.Engine("cpu2") as engine, dp.OnlinePlacer(graph, engine, start) as online:
    ...     outputs = [online.serve().outputs for _ in range(3)]
    >>> outputs[0]["add"].shape
    (64, 64)
    """

    def __init__(
        self,
        graph: Graph,
        engine: Server,
        start: Assignment | Trained | TrainablePolicy,
        config: OnlineConfig | None = None,
        *,
        policy: TrainablePolicy | None = None,
        state: str | Path | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`start` serves at first; a policy's own best does where a policy is given.

        If the file `state` exists, resume from it. It is written every `save_every` requests and
        when the placer is closed. `clock` returns seconds.
        """
        self.graph, self.engine, self.config = graph, engine, config or OnlineConfig()
        self.exploring = True  # may be set at any moment, by any thread
        self._path = None if state is None else Path(state)
        self._clock = clock
        if isinstance(start, TrainablePolicy):
            start = placer_of(start)
        if not isinstance(start, Assignment):
            policy = policy or start.policy
            start = start.place(Problem(graph, engine.topology), seed=self.config.seed)
        start.check(graph, engine.topology)
        self._exploration = Exploration(self.config, np.array(start.devices))
        self._predictor = Predictor(graph, engine.topology, SimConfig())
        self._proposer: Proposer | None = None
        self._lock = RLock()
        self._observed: list[tuple[IntArray, float]] = []  # challengers, and their gains
        self._searches = 0
        self._next_search = self.config.warm_up  # by requests
        self._pause = self.config.pause
        self._load(policy)
        warm_up_search()  # so that no request waits for a compiler
        if self._proposer is not None:
            self._proposer.propose(1, seed=0)

    @property
    def incumbent(self) -> Assignment:
        """The assignment that serves most requests."""
        return self._assignment(self._exploration.devices)

    @property
    def policy(self) -> TrainablePolicy | None:
        """The policy, with what it has learned."""
        return None if self._proposer is None else self._proposer.policy

    def off(self) -> None:
        """Explore no more: from the next request on the incumbent serves all."""
        self.exploring = False

    def serve(self, inputs: Mapping[str, Any] | None = None) -> Execution:
        """The results for these inputs, and the trace of the run that made them."""
        with self._lock:
            execution = self._explore(inputs) if self.exploring else None
            if execution is None:
                execution = self._serve(inputs)
            self._afterwards()
            return execution

    def propose(self) -> int:
        """The number of challengers found: searches if none is waiting, and trains the policy.

        That takes tens to hundreds of milliseconds for a graph of a few hundred vertices.
        """
        with self._lock:
            exploration, config = self._exploration, self.config
            self._learn()
            self._searches += 1
            if exploration.queue:
                return 0
            try:
                self._predictor.recalibrate()
                found = exploration.propose(self._challengers())
            except DopplerError as error:  # requests come first
                log.warning("no challengers: %s", error.message)
                found = 0
            self._pause = config.pause if found else self._pause * 2
            self._pause = min(self._pause, config.pause * LONGEST_PAUSE)
            self._next_search = exploration.requests + self._pause
            return found

    def status(self) -> OnlineStatus:
        """Counts and means so far."""
        with self._lock:
            return self._exploration.status(
                exploring=self.exploring, sim_error=self._predictor.error
            )

    def save(self) -> None:
        """Write the state, whole or not at all; the policy first."""
        if self._path is None:
            return
        with self._lock:
            if self._proposer is not None:
                save_policy(self._proposer.policy, self._policy_path(), {"online": str(self._path)})
            write_state(self._path, self.graph, self.engine.topology, self._exploration)

    def close(self) -> None:
        """Write the state. The engine stays open."""
        self.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def _explore(self, inputs: Mapping[str, Any] | None) -> Execution | None:
        """What a challenger gave, if it is one's turn and it did not fail."""
        exploration, incumbent = self._exploration, self._exploration.incumbent
        devices = exploration.next_challenger()
        if devices is None:
            return None
        began = self._clock()
        try:
            execution = self._execute(devices, inputs)
        except DopplerError as error:
            log.warning("a challenger failed, and is dropped: %s", error.message)
            exploration.failed(self._clock() - began)
            return None
        makespan_s = execution.trace.makespan_s
        mean_s, promoted = incumbent.mean_s, incumbent.promoted
        spread_s = max(incumbent.spread_s, 1e-3 * mean_s)
        self._observed.append((devices, (mean_s - makespan_s) / spread_s))
        exploration.tried(makespan_s)
        self._predictor.add(devices, execution.trace)
        if incumbent.promoted > promoted:
            log.info("a faster assignment: %.4g s, was %.4g s", incumbent.mean_s, mean_s)
        return execution

    def _serve(self, inputs: Mapping[str, Any] | None) -> Execution:
        """What the incumbent gives; where it fails, the one that served at first."""
        exploration = self._exploration
        try:
            execution = self._execute(exploration.devices, inputs)
        except DopplerError as error:
            if not exploration.fall_back():
                raise
            log.warning("the incumbent failed, the first one serves: %s", error.message)
            execution = self._execute(exploration.devices, inputs)
        if exploration.requests % LOOK_EVERY == 0:
            self._predictor.add(exploration.devices, execution.trace)
        exploration.served(execution.trace.makespan_s)
        return execution

    def _afterwards(self) -> None:
        """What is due between two requests."""
        exploration, config = self._exploration, self.config
        if config.propose_in_serve:
            self._learn()
            due = exploration.is_idle and exploration.requests >= self._next_search
            if self.exploring and due:
                self.propose()
        if exploration.requests % config.save_every == 0:
            try:
                self.save()
            except DopplerError as error:
                log.warning("the state is not saved: %s", error.message)

    def _learn(self) -> None:
        """A step of the policy, if there is enough to learn from."""
        if self._proposer is None or not 0 < self.config.learn_every <= len(self._observed):
            return
        devices = np.stack([row for row, _ in self._observed])
        gains = np.array([gain for _, gain in self._observed])
        self._proposer.learn(devices, gains, self._exploration.devices)
        self._observed.clear()

    def _challengers(self) -> list[IntArray]:
        """(V,) assignments that are predicted to be about as good as the incumbent, or better.

        What a heuristic makes of the costs is the second of them, if it is one: where the simulator
        is wrong it may be better than what a search there finds.
        """
        exploration, config, predictor = self._exploration, self.config, self._predictor
        raw = predictor.heuristic(self._searches)
        starts = np.stack([row for row in (exploration.devices, raw) if row is not None])
        seed = config.seed + self._searches
        found = [predictor.improve(starts, config.moves, seed=seed)[0], starts[1:]]
        if self._proposer is not None and config.samples:
            self._proposer.see(predictor.calibrated)
            found.append(self._proposer.propose(config.samples, seed))
        rows = np.concatenate(found)
        costs = predictor.costs_s(rows)
        tolerance = max(config.tolerance, min(predictor.error or 0.0, MAX_TOLERANCE))
        limit_s = predictor.cost_s(exploration.devices) * (1.0 + tolerance)
        ranked = [int(i) for i in np.argsort(costs, kind="stable") if costs[i] <= limit_s]
        heuristic = len(starts)  # its row, after what searches found
        if raw is not None and heuristic in ranked[2:]:
            ranked.remove(heuristic)
            ranked.insert(1, heuristic)
        return [rows[i] for i in ranked]

    def _execute(self, devices: IntArray, inputs: Mapping[str, Any] | None) -> Execution:
        return self.engine.execute(self.graph, self._assignment(devices), inputs)

    def _assignment(self, devices: IntArray) -> Assignment:
        return Assignment(devices=devices, placer=PLACER, topology=self.engine.topology.name)

    def _policy_path(self) -> Path:
        assert self._path is not None
        return self._path.with_suffix(".safetensors")

    def _load(self, policy: TrainablePolicy | None) -> None:
        """Resume from the file, if there is one; a policy in it replaces the one given."""
        topology = self.engine.topology
        if self._path is not None and self._path.exists():
            read_state(self._path, self.graph, topology, self._exploration)
            if policy is not None and self._policy_path().exists():
                policy = load_any(self._policy_path())
        if policy is not None:
            self._proposer = Proposer(policy, self.graph, topology, self.config.lr)
