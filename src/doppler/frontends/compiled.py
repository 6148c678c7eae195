"""compile: a module as a callable that runs on all devices of a machine."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten

from doppler.engine.config import EngineConfig
from doppler.engine.engine import Engine
from doppler.errors import (
    DopplerError,
    EngineError,
    ModelError,
    WrongTypeError,
)
from doppler.frontends.compilation.compiled_plans import (
    CompileConfig,
    CompiledPlan,
    best_parts,
)
from doppler.frontends.compilation.explaining import explanation, write_plan_report
from doppler.frontends.compilation.guards import ModuleGuard, ValuesGuard, arguments_guard
from doppler.frontends.torch_export import (
    exported,
    make_functional,
)
from doppler.frontends.torch_model import TorchModel
from doppler.machine.here import HERE, this_machine
from doppler.resolve import as_topology
from doppler.scheduler.choose import FIXED
from doppler.topology.topology import Topology
from doppler.trace import Trace

_log = logging.getLogger(__name__)


class _Ready:
    """A module for one set of shapes, on an engine of its own, with its weights in place."""

    def __init__(self, model: TorchModel, plan: CompiledPlan, backend: str) -> None:
        self.model, self.plan = model, plan
        inline = sum(each.operations > 0 for each in plan.loads) == 1
        mode = FIXED if inline else plan.mode  # on one device there is nothing to choose
        self._engine = Engine(plan.topology, backend, EngineConfig(mode=mode, inline=inline))
        self._sources = ValuesGuard(model.sources)
        self._has_values = not any(each.is_meta for each in model.weights.values())

    def is_current(self) -> bool:
        """Whether what was computed ahead is still what it would be."""
        return self._sources.holds()

    def run(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        leaves: Sequence[Any],
        spec: TreeSpec,
    ) -> Any:
        """What the module returns for these arguments, which flatten to those leaves."""
        model, plan = self.model, self.plan
        if spec == model.in_spec and self._has_values:
            inputs = {**model.weights, **model.named_inputs(leaves, spec)}
        else:  # keywords in another order, or weights without values, which is an error
            inputs = model.inputs(*args, **kwargs)
        results = self._engine.compute(plan.graph, plan.assignment, inputs)
        given = next((x.device for x in leaves if isinstance(x, torch.Tensor)), None)
        if given is not None and given.type != "cpu":
            results = {name: x.to(given) for name, x in results.items()}
        return model.outputs(results, inputs)

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
    before are compiled when they first come, and so is a module whose parameters or parts were
    replaced. Nothing is recorded for gradients: where one is needed, in training mode, under
    autocast, and where a plan would not pay, the module itself runs; `explain` says why.

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
        self._module_guard, self._changes = ModuleGuard(module), 0
        self._lock = Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        leaves, spec = tree_flatten((args, kwargs))
        with self._lock:
            ready = self._last = self._find(args, kwargs, leaves, spec)
            if isinstance(ready, _Ready):
                return ready.run(args, kwargs, leaves, spec)
        return self._module(*args, **kwargs)

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Compile for such arguments, without a call."""
        with self._lock:
            self._last = self._find(args, kwargs, *tree_flatten((args, kwargs)))

    @property
    def plan(self) -> CompiledPlan | None:
        """The plan of the last call; None where the module itself ran."""
        return self._last.plan if isinstance(self._last, _Ready) else None

    def explain(self, *, pieces: bool = False) -> str:
        """What runs where and why, of the last call, for people.

        With `pieces`, there is a line for each piece: its device, and what the predicted time
        would be if this piece alone were on another.
        """
        if isinstance(self._last, str):
            return f"runs as it is: {self._last}"
        return explanation(self._last.plan, pieces=pieces)

    def report(self, path: str | Path, *, force: bool = False) -> None:
        """Write an HTML page: the plan of the last call as predicted, and as it is measured now."""
        with self._lock:
            ready = self._planned("report on")
            measured = ready.trace()
        write_plan_report(ready.plan, measured, path, force=force)

    def trace(self) -> Trace:
        """A measured run with the arguments of the last call."""
        with self._lock:
            return self._planned("trace").trace()

    def close(self) -> None:
        """Give back threads and memory; the next call makes them anew."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        for ready in self._ready.values():
            if isinstance(ready, _Ready):
                ready.close()
        self._ready.clear()

    def _planned(self, what: str) -> _Ready:
        if isinstance(self._last, str):
            raise EngineError(f"there is no plan to {what}: {self._last}")
        return self._last

    def _find(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        leaves: Sequence[Any],
        spec: TreeSpec,
    ) -> _Ready | str:
        """What is ready for such arguments, or made ready now; or why nothing is."""
        if self._module.training:
            return "it is in training mode"
        if torch.is_grad_enabled() and any(
            isinstance(x, torch.Tensor) and x.requires_grad for x in leaves
        ):
            return "an argument requires a gradient"
        if torch._C._is_any_autocast_enabled():
            return "autocast is on"
        try:
            guard = arguments_guard(leaves, spec)
        except TypeError:
            return "an argument is neither a tensor nor a constant"
        limit = self._config.max_shapes
        if not self._holds(guard):
            self._changes += 1
            self._drop()
            self._module_guard = ModuleGuard(self._module)
        if self._changes > limit:
            return f"it was changed {limit} times after it was compiled, as often as may be"
        if guard not in self._ready:
            if len(self._ready) >= limit:
                return f"{limit} sets of shapes were compiled, as many as may be"
            self._ready[guard] = self._compile(args, kwargs)
        return self._ready[guard]

    def _holds(self, guard: Any) -> bool:
        """Whether the module is as it was compiled."""
        ready = self._ready.get(guard)
        is_current = not isinstance(ready, _Ready) or ready.is_current()
        return is_current and self._module_guard.holds()

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Ready | str:
        try:
            with torch.no_grad():
                program = make_functional(exported(self._module, args, kwargs))
            name = type(self._module).__name__
            model, plan = best_parts(program, self._topology, self._config, name)
            self._check_buffers(model)
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

    def _check_buffers(self, model: TorchModel) -> None:
        """A run writes to the module's own buffers, or to copies that the module never sees."""
        copied = [name for name in model.mutated if model.weights[name].device.type == "cpu"]
        if copied and self._backend == "cuda":
            raise ModelError(f"it writes its buffer `{copied[0]}`, which is on the host")


