"""Engine: an Executor that runs assignments on real devices (Alg. 1 in real time)."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self

import numpy as np

from doppler.assignment import Assignment
from doppler.base.arrays import FloatArray, unbox_fields
from doppler.base.notebook import html_table, number
from doppler.base.progress import track
from doppler.engine.backends.base import Backend, Done
from doppler.engine.backends.registry import make_backend
from doppler.engine.values import Loaded, Values
from doppler.errors import ConfigError, EngineError
from doppler.graph.graph import Graph
from doppler.problem import Problem
from doppler.programs.numpy_ops import Array
from doppler.resolve import as_assignment, as_graph, as_topology
from doppler.scheduler.choose import FIFO, check_strategy, priorities
from doppler.scheduler.state import SchedulerState
from doppler.tasks import Tasks, enumerate_tasks
from doppler.topology.topology import Topology
from doppler.trace import Trace, build_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine schedules, and when it gives up.

    >>> import doppler as dp
    >>> dp.EngineConfig(strategy="critical-path").synchronous
    False
    """

    strategy: str = FIFO  # ChooseTask: a name from `dop list strategies`
    synchronous: bool = False  # a barrier after every level (the systems of Table 1)
    limit_memory: bool = True  # tasks wait for device memory
    timeout_s: float = 60.0  # without any task ending, before a run is given up

    def __post_init__(self) -> None:
        unbox_fields(self)
        check_strategy(self.strategy)
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}, must be positive")


@dataclass(frozen=True, slots=True)
class Execution:
    """What running an assignment gave.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64, dtype="float32"), parts=2)
    >>> assignment = dp.place(graph, "cpu2", "round-robin")
    >>> result = dp.execute(graph, "cpu2", assignment, repeats=3)
    >>> len(result.makespans_s), list(result.outputs)
    (3, ['add'])
    """

    trace: Trace  # of the run whose makespan is the median
    makespans_s: FloatArray  # (R,) of every measured run
    outputs: dict[str, Array] = field(default_factory=dict)  # the graph's results, whole

    def __repr__(self) -> str:
        mean_s, spread_s = number(self.mean_s), number(self.spread_s)
        counts = f"{len(self.makespans_s)} runs, {len(self.outputs)} outputs"
        return f"<Execution: {counts}, makespan {mean_s} ± {spread_s} s>"

    def _repr_html_(self) -> str:
        columns = ("output", "shape", "dtype")
        rows = ((name, str(x.shape), str(x.dtype)) for name, x in self.outputs.items())
        return html_table(repr(self), columns, rows, count=len(self.outputs))

    @property
    def mean_s(self) -> float:
        """Mean makespan."""
        return float(self.makespans_s.mean())

    @property
    def spread_s(self) -> float:
        """Standard deviation of the makespans."""
        return float(self.makespans_s.std())


