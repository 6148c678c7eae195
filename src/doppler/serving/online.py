"""OnlinePlacer: gets faster while it serves requests (Sec. 5, Stage III in production)."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from threading import RLock
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray
from doppler.engine.execution import Execution
from doppler.errors import DeadlineError, DopplerError, EngineError
from doppler.graph.graph import Graph
from doppler.placers.learned.trained import Trained, placer_of
from doppler.placers.warm_up import warm_up_search
from doppler.policies.checkpoint import load_any, save_policy
from doppler.policies.trainable import TrainablePolicy
from doppler.problem import Problem
from doppler.serving.challengers import Challengers
from doppler.serving.config import OnlineConfig
from doppler.serving.exploration import CHALLENGER, FALLBACK, Attempt, Exploration
from doppler.serving.prediction import Predictor
from doppler.serving.proposer import Proposer
from doppler.serving.state_file import read_state, write_state
from doppler.serving.status import OnlineStatus, metrics_text, status_of
from doppler.serving.watch import Watch
from doppler.sim.config import SimConfig
from doppler.topology.topology import Topology
from doppler.trace import Trace

PLACER = "online"
LOOK_EVERY = 16  # requests of the incumbent between traces that costs are taken from
TRACES = 4  # of each assignment that costs are taken from

log = logging.getLogger(__name__)


class Server(Protocol):
    """What runs requests: an Engine."""

    topology: Topology

    def check_inputs(self, graph: Graph, inputs: Mapping[str, Any] | None) -> None:
        """Raise a `DopplerError` where these are no inputs of the graph; nothing is run."""
        ...

    def execute(
        self,
        graph: Graph,
        assignment: Assignment,
        inputs: Mapping[str, Any] | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Execution:
        """The results for these inputs, and how long they took.

        A `DeadlineError` where the run has not ended after `deadline_s`.
        """
        ...


class OnlinePlacer:
    """Serves requests by the incumbent, and looks for better assignments on the way.

    A bounded share of the requests goes to challengers, proposed by heuristics, a policy's samples
    and searches on the simulator, which is recalibrated by what is measured. One becomes the
    incumbent when a race across requests says that it is faster; it is dropped when it is not, or
    fails, or takes too long, and the incumbent then serves its request. A machine that changes is
    noticed by the incumbent's own runs.

    Records of the log have the attributes `event` and, as a dict, `doppler`.

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
        alone = [np.where(graph.is_input, -1, d) for d in range(engine.topology.num_devices)]
        self._exploration = Exploration(self.config, np.array(start.devices), alone)
        self._predictor = Predictor(
            graph, engine.topology, SimConfig(), repeats=TRACES, stale=self.config.stale
        )
        self._watch = Watch(graph, engine.topology, self.config.drift)
        self._watched: deque[FloatArray] = deque(maxlen=self.config.max_runs)  # of the challenger
        self._recent: deque[tuple[int, Trace]] = deque(maxlen=TRACES)  # of the incumbent
        self._last_change: dict[str, float] = {}
        self._doubts: tuple[tuple[str, int], ...] = ()
        self._expected: dict[str, tuple[tuple[int, ...], str]] = {}  # shapes and dtypes of results
        self._lock, self._began = RLock(), 0.0
        self._observed: list[tuple[IntArray, float]] = []  # challengers, and their gains
        self._next_search = self.config.warm_up  # by requests
        self._pause, self._last_found = self.config.pause, 0
        proposer = self._load(policy)
        self._challengers = Challengers(self._exploration, self._predictor, proposer, self.config)
        warm_up_search()  # so that no request waits for a compiler
        if proposer is not None:
            proposer.propose(1, seed=0)

    @property
    def incumbent(self) -> Assignment:
        """The assignment that serves most requests."""
        return self._assignment(self._exploration.devices)

    @property
    def policy(self) -> TrainablePolicy | None:
        """The policy, with what it has learned."""
        proposer = self._challengers.proposer
        return None if proposer is None else proposer.policy

    def off(self) -> None:
        """Explore no more: from the next request on the incumbent serves all."""
        self.exploring = False

    def serve(self, inputs: Mapping[str, Any] | None = None) -> Execution:
        """The results for these inputs, and the trace of the run that made them.

        An error is that of the request, or of the last assignment that tried it.
        """
        with self._lock:
            self._check(inputs)
            attempt = self._exploration.next(exploring=self.exploring)
            while True:
                try:
                    execution = self._attempt(attempt, inputs)
                    break
                except Exception as error:
                    following = self._failed(attempt, error)
                    if following is None:
                        raise
                    attempt = following
            try:
                self._served(attempt, execution)
                self._afterwards()
            except Exception:  # requests come first
                self._event(logging.ERROR, "internal", "after a request", exc_info=True)
            return execution

    def propose(self) -> int:
        """The number of challengers found: searches if none is waiting, and trains the policy.

        That takes tens to hundreds of milliseconds for a graph of a few hundred vertices.
        """
        with self._lock:
            exploration, config, predictor = self._exploration, self.config, self._predictor
            self._learn()
            if exploration.queue:
                return 0
            try:
                predictor.recalibrate(exploration.requests)
                found = exploration.propose(self._challengers.find())
            except DopplerError as error:  # requests come first
                self._event(logging.WARNING, "no-challengers", error.message)
                found = 0
            if found:
                self._last_found = exploration.requests
            elif exploration.requests - self._last_found >= config.forget:
                self._challengers.again()  # what was heard long ago may be another thing now
                self._last_found = exploration.requests
            far_off = predictor.error is None or predictor.error > config.far_off
            self._pause = config.pause if found or far_off else self._pause * 2
            self._pause = min(self._pause, max(config.pause, config.longest_pause))
            self._next_search = exploration.requests + self._pause
            return found

    def status(self) -> OnlineStatus:
        """Counts and means so far."""
        with self._lock:
            return status_of(
                self._exploration,
                exploring=self.exploring,
                sim_error=self._predictor.error,
                last_change=dict(self._last_change),
            )

    def metrics(self) -> str:
        """The same in Prometheus' text format."""
        return metrics_text(self.status())

    def save(self) -> None:
        """Write the state, whole or not at all; the policy first."""
        if self._path is None:
            return
        with self._lock:
            if self.policy is not None:
                save_policy(self.policy, self._policy_path(), {"online": str(self._path)})
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

    def _check(self, inputs: Mapping[str, Any] | None) -> None:
        """Raise where the request is at fault, before anything runs."""
        try:
            self.engine.check_inputs(self.graph, inputs)
        except DopplerError as error:
            self._exploration.rejected()
            self._event(logging.INFO, "rejected", error.message)
            raise

    def _attempt(self, attempt: Attempt, inputs: Mapping[str, Any] | None) -> Execution:
        """What an assignment gave; an error where a challenger gave something else than asked."""
        self._began = self._clock()
        deadline_s = attempt.deadline_s if isfinite(attempt.deadline_s) else None
        assignment = self._assignment(attempt.devices)
        execution = self.engine.execute(self.graph, assignment, inputs, deadline_s=deadline_s)
        makespan_s = execution.trace.makespan_s
        if not (isfinite(makespan_s) and makespan_s >= 0):
            raise EngineError(f"a run took {makespan_s} s")
        found = {name: _kind_of(value) for name, value in execution.outputs.items()}
        if attempt.role == CHALLENGER and self._expected and found != self._expected:
            raise EngineError(f"the results are {found}, expected {self._expected}")
        self._expected = found
        return execution

    def _failed(self, attempt: Attempt, error: Exception) -> Attempt | None:
        """Who tries next."""
        late = isinstance(error, DeadlineError)
        following = self._exploration.failed(self._clock() - self._began, late=late)
        reason = error.message if isinstance(error, DopplerError) else repr(error)
        event = "late" if late else "failed"
        next_role = None if following is None else following.role
        self._event(
            logging.WARNING, event, f"{attempt.role}: {reason}", role=attempt.role, next=next_role
        )
        if attempt.role == CHALLENGER:
            self._watched.clear()
            if late:
                self._predictor.traces.unanswered(attempt.devices, self._exploration.requests)
        return following

    def _served(self, attempt: Attempt, execution: Execution) -> None:
        """Take in what a run showed."""
        exploration, incumbent = self._exploration, self._exploration.incumbent
        before, mean_s = exploration.devices, incumbent.mean_s
        promoted = incumbent.promoted
        trace, row = execution.trace, self._watch.values(execution.trace)
        if attempt.role == CHALLENGER:
            spread_s = max(incumbent.spread_s, 1e-3 * mean_s)
            self._observed.append((attempt.devices, (mean_s - trace.makespan_s) / spread_s))
            self._watched.append(row)
        if attempt.role == CHALLENGER or exploration.requests % LOOK_EVERY == 0:
            self._predictor.add(attempt.devices, trace, exploration.requests)
        exploration.ran(trace.makespan_s)
        if exploration.devices is not before:
            event = "promoted" if incumbent.promoted > promoted else "reverted"
            event = "deposed" if attempt.role == FALLBACK else event
            self._event(
                logging.INFO,
                event,
                f"another incumbent: {incumbent.mean_s:.4g} s, was {mean_s:.4g} s",
                before_s=mean_s,
                after_s=incumbent.mean_s,
            )
            self._watch.begin(list(self._watched) if event == "promoted" else [])
            self._pause, self._next_search = self.config.pause, exploration.requests
        elif attempt.role not in (CHALLENGER, FALLBACK):
            self._look_for_changes(trace, row)
        if incumbent.race is None:
            self._watched.clear()

    def _look_for_changes(self, trace: Trace, row: FloatArray) -> None:
        """See whether the machine has changed, and let all forget what it was."""
        exploration, predictor, now = self._exploration, self._predictor, self._exploration.requests
        if (change := self._watch.add(row)) is None:
            self._recent.append((now, trace))
            return
        since = now - change.runs
        self._last_change = {" ".join(key).strip(): r for key, r in change.ratios.items()}
        self._event(logging.WARNING, "changed", f"the machine: {self._last_change}", since=since)
        predictor.changed(change, since, now)
        for at, each in [*self._recent, (now, trace)]:
            if at >= since:
                predictor.traces.add(exploration.devices, each, at)
        exploration.machine_changed(change.runs)
        predictor.recalibrate(now)
        predictor.compare(exploration.devices, exploration.incumbent.mean_s)
        self._challengers.again()
        self._watched.clear()
        self._pause, self._next_search = self.config.pause, now

    def _afterwards(self) -> None:
        """What is due between two requests."""
        exploration, config = self._exploration, self.config
        if config.propose_in_serve:
            self._learn()
            if self.exploring and exploration.is_idle and exploration.requests >= self._due():
                self.propose()
        if exploration.requests % config.save_every == 0:
            try:
                self.save()
            except DopplerError as error:
                self._event(logging.WARNING, "unsaved", f"the state is not saved: {error.message}")

    def _due(self) -> int:
        """The request after which challengers are next searched for."""
        doubts = self._predictor.traces.doubts(self._exploration.requests)
        if set(doubts) - set(self._doubts):
            self._next_search = min(self._next_search, self._exploration.requests)
        self._doubts = doubts
        return self._next_search

    def _learn(self) -> None:
        """A step of the policy, if there is enough to learn from."""
        proposer = self._challengers.proposer
        if proposer is None or not 0 < self.config.learn_every <= len(self._observed):
            return
        devices = np.stack([row for row, _ in self._observed])
        gains = np.array([gain for _, gain in self._observed])
        proposer.learn(devices, gains, self._exploration.devices)
        self._observed.clear()

    def _event(
        self, level: int, event: str, text: str, *, exc_info: bool = False, **fields: Any
    ) -> None:
        """Log what happened, in words and as fields."""
        values = {"graph": self.graph.name, "request": self._exploration.requests, **fields}
        extra = {"event": event, "doppler": values}
        log.log(level, "%s: %s", event, text, extra=extra, exc_info=exc_info)

    def _assignment(self, devices: IntArray) -> Assignment:
        return Assignment(devices=devices, placer=PLACER, topology=self.engine.topology.name)

    def _policy_path(self) -> Path:
        assert self._path is not None
        return self._path.with_suffix(".safetensors")

    def _load(self, policy: TrainablePolicy | None) -> Proposer | None:
        """Resume from the file, if there is one; a policy in it replaces the one given."""
        topology = self.engine.topology
        if self._path is not None and self._path.exists():
            read_state(self._path, self.graph, topology, self._exploration)
            if policy is not None and self._policy_path().exists():
                policy = load_any(self._policy_path())
        return None if policy is None else Proposer(policy, self.graph, topology, self.config.lr)


def _kind_of(value: Any) -> tuple[tuple[int, ...], str]:
    """The shape and dtype of a result."""
    return tuple(getattr(value, "shape", ())), str(getattr(value, "dtype", ""))