def compile(  # noqa: A001
    module: torch.nn.Module,
    example_inputs: tuple[Any, ...] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    topology: Topology | str | Path = HERE,
    parts: int | str | None = None,
    budget_s: float | None = None,
    config: CompileConfig | None = None,
    backend: str | None = None,
    force: bool = False,
) -> CompiledModule:
    """The module as a callable that runs on all devices of a topology.

    `here` is this machine, which is measured once. `parts` cuts operations into shards; `auto`
    takes 1, 2, 4, … up to the number of devices, whichever is predicted fastest. `parts` and
    `budget_s`, to search for a plan, are those of `config` where they are left out. Where no plan
    for the example saves enough, or the module cannot be traced, the module itself runs; `force`
    asks for the best plan anyway.

    >>> import doppler as dp, torch
    >>> module, x = torch.nn.Linear(4, 2).eval(), torch.ones(3, 4)
    >>> fast = dp.compile(module, (x,), topology="cpu2", budget_s=0.1, force=True)
    >>> torch.equal(fast(x), module(x)), len(fast.plan.graph.assigned)
    (True, 1)
    >>> fast.close()
    """
    if not isinstance(module, torch.nn.Module):
        raise WrongTypeError("module", module, "a torch.nn.Module")
    if not isinstance(example_inputs, tuple | list):
        raise WrongTypeError("example_inputs", example_inputs, "a tuple of arguments")
    if not isinstance(example_kwargs, Mapping | None):
        raise WrongTypeError("example_kwargs", example_kwargs, "a mapping of keyword arguments")
    config = config or CompileConfig()
    if budget_s is not None:
        config = replace(config, budget_s=budget_s)
    if parts is not None:
        config = replace(config, parts=parts)
    compiled = make_compiled(module, config, topology=topology, backend=backend, force=force)
    compiled.prepare(tuple(example_inputs), dict(example_kwargs or {}))
    return compiled


def make_compiled(
    module: torch.nn.Module,
    config: CompileConfig,
    *,
    topology: Topology | str | Path = HERE,
    backend: str | None = None,
    force: bool = False,
) -> CompiledModule:
    """A compiled module without any plan yet."""
    machine = this_machine() if topology == HERE else as_topology(topology)
    on_gpus = any(device.address.startswith("cuda") for device in machine.devices)
    backend = backend or ("cuda" if on_gpus else "cpu")
    return CompiledModule(module, machine, config, backend=backend, force=force)
