"""compile: a module as a callable that runs on all devices of a machine."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from doppler.assignment import Assignment
from doppler.engine.engine import Engine, EngineConfig
from doppler.errors import ConfigError, DopplerError, EngineError, WrongTypeError
from doppler.frontends.coarsen import PIECES, check_coarsening
from doppler.frontends.torch_export import from_torch
from doppler.frontends.torch_model import TorchModel
from doppler.graph.graph import Graph
from doppler.machine.here import HERE, this_machine
from doppler.placers.registry import place
from doppler.plan import DeviceLoad, device_loads
from doppler.problem import Problem
from doppler.resolve import as_topology
from doppler.scheduler.choose import DYNAMIC, FIXED
from doppler.sim.config import SimConfig
from doppler.sim.simulator import Simulator
from doppler.topology.topology import Topology
from doppler.trace import Trace

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileConfig:
    """How a module is compiled, and when it is not.

    >>> import doppler as dp
    >>> dp.CompileConfig(placer="heft", budget_s=None).min_gain
    0.05
    """

    placer: str = "auto"  # a name from `dop list placers`
    budget_s: float | None = 2.0  # for a placer that searches; None for one that does not
    coarsen: str | int = PIECES  # as `from_torch` takes it
    min_gain: float = 0.05  # predicted, against the best single device, for a plan to pay
    max_shapes: int = 8  # sets of shapes that are compiled

    def __post_init__(self) -> None:
        check_coarsening(self.coarsen)
        if not 0 <= self.min_gain < 1:
            raise ConfigError(f"min_gain is {self.min_gain}, must be at least 0 and below 1")
        if self.max_shapes < 1:
            raise ConfigError(f"max_shapes is {self.max_shapes}, must be at least 1")


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """What runs where, and how long that is predicted to take."""

    graph: Graph
    topology: Topology
    assignment: Assignment
    mode: str  # of the engine: "dynamic" or "fixed"
    predicted_s: float
    single_s: float  # on the best single device
    loads: tuple[DeviceLoad, ...]  # of each device, as predicted

    @property
    def gain(self) -> float:
        """The part of the time on a single device that is saved."""
        return 1 - self.predicted_s / self.single_s if self.single_s else 0.0


class _Ready:
    """A module for one set of shapes, on an engine of its own, with its weights in place."""

    def __init__(self, model: TorchModel, plan: CompiledPlan, backend: str) -> None:
        self.model, self.plan = model, plan
        self._engine = Engine(plan.topology, backend, EngineConfig(mode=plan.mode))

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the module returns."""
        inputs = self.model.inputs(*args, **kwargs)
        plan = self.plan
        results = self._engine.compute(plan.graph, plan.assignment, inputs)
        leaves = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        if leaves and leaves[0].device.type != "cpu":
            results = {name: x.to(leaves[0].device) for name, x in results.items()}
        return self.model.outputs(results, inputs)

    def trace(self) -> Trace:
        """A measured run with the arguments of the last one; buffers keep their values."""
        weights = self.model.weights
        before = {name: weights[name].clone() for name in self.model.mutated}
        trace = self._engine.run(self.plan.graph, self.plan.assignment)
        for name, value in before.items():
            weights[name].detach().copy_(value)
        return trace

    def close(self) -> None:
        self._engine.close()


