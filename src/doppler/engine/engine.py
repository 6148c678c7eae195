"""Engine: an Executor that runs assignments on real devices (Alg. 1 in real time)."""

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, RLock
from types import TracebackType
from typing import Any, Self

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, IntArray, frozen
from doppler.base.collection import no_collection
from doppler.base.progress import track
from doppler.engine.backends.base import Backend
from doppler.engine.backends.registry import make_backend
from doppler.engine.config import EngineConfig
from doppler.engine.execution import Execution
from doppler.engine.loaded import Loaded
from doppler.engine.loops import DynamicLoop, FixedLoop, InlineLoop, Loop, Times
from doppler.engine.prepared import Preparation, Prepared
from doppler.errors import ConfigError, DeadlineError, OutOfMemoryError
from doppler.graph.graph import Graph
from doppler.problem import Problem
from doppler.resolve import as_assignment, as_graph, as_topology
from doppler.scheduler.choose import FIXED, RANDOM, priorities
from doppler.sharding.evaluate import input_blocks
from doppler.topology.topology import Topology
from doppler.trace import Trace, build_trace

HASTY_S = 0.05  # that running kernels have to end after Ctrl-C or a deadline
MAX_PREPARED = 16  # assignments that are kept prepared: tables and views, no memory of their own


class Engine:
    """Runs graphs with kernels on the devices of a topology; an Executor.

    A graph's inputs stay loaded until another graph comes; what an assignment needs is prepared
    once, and kept for the next run of it. Threads may share an engine: they wait for one another.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64, dtype="float32"), parts=2)
    >>> with dp.Engine("cpu2", "cpu") as engine:
    ...     trace = engine.run(graph, dp.place(graph, "cpu2", "heft"))
    >>> trace.makespan_s > 0
    True
    """

    _prepares_with = Preparation

    def __init__(
        self,
        topology: Topology | str | Path,
        backend: str | Backend = "cpu",
        config: EngineConfig | None = None,
    ) -> None:
        """`topology` is one, or the name of a preset, or the path of a file."""
        self.topology = as_topology(topology)
        self.config = config or EngineConfig()
        self.backend: Backend = (
            make_backend(backend, self.topology) if isinstance(backend, str) else backend
        )
        self.backend.spin_s = self.config.spin_s
        self._problem: Problem | None = None
        self._loaded: Loaded | None = None
        self._prepared: OrderedDict[Any, Prepared] = OrderedDict()  # the last used at the end
        self._arena_bytes = [0] * self.topology.num_devices  # memory that prepared tasks share
        self._generation = 0
        self._ready: Prepared | None = None  # whose inputs are in place
        self._cancelled = Event()
        self._lock = RLock()  # one run at a time, whichever threads ask for them
        self._resources = self.topology  # whose slots and lanes tasks take

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back devices, threads and memory, after the run under way."""
        with self._lock:
            self._forget()
            self.backend.close()

    def cancel(self) -> None:
        """Make the run under way stop with an error; from any thread."""
        self._cancelled.set()
        self.backend.wake()

    def load(self, graph: Graph, inputs: Mapping[str, Any] | None = None) -> None:
        """Take a graph, and these inputs for it, or random ones."""
        with self._lock:
            if self._problem is None or self._problem.graph is not graph:
                self._forget()  # its memory first
                loaded = Loaded(graph, self.backend, inputs) if self.backend.computes else None
                self._problem, self._loaded = Problem(graph, self.topology), loaded
            elif self._loaded is not None:
                self._ready = None
                self._loaded.set_inputs(inputs)

    def check_inputs(self, graph: Graph, inputs: Mapping[str, Any] | None) -> None:
        """Raise a `DopplerError` where these are no inputs of the graph; nothing is run."""
        if inputs is not None and self.backend.computes:
            input_blocks(graph, inputs)

    def run(self, graph: Graph, assignment: Assignment, seed: int = 0) -> Trace:
        """Every begin and end of every exec and transfer, measured; inputs are those loaded.

        `seed` is for the strategy `random`.
        """
        with self._lock:
            self._cancelled.clear()
            return self._run(graph, assignment, seed)[0]

    def execute(
        self,
        graph: Graph,
        assignment: Assignment,
        inputs: Mapping[str, Any] | None = None,
        *,
        repeats: int = 1,
        warm_up: int = 0,
        seed: int = 0,
        deadline_s: float | None = None,
    ) -> Execution:
        """The results for these inputs, or for random ones, and how long they took.

        Runs `warm_up` times unmeasured, then `repeats` times. A `DeadlineError` where one of these
        runs has not ended after `deadline_s`.
        """
        if repeats < 1 or warm_up < 0:
            raise ConfigError("repeats must be at least 1, and warm_up not negative")
        with self._lock:
            self._cancelled.clear()
            self.load(graph, inputs)
            runs = []
            for n in track(range(warm_up + repeats), "running"):
                keep = n == warm_up + repeats - 1
                run = self._run(graph, assignment, seed, keep=keep, deadline_s=deadline_s)
                if n >= warm_up:
                    runs.append(run)
            peak = self.peak_bytes(graph, assignment, seed)
        makespans = np.array([trace.makespan_s for trace, _ in runs])
        median = int(np.argsort(makespans, kind="stable")[len(runs) // 2])
        return Execution(runs[median][0], makespans, peak, runs[-1][1])

    def peak_bytes(self, graph: Graph, assignment: Assignment, seed: int = 0) -> IntArray:
        """(D,) bytes of each device's memory that a run takes: tensors, inputs and temporaries.

        With a memory plan these are the bytes that it was made for. Without one, tensors have
        places of their own where memory allows; what pieces return is gone after its last use, so
        with them it is a bound.
        """
        with self._lock:
            if self._problem is None or self._problem.graph is not graph:
                self.load(graph)
            return frozen(np.array(self._prepare(assignment, seed).used_bytes, np.int64))

    def compute(
        self,
        graph: Graph,
        assignment: Assignment,
        inputs: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
    ) -> dict[str, Any]:
        """The results for these inputs, or for random ones; nothing is recorded of the run."""
        with self._lock:
            self._cancelled.clear()
            self.load(graph, inputs)
            prepared, loop = self._loop(graph, assignment, seed, inline=self.config.inline)
            self._drive(prepared, loop, timed=False)
            return self._results(prepared)

    def makespans(
        self,
        graph: Graph,
        assignment: Assignment,
        *,
        repeats: int = 1,
        warm_up: int = 0,
        seed: int = 0,
    ) -> FloatArray:
        """(R,) seconds of `repeats` runs after `warm_up` others, without a trace of any.

        By the clock of the host; nothing is recorded during a run but its end.
        """
        if repeats < 1 or warm_up < 0:
            raise ConfigError("repeats must be at least 1, and warm_up not negative")
        seconds = []
        with self._lock:
            self._cancelled.clear()
            for n in range(warm_up + repeats):
                self._drive(*self._loop(graph, assignment, seed), timed=False)
                if n >= warm_up:
                    seconds.append(self._run_s())
        return np.array(seconds)

    def _run(
        self,
        graph: Graph,
        assignment: Assignment,
        seed: int,
        *,
        keep: bool = False,
        deadline_s: float | None = None,
    ) -> tuple[Trace, dict[str, Any]]:
        prepared, loop = self._loop(graph, assignment, seed, deadline_s)
        self._drive(prepared, loop)
        outputs = self._results(prepared) if keep else {}
        trace = build_trace(
            graph,
            self.topology,
            prepared.tasks,
            self._times(prepared, loop),
            placer=assignment.placer,
            plan=assignment.memory,
        )
        return trace, outputs

    def _results(self, prepared: Prepared) -> dict[str, Any]:
        return prepared.results(self.backend)

    def _times(self, prepared: Prepared, loop: Loop) -> Times:
        return loop.times()

    def _run_s(self) -> float:
        """How long the run took that has just ended."""
        return self.backend.now_s()

    def _drive(self, prepared: Prepared, loop: Loop, *, timed: bool = True) -> None:
        try:
            self.backend.get_ready(prepared.commands, timed=timed)
            self._put_in_place(prepared)
            with no_collection():
                loop.run(timed=timed)
            self.backend.end()
        except BaseException as error:
            known = self._give_up(error)
            at_once = isinstance(error, DeadlineError) or not isinstance(error, Exception)
            self.backend.stop(HASTY_S if at_once else None)
            if known is not error:
                raise known from error
            raise

    def _give_up(self, error: BaseException) -> BaseException:
        """Tell whoever else takes part in the run that it failed; the error, as far as known."""
        return error

    def _loop(
        self,
        graph: Graph,
        assignment: Assignment,
        seed: int,
        deadline_s: float | None = None,
        *,
        inline: bool = False,
    ) -> tuple[Prepared, Loop]:
        """A run that is about to begin; `inline` where that can be."""
        if self._problem is None or self._problem.graph is not graph:
            self.load(graph)
        assert self._problem is not None
        prepared, config = self._prepare(assignment, seed), self.config
        limits: Any = {
            "timeout_s": config.timeout_s,
            "deadline_s": deadline_s,
            "is_cancelled": self._cancelled.is_set,
        }
        if inline and (by_hand := self.backend.inline(prepared.commands)):
            return prepared, InlineLoop(prepared, self.topology, self.backend, by_hand, **limits)
        if config.mode == FIXED:
            limits |= {"depth": config.depth, "capture": config.capture}
            return prepared, FixedLoop(prepared, self._resources, self.backend, **limits)
        priority = priorities(config.strategy, self._problem, assignment, seed)
        return prepared, DynamicLoop(
            prepared,
            self._resources,
            self.backend,
            priority,
            synchronous=config.synchronous,
            **limits,
        )

    def _put_in_place(self, prepared: Prepared) -> None:
        """Write inputs where they are before a run; another one may have used their places."""
        if self._ready is not prepared or prepared.overwrites:
            for tensor, place in prepared.in_place:
                assert self._loaded is not None
                self._loaded.write(tensor, place)
            self._ready = prepared

    def _prepare(self, assignment: Assignment, seed: int) -> Prepared:
        """What was prepared for an assignment, or is now; a few are kept."""
        assert self._problem is not None
        config = self.config
        if self._generation != self.backend.generation:  # memory that they use was given up
            self._drop_prepared()
            self._arena_bytes = [0] * self.topology.num_devices
        key = (assignment, seed if config.strategy == RANDOM else 0, config)
        found = self._prepared.get(key)
        if found is None or found.assignment is not assignment:
            assignment.check(self._problem.graph, self.topology)
        if found is not None:
            self._prepared.move_to_end(key)
            return found
        preparation = self._prepares_with(
            self._problem,
            self.backend,
            self._loaded,
            fixed=config.mode == FIXED,
            synchronous=config.synchronous,
            limit_memory=config.limit_memory,
            strategy=config.strategy,
        )
        tables = preparation.tables(assignment, seed)
        pairs = zip(tables.places.top, self._arena_bytes, strict=True)
        needed = [max(pair) for pair in pairs]
        if needed != self._arena_bytes:
            self._drop_prepared()  # what they use has to grow
            self._arena_bytes = needed
        while len(self._prepared) >= MAX_PREPARED:
            self._prepared.popitem(last=False)
        prepared = None
        with suppress(OutOfMemoryError):  # when this ends, nothing holds the arenas any more
            prepared = preparation.prepare(assignment, tables)
        if prepared is None:
            # Devices may share memory, and each has kept as much as any assignment needed there.
            self._drop_prepared()
            self.backend.free_arenas()
            self._arena_bytes = list(tables.places.top)
            prepared = preparation.prepare(assignment, tables)
        self._prepared[key], self._generation = prepared, self.backend.generation
        return prepared

    def _forget(self) -> None:
        self._problem = self._loaded = None
        self._drop_prepared()

    def _drop_prepared(self) -> None:
        self._prepared.clear()
        self._ready = None

    @property
    def is_cancelled(self) -> bool:
        """Whether the run under way is to stop."""
        return self._cancelled.is_set()


def execute(
    graph: Graph | str | Path,
    topology: Topology | str | Path,
    assignment: Assignment | str | Path,
    *,
    inputs: Mapping[str, Any] | None = None,
    backend: str | Backend = "cpu",
    config: EngineConfig | None = None,
    repeats: int = 1,
    warm_up: int = 0,
) -> Execution:
    """The outputs and the measured trace of running a graph under an assignment.

    Each may be given as the path of its file, and the topology as the name of a preset. Where
    `torch.distributed` is initialised, every rank calls this alike and runs its part; the outputs
    are on rank 0.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64, dtype="float32"), parts=2)
    >>> assignment = dp.place(graph, "cpu2", "round-robin")
    >>> result = dp.execute(graph, "cpu2", assignment, backend="cpu")
    >>> result.outputs["add"].shape
    (64, 64)
    """
    from doppler.engine.ranks.opening import open_engine

    graph, assignment = as_graph(graph), as_assignment(assignment)
    with open_engine(topology, backend, config) as engine:
        return engine.execute(graph, assignment, inputs, repeats=repeats, warm_up=warm_up)
