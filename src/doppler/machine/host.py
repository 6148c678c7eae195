"""What the host costs: tiny tasks through the engine, and how busy it is in runs of a graph."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from doppler.assignment import Assignment
from doppler.base.progress import track
from doppler.engine.backends.base import Backend, Commands
from doppler.engine.engine import Engine
from doppler.graph.builder import GraphBuilder
from doppler.graph.graph import Graph, Kernel
from doppler.graph.ops import OpKind
from doppler.machine.bench import Sample
from doppler.machine.robust import typical_s
from doppler.topology.topology import Host
from doppler.trace import Trace

TASKS = 128  # side by side; in a row half as many
REPEATS = 20
BUSY = 0.9  # share of the time from which a device, not the host, is what tasks wait for
ELEMENTS = 64


def measure_host(engine: Engine, samples: list[Sample]) -> Host:
    """The host's costs with which the simulator takes as long as the engine does.

    Side by side, tasks keep the host busy: each takes `dispatch_s` of it, to start it and to see
    it end. In a row, each begins `completion_s + dispatch_s` after the one before has ended.
    """
    apart = list(_runs(engine, TASKS, "side by side", samples))
    dispatch = typical_s([trace.makespan_s / len(trace.vertex) for trace in apart])
    if np.median([trace.utilization().max() for trace in apart]) > BUSY:
        dispatch = 0.0  # the host had time: the devices had none
    gap = typical_s(
        [
            (trace.makespan_s - float(trace.busy_s().sum())) / len(trace.vertex)
            for trace in _runs(engine, TASKS // 2, "in a row", samples)
        ]
    )
    completion = max(0.0, gap - dispatch)
    return replace(engine.topology.host, dispatch_s=dispatch, completion_s=completion)


class HostWatch:
    """A backend, and for how long the engine that drives it was busy: whenever it did not wait."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.reset()

    def reset(self) -> None:
        """Count from here on."""
        self._busy_s, self._run_s, self._tasks = 0.0, 0.0, 0

    @property
    def dispatch_s(self) -> float:
        """Seconds of the host per task, to start it and to see it end."""
        return (self._busy_s + self._run_s) / max(self._tasks, 1)

    @property
    def spin_s(self) -> float:
        """Of the backend."""
        return self._backend.spin_s

    @spin_s.setter
    def spin_s(self, value: float) -> None:
        self._backend.spin_s = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def begin(self, commands: Commands, *, timed: bool = True) -> None:
        """Start the clock of a run."""
        self._busy_s += self._run_s
        self._run_s = 0.0
        self._backend.begin(commands, timed=timed)

    def wait(self, timeout_s: float) -> list[int]:
        """The tasks that ended."""
        done = self._backend.wait(timeout_s)
        self._run_s = self._backend.now_s() - self._backend.idle_s
        self._tasks += len(done)
        return done


def _runs(engine: Engine, count: int, what: str, samples: list[Sample]) -> Iterator[Trace]:
    """Runs of tiny tasks, after the first; side by side on all devices, in a row on one."""
    graph = tiny_tasks(count, in_a_row=what == "in a row")
    spread = 1 if what == "in a row" else engine.topology.num_devices
    dealt = Assignment(np.where(graph.is_input, -1, np.arange(graph.num_vertices) % spread))
    for run in track(range(REPEATS + 1), f"measuring the host, {what}"):
        trace = engine.run(graph, dealt)
        if run:
            samples.append(Sample("host", what, "", 0.0, trace.makespan_s / count))
            yield trace


def tiny_tasks(count: int, *, in_a_row: bool) -> Graph:
    """A graph of `count` tasks with next to nothing to do, each after the other or all at once."""
    builder = GraphBuilder("in a row" if in_a_row else "side by side")
    shape, size = (ELEMENTS,), 4.0 * ELEMENTS
    block = {"block": [[0, ELEMENTS]]}
    source = Kernel("input", (), (shape,), ("float32",), block)
    tensor = builder.op("x", OpKind.INPUT, reads=[], output_bytes=size, kernel=source, meta_op="x")
    reads = tensor
    for k in range(count):
        attributes = {"fn": "relu", "operands": [0], "axes": [[0]], **block}
        kernel = Kernel(OpKind.INPUT_ELEMWISE, (reads,), (shape,), ("float32",), attributes)
        tensor = builder.op(
            *(f"y{k}", OpKind.INPUT_ELEMWISE),
            reads=[reads],
            output_bytes=size,
            flops=ELEMENTS,
            touched_bytes=2 * size,
            kernel=kernel,
            meta_op=f"y{k}",
        )
        reads = tensor if in_a_row else reads
    return builder.build()