class Engine:
    """Runs graphs with kernels on the devices of a topology; an Executor.

    One event loop drives the scheduler's state machine with real completions, and never waits
    while something can start. A graph's inputs and kernels stay loaded until another graph comes.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64, dtype="float32"), parts=2)
    >>> with dp.Engine("cpu2", "cpu") as engine:
    ...     trace = engine.run(graph, dp.place(graph, "cpu2", "heft"))
    >>> trace.makespan_s > 0
    True
    """

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
        self._loaded: Loaded | None = None
        self._cancelled = Event()

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
        """Give back devices, threads and memory."""
        self._loaded = None
        self.backend.close()

    def cancel(self) -> None:
        """Make the run under way stop with an error; from any thread."""
        self._cancelled.set()
        self.backend.wake()

    def load(self, graph: Graph, inputs: Mapping[str, Any] | None = None) -> None:
        """Get a graph ready: compile its kernels, and take these inputs, or random ones."""
        if not self.backend.computes:
            return
        if self._loaded is None or self._loaded.graph is not graph:
            self._loaded = None  # its memory first
            self._loaded = Loaded(graph, self.backend, inputs)
        else:
            self._loaded.set_inputs(inputs)

    def run(self, graph: Graph, assignment: Assignment, seed: int = 0) -> Trace:
        """Every begin and end of every exec and transfer, measured; inputs are those loaded.

        `seed` is for the strategy `random`.
        """
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
    ) -> Execution:
        """The results for these inputs, or for random ones, and how long they took.

        Runs `warm_up` times unmeasured, then `repeats` times.
        """
        if repeats < 1 or warm_up < 0:
            raise ConfigError("repeats must be at least 1, and warm_up not negative")
        self._cancelled.clear()
        self.load(graph, inputs)
        runs = []
        for n in track(range(warm_up + repeats), "running"):
            run = self._run(graph, assignment, seed, keep=n == warm_up + repeats - 1)
            if n >= warm_up:
                runs.append(run)
        makespans = np.array([trace.makespan_s for trace, _ in runs])
        median = int(np.argsort(makespans, kind="stable")[len(runs) // 2])
        return Execution(runs[median][0], makespans, runs[-1][1])

    def _run(
        self, graph: Graph, assignment: Assignment, seed: int, *, keep: bool = False
    ) -> tuple[Trace, dict[str, Array]]:
        assignment.check(graph, self.topology)
        if self._loaded is None or self._loaded.graph is not graph:
            self.load(graph)
        tasks = enumerate_tasks(graph, self.topology, assignment.devices)
        values = Values(self._loaded, tasks, self.backend) if self._loaded else None
        run = _Run(self, graph, assignment, tasks, values, seed)
        try:
            with _no_collection():
                run.loop()
            outputs = values.results() if values and keep else {}
        except BaseException:
            self.backend.stop()
            raise
        finally:
            if values:
                values.clear()
        times = (np.array(run.state.ready_s), run.begin, run.end)
        return build_trace(graph, self.topology, tasks, times, placer=assignment.placer), outputs

    @property
    def is_cancelled(self) -> bool:
        """Whether the run under way is to stop."""
        return self._cancelled.is_set()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's collector of cycles, which may take longer than a whole run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Run:
    """One run: the state machine, and when each task began and ended."""

    def __init__(
        self,
        engine: Engine,
        graph: Graph,
        assignment: Assignment,
        tasks: Tasks,
        values: Values | None,
        seed: int,
    ) -> None:
        self._engine, self._backend, self._values = engine, engine.backend, values
        self._graph, self._tasks = graph, tasks
        topology, config = engine.topology, engine.config
        self.state = SchedulerState(
            graph,
            topology,
            tasks,
            priorities(config.strategy, Problem(graph, topology), assignment, seed),
            synchronous=config.synchronous,
            limit_memory=config.limit_memory,
        )
        self._devices, self._links = tasks.devices.tolist(), tasks.link.tolist()
        self._ends = list(zip(tasks.source.tolist(), tasks.target.tolist(), strict=True))
        self.begin = np.zeros(graph.num_vertices + tasks.num_transfers)
        self.end = np.zeros_like(self.begin)
        self._running: dict[int, float] = {}  # task: when it was started

    def loop(self) -> None:
        """Run all tasks; an error where one fails, none ends for too long, or memory is short."""
        state, backend, engine = self.state, self._backend, self._engine
        backend.begin(self._graph, self._tasks)
        state.begin(0.0)
        while state.unfinished:
            while (task := state.choose()) is not None:
                self._start(task)
            if not self._running:
                raise state.stuck()
            done = backend.wait(engine.config.timeout_s)
            if engine.is_cancelled:
                raise EngineError("the run was cancelled")
            if not done:
                self._check_time()
            for each in done:
                self._finish(each)

    def _start(self, task: int) -> None:
        self._running[task] = self._backend.now_s()
        size = self._tasks.num_vertices
        try:
            if self._values is not None:
                self._values.start(task)
            elif task < size:
                self._backend.run(task, self._devices[task], None, (), None)
            else:
                k = task - size
                self._backend.copy(task, self._links[k], self._ends[k], None, None)
        except Exception as error:  # out of memory, or a kernel that fails when launched
            raise self._failure(task, error) from error

    def _finish(self, done: Done) -> None:
        if done.error is not None:
            raise self._failure(done.task, done.error) from done.error
        task, state = done.task, self.state
        del self._running[task]
        # Devices have clocks of their own, a few microseconds off the host's.
        self.begin[task] = max(done.begin_s, state.ready_s[task])
        self.end[task] = max(done.end_s, self.begin[task])
        state.release(task)
        if self._values is not None:
            self._values.finish(task)
        state.complete(task, max(self._backend.now_s(), float(self.end[task])))

    def _check_time(self) -> None:
        limit_s, now_s = self._engine.config.timeout_s, self._backend.now_s()
        late = [task for task, since_s in self._running.items() if now_s - since_s >= limit_s]
        if late:
            raise EngineError(
                f"{self._story(late[0])} did not end within {limit_s:g} s",
                hint="raise timeout_s if the work is that long",
            )

    def _failure(self, task: int, error: BaseException) -> EngineError:
        reason = str(error).strip().split("\n")[0] or "no reason given"
        return EngineError(f"{self._story(task)} failed: {type(error).__name__}: {reason}")

    def _story(self, task: int) -> str:
        """What a task is, where, since when, and how far the run was."""
        graph, size = self._graph, self._tasks.num_vertices
        names, devices = graph.vertex_names, self._engine.topology.devices
        if task < size:
            what = f"vertex `{names[task]}` ({graph.kinds[task]})"
            where = f"on device `{devices[self._devices[task]].name}`"
        else:
            source, target = self._ends[task - size]
            producer = int(graph.tensor_producer[self._tasks.tensor[task - size]])
            what = f"the transfer of the output of vertex `{names[producer]}`"
            where = f"from device `{devices[source].name}` to `{devices[target].name}`"
        total = len(self.begin) - int(graph.is_input.sum())
        done = total - self.state.unfinished
        ready_ms, started_ms = self.state.ready_s[task] * 1e3, self._running[task] * 1e3
        return (
            f"{what} {where}, ready at {ready_ms:.3f} ms and started at {started_ms:.3f} ms "
            f"after {done} of {total} tasks,"
        )


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

    Each may be given as the path of its file, and the topology as the name of a preset.

    >>> import doppler as dp
    >>> graph = dp.shard(dp.programs.chainmm(size=64, dtype="float32"), parts=2)
    >>> assignment = dp.place(graph, "cpu2", "round-robin")
    >>> result = dp.execute(graph, "cpu2", assignment, backend="cpu")
    >>> result.outputs["add"].shape
    (64, 64)
    """
    graph, assignment = as_graph(graph), as_assignment(assignment)
    with Engine(topology, backend, config) as engine:
        return engine.execute(graph, assignment, inputs, repeats=repeats, warm_up=warm_up)