class CompiledModule:
    """A module that runs by a plan; called as the module is, and returns what it returns.

    Weights are where they are needed from the first call on. Other shapes, dtypes or constants than
    before are compiled when they first come. Nothing is recorded for gradients: where one is
    needed, in training mode, and where a plan would not pay, the module itself runs; `explain` says
    why.

    >>> import doppler as dp, torch
    >>> module = torch.nn.Linear(4, 2).eval()
    >>> same = dp.compile(module, (torch.ones(3, 4),), topology="cpu2", budget_s=0.1)
    >>> print(same.explain())
    runs as it is: a plan would save 0.0 % of the time on one device, less than 5 %
    """

    def __init__(
        self,
        module: torch.nn.Module,
        topology: Topology,
        config: CompileConfig,
        *,
        backend: str,
        force: bool = False,
    ) -> None:
        self._module, self._topology, self._config = module, topology, config
        self._backend, self._force = backend, force
        self._ready: dict[Any, _Ready | str] = {}  # by guard: a plan, or why there is none
        self._last: _Ready | str = "it has not been called"
        self._lock = Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        with self._lock:
            ready = self._last = self._find(args, kwargs)
            if isinstance(ready, _Ready):
                return ready.run(args, kwargs)
        return self._module(*args, **kwargs)

    @property
    def plan(self) -> CompiledPlan | None:
        """The plan of the last call; None where the module itself ran."""
        return self._last.plan if isinstance(self._last, _Ready) else None

    def explain(self) -> str:
        """What runs where and why, of the last call, for people."""
        if isinstance(self._last, str):
            return f"runs as it is: {self._last}"
        plan = self._last.plan
        lines = [
            f"{len(plan.graph.assigned)} pieces on {plan.topology.num_devices} devices of "
            f"{plan.topology.name}, mode {plan.mode}: predicted {_ms(plan.predicted_s)}, "
            f"{100 * plan.gain:.0f} % less than {_ms(plan.single_s)} on one device"
        ]
        lines += [
            f"  {each.device}: {each.operations} pieces, computes {_ms(each.exec_s)}, receives "
            f"{each.bytes_in / 1e6:.3g} MB, holds up to {each.peak_bytes / 1e6:.3g} MB"
            for each in plan.loads
        ]
        return "\n".join(lines)

    def trace(self) -> Trace:
        """A measured run with the arguments of the last call."""
        with self._lock:
            if isinstance(self._last, str):
                raise EngineError(f"there is no plan to trace: {self._last}")
            return self._last.trace()

    def close(self) -> None:
        """Give back threads and memory; the next call makes them anew."""
        with self._lock:
            for ready in self._ready.values():
                if isinstance(ready, _Ready):
                    ready.close()
            self._ready.clear()

    def _find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Ready | str:
        """What is ready for such arguments, or made ready now; or why nothing is."""
        leaves, spec = tree_flatten((args, kwargs))
        if self._module.training:
            return "it is in training mode"
        if torch.is_grad_enabled() and any(
            isinstance(x, torch.Tensor) and x.requires_grad for x in leaves
        ):
            return "an argument requires a gradient"
        try:
            guard = (str(spec), tuple(map(_guard, leaves)))
            hash(guard)
        except TypeError:
            return "an argument is neither a tensor nor a constant"
        if guard not in self._ready:
            if len(self._ready) >= self._config.max_shapes:
                return f"{self._config.max_shapes} sets of shapes were compiled, as many as may be"
            self._ready[guard] = self._compile(args, kwargs)
        return self._ready[guard]

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Ready | str:
        try:
            model = from_torch(self._module, args, kwargs, coarsen=self._config.coarsen)
            plan = make_plan(model.graph, self._topology, self._config)
        except DopplerError as error:
            _log.warning("the module runs as it is: %s", error.message)
            return error.message
        if plan.gain < self._config.min_gain and not self._force:
            least = 100 * self._config.min_gain
            reason = (
                f"a plan would save {100 * plan.gain:.1f} % of the time on one device, "
                f"less than {least:.3g} %"
            )
            _log.info("the module runs as it is: %s", reason)
            return reason
        return _Ready(model, plan, self._backend)


def compile(  # noqa: A001
    module: torch.nn.Module,
    example_inputs: tuple[Any, ...] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    topology: Topology | str | Path = HERE,
    budget_s: float | None = None,
    config: CompileConfig | None = None,
    backend: str | None = None,
    force: bool = False,
) -> CompiledModule:
    """The module as a callable that runs on all devices of a topology.

    `here` is this machine, which is measured once. `budget_s`, to search for a plan, is that of
    `config` where it is left out. Where no plan for the example saves enough, or the module cannot
    be traced, the module itself runs; `force` asks for the best plan anyway.

    >>> import doppler as dp, torch
    >>> module, x = torch.nn.Linear(4, 2).eval(), torch.ones(3, 4)
    >>> fast = dp.compile(module, (x,), topology="cpu2", budget_s=0.1, force=True)
    >>> torch.equal(fast(x), module(x)), len(fast.plan.graph.assigned)
    (True, 1)
    >>> fast.close()
    """
    if not isinstance(module, torch.nn.Module):
        raise WrongTypeError("module", module, "a torch.nn.Module")
    config = config or CompileConfig()
    if budget_s is not None:
        config = replace(config, budget_s=budget_s)
    machine = this_machine() if topology == HERE else as_topology(topology)
    on_gpus = any(device.address.startswith("cuda") for device in machine.devices)
    compiled = CompiledModule(
        module,
        machine,
        config,
        backend=backend or ("cuda" if on_gpus else "cpu"),
        force=force,
    )
    with compiled._lock:
        compiled._last = compiled._find(tuple(example_inputs), dict(example_kwargs or {}))
    return compiled


def make_plan(graph: Graph, topology: Topology, config: CompileConfig) -> CompiledPlan:
    """The best of what the placer finds and of all vertices on one device, as predicted."""
    problem = Problem(graph, topology)
    found = _predictions(problem, place(graph, topology, config.placer, budget_s=config.budget_s))
    single_s = float("inf")
    for d in range(topology.num_devices):
        try:
            alone = _predictions(problem, Assignment(devices=np.where(graph.is_input, -1, d)))
        except DopplerError:  # it has too little memory
            continue
        single_s = min(single_s, alone[0].trace.makespan_s)
        found += alone
    best = min(found, key=lambda each: each.trace.makespan_s)
    loads = tuple(device_loads(graph, topology, best.trace))
    predicted_s = best.trace.makespan_s
    return CompiledPlan(graph, topology, best.assignment, best.mode, predicted_s, single_s, loads)


class _Prediction(NamedTuple):
    assignment: Assignment
    mode: str
    trace: Trace


def _predictions(problem: Problem, assignment: Assignment) -> list[_Prediction]:
    """An assignment in each mode, the faster first."""
    found = []
    for mode in (DYNAMIC, FIXED):
        simulator = Simulator(problem, SimConfig(mode=mode))
        found.append(_Prediction(assignment, mode, simulator.run(problem.graph, assignment)))
    return sorted(found, key=lambda each: each.trace.makespan_s)


def _guard(leaf: Any) -> Any:
    """What a plan relies on of an argument."""
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device
    hash(leaf)
    return type(leaf), leaf


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
