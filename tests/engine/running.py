"""Small graphs with kernels, machines to run them on, and backends that can be watched."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from sharding.test_evaluate import SIZES, positive_definite

from doppler.assignment import Assignment
from doppler.base.arrays import IntArray
from doppler.engine.backends.base import Action, Behind, Exec
from doppler.engine.backends.cpu import CpuBackend
from doppler.engine.backends.null import NullBackend
from doppler.graph import Graph
from doppler.programs import Program, ProgramBuilder, cholesky, exp, random_inputs, relu
from doppler.programs.registry import WORKLOADS
from doppler.sharding import shard
from doppler.sharding.evaluate import evaluate_graph
from doppler.tasks import Tasks
from doppler.topology import Device, Host, Link, Topology

Arrays = dict[str, Any]


def machine(
    size: int = 2,
    *,
    slots: int = 1,
    lanes: int = 1,
    memory_bytes: float = float("inf"),
    ahead: int = 0,
    host_lanes: int | None = None,
) -> Topology:
    """Equal devices, all joined by one link; another joins them to the host, if it has lanes."""
    speeds = {"float16": 1e9, "float32": 1e9, "float64": 1e9}
    devices = tuple(Device(f"d{i}", speeds, 1e9, memory_bytes, slots) for i in range(size))
    route = np.zeros((size, size), np.int64)
    np.fill_diagonal(route, -1)
    links = (Link("bus", 1e9, lanes=lanes),) if size > 1 else ()
    host_links: tuple[int, ...] = ()
    if host_lanes is not None:
        host_links = (len(links),) * size
        links = (*links, Link("host", 1e9, lanes=host_lanes))
    return Topology("test", devices, links, route, Host(ahead=ahead), host_links=host_links)


@cache
def workload(
    name: str, parts: int, method: str = "paper", dtype: str = "float32"
) -> tuple[Graph, Arrays, Arrays]:
    """A small graph of its kind, inputs, and what numpy makes of them."""
    if name == "cholesky":
        graph, inputs = cholesky(size=16, parts=parts, dtype=dtype), {}
        inputs["A"] = positive_definite(16, dtype)
    else:
        program = WORKLOADS[name].build(**SIZES[name], dtype=dtype)
        assert isinstance(program, Program)
        graph, inputs = shard(program, parts, method=method), random_inputs(program, seed=1)
    return graph, inputs, evaluate_graph(graph, inputs)


@cache
def chain(length: int = 6, size: int = 8) -> tuple[Graph, Arrays, Arrays]:
    """x → relu → exp → relu → …, each one vertex."""
    b = ProgramBuilder("chain")
    x = b.input("x", (size,))
    for i in range(length):
        x = (relu, exp)[i % 2](x, name=f"f{i}")
    graph = shard(b.build(x), 1)
    inputs = {"x": np.linspace(-1, 0.1, size, dtype=np.float32)}
    return graph, inputs, evaluate_graph(graph, inputs)


def assign(graph: Graph, devices: int | Sequence[int] | IntArray, seed: int = 0) -> Assignment:
    """Vertices on random devices, or on these; in topological order."""
    if isinstance(devices, int):
        devices = np.random.default_rng(seed).integers(devices, size=graph.num_vertices)
    order = [v for v in graph.topological_order.tolist() if not graph.is_input[v]]
    return Assignment(np.where(graph.is_input, -1, devices), np.array(order))


def assert_close(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        error = np.abs(found[name].astype(float) - value.astype(float)).max()
        assert error <= 64 * np.finfo(value.dtype).eps * np.abs(value).max(), name


def vertex(graph: Graph, start: str) -> int:
    """The first vertex whose name starts like that."""
    return next(i for i, name in enumerate(graph.vertex_names) if name.startswith(start))


class VirtualBackend(NullBackend):
    """The null backend in virtual time: it stands still but while the engine waits."""

    def begin(self, commands: Any, *, timed: bool = True) -> None:
        super().begin(commands, timed=timed)
        self._now = 0.0

    def now_s(self) -> float:
        return self._now

    def _pause(self, seconds: float) -> None:
        self._now = self._running[0][0]


Instead = Callable[[Callable[[], None], torch.Tensor], Any]  # the kernel, and its output


class Spy(CpuBackend):
    """The CPU backend, counting what it is asked for; some kernels do something else as well."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology)
        self.instead: dict[int, Instead] = {}
        self.outputs: dict[int, torch.Tensor] = {}  # of the tasks prepared last
        self.puts = self.starts = self.prepared = 0

    def prepare(
        self,
        graph: Graph,
        tasks: Tasks,
        actions: Sequence[Action | None],
        behind: Behind | None = None,
    ) -> Any:
        self.prepared += 1
        self.outputs, watched = {}, []
        for task, action in enumerate(actions):
            if isinstance(action, Exec):
                last = action.launches[-1]
                out = last.keywords.get("out", getattr(last.func, "__self__", None))
                self.outputs[task] = out
                action = Exec(action.device, (partial(self._launch, task, action.launches, out),))
            elif action is not None:
                self.outputs[task] = action.output
            watched.append(action)
        return super().prepare(graph, tasks, watched, behind)

    def _launch(self, task: int, launches: Sequence[Callable[[], Any]], out: torch.Tensor) -> None:
        def kernel() -> None:
            for launch in launches:
                launch()

        if task in self.instead:
            self.instead[task](kernel, out)
        else:
            kernel()

    def start(self, task: int) -> None:
        self.starts += 1
        super().start(task)

    def put(self, value: torch.Tensor, device: int) -> torch.Tensor:
        self.puts += 1
        return super().put(value, device)
