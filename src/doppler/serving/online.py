"""OnlinePlacer: gets faster while it serves requests (Sec. 5, Stage III in production)."""

import logging
from collections.abc import Mapping
from pathlib import Path
from threading import RLock
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.engine.engine import Execution
from doppler.errors import DopplerError
from doppler.graph.graph import Graph
from doppler.placers.learned.doppler import DopplerPlacer
from doppler.placers.warm_up import warm_up_search
from doppler.policies.checkpoint import load_policy, save_policy
from doppler.policies.dual import DualPolicy
from doppler.serving.prediction import Predictor
from doppler.serving.rotation import OnlineConfig, OnlineStatus, Rotation
from doppler.serving.state import read_state, write_state
from doppler.serving.student import Student
from doppler.sim.config import SimConfig
from doppler.topology.topology import Topology

PLACER = "online"
LOOK_EVERY = 16  # requests of the incumbent between traces that costs are taken from
MOST_TOLERANT = 1.0  # however far off the simulator is
LONGEST_PAUSE = 64  # times the config's, between thoughts that nothing came of

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

    A bounded share of the requests goes to candidates, proposed by a policy's samples and by
    searches on the simulator, which is recalibrated by what is measured. One becomes the incumbent
    when a race across requests says that it is faster; it is dropped when it is not, or fails.

    >>> with Engine(topology, "cuda") as engine, OnlinePlacer(graph, engine, placer) as online:
    ...     for inputs in requests:
    ...         outputs = online.serve(inputs).outputs
    """

    def __init__(
        self,
        graph: Graph,
        engine: Server,
        start: Assignment | DopplerPlacer | DualPolicy,
        config: OnlineConfig | None = None,
        *,
        policy: DualPolicy | None = None,
        state: str | Path | None = None,
    ) -> None:
        """`start` serves at first; a policy's own best does where a policy is given.

        Where there is a file `state`, all goes on as it says; it is written now and then, and when
        the placer is closed.
        """
        self.graph, self.engine, self.config = graph, engine, config or OnlineConfig()
        self.exploring = True  # may be set at any moment, by any thread
        self._path = None if state is None else Path(state)
        if isinstance(start, DualPolicy):
            start = DopplerPlacer(start)
        if isinstance(start, DopplerPlacer):
            policy = policy or start.policy
            start = start.place(graph, engine.topology, seed=self.config.seed)
        start.check(graph, engine.topology)
        self._rotation = Rotation(self.config, np.array(start.devices))
        self._predictor = Predictor(graph, engine.topology, SimConfig())
        self._student: Student | None = None
        self._lock = RLock()
        self._observed: list[tuple[IntArray, float]] = []  # candidates, and their gains
        self._thoughts = 0
        self._next_thought = self.config.warm_up  # by requests
        self._pause = self.config.pause
        self._load(policy)
        warm_up_search()  # so that no request waits for a compiler
        if self._student is not None:
            self._student.propose(1, seed=0)

    @property
    def incumbent(self) -> Assignment:
        """The assignment that serves most requests."""
        return self._assignment(self._rotation.incumbent)

    @property
    def policy(self) -> DualPolicy | None:
        """The policy, with what it has learned."""
        return None if self._student is None else self._student.policy

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

    def think(self) -> int:
        """Look for candidates where none waits, and let the policy learn; how many were found.

        Takes a moment: tens of milliseconds for a graph of a few hundred vertices.
        """
        with self._lock:
            rotation, config = self._rotation, self.config
            self._learn()
            self._thoughts += 1
            if rotation.queue:
                return 0
            try:
                self._predictor.recalibrate()
                found = rotation.propose(self._candidates())
            except DopplerError as error:  # requests come first
                log.warning("no candidates: %s", error.message)
                found = 0
            self._pause = config.pause if found else self._pause * 2
            self._pause = min(self._pause, config.pause * LONGEST_PAUSE)
            self._next_thought = rotation.requests + self._pause
            return found

    def status(self) -> OnlineStatus:
        """Counts and means so far."""
        with self._lock:
            rotation = self._rotation
            race = rotation.race
            return OnlineStatus(
                exploring=self.exploring,
                requests=rotation.requests,
                explored=rotation.explored,
                failures=rotation.failures,
                promoted=rotation.promoted,
                dropped=rotation.dropped,
                incumbent_s=rotation.incumbent_s,
                spread_s=rotation.spread_s,
                gain=rotation.gain,
                extra=rotation.extra_s / rotation.served_s if rotation.served_s else 0.0,
                candidate_s=float(np.mean(race.challenger_s))
                if race is not None and race.challenger_s
                else None,
                waiting=len(rotation.queue),
                sim_error=self._predictor.error,
            )

    def save(self) -> None:
        """Write the state, whole or not at all; the policy first."""
        if self._path is None:
            return
        with self._lock:
            if self._student is not None:
                save_policy(self._student.policy, self._policy_path(), {"online": str(self._path)})
            write_state(self._path, self.graph, self.engine.topology, self._rotation)

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
        """What a candidate gave, if it is one's turn and it did not fail."""
        rotation = self._rotation
        devices = rotation.next_candidate()
        if devices is None:
            return None
        began = perf_counter()
        try:
            execution = self._execute(devices, inputs)
        except DopplerError as error:
            log.warning("a candidate failed, and is dropped: %s", error.message)
            rotation.failed(perf_counter() - began)
            return None
        makespan_s = execution.trace.makespan_s
        mean_s, spread_s = rotation.incumbent_s, max(rotation.spread_s, 1e-3 * rotation.incumbent_s)
        self._observed.append((devices, (mean_s - makespan_s) / spread_s))
        promoted = rotation.promoted
        rotation.tried(makespan_s)
        self._predictor.add(devices, execution.trace)
        if rotation.promoted > promoted:
            log.info("a faster assignment: %.4g s, was %.4g s", rotation.incumbent_s, mean_s)
        return execution

    def _serve(self, inputs: Mapping[str, Any] | None) -> Execution:
        """What the incumbent gives; where it fails, the one that served at first."""
        rotation = self._rotation
        try:
            execution = self._execute(rotation.incumbent, inputs)
        except DopplerError as error:
            if not rotation.fall_back():
                raise
            log.warning("the incumbent failed, the first one serves: %s", error.message)
            execution = self._execute(rotation.incumbent, inputs)
        if rotation.requests % LOOK_EVERY == 0:
            self._predictor.add(rotation.incumbent, execution.trace)
        rotation.served(execution.trace.makespan_s)
        return execution

    def _afterwards(self) -> None:
        """What is due between two requests."""
        rotation, config = self._rotation, self.config
        if config.think:
            self._learn()
            idle = rotation.race is None and not rotation.queue
            if self.exploring and idle and rotation.requests >= self._next_thought:
                self.think()
        if rotation.requests % config.save_every == 0:
            try:
                self.save()
            except DopplerError as error:
                log.warning("the state is not saved: %s", error.message)

    def _learn(self) -> None:
        """A step of the policy, if there is enough to learn from."""
        if self._student is None or not 0 < self.config.learn_every <= len(self._observed):
            return
        devices = np.stack([row for row, _ in self._observed])
        gains = np.array([gain for _, gain in self._observed])
        self._student.learn(devices, gains, self._rotation.incumbent)
        self._observed.clear()

    def _candidates(self) -> list[IntArray]:
        """(V,) assignments that are predicted to be about as good as the incumbent, or better.

        What a heuristic makes of the costs is the second of them, if it is one: where the simulator
        is wrong it may be better than what a search there finds.
        """
        rotation, config, predictor = self._rotation, self.config, self._predictor
        raw = predictor.heuristic(self._thoughts)
        starts = np.stack([row for row in (rotation.incumbent, raw) if row is not None])
        seed = config.seed + self._thoughts
        found = [predictor.improve(starts, config.moves, seed=seed)[0], starts[1:]]
        if self._student is not None and config.samples:
            self._student.see(predictor.calibrated)
            found.append(self._student.propose(config.samples, seed))
        rows = np.concatenate(found)
        costs = predictor.costs_s(rows)
        tolerance = max(config.tolerance, min(predictor.error or 0.0, MOST_TOLERANT))
        limit_s = predictor.cost_s(rotation.incumbent) * (1.0 + tolerance)
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

    def _load(self, policy: DualPolicy | None) -> None:
        """Go on as the file says, if there is one; a policy in it replaces the one given."""
        topology = self.engine.topology
        if self._path is not None and self._path.exists():
            read_state(self._path, self.graph, topology, self._rotation)
            if policy is not None and self._policy_path().exists():
                policy = load_policy(self._policy_path())
        if policy is not None:
            self._student = Student(policy, self.graph, topology, self.config.lr)
